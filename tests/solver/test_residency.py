"""Properties of the residency solver on random training steps: moves, reruns, tiers, streams and adapters."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest

from hyperopt.plan import Budget, Plan
from hyperopt.profile import Adapter, Device, Links, Operator, Profile, Storage, Tier, check
from hyperopt.replay import replay
from hyperopt.validate import validate
from solver import Infeasible, NotPlannable, Request, solve
from solver.residency.bound import memory_bound
from solver.residency.problem import Problem

WORK = 400


def training_step(seed: int) -> Profile:
    """A small training step: layers forward and backward, optimizer states, a collective, a shared table."""
    dice = random.Random(seed)
    storages: list[Storage] = []
    operators: list[Operator] = []

    def storage(low: int, high: int, kind: str, *, resident: bool = False) -> int:
        size = dice.randint(low, high)
        document = {"id": len(storages), "bytes": size, "kind": kind}
        document |= {"resident_at_start": resident, "resident_at_end": resident}
        storages.append(msgspec.convert(document, Storage))
        return len(storages) - 1

    def run(reads: list[int], writes: list[int], phase: str, layer: str = "", **more: object) -> None:
        document = {"reads": reads, "writes": writes, "phase": phase, "layer": layer, **more}
        document.setdefault("duration_us", dice.randint(1, 30))
        document.setdefault("recomputable", phase == "forward")
        document.setdefault("workspace_bytes", dice.randint(0, 15))
        operators.append(msgspec.convert(document, Operator))

    layers = dice.randint(2, 6)
    weights = [storage(5, 30, "parameter", resident=True) for _ in range(layers)]
    states = [storage(5, 60, "optimizer_state", resident=True) for _ in range(layers)]
    table = storage(5, 5, "other", resident=True)
    x = storage(5, 20, "activation")
    run([], [x], "forward", recomputable=False)
    kept = []
    for i in range(layers):
        inner, scores, out = (storage(5, 50, "activation") for _ in range(3))
        run([x, weights[i]], [inner], "forward", f"blocks.{i}", recomputable=dice.random() < 0.85)
        if dice.random() < 0.3:
            gathered = storage(5, 5, "activation")
            run([inner], [gathered], "forward", f"blocks.{i}", stream="comm", recomputable=False)
            run([inner, table, gathered], [scores], "forward", f"blocks.{i}")
        else:
            run([inner, table], [scores], "forward", f"blocks.{i}")
        if dice.random() < 0.3:
            run([scores], [scores], "forward", f"blocks.{i}")
        run([scores, x], [out], "forward", f"blocks.{i}")
        kept.append((x, inner, scores))
        x = out
    gradient = storage(10, 10, "gradient")
    run([x], [gradient], "backward")
    for i in reversed(range(layers)):
        before, inner, scores = kept[i]
        through, own = storage(10, 10, "gradient"), storage(5, 30, "gradient")
        run([gradient, scores, before, weights[i]], [through], "backward", f"blocks.{i}")
        run([through, inner, table], [own], "backward", f"blocks.{i}")
        run([own, states[i], weights[i]], [states[i], weights[i]], "optimizer")
        gradient = through
    host = Tier(name="host", bytes=dice.choice([40, 10_000]), d2h_bytes_per_s=3e6, h2d_bytes_per_s=4e6, latency_us=1)
    pool = Tier(name="pool", bytes=1000, d2h_bytes_per_s=1e6, h2d_bytes_per_s=1e6, latency_us=2, duplex=False)
    links = Links(tiers=(host, pool) if dice.random() < 0.5 else (host,))
    adapter = Adapter(moves=dice.choice(["any", "any", "none"]), recompute=dice.choice(["operator", "layer", "none"]))
    device = Device(base_bytes=dice.randint(0, 20), links=links)
    profile = Profile(operators=tuple(operators), storages=tuple(storages), device=device, adapter=adapter)
    check(profile)
    return profile


def asked(seed: int) -> tuple[Profile, Request]:
    profile = training_step(seed)
    least = memory_bound(Problem(profile, Budget(hbm_bytes=0))).bytes
    hbm_bytes = random.Random(seed).randint(least, replay(profile).static_peak_bytes)
    return profile, Request(Budget(hbm_bytes=hbm_bytes), time_limit_s=None, work_limit=WORK)


@pytest.mark.parametrize("seed", range(40))
def test_every_answer_holds(seed: int) -> None:
    """A plan is valid, replays within its budget as predicted, beats its rivals; or the refusal is consistent."""
    profile, request = asked(seed)
    answer = solve(profile, request)
    assert request.budget.hbm_bytes is not None
    if isinstance(answer, Infeasible):
        assert answer.reachable_bytes is None or answer.reachable_bytes > request.budget.hbm_bytes
        assert answer.reachable_bytes is None or answer.lower_bound_bytes <= answer.reachable_bytes
        return
    assert validate(profile, answer) == []
    timeline = replay(profile, answer)
    assert answer.predicted is not None and answer.bound is not None
    assert timeline.step_us == answer.predicted.step_us >= answer.bound.step_us
    assert timeline.peak_bytes == answer.predicted.peak_bytes <= request.budget.hbm_bytes
    rivals = answer.provenance["rivals_step_us"]
    assert not [name for name, told in rivals.items() if isinstance(told, str) and told.startswith("illegal")]
    assert all(timeline.step_us <= told for told in rivals.values() if isinstance(told, float))


@pytest.mark.parametrize("seed", range(8))
def test_same_seed_and_work_same_plan(seed: int) -> None:
    profile, request = asked(seed)
    assert solve(profile, request) == solve(training_step(seed), request)


@pytest.mark.parametrize("seed", range(8))
def test_the_adapter_is_obeyed(seed: int) -> None:
    profile, request = asked(seed)
    profile = msgspec.structs.replace(profile, adapter=Adapter(moves="none", recompute="layer"))
    answer = solve(profile, request)
    if isinstance(answer, Plan):
        assert not answer.residency.initial
        assert {action.kind for action in answer.residency.actions} <= {"release"}
        for recompute in answer.residency.recompute:
            assert len({profile.operators[op].layer for op in recompute.ops}) == 1


@pytest.mark.parametrize("seed", range(8))
def test_a_larger_budget_is_never_slower_along_the_front(seed: int) -> None:
    profile, request = asked(seed)
    answer = solve(profile, replace(request, objective="pareto", work_limit=60))
    if isinstance(answer, Plan):
        steps = [entry["step_us"] for entry in answer.alternatives]
        assert steps == sorted(steps, reverse=True)
        assert answer.predicted is not None and answer.predicted.step_us in steps


@pytest.mark.parametrize("seed", range(8))
def test_least_peak_is_within_its_proof(seed: int) -> None:
    profile, request = asked(seed)
    roomy = replace(request, objective="min_peak", budget=Budget(hbm_bytes=1 << 20))
    answer = solve(profile, roomy)
    assert isinstance(answer, Plan) and validate(profile, answer) == []
    least, proven = answer.explain[0]["least_hbm_bytes"], answer.explain[0]["lower_bound_bytes"]
    assert proven <= replay(profile, answer).static_peak_bytes <= least
    assert answer.bound is not None and (answer.bound.status != "optimal" or least == proven)


def test_windows_are_obeyed() -> None:
    """The adapter can move storage 0 only between operators 1 and 4, though it is idle from 0 to 5."""
    operators = tuple(
        Operator(reads=reads, writes=writes, duration_us=10.0, recomputable=False)
        for reads, writes in [((), (0,)), ((), ()), ((), (1,)), ((1,), ()), ((), ()), ((0,), ())]
    )
    storages = (Storage(id=0, bytes=10, window=(1, 4)), Storage(id=1, bytes=10))
    links = Links(d2h_bytes_per_s=10**7, h2d_bytes_per_s=10**7)
    device = Device(host_bytes=100, links=links)
    profile = Profile(operators=operators, storages=storages, device=device, adapter=Adapter(moves="window"))
    answer = solve(profile, Request(Budget(hbm_bytes=10)))
    assert isinstance(answer, Plan)
    assert all(action.op >= 1 for action in answer.residency.actions if action.when == "after")
    assert all(action.op <= 4 for action in answer.residency.actions if action.when == "before")


def test_timing_only_profiles_are_not_planned() -> None:
    profile = Profile(operators=(Operator(duration_us=1.0),), storages=())
    with pytest.raises(NotPlannable, match="no storages"):
        solve(profile, Request(Budget(hbm_bytes=100)))
