"""Finished plans lose the reruns that they do not need, and nothing else."""

from __future__ import annotations

from hyperopt.plan import Action, Budget, Recompute, Residency
from hyperopt.profile import Device, Storage
from solver.residency.incumbent import Incumbent
from solver.residency.problem import Problem
from solver.residency.tidy import tidy
from solver.stop import Cancelled, Stop
from tests.solver.test_fluid import run, step


def problem(budget: int) -> Problem:
    """Operator 0 makes 0 and 1, which 3 reads; 1 and 2 make and read the 20 bytes of 2 in between."""
    operators = [run(5, (), (0, 1), again=True), run(1, (), (2,)), run(1, (2,)), run(1, (0, 1))]
    storages = [Storage(id=i, bytes=size, offloadable=False) for i, size in enumerate((10, 10, 20))]
    return Problem(step(operators, storages, Device(host_bytes=0)), Budget(hbm_bytes=budget))


def tidied(budget: int, limit_s: float | None = None, *, cancelled: bool = False) -> tuple[Residency, int]:
    """What becomes of a plan that drops both, and runs operator 0 again for each."""
    incumbent = Incumbent(problem(budget), Stop(Cancelled(lambda: cancelled)), 0)
    actions = tuple(Action(op=0, when="after", kind="release", storage=s) for s in (0, 1))
    recompute = tuple(Recompute(storage=s, before_op=3, ops=(0,)) for s in (0, 1))
    assert incumbent.offer(Residency(actions=actions, recompute=recompute), "test") is not None
    tidy(incumbent, limit_s)
    assert incumbent.best is not None
    return incumbent.best.residency, incumbent.best.step_ns


def test_an_operator_that_brings_two_storages_back_runs_again_once() -> None:
    plan, step_ns = tidied(20)
    assert len(plan.recompute) == 1 and len(plan.actions) == 2
    assert step_ns == 13_000


def test_what_there_is_room_for_stays() -> None:
    assert tidied(40) == (Residency(), 8_000)


def test_a_plan_is_left_as_it_is_where_no_time_is_left_or_somebody_has_cancelled() -> None:
    for plan, step_ns in (tidied(40, 0.0), tidied(40, cancelled=True)):
        assert len(plan.recompute) == 2 and step_ns == 18_000
