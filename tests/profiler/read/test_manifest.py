"""What the manifest says of a profile: the source's figures apart from the replayed ones, and shares that add up."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hyperopt.occupancy import occupancy
from hyperopt.profile import IDLE, Device, Measured, Operator, Profile, Run, Storage
from profiler.read.entries import accepted, refused
from profiler.read.findings import Findings
from profiler.read.manifest import Manifest, Rank
from tests.samples import MIB, random_profile, worked_example


def entry(profile: Profile, findings: Findings | None = None) -> Rank:
    return accepted(0, "made up", "place", "rank_0.json.gz", profile, findings or Findings(root=Path("/")))


def peaky() -> Profile:
    """Peak 100 MiB: base 40, a storage of 50, workspace of 10; 30 ms, of which 10 idle and 5 only on another stream."""
    operators = (
        Operator(name="a", duration_us=10_000.0, writes=(0,)),
        Operator(name="b", duration_us=5_000.0, reads=(0,), workspace_bytes=10 * MIB),
        Operator(name="wait", type=IDLE, duration_us=15_000.0),
        Operator(name="c", stream="communication", duration_us=5_000.0),
    )
    return Profile(
        operators=operators,
        storages=(Storage(id=0, bytes=50 * MIB),),
        device=Device(base_bytes=40 * MIB),
        measured=Measured(
            step_us=30_000.0, step_us_spread=7.0, peak_bytes=100 * MIB, reserved_bytes=120 * MIB, external_bytes=9 * MIB
        ),
        run=Run(notes=("a note",)),
    )


def test_the_sources_figures_and_the_replayed_ones() -> None:
    rank = entry(peaky())
    assert (rank.step_us, rank.step_us_spread, rank.replayed_step_us) == (30_000.0, 7.0, 30_000.0)
    assert rank.peak_bytes == rank.replayed_peak_bytes == 100 * MIB
    assert (rank.base_bytes, rank.reserved_bytes, rank.external_bytes) == (40 * MIB, 120 * MIB, 9 * MIB)
    assert (rank.status, rank.reason, rank.warnings, rank.notes) == ("accepted", "", (), ("a note",))


def test_fragmentation_is_what_is_reserved_beyond_the_peak() -> None:
    assert entry(peaky()).fragmentation_bytes == 20 * MIB

    def said(**changes: int) -> int | None:
        measured = msgspec.structs.replace(peaky().measured or Measured(), **changes)
        return entry(msgspec.structs.replace(peaky(), measured=measured)).fragmentation_bytes

    assert said(reserved_bytes=100 * MIB) == 0
    assert said(reserved_bytes=0) is said(peak_bytes=0) is said(reserved_bytes=99 * MIB) is None
    assert entry(worked_example()).fragmentation_bytes is None


def test_times_that_no_64_bits_hold_are_still_added_up() -> None:
    longest = 2.0**53
    profile = Profile(operators=(*(Operator(duration_us=longest),) * 4, *peaky().operators[2:3]), storages=())
    assert entry(profile).coverage.step == 1.0


def test_shares_of_step_and_peak() -> None:
    shares = entry(peaky()).coverage
    assert shares.step == pytest.approx(20 / 30, abs=1e-6), "idle time explains nothing, another stream does"
    assert (shares.peak, shares.workspace, shares.base) == (0.5, 0.1, 0.4)


@pytest.mark.parametrize("seed", range(200))
def test_shares_of_the_peak_are_those_of_the_occupancy(seed: int) -> None:
    profile = random_profile(seed, operators=12 + seed % 40)
    shares, held = entry(profile).coverage, occupancy(profile)
    assert shares.step is not None and 0 <= shares.step <= 1
    if held.peak_bytes:
        workspace = sum(block.bytes for block in held.at_peak if block.storage is None)
        assert shares.workspace == pytest.approx(workspace / held.peak_bytes, abs=1e-6)
        assert shares.base == pytest.approx(held.base_bytes / held.peak_bytes, abs=1e-6)
        assert (shares.peak or 0) + (shares.workspace or 0) + (shares.base or 0) == pytest.approx(1, abs=3e-6)


def test_computing_time_is_the_sources_or_the_sum_of_the_compute_stream() -> None:
    assert entry(peaky()).computing_us == 15_000.0
    findings = Findings(root=Path("/"), computing_us=123.0, stage=3)
    assert (entry(peaky(), findings).computing_us, entry(peaky(), findings).stage) == (123.0, 3)
    assert refused(1, "x", "y", "why", findings).computing_us == 123.0


def test_the_stage_of_operators_counts_where_they_agree() -> None:
    def staged(*stages: int | None) -> Profile:
        return Profile(operators=tuple(Operator(duration_us=1.0, stage=s) for s in stages), storages=())

    assert entry(staged(1, None, 1)).stage == 1
    assert entry(staged(1, 2)).stage is None


def test_a_timing_only_profile_has_no_memory() -> None:
    rank = entry(Profile(operators=(Operator(duration_us=1.0),), storages=()))
    assert rank.timing_only and rank.replayed_step_us == 1.0
    assert (rank.replayed_peak_bytes, rank.base_bytes, rank.peak_bytes, rank.coverage.peak) == (None, None, None, None)


def test_kinds_that_the_measured_peak_leaves_out_are_added_before_it_is_compared() -> None:
    measured = Measured(peak_bytes=256 * MIB, excludes=("parameter",))
    first, *others = worked_example().storages
    weights = msgspec.structs.replace(first, kind="parameter", resident_at_start=True)
    profile = msgspec.structs.replace(worked_example(), measured=measured, storages=(weights, *others))
    assert entry(profile).warnings == ()


def test_every_field_is_plain_json() -> None:
    manifest = Manifest(path="p", kind="made up", ranks=(entry(peaky()),))
    tree = msgspec.json.decode(msgspec.json.encode(manifest))
    assert tree["ranks"][0]["coverage"] == {"step": 0.666667, "peak": 0.5, "workspace": 0.1, "base": 0.4}
    assert manifest.usable and not Manifest(path="p", kind="unknown", warnings=("nothing",)).usable
