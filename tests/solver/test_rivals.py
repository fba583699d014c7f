"""The rival rules: legal and deterministic always, and as strong as their idea where it applies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperopt.legality import OutOfMemory
from hyperopt.plan import Budget, Plan
from hyperopt.profile import Adapter, Device, Links, Operator, Phase, Profile, Storage, Tier, check
from hyperopt.replay import replay
from hyperopt.validate import validate
from solver.residency.assemble import assemble
from solver.residency.candidates import Decisions
from solver.residency.problem import Problem
from solver.residency.rival import rival_plan
from solver.residency.rivals.checkmate import DidNotSolve
from solver.residency.rivals.knapsack import solve_knapsack
from solver.residency.rivals.registry import RIVALS
from tests.generators import profiles

MIB = 1 << 20
NEW = ["capuchin", "two-level", "knapsack", "checkmate"]
MEMORY = {"out-of-memory", "tier-out-of-memory"}

Change = Callable[[Profile], Profile]


def run(profile: Profile, name: str, hbm_bytes: int) -> Plan | None:
    """The rule's plan; None where it runs out of memory."""
    try:
        return rival_plan(profile, name, Budget(hbm_bytes=hbm_bytes))
    except OutOfMemory:
        return None


def slowdown(profile: Profile, name: str, hbm_bytes: int) -> float:
    plan = run(profile, name, hbm_bytes)
    assert plan is not None and plan.predicted is not None
    return plan.predicted.step_us / plan.predicted.baseline_step_us


def layered(layers: int, *, size: int, copy_bytes_per_s: int, layer_names: bool = True) -> Profile:
    """A training step: each layer makes two activations of `size`, both read in its backward, 10 ms an operator.

    The second, made from the first, is what the next layer reads.
    """
    operators: list[Operator] = []
    storages = [Storage(id=0, bytes=size, kind="input", resident_at_start=True)]

    def operator(layer: int, phase: Phase, reads: tuple[int, ...], writes: tuple[int, ...]) -> None:
        name = f"layer{layer}" if layer_names else ""
        kind = f"{phase} {len(reads)}"
        operators.append(Operator(duration_us=10_000, layer=name, phase=phase, reads=reads, writes=writes, type=kind))

    for i in range(layers):
        inner, handed = 2 * i + 1, 2 * i + 2
        storages += [Storage(id=s, bytes=size, kind="activation") for s in (inner, handed)]
        operator(i, "forward", (handed - 2,), (inner,))
        operator(i, "forward", (inner,), (handed,))
    for i in reversed(range(layers)):
        for s in (2 * i + 2, 2 * i + 1):
            operator(i, "backward", (s, s - 1), ())
    device = Device(host_bytes=1 << 40, links=Links(d2h_bytes_per_s=copy_bytes_per_s, h2d_bytes_per_s=copy_bytes_per_s))
    profile = Profile(operators=tuple(operators), storages=tuple(storages), device=device)
    check(profile)
    return profile


# -- always ------------------------------------------------------------------------------------------------


@st.composite
def phased(draw: Any) -> Profile:
    """A generated profile, often with phases and layers, and with any adapter."""
    profile: Profile = draw(profiles(max_operators=12, max_storages=6))
    operators = list(profile.operators)
    if draw(st.booleans()):
        turn, layers = draw(st.integers(0, len(operators))), draw(st.integers(1, 3))
        for k, operator in enumerate(operators):
            phase: Phase = "forward" if k < turn else "backward"
            layer = f"layer{min(k, 2 * turn - k) * layers // (len(operators) + 1)}" if layers > 1 else ""
            operators[k] = msgspec.structs.replace(operator, phase=phase, layer=layer)
    how: Literal["operator", "layer", "cell", "none"] = draw(
        st.sampled_from(["operator", "operator", "operator", "layer", "cell", "none"])
    )
    kinds = draw(st.lists(st.sampled_from(["activation", "parameter", "kv_cache"]), min_size=6, max_size=6))
    storages = [msgspec.structs.replace(s, kind=kind) for s, kind in zip(profile.storages, kinds, strict=False)]
    moves: Literal["any", "window", "none"] = draw(st.sampled_from(["any", "any", "any", "window", "none"]))
    if moves == "window":
        last = len(operators) - 1
        ends = [sorted((draw(st.integers(0, last)), draw(st.integers(0, last)))) for _ in storages]
        storages = [msgspec.structs.replace(s, window=(a, b)) for s, (a, b) in zip(storages, ends, strict=True)]
    return msgspec.structs.replace(
        profile,
        operators=tuple(operators),
        storages=tuple(storages),
        adapter=Adapter(moves=moves, recompute=how),
    )


@pytest.mark.parametrize("name", list(RIVALS))
@settings(max_examples=300, deadline=None)
@given(profile=phased(), share=st.sampled_from([0.0, 0.3, 0.5, 0.7, 0.9]))
def test_every_plan_is_legal(name: str, profile: Profile, share: float) -> None:
    """It runs or is out of HBM: never illegal, never too much for a tier."""
    peak = replay(profile).static_peak_bytes
    problem = Problem(profile, Budget(hbm_bytes=int(peak * share)))
    residency = assemble(problem, RIVALS[name](problem))
    plan = Plan(budget=Budget(hbm_bytes=problem.hbm_bytes), residency=residency)
    assert {v.code for v in validate(profile, plan)} <= {"out-of-memory"}


@pytest.mark.parametrize("name", NEW)
@settings(max_examples=60, deadline=None)
@given(profile=phased())
def test_a_rule_is_deterministic(name: str, profile: Profile) -> None:
    budget = Budget(hbm_bytes=int(replay(profile).static_peak_bytes * 0.7))
    assert RIVALS[name](Problem(profile, budget)) == RIVALS[name](Problem(profile, budget))
