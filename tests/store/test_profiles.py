from __future__ import annotations

import gzip

import msgspec
import pytest
from sqlalchemy import func, select, text

from hyperopt.replay import replay
from hyperopt.store import Database
from hyperopt.store.columns import unpack_times
from hyperopt.store.profiles import (
    ProjectConflict,
    add_profile,
    count_profiles,
    get_document,
    get_summary,
    list_summaries,
    profile_id,
)
from hyperopt.store.tables import Base, OperatorRow, Program, Rank, Run, StorageRow, Timings
from tests.samples import MIB, encoded, large_profile, worked_example
from tests.store.conftest import Keep


def rows(database: Database) -> dict[str, int]:
    with database.read() as session:
        return {
            table.name: session.scalar(select(func.count()).select_from(table)) or 0
            for table in Base.metadata.sorted_tables
        }


def slower(factor: float, **run: object):  # type: ignore[no-untyped-def]
    profile = worked_example(**run)
    operators = tuple(
        msgspec.structs.replace(o, duration_us=o.duration_us * factor) for o in profile.operators
    )
    return msgspec.structs.replace(profile, operators=operators)


def test_a_stored_profile_is_summed_up(database: Database, keep: Keep) -> None:
    id, new = keep(worked_example(name="nightly", rank=3, world_size=8))
    with database.read() as session:
        summary = get_summary(session, id)
    assert new and summary is not None
    assert (summary.operators, summary.storages, summary.rank, summary.world_size) == (10, 3, 3, 8)
    assert (summary.peak_bytes, summary.peak_op, summary.step_us) == (768 * MIB, 4, 100_000)
    assert summary.run_name == "nightly" and summary.project == "default" and not summary.timing_only


def test_the_same_profile_gets_the_same_id_and_adds_nothing(database: Database, keep: Keep) -> None:
    profile = worked_example()
    first = keep(profile)
    before = rows(database)
    again = keep(profile, raw=gzip.compress(encoded(profile)))
    assert first == (profile_id(profile.digest), True) and again == (first[0], False)
    assert rows(database) == before


def test_a_profile_belongs_to_one_project(keep: Keep) -> None:
    id, _ = keep(worked_example(), project="a")
    with pytest.raises(ProjectConflict, match=f"{id} belongs to project 'a'"):
        keep(worked_example(), project="b")


def test_ranks_of_a_run_share_program_and_run(database: Database, keep: Keep) -> None:
    for rank in range(4):
        keep(slower(1 + rank / 10, name="run", rank=rank, world_size=4))
    count = rows(database)
    assert (count["programs"], count["runs"], count["ranks"], count["timings"]) == (1, 1, 4, 4)
    assert (count["operators"], count["storages"]) == (10, 3)
    with database.read() as session:
        times = {unpack_times(t.duration_ns)[0] for t in session.scalars(select(Timings))}
    assert times == {10_000_000, 11_000_000, 12_000_000, 13_000_000}


def test_the_same_rank_again_is_another_run(database: Database, keep: Keep) -> None:
    keep(slower(1, name="run"))
    keep(slower(2, name="run"))
    assert rows(database)["runs"] == 2


def test_profiles_without_a_run_name_are_runs_of_their_own(database: Database, keep: Keep) -> None:
    keep(slower(1, rank=0))
    keep(slower(2, rank=1))
    assert rows(database)["runs"] == 2


def test_programs_of_two_projects_are_apart(database: Database, keep: Keep) -> None:
    keep(slower(1), project="a")
    keep(slower(2), project="b")
    assert rows(database)["programs"] == 2


def test_step_counts_add_up_over_the_profiles_of_a_program(database: Database, keep: Keep) -> None:
    def observed(factor: float, accessed: int):  # type: ignore[no-untyped-def]
        profile = slower(factor)
        storages = tuple(
            msgspec.structs.replace(s, steps_observed=10, steps_accessed=accessed if s.id == 1 else 10)
            for s in profile.storages
        )
        return msgspec.structs.replace(profile, storages=storages)

    keep(observed(1, 2))
    keep(observed(2, 1))
    keep(observed(2, 1))  # known already: not counted twice
    keep(slower(3))  # says nothing about steps
    with database.read() as session:
        counts = {
            s.storage: (s.steps_observed, s.steps_accessed) for s in session.scalars(select(StorageRow))
        }
    assert counts == {0: (20, 20), 1: (20, 3), 2: (20, 20)}


def test_lifetimes_and_access_counts(database: Database, keep: Keep) -> None:
    profile = worked_example()
    resident = msgspec.structs.replace(
        profile.storages[0], id=7, resident_at_start=True, resident_at_end=True
    )
    nowhere = msgspec.structs.replace(profile.storages[0], id=8)
    keep(msgspec.structs.replace(profile, storages=(*profile.storages, resident, nowhere)))
    with database.read() as session:
        found = {
            s.storage: (s.alive_from, s.alive_until, s.reads, s.writes, s.layer)
            for s in session.scalars(select(StorageRow))
        }
    assert found[1] == (2, 7, 1, 1, "layers.0")
    assert found[7] == (0, 9, 0, 0, "")
    assert found[8][0] > found[8][1], "neither resident nor touched: alive nowhere"


def test_a_failure_on_the_way_leaves_nothing(database: Database) -> None:
    profile = worked_example()
    with pytest.raises(RuntimeError, match="pulled the plug"), database.write() as session:
        add_profile(session, "default", profile, [], encoded(profile), replay(profile))
        raise RuntimeError("pulled the plug")
    assert set(rows(database).values()) == {0}


def test_the_document_comes_back_as_it_was_sent(database: Database, keep: Keep) -> None:
    raw = gzip.compress(encoded(worked_example()))
    id, _ = keep(worked_example(), raw=raw)
    with database.read() as session:
        document = get_document(session, id)
        assert document is not None and (document.data, document.encoding) == (raw, "gzip")
        assert get_document(session, "profile-nobody") is None
        assert get_summary(session, "profile-nobody") is None


def test_profiles_are_listed_newest_first_and_by_page(database: Database, keep: Keep) -> None:
    ids = [keep(slower(1 + i), project="even" if i % 2 == 0 else "odd")[0] for i in range(5)]
    with database.read() as session:
        assert [s.id for s in list_summaries(session)] == ids[::-1]
        assert [s.id for s in list_summaries(session, project="even")] == [ids[4], ids[2], ids[0]]
        first = list_summaries(session, limit=2)
        rest = list_summaries(session, limit=10, before=first[-1].id)
        assert [s.id for s in first + rest] == ids[::-1]
        assert count_profiles(session) == 5


def test_a_timing_only_profile_has_times_and_no_peak(database: Database, keep: Keep) -> None:
    profile = worked_example()
    bare = tuple(msgspec.structs.replace(o, reads=(), writes=()) for o in profile.operators)
    id, _ = keep(msgspec.structs.replace(profile, operators=bare, storages=()))
    with database.read() as session:
        summary = get_summary(session, id)
    assert summary is not None and summary.timing_only
    assert (summary.peak_bytes, summary.peak_op, summary.step_us) == (None, None, 100_000)


def test_a_large_profile_is_stored_whole(database: Database, keep: Keep) -> None:
    id, _ = keep(large_profile(20_000))
    with database.read() as session:
        program = session.scalar(select(Program).join(Rank).where(Rank.id == id))
        assert program is not None
        count = session.scalar(
            select(func.count()).where(OperatorRow.program_id == program.id).select_from(OperatorRow)
        )
        assert count == program.operators == 20_000
        assert unpack_times(session.get_one(Timings, id).duration_ns)[:3].tolist() == [1000, 2000, 3000]
        assert session.scalar(select(func.count()).select_from(Run)) == 1


def test_sqlite_is_set_up_for_a_service(database: Database) -> None:
    with database.read() as session:
        assert session.scalar(text("PRAGMA journal_mode")) == "wal"
        assert session.scalar(text("PRAGMA foreign_keys")) == 1
        assert session.scalar(text("PRAGMA synchronous")) == 2


def test_a_reader_is_not_held_up_by_a_writer(database: Database, keep: Keep) -> None:
    keep(slower(1))
    with database.write() as writing:
        profile = slower(2)
        add_profile(writing, "default", profile, [], encoded(profile), replay(profile))
        with database.read() as reading:
            assert count_profiles(reading) == 1
    with database.read() as reading:
        assert count_profiles(reading) == 2
