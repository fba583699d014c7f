from __future__ import annotations

import msgspec
import pytest

from hyperopt.gate import Policy, Samples, Threshold, check, check_samples
from hyperopt.gate.selftest import blind, grown, missed, slowed
from hyperopt.profile import Profile
from tests.gate.test_throughput import noisy, samples
from tests.samples import MIB, random_profile, worked_example


def test_c10c_what_is_put_in_fails_the_check() -> None:
    profile, series = worked_example(), samples(noisy(0, 10, 1.0))
    assert check(profile, profile, samples=series).verdict == "pass"
    found = check(profile, grown(profile, None), samples=slowed(series, 5.0))
    assert found.verdict == "regression" and not missed(found)


@pytest.mark.parametrize("slower", [0.5, 1.0, 1.3])
def test_the_candidates_own_effect_does_not_help_or_hide(slower: float) -> None:
    (found,) = check_samples(slowed(samples(noisy(0, 10, slower)), 5.0)).metrics
    assert found.status == "regression" and found.effect_percent == pytest.approx(15.0)
    (wide,) = check_samples(slowed(samples(noisy(0, 10, slower)), 20.0), Policy(tolerance_percent=20)).metrics
    assert wide.status == "regression" and wide.effect_percent == pytest.approx(30.0)


@pytest.mark.parametrize("series", [samples(noisy(0, 6, 1.0)), samples(noisy(0, 10, 1.0, 0.5))])
def test_a_gate_that_cannot_see_says_so(series: Samples) -> None:
    found = check_samples(slowed(series, 5.0))
    assert found.verdict == "inconclusive" and missed(found)


@pytest.mark.parametrize("profile", [worked_example(), random_profile(3), random_profile(4)])
@pytest.mark.parametrize("threshold", [None, Threshold(bytes=MIB), Threshold(percent=3.0)])
def test_memory_grows_beyond_what_is_allowed(profile: Profile, threshold: Threshold | None) -> None:
    found = check(profile, grown(profile, threshold), Policy(threshold))
    assert found.memory.status == "regression" and not missed(found)


def test_what_could_not_be_found_in_what_was_given_is_said() -> None:
    example = worked_example(framework="a")
    assert blind(check(example, example)) == []
    assert "different framework" in blind(check(example, worked_example(framework="b")))[0]
    bare = tuple(msgspec.structs.replace(o, reads=(), writes=()) for o in example.operators)
    silent = msgspec.structs.replace(example, operators=bare, storages=())
    assert "no storages" in blind(check(example, silent))[0]
