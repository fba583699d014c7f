"""The sweep of this machine: what it asks for, that it goes on where it was, and one chunk of it for real."""

from __future__ import annotations

import subprocess
import sys
from math import prod
from pathlib import Path

import pytest

import profiler.calibrate as calibration
from hyperopt import profile as profiles
from hyperopt.cost.features import rows_of, samples_of
from hyperopt.cost.work import Table
from hyperopt.documents import write
from hyperopt.profile import Operator, Profile
from profiler.calibrate.child import typical
from profiler.calibrate.sweep import KINDS, LARGEST, Item, chunks, items


def test_the_sweep_is_the_same_every_time_and_holds_all_kinds() -> None:
    assert items() == items()
    assert {item.kind for item in items()} == set(KINDS)
    assert sum(map(len, chunks())) == len(items()) == sum(count for count, _ in KINDS.values())


def test_any_part_of_the_sweep_holds_most_kinds() -> None:
    """Time may run out anywhere: chunks deal all kinds in turn."""
    for some in (chunks()[:10], chunks()[20:30]):
        assert {item.kind for chunk in some for item in chunk} == set(KINDS)


def test_no_tensor_is_larger_than_said() -> None:
    assert all(prod(shape) <= 3 * LARGEST for item in items() for shape in (*item.shapes, item.output))


@pytest.mark.parametrize(
    ("item", "output"),
    [
        (Item("matmul", ((4, 5), (6, 5)), (1,)), (4, 6)),
        (Item("add", ((4, 6), (6,))), (4, 6)),
        (Item("sum", ((4, 5, 6),), (1, 0)), (4, 6)),
        (Item("sum", ((4, 5, 6),), (-1, 1)), (4, 5, 1)),
        (Item("transpose", ((4, 5, 6),), (0, 2, 1)), (4, 6, 5)),
        (Item("embedding", ((9, 4), (5,))), (5, 4)),
        (Item("tile", ((4, 1),), (1, 7)), (4, 7)),
        (Item("layer_norm", ((4, 6), (6,), (6,))), (4, 6)),
    ],
)
def test_what_comes_out_of_an_item(item: Item, output: tuple[int, ...]) -> None:
    assert item.output == output


def test_the_typical_time_is_not_moved_by_what_disturbed_most_executions() -> None:
    assert typical([10.0] * 4 + [11.0] * 4 + [500.0] * 23) == 10.5
    assert typical([3.0]) == 3.0


def chunk_profile(us: float) -> Profile:
    operator = Operator(
        name="Add-op0", type="Add", duration_us=us, shapes=((8,),) * 3, dtypes=("float32",) * 3, inputs=2
    )
    return Profile(operators=(operator,), storages=())


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stands in for the processes; lists the chunks that were asked for, and takes less time every time."""
    asked: list[str] = []

    def run(arguments: list[str]) -> str:
        asked.append(arguments[1])
        if len(asked) == 4:
            raise KeyboardInterrupt
        write(chunk_profile(100.0 - len(asked)), Path(arguments[2]))
        return ""

    monkeypatch.setattr(calibration, "_run", run)
    monkeypatch.setattr(calibration, "_copies", lambda parts, copiers, say: None)
    monkeypatch.setattr(calibration, "chunks", lambda: [()] * 3)
    return asked


def test_an_interrupted_sweep_goes_on_where_it_was(measured: list[str], tmp_path: Path) -> None:
    output = tmp_path / "cpu.json.gz"
    with pytest.raises(KeyboardInterrupt):
        calibration.calibrate(output)
    assert measured == ["0", "1", "2", "0"] and not output.exists()
    profile = calibration.calibrate(output)
    assert measured == ["0", "1", "2", "0", "0", "1", "2"]
    assert [o.duration_us for o in profile.operators] == [95.0, 94.0, 93.0]  # the smaller of both passes
    assert profiles.load(output.read_bytes())[0].timing_only and not output.with_name("cpu.json.gz.parts").exists()


def test_without_any_chunk_the_sweep_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(calibration, "_run", lambda arguments: "failed: no MindSpore")
    monkeypatch.setattr(calibration, "_copies", lambda parts, copiers, say: None)
    monkeypatch.setattr(calibration, "chunks", lambda: [()] * 2)
    told: list[str] = []
    with pytest.raises(calibration.CalibrationError, match="no chunk"):
        calibration.calibrate(tmp_path / "cpu.json", say=told.append)
    assert any("no MindSpore" in line for line in told)


def test_one_chunk_for_real(tmp_path: Path) -> None:
    output = tmp_path / "chunk.json.gz"
    command = [sys.executable, "-m", "profiler.calibrate.child", "operators", "0", str(output)]
    subprocess.run(command, check=True, capture_output=True)
    profile = profiles.load(output.read_bytes())[0]
    rows = rows_of(profile, Table.load())
    assert not rows.uncounted, "the sweep measures nothing that the table does not know"
    assert {"matmul", "elementwise", "reduction", "norm", "softmax", "gather", "move"} <= set(rows.families.tolist())
    assert {o.phase for o in profile.operators} == {"forward", "backward"}
    assert samples_of(rows).us.min() > 0
