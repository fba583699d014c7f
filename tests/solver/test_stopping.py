"""Ending a solve in the midst of what takes long, and telling of better plans on the way."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest

from hyperopt.plan import Plan
from solver import Infeasible, Request, solve
from solver.heap import frozen
from solver.residency import incumbent as incumbents
from solver.residency.assemble import assemble
from solver.residency.bound import step_bound_ns
from solver.residency.candidates import Decisions, moves, reruns
from solver.residency.incumbent import PATIENCE_S, Incumbent, TooSlow, Trial
from solver.residency.problem import Problem
from solver.stop import Cancelled, Stop, Stopped, TimeLimit
from tests.solver.test_properties import TRACES, trace
from tests.solver.test_search import problem_of


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The incumbent's clock, which only the test moves: `now`, in seconds."""
    found = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(incumbents, "time", SimpleNamespace(monotonic=lambda: found.now))
    return found


def roomy() -> Problem:
    """One in which everything fits, and something could move all the same."""
    return next(problem for seed in range(20) if (problem := problem_of(seed, 1.0)).gaps)


def in_hand(problem: Problem, stop: Stop) -> Incumbent:
    incumbent = Incumbent(problem, stop, 0)
    assert incumbent.offer(assemble(problem, Decisions()), "keep-all") is not None
    return incumbent


def past(limit: TimeLimit, share: float) -> Stop:
    """A limit of which a share has passed."""
    limit.deadline -= limit.seconds * share
    return Stop(limit)


def test_late_with_a_plan_in_hand_ends_what_takes_long() -> None:
    with pytest.raises(Stopped):
        in_hand(roomy(), past(TimeLimit(100.0), 1.0)).check()


def test_late_without_a_plan_goes_on_to_a_first_one() -> None:
    Incumbent(roomy(), past(TimeLimit(100.0), 1.0), 0).check()


def test_cancelled_without_a_plan_goes_on_for_a_moment(clock: SimpleNamespace) -> None:
    incumbent = Incumbent(roomy(), Stop(Cancelled(lambda: True)), 0)
    incumbent.check()
    clock.now += 0.9 * PATIENCE_S
    incumbent.check()
    clock.now += 0.2 * PATIENCE_S
    with pytest.raises(Stopped):
        incumbent.check()


def test_cancelled_after_the_time_limit_is_still_heard() -> None:
    stop = Stop(TimeLimit(0.0), Cancelled(lambda: True))
    assert stop.asked(None, 0) and stop.why.startswith("time limit")
    assert stop.cancelled()


def test_a_piece_of_work_has_its_own_share_of_the_time(clock: SimpleNamespace) -> None:
    incumbent = Incumbent(roomy(), past(TimeLimit(100.0), 0.5), 0)
    with incumbent.until(0.9):
        incumbent.check()
    clock.now += 1
    with pytest.raises(TooSlow), incumbent.until(0.4):
        incumbent.check()
    clock.now += 1
    incumbent.check()


def test_a_better_plan_is_told_when_its_turn_has_come_not_with_the_next(clock: SimpleNamespace) -> None:
    problem = roomy()
    told: list[Trial] = []

    def tell(trial: Trial) -> None:
        told.append(trial)
        clock.now += 1.0  # as long as writing the document takes

    incumbent = Incumbent(problem, Stop(), 0, tell)
    incumbent.offer(assemble(problem, Decisions((moves(problem)[0],))), "a needless move")
    incumbent.offer(assemble(problem, Decisions()), "no move")
    assert incumbent.best is not None and incumbent.best.stage == "no move"
    assert [trial.stage for trial in told] == ["a needless move"]
    clock.now += 1.0
    assert not incumbent.stopped() and len(told) == 1
    clock.now += 1.0 / incumbents.TELLING
    assert not incumbent.stopped() and told[1] is incumbent.best
    clock.now += 100.0
    assert not incumbent.stopped() and len(told) == 2


def test_set_up_asks_whether_it_is_still_wanted() -> None:
    by_operator = (p for seed in range(20) if (p := problem_of(seed)).profile.adapter.recompute == "operator")
    problem = next(by_operator)

    def ended() -> None:
        raise Stopped

    problem.check = ended
    with pytest.raises(Stopped):
        reruns(problem)


@pytest.mark.parametrize("after", [1, 2, 5, 10, 20, 40])
def test_cancelled_anywhere_it_answers_with_what_it_has(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incumbents, "CHECK_EVERY_S", 0.0)
    profile, budget = trace(TRACES[0])
    asked, seen = [0], list[float]()

    def cancelled() -> bool:
        asked[0] += 1
        return asked[0] > 50 * after

    request = Request(budget, time_limit_s=None, work_limit=100_000)
    answer = solve(profile, request, cancelled=cancelled, on_progress=lambda found: seen.append(found.step_us))
    if isinstance(answer, Plan):
        assert answer.bound is not None and answer.predicted is not None
        assert answer.bound.stop_reason in ("cancelled", "bound reached")
        assert seen and answer.predicted.step_us == min(seen)
    else:
        assert isinstance(answer, Infeasible) and not answer.proven and not seen


def test_the_bound_in_hand_only_rises() -> None:
    problem = roomy()
    incumbent = Incumbent(problem, Stop(), step_bound_ns(problem))
    before = incumbent.bound_ns
    incumbent.prove(before / 2)
    assert incumbent.bound_ns == before
    incumbent.prove(before * 2.0)
    assert before < incumbent.bound_ns <= 2 * before


def test_what_was_there_is_passed_over_only_meanwhile() -> None:
    before = gc.get_freeze_count()
    with frozen():
        inside = gc.get_freeze_count()
        with frozen():
            assert gc.get_freeze_count() > inside // 2  # frozen objects may still die, and then count no more
        assert gc.get_freeze_count() > inside // 2
    assert inside > 0 and gc.get_freeze_count() == before
