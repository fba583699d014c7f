"""The search proper, apart from the exhaustive one: what it offers runs, what is kept is the best."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hyperopt.engine import run
from hyperopt.plan import Budget, Residency
from hyperopt.replay import replay
from solver.residency.bound import memory_bound, step_bound_ns
from solver.residency.candidates import reruns
from solver.residency.columns import SPEEDS, Solution, add_guides, solve_fluid
from solver.residency.draft import DROPPED, Table
from solver.residency.fluid import Fluid
from solver.residency.incumbent import Incumbent, Trial
from solver.residency.layout import FULLEST
from solver.residency.problem import Problem
from solver.residency.rounding import shares_by_gap
from solver.residency.search import CONTEST_ROUNDS, Found, Search
from solver.stop import BoundReached, Stop, WorkLimit
from tests.solver.test_draft import random_draft, timed
from tests.solver.test_residency import training_step


def problem_of(seed: int, share: float = 0.5) -> Problem:
    profile = training_step(seed)
    least = memory_bound(Problem(profile, Budget(hbm_bytes=0))).bytes
    peak = replay(profile).static_peak_bytes
    return Problem(profile, Budget(hbm_bytes=int(least + share * (peak - least))))


def search_of(problem: Problem, told: list[Trial], work: int = 60, *, guided: bool = True) -> Search:
    stop = Stop(BoundReached(), WorkLimit(work))
    incumbent = Incumbent(problem, stop, step_bound_ns(problem), told.append)
    fluid = Fluid(problem, 48)
    solution = solve_fluid(fluid, None) if guided else Solution.blank(fluid)
    return Search(problem, incumbent, Table(problem, reruns(problem)), fluid, solution, seed=0)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_kept_runs_and_better_plans_follow_worse_ones(seed: int) -> None:
    problem = problem_of(seed)
    told: list[Trial] = []
    search = search_of(problem, told)
    search.first()
    search.start()
    search.improve(rounds=40)
    search.incumbent.tell()
    best = search.incumbent.best
    if best is None:
        assert not told
        return
    assert told[-1] is best
    assert [trial.rank() for trial in told] == sorted((trial.rank() for trial in told), reverse=True)
    for trial in told:
        assert trial.within_budget
        assert trial.timeline.step_ns == trial.step_ns and trial.timeline.peak_bytes == trial.peak_bytes
        assert trial.peak_bytes <= problem.hbm_bytes


@pytest.mark.parametrize("seed", range(12))
def test_the_incumbent_keeps_the_lowest_rank_in_whatever_order(seed: int) -> None:
    problem = problem_of(seed, 0.8)
    table, dice = Table(problem, reruns(problem)), random.Random(seed)
    incumbent = Incumbent(problem, Stop(WorkLimit(10**6)), 0)
    ranks, peaks = [], []
    for _ in range(25):
        draft = random_draft(table, dice)
        timed(table, draft)
        orders = table.orders(draft)
        outcome = run(table.arrays, orders, problem.hbm_bytes, problem.budget.tiers)
        trial = incumbent.offer_outcome(orders, outcome, "test")
        assert (trial is not None) == (outcome.status == "fits")
        if trial is not None:
            ranks.append(trial.rank())
        if outcome.status == "fits" or (outcome.status == "out_of_memory" and outcome.tier < 0):
            peaks.append(outcome.static_peak_bytes)
    assert (incumbent.best is None) == (not ranks)
    if incumbent.best is not None:
        assert incumbent.best.rank() == min(ranks)
    if peaks:
        assert incumbent.smallest is not None and incumbent.smallest.static_peak_bytes == min(peaks)


@pytest.mark.parametrize("seed", range(12))
def test_orders_and_documents_are_ranked_alike(seed: int) -> None:
    """The engine's outcome and the replay of the document that is written from it make the same trial."""
    problem = problem_of(seed, 0.8)
    table, dice = Table(problem, reruns(problem)), random.Random(seed)
    for _ in range(10):
        draft = random_draft(table, dice, 0.2)
        timed(table, draft)
        orders = table.orders(draft)
        outcome = run(table.arrays, orders, problem.hbm_bytes, problem.budget.tiers)
        one, other = (Incumbent(problem, Stop(WorkLimit(10**6)), 0) for _ in range(2))
        mine = one.offer_outcome(orders, outcome, "test")
        written = other.offer(table.residency(draft), "test")
        assert (mine is None) == (written is None)
        if mine is not None and written is not None:
            assert mine.rank()[:3] == written.rank()[:3] and mine.peak_bytes == written.peak_bytes


@pytest.mark.parametrize("seed", range(6))
def test_how_long_a_call_takes_changes_nothing_without_a_time_limit(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for seconds in (1e-9, 10.0):
        monkeypatch.setattr("solver.residency.search.CALL_S", seconds)
        search = search_of(problem_of(seed, 0.4), [], work=10**6)
        search.start()
        search.contest()
        search.improve(rounds=40)
        assert search.best is not None or search.incumbent.best is None
        found.append((search.incumbent.stop.work, None if search.best is None else search.best.score))
    assert found[0] == found[1]


def drafts_of(search: Search) -> int:
    """How many of the search's drafts would contest."""
    return len({found.score for found in (*search.guided, *([search.best] if search.best else ()))})


@pytest.mark.parametrize("seed", range(8))
def test_a_contest_leaves_a_plan_that_is_no_worse_and_keeps_to_its_rounds(seed: int) -> None:
    search = search_of(problem_of(seed, 0.4), [], work=10**6)
    search.start()
    before, work = search.best, search.incumbent.stop.work
    drafts = drafts_of(search)
    search.contest()
    if drafts < 2:
        assert search.best is before and search.incumbent.stop.work == work
        return
    assert before is not None and search.best is not None and search.best.score <= before.score
    assert not search.guided
    # A round is timed at most twice, and a better plan is replayed once more to be offered.
    assert work < search.incumbent.stop.work <= work + 3 * CONTEST_ROUNDS + 2 * drafts


def undecided() -> Search:
    """One with a draft that runs, and is not proven to be the best."""
    for seed in range(40):
        search = search_of(problem_of(seed, 0.2), [], work=10**6)
        search.start()
        if search.guided and not search.stopped():
            return search
    raise AssertionError("every step is planned at its bound: there is nothing to contest")


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 8])
def test_a_contest_of_any_number_of_drafts(count: int) -> None:
    search = undecided()
    first, work = search.guided[0], search.incumbent.stop.work
    search.best = None
    search.guided = [Found(first.draft, first.outcome, (first.score[0], float(k))) for k in range(count)]
    search.contest()
    assert search.guided == []
    assert (search.incumbent.stop.work > work) == (count > 1)  # one alone has nobody to contest with


def test_a_contest_within_a_limit_of_work_ends_there() -> None:
    search = undecided()
    first, stop = search.guided[0], search.incumbent.stop
    search.guided = [Found(first.draft, first.outcome, (first.score[0], float(k))) for k in range(4)]
    work = stop.work
    stop.criteria = (WorkLimit(work + 30),)
    search.contest()
    assert work < stop.work <= work + 30 + 3  # the last round may be timed twice, and offered


@pytest.mark.parametrize("seed", range(4))
def test_guides_added_later_are_those_of_one_call(seed: int) -> None:
    problem = problem_of(seed, 0.4)
    one, later = Fluid(problem, 24), Fluid(problem, 24)
    whole, first = solve_fluid(one, None), solve_fluid(later, None, speeds=())
    assert len(first.guides) == 1 and first.bound_ns == whole.bound_ns
    added = add_guides(later, first, SPEEDS, None)
    assert added == len(whole.guides) - 1 and first.master is None
    for mine, theirs in zip(first.guides, whole.guides, strict=True):
        assert mine.speed == theirs.speed and mine.shares == theirs.shares
    assert add_guides(later, first, SPEEDS, None) == 0  # the program has been given up


@pytest.mark.parametrize("seed", range(4))
def test_a_search_that_goes_on_from_another_drafts_nothing_twice(seed: int) -> None:
    problem = problem_of(seed, 0.4)
    search = search_of(problem, [], work=10**6)
    search.start()
    other = Search(problem, search.incumbent, Table(problem, reruns(problem)), search.fluid, search.solution, seed=0)
    other.go_on_from(search)
    assert other.drafted == search.drafted
    assert [found.score for found in other.guided] == [found.score for found in search.guided]
    assert (other.best is None) == (search.best is None)
    if other.best is not None and search.best is not None:
        assert other.best.score == search.best.score


@pytest.mark.parametrize("seed", range(8))
def test_a_rerun_is_fullest_where_it_has_something_off(seed: int) -> None:
    table = Table(problem_of(seed, 0.4), reruns(problem_of(seed, 0.4)))
    load = table.problem.load
    for r in range(len(table.reruns)):
        parts = table.parts[table.part_at[r] : table.part_at[r + 1]]
        first = min([int(leave) + 1 for leave in parts[parts[:, 4] == DROPPED, 2]], default=table.rerun_before[r] - 1)
        span = load[max(first, 0) : table.rerun_before[r]]
        fullest = int(table.layout.reruns[FULLEST, r])
        if len(span):
            assert first <= fullest < table.rerun_before[r] and load[fullest] == span.max()


def test_an_empty_plan_is_kept_before_one_that_moves_for_nothing() -> None:
    problem = problem_of(0, 1.0)
    table = Table(problem, reruns(problem))
    incumbent = Incumbent(problem, Stop(WorkLimit(10**6)), 0)
    draft = random_draft(table, random.Random(0))
    timed(table, draft)
    incumbent.offer(table.residency(draft), "moves")
    incumbent.offer(Residency(), "nothing")
    assert incumbent.best is not None and incumbent.best.residency == Residency()


@pytest.mark.parametrize("seed", range(12))
def test_shares_are_of_gaps_that_there_are(seed: int) -> None:
    search = search_of(problem_of(seed), [])
    table = search.table
    known = {
        (int(s), bool(w), -1 if w else int(a)) for s, w, a in zip(table.storage, table.wraps, table.after, strict=True)
    }
    for guide in search.solution.guides:
        moves, drops = shares_by_gap(search.fluid, guide)
        assert {key[:3] for key in moves} <= known
        assert all(0 < share <= 1 + 1e-6 for share in (*moves.values(), *drops.values()))
        away: dict[tuple[int, bool, int], float] = {}
        for (s, wraps, after, _), share in moves.items():
            away[s, wraps, after] = away.get((s, wraps, after), 0.0) + share
        assert all(share <= 1 + 1e-6 for share in away.values())


def test_work_is_counted_and_limits_the_search() -> None:
    problem = problem_of(1, 0.3)
    search = search_of(problem, [], work=25, guided=False)
    search.first()
    search.improve(rounds=1000)
    assert search.incumbent.stop.why in ("work limit of 25", "bound reached")
    assert search.incumbent.stop.work <= 25 + 8  # the last draft is timed to its end
    assert np.isfinite(search.costs.out[search.table.usable]).all()
