"""Acceptance case C3: which recompute, and none where it is not needed.

Four measured peaks, in MiB: nothing 19967.3, attention 18828.2, MLP 15764.7, both 13953.3. Together the two save more
than the sum of each, so no single moment of the step sets all four. Three moments do, with a parallel block whose
attention A = 15764.7 - 13953.3 and MLP M = 18828.2 - 13953.3 each have one of them for themselves::

    operator      attention  norm   mlp   loss   d_attention  d_norm   d_mlp   optimizer
    A alive           ├──────────────────────────────┤
    M alive                          ├───────────────────────────────────┤
    without both             13953.3     13281.0            13953.3
    peak of               A: 15764.7  A+M: 19967.3       M: 18828.2

Everything else is optimizer states, which nothing touches until the end, and workspace. There is no link.
"""

from __future__ import annotations

import msgspec
import pytest

from hyperopt.legality import OutOfMemory
from hyperopt.plan import Action, Budget, Plan, Recompute, Residency
from hyperopt.profile import Device, Links, Operator, Profile, Storage, check
from hyperopt.replay import replay
from hyperopt.validate import validate
from solver import Infeasible, Request, solve

MIB = 1 << 20


def mib(size: float) -> int:
    return round(size * MIB)


NOTHING, ATTENTION, MLP, BOTH = mib(19967.3), mib(18828.2), mib(15764.7), mib(13953.3)
A, M, STATES = MLP - BOTH, ATTENTION - BOTH, mib(9000)
ATTENTION_US, MLP_US = 3_000.0, 8_000.0

X, OF_ATTENTION, OF_MLP, ALL_STATES, GRADIENT = range(5)


def block() -> Profile:
    def op(
        name: str, us: float, reads: tuple[int, ...], writes: tuple[int, ...], peak: int = 0, again: bool = False
    ) -> Operator:
        return Operator(
            name=name,
            duration_us=us,
            reads=reads,
            writes=writes,
            workspace_bytes=peak,
            recomputable=again,
            layer="block",
        )

    rest = STATES + 2  # X and the gradient, of one byte each, are there at all three moments
    operators = (
        op("embedding", 1_000, (), (X, GRADIENT)),
        op("attention", ATTENTION_US, (X,), (OF_ATTENTION,), again=True),
        op("norm", 1_000, (X,), (), peak=BOTH - rest),
        op("mlp", MLP_US, (X,), (OF_MLP,), again=True),
        op("loss", 1_000, (X,), (), peak=NOTHING - A - M - rest),
        op("d_attention", 6_000, (OF_ATTENTION, X), ()),
        op("d_norm", 1_000, (X,), (), peak=BOTH - rest),
        op("d_mlp", 16_000, (OF_MLP, X), ()),
        op("optimizer", 2_000, (ALL_STATES, GRADIENT), (ALL_STATES,)),
    )
    storages = (
        Storage(id=X, bytes=1, name="x", kind="activation", offloadable=False),
        Storage(id=OF_ATTENTION, bytes=A, name="attention", kind="activation"),
        Storage(id=OF_MLP, bytes=M, name="mlp", kind="activation"),
        Storage(
            id=ALL_STATES,
            bytes=STATES,
            name="states",
            kind="optimizer_state",
            resident_at_start=True,
            resident_at_end=True,
        ),
        Storage(id=GRADIENT, bytes=1, name="gradient", kind="gradient", offloadable=False),
    )
    profile = Profile(operators=operators, storages=storages)
    check(profile)
    return profile


BLOCK = block()
AGAIN = {OF_ATTENTION: (1, 5), OF_MLP: (3, 7)}
"""Storage -> the operator that makes it, and the one that needs it back."""


def choice(*storages: int) -> Plan:
    """The plan that drops these storages right after they are made, and makes them again where they are needed."""
    return Plan(
        residency=Residency(
            actions=tuple(Action(op=AGAIN[s][0], when="after", kind="release", storage=s) for s in storages),
            recompute=tuple(Recompute(storage=s, before_op=AGAIN[s][1], ops=(AGAIN[s][0],)) for s in storages),
        )
    )


@pytest.mark.parametrize(
    ("chosen", "peak"),
    [((), NOTHING), ((OF_ATTENTION,), ATTENTION), ((OF_MLP,), MLP), ((OF_ATTENTION, OF_MLP), BOTH)],
)
def test_the_four_choices_have_the_measured_peaks(chosen: tuple[int, ...], peak: int) -> None:
    assert replay(BLOCK, choice(*chosen)).peak_bytes == peak
    with pytest.raises(OutOfMemory):
        replay(BLOCK, choice(*chosen), hbm_bytes=peak - 1)


@pytest.mark.parametrize(
    ("budget", "chosen"),
    [(20_000, ()), (19_000, (OF_ATTENTION,)), (16_000, (OF_MLP,)), (15_000, (OF_ATTENTION, OF_MLP))],
)
def test_c3_the_cheapest_choice_that_fits(budget: int, chosen: tuple[int, ...]) -> None:
    plan = solve(BLOCK, Request(Budget(hbm_bytes=budget * MIB)))
    assert isinstance(plan, Plan) and validate(BLOCK, plan) == []
    assert tuple(sorted(r.storage for r in plan.residency.recompute)) == chosen
    assert {action.kind for action in plan.residency.actions} <= {"release"}
    assert plan.bound is not None and plan.bound.status == "optimal"
    timeline = replay(BLOCK, plan)
    extra_us = sum(ATTENTION_US if s == OF_ATTENTION else MLP_US for s in chosen)
    assert timeline.step_us == replay(BLOCK).step_us + extra_us
    assert timeline.peak_bytes == replay(BLOCK, choice(*chosen)).peak_bytes


def test_c3_recompute_alone_is_short_and_offload_is_the_way_out() -> None:
    answer = solve(BLOCK, Request(Budget(hbm_bytes=13_000 * MIB)))
    assert isinstance(answer, Infeasible) and answer.proven
    assert answer.lower_bound_bytes == answer.reachable_bytes == BOTH
    assert (answer.lower_bound_bytes - answer.budget_bytes) / MIB == pytest.approx(953.3, abs=1e-6)
    assert answer.operator["name"] in ("norm", "d_norm")
    first = answer.reliefs[0]
    assert (first["kind"], first["basis"], first["reaches_budget"]) == ("offload", "proven", True)
    assert "offload" in first["relief"] and first["lower_bound_bytes"] <= 13_000 * MIB
    assert {"id": ALL_STATES, "name": "states", "bytes": STATES} in first["storages"]


def test_c3_with_a_link_the_states_leave() -> None:
    """What the relief promises, done: over a link the same budget is met."""
    links = Links(d2h_bytes_per_s=1 << 40, h2d_bytes_per_s=1 << 40)
    profile = msgspec.structs.replace(BLOCK, device=Device(host_bytes=STATES, links=links))
    plan = solve(profile, Request(Budget(hbm_bytes=13_000 * MIB)))
    assert isinstance(plan, Plan) and validate(profile, plan) == []
    timeline = replay(profile, plan)
    assert timeline.peak_bytes <= 13_000 * MIB and ALL_STATES in {copy.storage for copy in timeline.copies}
