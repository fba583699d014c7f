"""Two distributions that install one folder: said at start, with the remedy."""

from __future__ import annotations

from importlib import metadata

import pytest

from hyperopt import names


def test_silent_where_only_ours_is_installed() -> None:
    assert names.clash() == ""


def test_names_both_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "version", lambda name: "0.2.7" if name == "hyperopt" else metadata.version(name))
    told = names.clash()
    assert "hyperopt-supernode" in told and "hyperopt 0.2.7" in told
    assert "pip uninstall -y hyperopt" in told and "--force-reinstall" in told
