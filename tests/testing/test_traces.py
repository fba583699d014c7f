"""Made-up traces: they are legal, they are what they say, and the same arguments give the same bytes."""

from __future__ import annotations

import msgspec
import pytest

from hyperopt.documents import canonical
from hyperopt.profile import load
from hyperopt.replay import replay
from hyperopt.testing import TRACES, generate

NAMES = list(TRACES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("operators", [500, 900, 2000])
def test_a_trace_loads_without_warnings_has_its_size_and_fits_its_device(name: str, operators: int) -> None:
    made = generate(name, operators)
    profile, warnings = load(msgspec.json.encode(made))
    assert not warnings and canonical(profile) == canonical(made)
    assert abs(len(profile.operators) - operators) <= operators / 10
    free = replay(profile)
    assert replay(profile, hbm_bytes=profile.device.hbm_bytes).step_ns == free.step_ns
