"""The bench of the solver: what it counts, that it judges for itself, and that it goes on where it was."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from bench import solver
from bench.cases import STEPS, Step
from bench.contender import OURS, Job
from bench.growth import OPERATORS, Series, plot
from bench.table import Case, Line, rows, summary
from bench.trial import Bench, Outcome, Record, judged, run
from hyperopt.plan import Budget
from hyperopt.profile import Profile
from hyperopt.testing.traces import TRACES, generate
from solver.residency.rival import rival_plan
from tests.samples import MIB, worked_example


def outcome(contender: str, step_us: float | None, **kwargs: Any) -> Outcome:
    known: dict[str, Any] = {
        "trace": "a",
        "operators": 1000,
        "seed": 0,
        "percent": 50,
        "code": "c",
        "limit_s": 10.0,
        "solve_seed": 0,
        "group": "small",
        "count": 1000,
        "budget_bytes": 1,
        "unplanned_peak_bytes": 2,
        "unlimited_us": 1000.0,
        "status": "out of memory" if step_us is None else "plan",
        "step_us": step_us,
        "seconds": 9.0,
    }
    return Outcome(contender=contender, **{**known, **kwargs})


def case(ours: float | None, *rivals: float | None, **kwargs: Any) -> Case:
    known: dict[str, Any] = {"bound_us": 1000.0} if ours is not None else {"status": "infeasible"}
    others = {f"r{i}": outcome(f"r{i}", step) for i, step in enumerate(rivals)}
    return Case(outcome(OURS, ours, **{**known, **kwargs}), others, "small")


def line(lines: list[Line], what: str) -> Line:
    return next(found for found in lines if found.what.startswith(what))


def test_the_steps_are_as_many_and_as_large_as_the_issue_says() -> None:
    sizes = [step.size for step in STEPS]
    assert (sizes.count("small"), sizes.count("medium"), sizes.count("large")) == (16, 6, 2)
    assert len({step.name for step in STEPS if step.size == "small"}) == 16
    assert {step.name for step in STEPS} == set(TRACES)
    for step in STEPS[:16]:
        assert len(generate(step.name, step.operators, step.seed).operators) <= 2_000


def test_the_share_of_overhead_is_counted_where_the_best_rival_is_over_one_per_cent() -> None:
    assert case(1010.0, None, 1020.0, 1050.0).share == pytest.approx((10 + 1) / (20 + 1))
    assert case(1010.0, 1010.0).share is None
    assert case(1010.0, None).share is None
    assert case(None, 1020.0).share == math.inf
    lines = summary([case(1000.0, 1099.0), case(1008.0, 1080.0), case(1000.0, 1001.0)])
    assert line(lines, "overhead of ours").seen.startswith(f"{math.sqrt(1 / 100 * 9 / 81):.3f} over 2 cases")
    assert line(lines, "overhead of ours").met


def test_times_count_to_a_plan_of_at_most_one_and_a_half_times_the_final_distance() -> None:
    found = case(1010.0, progress=((0.1, 1300.0), (2.0, 1015.0), (3.0, 1010.0)))
    assert (found.first_s, found.near_s) == (0.1, 2.0)
    assert case(1010.0).near_s == 9.0
    at_bound = case(1000.0, progress=((0.1, 1000.001), (4.0, 1000.0)))
    assert at_bound.near_s == 4.0


def test_no_plan_where_a_rival_has_one_is_a_miss_and_a_proof_of_it_a_defect() -> None:
    lines = summary([case(None, 1020.0, proven=True)])
    assert line(lines, "step / bound, median").met is False
    assert line(lines, "ours above a rival").met is False
    assert line(lines, "said to be out of reach").met is False
    lines = summary([case(None, None, proven=True)])
    assert line(lines, "cases with a plan").seen == "0 of 1; 1 proven out of reach, 0 where nobody has a plan"
    assert line(lines, "ours above a rival").met
    assert line(lines, "ours without a plan").met


def test_a_plan_below_our_bound_is_a_defect() -> None:
    assert line(summary([case(1010.0, 999.999)]), "a plan faster").met is False
    assert line(summary([case(1010.0, 1000.0)]), "a plan faster").met


def test_a_row_has_a_cell_for_every_head() -> None:
    heads, ruler, *body = rows([case(1010.0, None, 1005.0), case(None, None)], ["r0", "r1"])
    assert {text.count("|") for text in (heads, ruler, *body)} == {heads.count("|")}
    assert "1.0100 **above**" in body[0] and "1.0050 r1" in body[0] and "OOM" in body[0]
    assert "none found" in body[1]


def judge(profile: Profile, name: str, budget: int, told_us: float | None, given: int | None = None) -> Outcome:
    plan = rival_plan(profile, name, Budget(hbm_bytes=given or budget))
    return judged(outcome(name, None, budget_bytes=budget, status="plan"), profile, msgspec.json.encode(plan), told_us)


def test_plans_are_judged_on_the_case_s_budget_whatever_they_say_of_themselves() -> None:
    profile = worked_example()
    assert judge(profile, "keep-all", 768 * MIB, 100_000.0).step_us == 100_000.0
    over = judge(profile, "keep-all", 640 * MIB, 100_000.0, given=768 * MIB)
    assert over.status == "illegal" and over.step_us is None
    assert judge(profile, "keep-all", 768 * MIB, 99_000.0).detail.startswith("predicted ")
    assert judged(outcome("x", None, status="plan"), profile, b"{", None).status == "illegal"


def test_a_record_torn_by_an_interruption_is_read_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "solver.jsonl"
    first, second = outcome("a", 1.0), outcome("b", 2.0)
    Record(path).add(first)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(second)[:40])
    Record(path).add(second)
    assert list(Record(path).known.values()) == [first, second]


def test_a_child_that_is_over_its_time_is_ended(tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    text = 'import time\nprint(\'{"kind": "start"}\', flush=True)\ntime.sleep(600)\n'
    (tmp_path / "bench" / "contender.py").write_text(text)
    job = Job(contender="x", profile="", plan="", budget_bytes=1, limit_s=0.1, give_up_s=0.1)
    assert run(job, tmp_path, 0.1).last.kind == "timeout"
    (tmp_path / "bench" / "contender.py").write_text("import sys\nsys.exit('no such luck')\n")
    ended = run(job, tmp_path, 0.1)
    assert ended.last.kind == "failed" and ended.last.detail == "exit 1: no such luck"


def compiled(bench: Bench) -> None:
    """Only what our search needs, where its own warming up would run steps of thousands of operators."""
    if not (bench.sources / "warm").exists():
        code = "from solver.residency.warm import warm; warm()"
        subprocess.run([sys.executable, "-c", code], cwd=bench.sources, check=True)
        (bench.sources / "warm").touch()


def test_a_run_makes_a_table_and_the_next_measures_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(solver, "STEPS", (Step("qwen3-0.6b", 300),))
    monkeypatch.setattr("bench.trial.Bench._warm_up", compiled)
    given = ["--sizes", "small", "--budgets", "70", "--rivals", "keep-all,longest-gap", "--small-s", "1"]
    given += ["--folder", str(tmp_path), "--markdown", str(tmp_path / "table.md")]
    assert solver.main(given) == 0
    table = (tmp_path / "table.md").read_text()
    found = {o.contender: o for o in Record(tmp_path / "solver.jsonl").known.values()}
    assert set(found) == {OURS, "keep-all", "longest-gap"}
    assert found[OURS].status == "plan" and found[OURS].rss_bytes > 2**20
    assert found["keep-all"].status == "out of memory"
    assert "| qwen3-0.6b | " in table and "| a plan faster than our bound | 0 | 0 of 1 | yes |" in table
    assert '"missing": 0' in (tmp_path / "solver.json").read_text()
    capsys.readouterr()
    assert solver.main([*given, "--report"]) == 0
    assert solver.main(given) == 0
    assert "3 of 3 outcomes are on record" in capsys.readouterr().out
    assert len(Record(tmp_path / "solver.jsonl").path.read_bytes().splitlines()) == 3


def test_the_plot_of_growth_has_its_lines_inside_and_says_how_it_grows() -> None:
    points = tuple((n, n**1.5 * 1e-4) for n in OPERATORS)
    drawn = plot([Series("a", points, "#000", False), Series("none", (), "#000", True)], "title")
    root = ElementTree.fromstring(drawn)
    (line_,) = root.iter("{http://www.w3.org/2000/svg}polyline")
    places = [tuple(map(float, pair.split(","))) for pair in line_.attrib["points"].split()]
    assert all(0 < x < 760 and 0 < y < 440 for x, y in places)
    assert places == sorted(places) and [y for _, y in places] == sorted((y for _, y in places), reverse=True)
    assert "grows as n^1.50" in drawn
