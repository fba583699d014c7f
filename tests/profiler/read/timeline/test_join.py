"""Blocks of host time meet kernels of device time: peaks stay exact, steps stay as long as they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperopt.profile import COMPUTE, Profile
from hyperopt.replay import replay
from profiler.read.findings import Findings
from profiler.read.timeline.accesses import accesses
from profiler.read.timeline.events import BLOCKS, KERNELS, Events, Memory, Origin, Step
from profiler.read.timeline.join import profile_of
from profiler.read.timeline.lanes import busy_ns, idle_ns, lanes
from profiler.read.timeline.launches import launch_times
from profiler.read.timeline.lives import lives
from profiler.read.timeline.passes import passes
from profiler.read.timeline.pools import GHOST, UNLISTED, memory_of, pools_of
from profiler.read.timeline.steps import choose

MIB = 2**20


def kernels_of(*rows: dict[str, object]) -> pl.DataFrame:
    return pl.DataFrame([{"stream": "2", "duration": 0, **row} for row in rows], schema=KERNELS)


def blocks_of(*rows: tuple[str, int, int | None, int | None]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=BLOCKS, orient="row")


def highest(blocks: pl.DataFrame) -> int:
    """Most bytes at once, by brute force; what is given back at an instant makes room for what is taken then."""
    ghosts: int = sum(size for _, size, had, _ in blocks.iter_rows() if had is None)
    changes = [(had, size) for _, size, had, _ in blocks.iter_rows() if had is not None]
    changes += [(gone, -size) for _, size, _, gone in blocks.iter_rows() if gone is not None]
    level = top = ghosts
    for _, change in sorted(changes):
        level += change
        top = max(top, level)
    return top


@st.composite
def recorded(draw: st.DrawFn) -> Events:
    """Any kernels on any streams, any blocks, ghosts and leftovers among them."""
    times = st.integers(1, 60)
    launches = draw(st.booleans())
    kernels: list[dict[str, object]] = []
    for start in sorted(draw(st.lists(times, min_size=1, max_size=12))):
        stream = draw(st.sampled_from(["2", "2", "7", "communication"]))
        launched = draw(st.integers(0, start)) if launches else None
        times_of = {"start": start, "duration": draw(st.integers(0, 9)), "launched": launched}
        kernels.append({"name": "k", "stream": stream, **times_of})
    blocks = []
    for _ in range(draw(st.integers(0, 12))):
        had = draw(st.none() | times)
        gone = draw(st.none() | st.integers(had or 1, 70))
        blocks.append(("b", draw(st.integers(1, 2000)) * 512, had, gone))
    frame = blocks_of(*blocks)
    base = draw(st.integers(0, 5)) * MIB
    memory = Memory(peak_bytes=base + highest(frame), base_bytes=base) if frame.height else Memory()
    return Events(Origin(), kernels_of(*kernels), frame, memory)


@given(recorded())
def test_replay_gives_the_measured_step_and_the_measured_peak_to_the_byte(events: Events) -> None:
    profile = profile_of(events, Findings(Path()))
    assert profile.measured is not None
    found = replay(profile)
    if events.kernels.filter(pl.col("stream") != "communication").height and events.blocks.height:
        assert found.peak_bytes == events.memory.peak_bytes == profile.measured.peak_bytes
    assert found.step_us == pytest.approx(profile.measured.step_us, abs=0.002)


@given(recorded())
def test_what_the_device_computes_is_what_the_compute_stream_does(events: Events) -> None:
    profile = profile_of(events, Findings(Path()))
    listed = [o for o in profile.operators if o.type != "idle"]
    assert len(listed) == events.kernels.height
    assert sum(o.duration_us for o in listed) * 1e3 == pytest.approx(events.kernels["duration"].sum())
    starts = [o.start_us for o in profile.operators]
    assert starts == sorted(starts)


def test_a_block_that_no_launch_saw_is_workspace_and_no_storage() -> None:
    kernels = kernels_of(*({"name": f"k{i}", "start": t, "launched": t, "duration": 5} for i, t in enumerate((10, 20))))
    blocks = blocks_of(("a", 4 * MIB, 5, 30), ("temporary", 30 * MIB, 12, 15), ("workspace", 8 * MIB, 19, 21))
    profile = profile_of(Events(Origin(), kernels, blocks, Memory(peak_bytes=34 * MIB)), Findings(Path()))
    first, *_, last = [o for o in profile.operators if o.type != "idle"]
    assert [s.bytes for s in profile.storages] == [4 * MIB]
    assert first.workspace_bytes == 0 and last.workspace_bytes == 30 * MIB
    assert replay(profile).peak_bytes == 34 * MIB


def test_blocks_from_before_and_for_after_the_step() -> None:
    kernels = kernels_of(*({"name": f"k{i}", "start": 10 * i, "launched": 10 * i} for i in range(1, 4)))
    blocks = blocks_of((GHOST, 512, None, 15), ("kept", 1024, 15, None), ("both", 2048, None, None))
    found = lives(blocks, kernels["launched"].to_numpy(), None, None)
    assert (found.first.tolist(), found.last.tolist()) == ([0, 1, 0], [0, 2, 2])
    assert found.before.tolist() == [True, False, True] and found.after.tolist() == [False, True, True]
    assert found.peak_bytes == 2048 + 1024


def test_outputs_tell_when_a_kernel_was_launched_though_the_device_is_late() -> None:
    """The device runs 1000 behind the host; sizes join them, and workspace asked for with the output belongs to it."""
    shapes = ["1024", "4096", "2048"]
    rows = [
        {"name": f"k{i}", "start": 1000 + 100 * i, "outputs": shape, "output_types": "FLOAT"}
        for i, shape in enumerate(shapes)
    ]
    sizes = [4096 + 512, 16384 + 512, 8192 + 512]
    blocks = [(f"op{i}", size, 10 + 10 * i, 500) for i, size in enumerate(sizes)]
    blocks.insert(2, ("op1", 99 * 512, 21, 23))
    launched, sure = launch_times(kernels_of(*rows), blocks_of(*blocks))
    assert launched.tolist() == [11, 22, 31] and sure == 3


@given(recorded())
def test_launches_never_fall_and_are_never_after_their_start(events: Events) -> None:
    launched, _ = launch_times(events.kernels, events.blocks)
    assert (np.diff(launched) >= 0).all() and (launched <= events.kernels["start"].to_numpy()).all()


def test_a_stream_that_overlaps_itself_gets_another_beside_it() -> None:
    frame = kernels_of(*({"name": "k", "start": s, "duration": d} for s, d in ((0, 10), (5, 10), (12, 3))))
    assert [lane.stream for lane in lanes(frame, 0, 15) if lane.kernel >= 0] == [COMPUTE, f"{COMPUTE}-2", COMPUTE]
    assert busy_ns(frame) == 15


def test_idle_time_stands_where_it_began_before_what_starts_in_it() -> None:
    frame = kernels_of(
        {"name": "a", "start": 0, "duration": 10},
        {"name": "hcom", "start": 30, "duration": 20, "stream": "communication"},
        {"name": "b", "start": 60, "duration": 40},
    )
    assert [lane.kernel for lane in lanes(frame, 0, 110)] == [0, -1, 1, 2, -1]


def test_bubbles_are_idle_time_in_which_the_rank_sends_or_receives() -> None:
    frame = kernels_of(
        {"name": "a", "start": 0, "duration": 10},
        {"name": "hcom_receive_1", "start": 5, "duration": 25, "stream": "communication"},
        {"name": "hcom_allReduce_1", "start": 30, "duration": 10, "stream": "communication"},
        {"name": "b", "start": 60, "duration": 40},
    )
    assert idle_ns(frame, 110, pl.col("name").str.contains("receive")) == (60, 20)


def test_the_pool_s_totals_give_away_older_blocks_and_unlisted_ones() -> None:
    """Case C15. Base 100, 40 more that are gone at 30, and 8 that no row lists from 40 to 50."""
    unit = MIB
    rows = pl.DataFrame(
        [
            ("a", 4 * unit, 10, 60, 144 * unit, 100 * unit, 0, False),
            ("b", 2 * unit, 30, 50, 106 * unit, 104 * unit, 0, False),
            ("c", 2 * unit, 40, 45, 116 * unit, 114 * unit, 0, False),
        ],
        schema=["name", "bytes", "allocated", "freed", "total_after", "total_freed", "reserved", "graph_engine"],
        orient="row",
    )
    findings = Findings(Path())
    (pool,) = pools_of(rows, findings)
    assert pool.base_bytes == 100 * unit and pool.peak_bytes == 144 * unit
    extra = pool.blocks.filter(pl.col("name").is_in([GHOST, UNLISTED])).sort("bytes").rows()
    assert extra == [(UNLISTED, 8 * unit, 40, 50), (GHOST, 40 * unit, None, 30)]
    assert pool.base_bytes + highest(pool.blocks) == pool.peak_bytes
    assert len(findings.warnings) == 2


def test_components_are_cumulative_and_never_summed() -> None:
    record = {"PTA": (90, 100), "GE": (10, 20), "PTA+GE": (95, 120), "APP": (0, 150), "WORKSPACE": (500, 500)}
    memory = memory_of([], record, {"HCCL": 7}, False, Findings(Path()))
    assert (memory.peak_bytes, memory.reserved_bytes, memory.external_bytes) == (95, 120, 30)
    assert memory.external == {"HCCL": 7}


def test_micro_batches_are_told_apart_by_what_the_rank_sends() -> None:
    """Two micro-batches of two layers: forward, forward, backward, backward; then the optimizer."""
    order = ["E", "F", "F", "send", "F", "F", "send", "B", "B", "send", "B", "B", "reduceScatter", "LpNorm", "Adam"]
    names = {"F": "FlashAttentionScore", "B": "FlashAttentionScoreGrad", "send": "hcom_batchSendRecv_", "E": "GatherV2"}
    frame = kernels_of(*({"name": "n", "type": names.get(n, n), "start": i} for i, n in enumerate(order)))
    found = passes(frame)
    assert (found.layers, found.micro_batches) == (2, 2)
    assert "".join(phase[0] for phase in found.phase) == "fffffffbbbbbooo".replace("fffffffb", "ffffffbb", 1)
    assert found.micro_batch == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, None, None, None]


def test_scopes_of_mindspore_say_the_phase() -> None:
    scope = "Default/net/layers-CellList/3-Block"
    names = [f"{scope}/MatMul-op1", f"Gradients/{scope}/MatMul-op2"]
    found = passes(kernels_of(*({"name": name, "start": i} for i, name in enumerate(names))))
    assert found.phase == ["forward", "backward"]


def test_a_saved_activation_is_read_where_its_shape_comes_in() -> None:
    def kernel(place: int, inputs: str, outputs: str) -> dict[str, object]:
        shapes = {"inputs": inputs, "outputs": outputs, "input_types": "FLOAT;FLOAT", "output_types": "FLOAT"}
        return {"name": f"k{place}", "start": place * 10, "launched": place * 10, **shapes}

    shapes = [("", "256,4"), ("256,4", "8,8"), ("8,8", "2"), ("2;256,4", "3")]
    frame = kernels_of(*(kernel(place, *pair) for place, pair in enumerate(shapes, 1)))
    blocks = blocks_of(("a", 4096 + 512, 9, 45), ("b", 512, 19, 45))
    touched = accesses(frame, blocks, lives(blocks, frame["launched"].to_numpy(), None, None))
    assert touched.reads[1] == {0} and touched.tensor[0] == "256,4 FLOAT"


def steps(*spans: tuple[int, int, float], names: list[str] | None = None) -> Events:
    rows = [
        {"name": name, "start": start + 10 * i, "duration": 5 + number, "step": number}
        for number, (start, _, _) in enumerate(spans)
        for i, name in enumerate((names or ["ab"] * len(spans))[number])
    ]
    marked = tuple(Step(number, start, end, us) for number, (start, end, us) in enumerate(spans))
    return Events(Origin(), kernels_of(*rows), blocks_of(), Memory(), marked)


def test_warm_up_and_a_step_cut_short_do_not_count() -> None:
    findings = Findings(Path())
    events = steps((0, 90, 9.0), (100, 120, 1.0), (200, 220, 1.2), (300, 310, 0.4), names=["ab", "ab", "ab", "a"])
    chosen = choose(events, findings)
    assert chosen.steps == 2 and chosen.step.number in (1, 2) and chosen.spread_us == pytest.approx(0.2)
    assert any("left out (3)" in warning for warning in findings.warnings)
    assert any("warm-up" in warning for warning in findings.warnings)


def test_times_are_medians_over_the_steps() -> None:
    chosen = choose(steps((0, 20, 1.0), (100, 120, 1.1), (200, 220, 1.2)), Findings(Path()))
    assert chosen.step.us == pytest.approx(1.1) and chosen.kernels["duration"].to_list() == [6, 6]


def test_memory_of_one_of_several_steps_is_cut_where_the_host_turned() -> None:
    rows = [
        {"name": "k", "start": 100 * step + 10 * i, "launched": 100 * step + 10 * i, "duration": 5, "step": step}
        for step in range(3)
        for i in range(1, 4)
    ]
    blocks = blocks_of(*((f"b{step}", (step + 1) * 512, 100 * step + 12, 100 * step + 28) for step in range(3)))
    marked = tuple(Step(step, 100 * step + 10, 100 * step + 35, 0.1) for step in range(3))
    events = Events(Origin(), kernels_of(*rows), blocks, Memory(peak_bytes=3 * 512), marked)
    profile: Profile = profile_of(events, Findings(Path()))
    storage = next(iter(profile.storages), None)
    assert profile.run.step in (0, 1, 2)
    assert storage is None or storage.bytes == (profile.run.step + 1) * 512
    assert replay(profile).peak_bytes == 3 * 512  # what no listed block explains is base
