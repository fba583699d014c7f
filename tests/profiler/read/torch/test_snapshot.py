"""Memory snapshots: peaks to the byte, what was there before recording counted, hostile files refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperopt.replay import replay
from profiler.read.findings import Findings, UnreadableError
from profiler.read.ranks import RankFiles
from profiler.read.torch import snapshot
from profiler.read.torch.snapshot import SOURCE, events_of
from tests.conftest import ABSENT, SHARED_DATA

SAMPLES = SHARED_DATA / "torch_npu_snapshots"
USER, LIBRARY = "/home/me/train.py", "/opt/python/lib/python3.11/site-packages/torch/nn/functional.py"


def event(action: str, addr: int, size: int, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": 0, "frames": [], **more}


def alloc(addr: int, size: int, **more: Any) -> list[dict[str, Any]]:
    return [event("alloc", addr, size, **more)]


def free(addr: int, size: int, **more: Any) -> list[dict[str, Any]]:
    return [event("free_requested", addr, size, **more), event("free_completed", addr, size, **more)]


def segment(*blocks: tuple[int, int, str], device: int = 0) -> dict[str, Any]:
    """(address, bytes, state) of its blocks; each was asked for with 12 bytes less."""
    listed = [{"address": a, "size": s, "requested_size": s - 12, "state": state} for a, s, state in blocks]
    total = sum(size for _, size, _ in blocks)
    return {"device": device, "address": blocks[0][0], "total_size": total, "blocks": listed}


def written(folder: Path, traces: list[Any], segments: list[Any] | None = None, name: str = "s.pkl") -> Path:
    path = folder / name
    path.write_bytes(pickle.dumps({"device_traces": traces, "segments": segments or []}, protocol=4))
    return path


def memory(path: Path, rank: int | None = None) -> tuple[Any, Findings]:
    findings = Findings(path.parent)
    return events_of(RankFiles(path, rank), findings), findings


def test_a_block_is_there_until_its_free_has_completed(tmp_path: Path) -> None:
    first, completed = free(1, 100)
    events, _ = memory(written(tmp_path, [[*alloc(1, 100), first, *alloc(2, 50), completed, *alloc(3, 60)]]))
    assert events.memory.peak_bytes == 150
    assert events.blocks["bytes"].to_list() == [100, 50, 60]
    assert events.blocks["freed"].to_list()[1:] == [None, None]
    assert events.blocks["allocated"].is_sorted()


def test_c15_what_stays_from_before_recording_is_base(tmp_path: Path) -> None:
    state = [segment((1, 112, "active_allocated"), (113, 512, "active_allocated"), (625, 99, "inactive"))]
    path = written(tmp_path, [[*alloc(1, 100), *alloc(5000, 40), *free(5000, 40)]], state)
    events, findings = memory(path)
    assert events.memory.base_bytes == 500 and events.memory.peak_bytes == 640
    assert events.memory.reserved_bytes == 723
    assert any("500 bytes (0.0 MiB) were allocated before recording" in warning for warning in findings.warnings)


def test_c15_what_goes_from_before_recording_is_there_until_then(tmp_path: Path) -> None:
    events, findings = memory(written(tmp_path, [[*alloc(1, 100), *free(7, 1000), *alloc(7, 30)]]))
    assert events.memory.base_bytes == 0 and events.memory.peak_bytes == 1100
    assert events.blocks.sort("bytes")["allocated"].to_list()[2] is None
    assert any("1,000 bytes" in warning and "counted from the start" in warning for warning in findings.warnings)


def test_a_block_twice_freed_or_twice_taken_is_told_and_counted_once(tmp_path: Path) -> None:
    trace = [*alloc(1, 100), *free(1, 100), *free(1, 100), *alloc(2, 50), *alloc(2, 70)]
    events, findings = memory(written(tmp_path, [trace]))
    assert events.memory.peak_bytes == 100
    assert [(drop.why, drop.rows) for drop in findings.dropped] == [("frees of what has been freed before", 1)]
    assert any("allocated again without a free" in warning for warning in findings.warnings)


def test_reserved_is_the_most_that_was_held(tmp_path: Path) -> None:
    trace = [
        event("segment_map", 0, 4096),
        *alloc(1, 100),
        event("segment_unmap", 0, 4096),
        event("segment_alloc", 0, 1024),
        event("segment_free", 0, 1024),
    ]
    events, _ = memory(written(tmp_path, [trace], [segment((1, 512, "active_allocated"))]))
    assert events.memory.reserved_bytes == 512 + 4096


def test_names_are_the_innermost_frame_of_the_user(tmp_path: Path) -> None:
    def frame(name: str, filename: str, line: int) -> dict[str, object]:
        return {"name": name, "filename": filename, "line": line}

    stack = [frame("relu", LIBRARY, 9), frame("step\x1b[2J\n", USER, 12), frame("main", USER, 40)]
    trace = [*alloc(1, 8, frames=stack), *alloc(2, 8, frames=stack[:1]), *alloc(3, 8), *alloc(4, 8, frames="no list")]
    events, _ = memory(written(tmp_path, [trace]))
    assert events.blocks["name"].to_list() == [
        "step [2J (train.py:12)",
        "relu (functional.py:9)",
        "no call stack",
        "no call stack",
    ]


def test_times_are_kept_where_there_are_any(tmp_path: Path) -> None:
    times = [1768383987920985, 1768383987920985, 1768383987920990]
    trace = [{**alloc(number, 8)[0], "time_us": time} for number, time in enumerate(times)]
    events, findings = memory(written(tmp_path, [trace]))
    assert events.blocks["allocated"].to_list() == [times[0] * 1000, times[0] * 1000 + 1, times[2] * 1000]
    assert not findings.missing
    trace[1].pop("time_us")
    _, findings = memory(written(tmp_path, [trace], name="without.pkl"))
    assert any("their order stands for it" in text for text in findings.missing)


def test_each_device_with_events_is_a_rank(tmp_path: Path) -> None:
    path = written(tmp_path, [[], alloc(1, 10), [], alloc(1, 30)], [segment((9, 20, "active_allocated"), device=3)])
    assert SOURCE.find(path) == [RankFiles(path, 1), RankFiles(path, 3)]
    assert [memory(path, rank)[0].memory.peak_bytes for rank in (1, 3)] == [10, 30 + 8]
    with pytest.raises(UnreadableError, match=r"events of devices \[1, 3\]"):
        memory(path, 0)
    alone = written(tmp_path, [[], alloc(1, 10)], name="snapshot_rank_12.pickle")
    assert SOURCE.find(alone) == [RankFiles(alone, 12)]
    assert memory(alone, 12)[0].memory.peak_bytes == 10


def test_events_that_are_none_are_dropped_and_named(tmp_path: Path) -> None:
    bad = [None, 7, {"action": 3}, event("alloc", 1, -5), event("alloc", 1, 2**60), event("dance", 1, 1)]
    events, findings = memory(written(tmp_path, [[*bad, *alloc(2, 10)]], [{"address": "x"}, 5]))
    assert events.memory.peak_bytes == 10
    told = {drop.why: (drop.rows, drop.lines) for drop in findings.dropped}
    assert told["events without the fields or figures of one"] == (5, (1, 2, 3, 4, 5))
    assert told["events of an unknown action"][0] == 1
    assert told["segments without the fields or figures of one"] == (2, (1, 2))


def test_running_out_of_memory_is_told(tmp_path: Path) -> None:
    _, findings = memory(written(tmp_path, [[*alloc(1, 10), *[event("oom", 0, 2**30)] * 1000]]))
    assert [w for w in findings.warnings if "out of memory 1000 times: up to 1,073,741,824" in w]


def test_what_is_no_snapshot_is_not_taken(tmp_path: Path) -> None:
    for name, value in {"a.pkl": [1, 2], "b.pkl": {"segments": []}, "c.pickle": {"device_traces": 3}}.items():
        (tmp_path / name).write_bytes(pickle.dumps(value))
        assert SOURCE.find(tmp_path / name) == []
    (tmp_path / "d.pkl").write_text("no pickle")
    assert SOURCE.find(tmp_path / "d.pkl") == [] and SOURCE.find(tmp_path) == []


def test_a_pickle_that_wants_to_import_is_a_rank_that_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil.pkl"
    path.write_bytes(b"\x80\x04cposix\nsystem\n(\x8c\x02lstR.")
    assert SOURCE.find(path) == [RankFiles(path, None)]
    with pytest.raises(UnreadableError, match=r"evil.pkl: the pickle wants posix\.system"):
        SOURCE.read(RankFiles(path), Findings(tmp_path))


def test_no_events_means_recording_was_off(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="switch recording on"):
        memory(written(tmp_path, [[], []], [segment((1, 512, "active_allocated"))]))


def test_lists_that_a_small_file_shares_a_million_times_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MAX_BLOCKS", 1000)
    one = segment((1, 512, "active_allocated"))
    one["blocks"] = one["blocks"] * 100
    with pytest.raises(UnreadableError, match="more than 1,000 blocks"):
        memory(written(tmp_path, [alloc(1, 1)], [one] * 11))
    frames = [{"name": "f", "filename": LIBRARY, "line": 1}] * 100_000
    many = [event("alloc", number, 1, frames=frames) for number in range(1000)]
    events, _ = memory(written(tmp_path, [many], name="frames.pkl"))
    assert events.blocks.height == 1000


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.integers(1, 1000)), min_size=1, max_size=60))
def test_the_profile_replays_to_the_peak(tmp_path_factory: pytest.TempPathFactory, moves: Any) -> None:
    """Any order of allocations and frees, of ghosts too: the peak of the events is the replayed one."""
    live: dict[int, int] = {}
    ghosts = {address: 77 for address, taken, _ in reversed(moves) if not taken}
    seen: set[int] = set()
    trace, level, levels = [], 0, [0]
    for address, taken, size in moves:
        if taken and address not in live:
            live[address] = size
            trace += alloc(address, size)
            level += size
        elif not taken and address in live:
            level -= live[address]
            trace += free(address, live.pop(address))
        elif not taken and address not in seen:
            level -= ghosts[address]
            trace += free(address, ghosts[address])
        else:
            continue
        seen.add(address)
        levels.append(level)
    if not trace:
        return
    before = -sum(77 for i, e in enumerate(trace) if e["action"] == "free_completed" and _first(trace, i))
    path = written(tmp_path_factory.mktemp("s"), [trace])
    findings = Findings(path.parent)
    profile = SOURCE.read(RankFiles(path), findings)
    assert replay(profile).peak_bytes == max(levels) - before
    assert profile.measured is not None and profile.measured.peak_bytes == max(levels) - before


def _first(trace: list[dict[str, Any]], place: int) -> bool:
    address = trace[place]["addr"]
    return all(e["addr"] != address or e["action"] == "free_requested" for e in trace[:place])


@pytest.mark.skipif(not SAMPLES.exists(), reason=ABSENT)
@pytest.mark.parametrize(
    ("name", "peak_mib", "base", "reserved_mib"),
    [("snapshot_1768383987920985470.pkl", 449.7, 0, 526), ("snapshot_expandable.pkl", 479.7, 94_326_992, 614)],
)
def test_real_snapshots(name: str, peak_mib: float, base: int, reserved_mib: int) -> None:
    """Peaks of the events as another tool gives them, and beside them the ghosts (C15: about 90 MB)."""
    (files,) = SOURCE.find(SAMPLES / name)
    events, findings = memory(files.path)
    figures = events.memory
    assert (figures.peak_bytes - figures.base_bytes) / 2**20 == pytest.approx(peak_mib, abs=0.05)
    assert figures.base_bytes == base and figures.reserved_bytes == reserved_mib * 2**20
    assert not findings.dropped and (base > 0) == any("94,326,992 bytes" in w for w in findings.warnings)
    profile = SOURCE.read(files, Findings(SAMPLES))
    assert replay(profile).peak_bytes == figures.peak_bytes
    assert profile.device.base_bytes == base
