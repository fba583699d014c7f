from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyperopt.profile import Profile
from hyperopt.replay import replay
from hyperopt.store import Database
from hyperopt.store.profiles import add_profile
from hyperopt.store.queries import NotPlannable, access_frequency, alive_at_peak, longest_idle
from tests.samples import MIB, encoded, random_profile, worked_example
from tests.store.conftest import Keep


def test_what_fills_memory_at_the_peak_largest_first(database: Database, keep: Keep) -> None:
    id, _ = keep(worked_example())
    with database.read() as session:
        peak = alive_at_peak(session, id, limit=2)
    assert peak is not None
    assert (peak.peak_op, peak.operator, peak.at_us, peak.peak_bytes) == (4, "op4", 40_000, 768 * MIB)
    assert [(s.name, s.bytes) for s in peak.storages] == [("A", 512 * MIB), ("B", 128 * MIB)]
    assert (peak.alive_count, peak.alive_bytes, peak.workspace_bytes) == (3, 768 * MIB, 0)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6))
def test_base_workspace_and_storages_explain_the_whole_peak(database: Database, seed: int) -> None:
    profile = random_profile(seed)
    timeline = replay(profile)
    with database.write() as session:
        id, _ = add_profile(session, "default", profile, [], encoded(profile), timeline)
        peak = alive_at_peak(session, id)
        assert peak is not None
        assert (
            peak.base_bytes + peak.workspace_bytes + peak.alive_bytes
            == peak.peak_bytes
            == timeline.peak_bytes
        )


def test_what_lies_idle_longest(database: Database, keep: Keep) -> None:
    id, _ = keep(worked_example())
    with database.read() as session:
        idle = longest_idle(session, id)
    assert idle is not None
    assert [(s.name, s.idle_us, s.after_op, s.before_op) for s in idle] == [
        ("A", 80_000, 0, 9),
        ("B", 40_000, 2, 7),
    ]
    assert idle[0].byte_seconds == pytest.approx(512 * MIB * 0.08)


def residents(profile: Profile, **ends: bool) -> Profile:
    storages = tuple(msgspec.structs.replace(s, **ends) if s.id == 2 else s for s in profile.storages)
    return msgspec.structs.replace(profile, storages=storages)


@pytest.mark.parametrize(
    ("ends", "idle_us", "after_op", "before_op", "wraps"),
    [
        ({"resident_at_start": True, "resident_at_end": True}, 80_000, 5, 4, True),
        ({"resident_at_start": True}, 40_000, None, 4, False),
        ({"resident_at_end": True}, 40_000, 5, None, False),
    ],
)
def test_idle_time_at_the_ends_of_the_step(
    database: Database,
    keep: Keep,
    ends: dict[str, bool],
    idle_us: float,
    after_op: int,
    before_op: int,
    wraps: bool,
) -> None:
    id, _ = keep(residents(worked_example(), **ends))
    with database.read() as session:
        idle = longest_idle(session, id)
    assert idle is not None
    found = next(s for s in idle if s.name == "C")
    assert (found.idle_us, found.after_op, found.before_op, found.wraps) == (
        idle_us,
        after_op,
        before_op,
        wraps,
    )


def test_a_resident_that_nothing_touches_is_idle_all_step(database: Database, keep: Keep) -> None:
    profile = worked_example()
    spare = msgspec.structs.replace(profile.storages[0], id=9, resident_at_start=True, resident_at_end=True)
    id, _ = keep(msgspec.structs.replace(profile, storages=(*profile.storages, spare)))
    with database.read() as session:
        idle = longest_idle(session, id, limit=1)
    assert idle is not None and (idle[0].storage, idle[0].idle_us) == (9, 100_000)


def test_access_frequency_by_kind_and_layer(database: Database, keep: Keep) -> None:
    profile = worked_example()
    storages = (
        msgspec.structs.replace(profile.storages[0], kind="parameter", steps_observed=8, steps_accessed=8),
        msgspec.structs.replace(profile.storages[1], kind="parameter", steps_observed=8, steps_accessed=2),
        profile.storages[2],
    )
    id, _ = keep(msgspec.structs.replace(profile, storages=storages))
    with database.read() as session:
        found = access_frequency(session, id)
    assert found is not None
    assert [(f.kind, f.layer, f.storages, f.bytes, f.reads, f.writes, f.frequency) for f in found] == [
        ("parameter", "layers.0", 2, 640 * MIB, 2, 2, 10 / 16),
        ("activation", "layers.0", 1, 128 * MIB, 1, 1, None),
    ]


def test_questions_about_an_unknown_profile_have_no_answer(database: Database) -> None:
    with database.read() as session:
        for question in (alive_at_peak, longest_idle, access_frequency):
            assert question(session, "profile-nobody") is None


def test_a_timing_only_profile_cannot_answer_about_memory(database: Database, keep: Keep) -> None:
    profile = worked_example()
    bare = tuple(msgspec.structs.replace(o, reads=(), writes=()) for o in profile.operators)
    id, _ = keep(msgspec.structs.replace(profile, operators=bare, storages=()))
    with database.read() as session:
        for question in (alive_at_peak, longest_idle):
            with pytest.raises(NotPlannable, match="timing-only"):
                question(session, id)
        assert access_frequency(session, id) == []
