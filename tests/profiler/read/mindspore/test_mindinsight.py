from __future__ import annotations

from pathlib import Path

import pytest

from hyperopt.profile import COMPUTE, IDLE, Profile
from hyperopt.replay import replay
from profiler.read.findings import Findings, UnreadableError
from profiler.read.mindspore import mindinsight
from profiler.read.ranks import RankFiles
from tests.conftest import ABSENT, SHARED_DATA
from tests.profiler.read.mindspore.pipeline_files import detail_rows, write_pipeline


def read(files: RankFiles) -> tuple[Profile, Findings]:
    findings = Findings(root=files.path.parent)
    return mindinsight.read(files, findings), findings


def one(folder: Path, rank: int = 0) -> tuple[Profile, Findings]:
    return read(next(files for files in mindinsight.find(folder) if files.rank == rank))


def rewritten(folder: Path, rows: list[str]) -> tuple[Profile, Findings]:
    folder.mkdir(exist_ok=True)
    (folder / "step_trace_raw_0_detail_time.csv").write_text("\n".join(rows))
    return one(folder)


def test_ranks_are_found_by_names_and_nothing_else_is(tmp_path: Path) -> None:
    write_pipeline(tmp_path / "run", (10.0, 40.0, 20.0))
    (tmp_path / "run" / "other.csv").write_text("a,b\n")
    assert [files.rank for files in mindinsight.find(tmp_path / "run")] == [0, 1, 2]
    assert mindinsight.find(tmp_path) == []
    assert mindinsight.find(tmp_path / "run" / "other.csv") == []
    assert mindinsight.find(tmp_path / "run" / "step_trace_raw_2_detail_time.csv")[0].rank == 2


def test_ticks_are_ten_nanoseconds_and_replay_gives_the_measured_step(tmp_path: Path) -> None:
    profile, findings = one(write_pipeline(tmp_path), 1)
    assert profile.timing_only and profile.measured is not None
    assert profile.measured.step_us == 100_000.0 and profile.measured.step_us_spread == 0.0
    timeline = replay(profile)
    assert timeline.step_us == 100_000.0
    # Every communication starts in the replay where it was seen, 10 ms of computing apart.
    starts = {o.name: timeline.start[i] / 1e6 for i, o in enumerate(profile.operators) if o.stream != COMPUTE}
    assert starts == {"Receive-op663": 10.0, "AllReduce-op4542": 40.0, "Receive-op794": 70.0}
    computing = sum(o.duration_us for o in profile.operators if o.stream == COMPUTE and o.type != IDLE)
    assert computing == pytest.approx(40_000.0)
    assert {o.stage for o in profile.operators} == {1} and findings.stage == 1
    assert findings.computing_us == 41_000.0, "the summary's own figure, in ms"
    assert any("2 receives and 0 sends" in note for note in profile.run.notes)


def test_the_last_row_is_an_average_and_no_step(tmp_path: Path) -> None:
    for average in ("-", "0"):
        rows = detail_rows(10.0, 4, 100.0)
        rows[-1] = average + rows[-1].removeprefix("-")
        profile, findings = rewritten(tmp_path, rows)
        assert any("medians of 4 steps, 1 to 4" in note for note in profile.run.notes)
        assert findings.dropped == []


def test_a_warm_up_is_left_out_and_named(tmp_path: Path) -> None:
    profile, findings = one(write_pipeline(tmp_path, first_ms=2163.8))
    assert profile.measured is not None and profile.measured.step_us == 100_000.0
    (warning,) = findings.warnings
    assert "step 1 left out as warm-up: 2163.8 ms" in warning and "2153.8 of them with communication" in warning


def test_a_first_step_without_its_beginning_is_left_out(tmp_path: Path) -> None:
    rows = detail_rows(10.0, 4, 100.0)
    cells = rows[1].split(",")
    cells[4] = cells[1]
    profile, findings = rewritten(tmp_path, [rows[0], ",".join(cells), *rows[2:]])
    assert findings.warnings == ["step 1 left out: its beginning was not recorded"]
    assert profile.run.step == 2


def test_the_order_of_columns_does_not_matter(tmp_path: Path) -> None:
    rows = [row.split(",") for row in detail_rows(10.0, 3, 100.0)]
    turned = [",".join(row[9:] + row[:9][::-1]) for row in rows]
    assert rewritten(tmp_path / "a", turned)[0] == rewritten(tmp_path / "b", detail_rows(10.0, 3, 100.0))[0]


def test_line_ends_tabs_and_a_trailing_comma(tmp_path: Path) -> None:
    plain = rewritten(tmp_path / "a", detail_rows(10.0, 3, 100.0))[0]
    rows = [row.replace(",", "\t,", 3) + "," for row in detail_rows(10.0, 3, 100.0)]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "step_trace_raw_0_detail_time.csv").write_bytes("\r\n".join(rows).encode())
    assert one(tmp_path / "b")[0] == plain


def test_broken_rows_are_dropped_and_named(tmp_path: Path) -> None:
    rows = detail_rows(10.0, 5, 100.0)
    rows[2] = rows[2].rpartition(",")[0]
    cells = rows[3].split(",")
    cells[2] = str(int(cells[1]) - 5)
    rows[3] = ",".join(cells)
    profile, findings = rewritten(tmp_path, rows)
    assert [(d.rows, d.lines) for d in findings.dropped] == [(1, (3,)), (1, (4,))]
    assert profile.measured is not None and profile.measured.step_us == 100_000.0


@pytest.mark.parametrize("cell", ["NaN", "-5", "inf", "1e400", "'; DROP TABLE profiles; --", ""])
def test_a_communication_that_makes_no_sense_is_not_guessed_about(tmp_path: Path, cell: str) -> None:
    rows = detail_rows(10.0, 3, 100.0)
    broken = [rows[0]]
    for row in rows[1:]:
        cells = row.split(",")
        cells[10] = cell
        broken.append(",".join(cells))
    profile, _ = rewritten(tmp_path, broken)
    assert "Receive-op663" not in {o.name for o in profile.operators}
    assert replay(profile).step_us == 100_000.0


def test_no_complete_step_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match=r"step_trace_raw_0_detail_time.csv has no complete step"):
        rewritten(tmp_path, detail_rows(10.0, 0, 100.0))
    with pytest.raises(UnreadableError, match=r"has no column end_point"):
        rewritten(tmp_path, ["step_num,start_point", "1,2"])


def test_a_summary_alone_still_gives_the_computing_time(tmp_path: Path) -> None:
    write_pipeline(tmp_path)
    (tmp_path / "step_trace_raw_1_detail_time.csv").unlink()
    files = mindinsight.find(tmp_path)[1]
    findings = Findings(root=tmp_path)
    with pytest.raises(UnreadableError, match=r"give step_trace_raw_1_detail_time\.csv"):
        mindinsight.read(files, findings)
    assert (findings.computing_us, findings.stage) == (41_000.0, 1)


def test_a_summary_without_its_column_is_told(tmp_path: Path) -> None:
    write_pipeline(tmp_path)
    (tmp_path / "ascend_cluster_analyse_pipeline-parallel_2_2_0.csv").write_text("a,b\n1,2\n")
    _, findings = one(tmp_path)
    assert findings.computing_us is None and "has no column computation_time" in findings.warnings[0]


def test_a_step_of_eleven_days_is_dropped(tmp_path: Path) -> None:
    rows = detail_rows(10.0, 4, 100.0)
    cells = rows[2].split(",")
    cells[2] = "9" * 17
    _, findings = rewritten(tmp_path, [*rows[:2], ",".join(cells), *rows[3:]])
    assert [(d.rows, d.lines) for d in findings.dropped] == [(1, (3,))]


@pytest.mark.skipif(not SHARED_DATA.exists(), reason=ABSENT)
def test_the_real_run(tmp_path: Path) -> None:
    for files in mindinsight.find(SHARED_DATA / "mindspore_pipeline"):
        profile, findings = read(files)
        assert profile.measured is not None and replay(profile).step_us == profile.measured.step_us
        assert findings.stage == (files.rank or 0) // 2 and findings.dropped == []
        assert profile.measured.step_us == pytest.approx(178_900, rel=1e-3)
        if files.rank == 2:
            assert "step 1 left out as warm-up: 2163.8 ms" in findings.warnings[0]
            assert findings.computing_us == pytest.approx(123_200, rel=1e-3)
