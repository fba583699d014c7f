"""Fewer trees in tests: the rules under test are the same, and a fit takes a fifth of the time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hyperopt.cost import residual


@pytest.fixture(scope="package", autouse=True)
def few_trees() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(residual, "OPTIONS", {**residual.OPTIONS, "max_iter": 60, "learning_rate": 0.2})
        yield
