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
from hyperopt.testing import generate
from hyperopt.validate import validate
from solver import Request, solve
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


# -- as strong as their idea ---------------------------------------------------------------------------------


def worked_example(*, recomputable: bool = False) -> Profile:
    """C6: A 512 MiB idle from 0 to 9, B 128 MiB from 2 to 7, C 128 MiB from 4 to 5; 10 ms an operator."""
    reads = {5: (2,), 7: (1,), 9: (0,)}
    writes = {0: (0,), 2: (1,), 4: (2,)}
    operators = tuple(
        Operator(
            duration_us=10_000, reads=reads.get(k, ()), writes=writes.get(k, ()), recomputable=recomputable, type=f"{k}"
        )
        for k in range(10)
    )
    storages = tuple(Storage(id=i, bytes=size * MIB) for i, size in enumerate((512, 128, 128)))
    device = Device(host_bytes=1 << 40, links=Links(d2h_bytes_per_s=16 << 30, h2d_bytes_per_s=16 << 30))
    return Profile(operators=operators, storages=storages, device=device)


def test_the_worked_example() -> None:
    """Capuchin times its copies back; rules with one block of lead, or recompute only, pay."""
    assert slowdown(worked_example(), "capuchin", 640 * MIB) == 1.0
    assert (
        1.0 < slowdown(worked_example(), "two-level", 640 * MIB) < slowdown(worked_example(), "longest-gap", 640 * MIB)
    )
    assert run(worked_example(), "checkmate", 640 * MIB) is None  # nothing may be recomputed
    assert slowdown(worked_example(recomputable=True), "checkmate", 640 * MIB) == pytest.approx(1.1)


FAST, SLOW = 64 << 30, 1 << 30


@pytest.mark.parametrize("layer_names", [True, False])
def test_capuchin_hides_swaps_on_a_fast_link(layer_names: bool) -> None:
    profile = layered(8, size=64 * MIB, copy_bytes_per_s=FAST, layer_names=layer_names)
    peak = replay(profile).peak_bytes
    assert slowdown(profile, "capuchin", peak * 6 // 10) == pytest.approx(1.0, abs=0.02)


def test_capuchin_recomputes_on_a_slow_link() -> None:
    """A copy takes 62 ms and a recompute 10: the cheaper one per byte is chosen."""
    profile = layered(8, size=64 * MIB, copy_bytes_per_s=SLOW)
    plan = run(profile, "capuchin", replay(profile).peak_bytes * 7 // 10)
    assert plan is not None and plan.residency.recompute


@pytest.mark.parametrize("name", ["two-level", "knapsack", "checkmate"])
def test_half_of_what_layers_keep_is_recomputed_where_nothing_can_move(name: str) -> None:
    """What layers hand on stays; what they keep to themselves, 10 ms each of 320, is enough."""
    profile = layered(8, size=64 * MIB, copy_bytes_per_s=0)
    peak = replay(profile).peak_bytes
    assert 1.0 < slowdown(profile, name, peak * 7 // 10) <= 1.25 + 1e-9


def test_checkmate_recomputes_no_more_than_the_knapsack() -> None:
    profile = layered(8, size=64 * MIB, copy_bytes_per_s=0)
    budget = replay(profile).peak_bytes * 8 // 10
    assert slowdown(profile, "checkmate", budget) <= slowdown(profile, "knapsack", budget)


@pytest.mark.parametrize("name", ["longest-gap", "offload-all", "capuchin", "two-level"])
def test_a_full_host_stops_moves(name: str) -> None:
    profile = layered(8, size=64 * MIB, copy_bytes_per_s=FAST)
    small = Tier(name="host", bytes=128 * MIB, d2h_bytes_per_s=FAST, h2d_bytes_per_s=FAST)
    device = Device(links=Links(tiers=(small,)))
    profile = msgspec.structs.replace(profile, device=device)
    problem = Problem(profile, Budget(hbm_bytes=replay(profile).peak_bytes * 9 // 10))
    residency = assemble(problem, RIVALS[name](problem))
    assert residency.actions
    assert replay(profile, Plan(residency=residency)).tier_peak_bytes["host"] <= 128 * MIB


def test_rules_leave_a_step_alone_that_fits() -> None:
    profile = layered(4, size=MIB, copy_bytes_per_s=FAST)
    for name in NEW:
        assert RIVALS[name](Problem(profile, Budget(hbm_bytes=1 << 40))) == Decisions()


def test_checkmate_says_when_it_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solver.residency.rivals.checkmate.MOST_VALUES", 3)
    with pytest.raises(DidNotSolve, match="more than 3"):
        run(layered(8, size=MIB, copy_bytes_per_s=0), "checkmate", 12 * MIB)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=7), st.integers(0, 30))
def test_the_knapsack_is_solved_exactly_on_small_sizes(items: list[tuple[int, int]], limit: int) -> None:
    sizes, values = [size for size, _ in items], [value for _, value in items]
    chosen = solve_knapsack(sizes, values, limit)
    assert sum(sizes[i] for i in chosen) <= limit
    best = 0
    for bits in range(1 << len(items)):
        inside = [i for i in range(len(items)) if bits >> i & 1]
        if sum(sizes[i] for i in inside) <= limit:
            best = max(best, sum(values[i] for i in inside))
    assert sum(values[i] for i in chosen) == best


@pytest.mark.parametrize("work", [1, 20])
def test_a_limit_in_work_leaves_no_quick_rule_out(work: int) -> None:
    profile = generate("llama3-8b", 500, 0)
    limit = int(0.9 * replay(profile).peak_bytes)
    plan = solve(profile, Request(Budget(hbm_bytes=limit), work_limit=work, time_limit_s=None))
    assert isinstance(plan, Plan) and plan.predicted is not None
    for name in RIVALS:
        rule = run(profile, name, limit) if name != "checkmate" else None
        if rule is not None and rule.predicted is not None:
            assert plan.predicted.step_us <= rule.predicted.step_us, name


def test_nor_does_one_that_ends_in_rounds() -> None:
    profile = generate("llama3-8b", 500, 0)
    limit = replay(profile).peak_bytes // 2
    plan = solve(profile, Request(Budget(hbm_bytes=limit), work_limit=400, time_limit_s=None))
    assert isinstance(plan, Plan) and plan.bound is not None and plan.bound.gap > 0
    assert plan.provenance["stage"] == "refill"
    assert set(plan.provenance["rivals_step_us"]) >= {"capuchin", "two-level", "knapsack"}
