"""The fluid bound is a bound: never above the optimum by exhaustion, at whatever prices, merged or not."""

from __future__ import annotations

import random
import threading

import msgspec
import numpy as np
import pytest

from hyperopt.plan import Budget
from hyperopt.profile import Device, Links, Operator, Profile, Storage, Tier, check
from hyperopt.replay import replay
from solver.residency.bound import memory_bound, step_bound_ns
from solver.residency.carried import carried
from solver.residency.columns import solve_fluid
from solver.residency.exact import TooLarge, best_plan
from solver.residency.fluid import PARTS, Fluid, Prices
from solver.residency.gaps import KEEP, WRAP_TAIL
from solver.residency.master import Master
from solver.residency.problem import Problem
from tests.brute_force import TooMany, least_ns
from tests.solver.test_residency import training_step

NEVER_NS = 1 << 62
MOST_LABELS = 3_000
ROWS = (1, 3, 48)
NO_TIER = Device(host_bytes=0)


def small_step(seed: int) -> Profile:
    """Up to 6 operators and 4 storages: streams, tiers with little room, one queue for both directions, in-place
    updates, residents, inputs that are dead when they are needed again."""
    dice = random.Random(seed)
    count, tensors = dice.randint(3, 6), dice.randint(1, 4)
    again, side = dice.choice([0.0, 0.4, 0.9]), dice.choice([0.0, 0.25])
    resident = [dice.random() < 0.35 for _ in range(tensors)]
    exists = {i for i in range(tensors) if resident[i]}
    operators = []
    for k in range(count):
        reads = tuple(s for s in sorted(exists) if dice.random() < 0.4)
        writes = tuple(s for s in range(tensors) if dice.random() < (0.2 if s in exists or k > 2 else 0.5))
        exists.update(writes)
        document = {"reads": reads, "writes": writes, "duration_us": dice.choice([0, 1, 2, 5, 9])}
        document |= {"workspace_bytes": dice.choice([0, 0, 2]), "recomputable": dice.random() < again}
        document |= {"stream": "comm" if dice.random() < side else "compute"}
        operators.append(msgspec.convert(document, Operator))
    storages = []
    for i in range(tensors):
        document = {"id": i, "bytes": dice.randint(1, 6), "resident_at_start": resident[i]}
        document |= {"resident_at_end": i in exists and dice.random() < 0.4}
        document |= {"offloadable": dice.random() < (0.4 if again else 0.9)}
        storages.append(msgspec.convert(document, Storage))
    largest = max(s.bytes for s in storages)
    tiers = tuple(
        Tier(
            name=name,
            bytes=dice.choice([100, 100, largest, largest + 2]),
            d2h_bytes_per_s=10**6 * dice.choice([0.25, 1, 4]),
            h2d_bytes_per_s=10**6 * dice.choice([0.5, 1, 4]),
            latency_us=dice.choice([0, 0.5]),
            duplex=dice.random() < 0.6,
        )
        for name in ["host", "pool"][: dice.choice([1, 1, 2])]
    )
    profile = Profile(operators=tuple(operators), storages=tuple(storages), device=Device(links=Links(tiers=tiers)))
    check(profile)
    return profile


def problems(seed: int) -> list[Problem]:
    """The step of a seed with the budgets between its memory bound and its peak: some three of them."""
    profile = small_step(seed)
    least = memory_bound(Problem(profile, Budget(hbm_bytes=0))).bytes
    peak = replay(profile).static_peak_bytes
    budgets = sorted({max(0, least - 1), *np.linspace(least, max(least, peak - 1), 3).astype(int).tolist()})
    return [Problem(profile, Budget(hbm_bytes=b)) for b in budgets if b < peak]


def optimum(problem: Problem) -> int | None:
    """Nanoseconds by exhaustion; None where nothing runs, or there is too much to try."""
    try:
        found = best_plan(problem, None, below_ns=NEVER_NS, max_labels=MOST_LABELS)
    except TooLarge:
        return None
    return None if found is None else found[1]


def above(bound_ns: float, optimum_ns: int) -> bool:
    return bound_ns > optimum_ns * (1 + 1e-9) + 1e-3


@pytest.mark.parametrize("block", range(10))
def test_no_plan_is_below_the_bounds(block: int) -> None:
    seen = binding = 0
    for seed in range(60 * block, 60 * (block + 1)):
        for problem in problems(seed):
            best = optimum(problem)
            if best is None:
                continue
            assert memory_bound(problem).bytes <= problem.hbm_bytes, seed
            assert step_bound_ns(problem) <= best, (seed, problem.hbm_bytes)
            for rows in ROWS:
                bound_ns = solve_fluid(Fluid(problem, rows), None).bound_ns
                assert not above(bound_ns, best), (seed, problem.hbm_bytes, rows)
                binding += bound_ns > problem.unlimited.step_ns + 1
            seen += 1
    assert seen > 5 and binding > 0


def test_the_exact_search_agrees_with_plain_exhaustion() -> None:
    """What the bounds are measured against here is itself measured, on what can be enumerated."""
    seen = 0
    for seed in range(100):
        for problem in problems(seed)[1:2]:
            try:
                plain = least_ns(problem.profile, problem.budget, most=1_500)
            except TooMany:
                continue
            if plain is None:
                continue
            found = best_plan(problem, None, below_ns=NEVER_NS, max_labels=60_000)
            assert found is not None and found[1] <= plain, seed
            seen += 1
    assert seen > 5


@pytest.mark.parametrize("seed", range(60))
def test_any_admissible_prices_prove_a_bound(seed: int) -> None:
    dice = np.random.default_rng(seed)
    for problem in problems(seed):
        best = optimum(problem)
        if best is None:
            continue
        fluid = Fluid(problem, ROWS[seed % len(ROWS)])
        none = fluid.no_prices()
        for scale in (0.1, 1.0, 1000.0):
            drawn = {}
            for name in PARTS:
                shape = getattr(none, name).shape
                drawn[name] = dice.exponential(scale, shape) * (dice.random(shape) < 0.7) - 0.05
            bound_ns, _ = fluid.answer(fluid.feasible(Prices(**drawn)))
            assert not above(bound_ns, best), (problem.hbm_bytes, scale)


@pytest.mark.parametrize("seed", range(30))
def test_what_recompute_reads_may_be_copied_out_before_its_last_access(seed: int) -> None:
    """Storage 0 is read once, at once, and again only by operator 1 run again: the exact search knows every copy of
    it, and no bound is above its plan."""
    dice = random.Random(seed)
    between = dice.randint(0, 1)
    operators = [
        run(dice.randint(1, 4), (), (0,)),
        *(run(dice.randint(1, 3), (), (3,)) for _ in range(between)),
        run(dice.randint(1, 4), (0,), (1,), again=True),
        run(dice.randint(1, 4), (), (2,)),
        run(dice.randint(1, 20), (2,), (4,)),
        run(1, (1, 4)),
    ]
    sizes = (dice.randint(4, 12), dice.randint(4, 12), dice.randint(15, 20), 1, 1)
    storages = [Storage(id=i, bytes=size, offloadable=i == 0) for i, size in enumerate(sizes)]
    links = Links(d2h_bytes_per_s=10**6 * dice.choice([0.5, 1, 2]), h2d_bytes_per_s=10**6 * dice.choice([1, 10]))
    problem = Problem(step(operators, storages, Device(host_bytes=1000, links=links)), Budget(hbm_bytes=22))
    plain = least_ns(problem.profile, problem.budget)
    best = optimum(problem)
    assert best == plain
    if best is not None:
        assert not any(above(solve_fluid(Fluid(problem, rows), None).bound_ns, best) for rows in ROWS)


def test_admissible_prices_share_each_slot() -> None:
    for seed in range(30):
        for problem in problems(seed)[:1]:
            fluid = Fluid(problem, 48)
            dice = np.random.default_rng(seed)
            none = fluid.no_prices()
            raw = Prices(**{name: dice.normal(0, 1, getattr(none, name).shape) for name in PARTS})
            prices = fluid.feasible(raw)
            total = prices.work.copy()
            for t, single in enumerate(fluid.one_queue):
                total += prices.out[t] if single else prices.out[t] + prices.back[t]
            for price, (first, end, _) in zip(prices.chain, fluid.axis.stretches, strict=True):
                total[first:end] += price
            assert total == pytest.approx(np.ones(fluid.slots))
            assert min(part.min(initial=0) for part in (prices.held, prices.out, prices.back, prices.work)) >= 0


@pytest.mark.parametrize("seed", range(12))
def test_merging_alike_storages_changes_nothing(seed: int) -> None:
    """Storages whose sizes differ by a byte are not alike; with sizes in the millions, that byte is nothing."""
    dice = random.Random(seed)
    layers, kinds = dice.randint(3, 6), dice.randint(1, 3)
    size = [dice.randint(2, 9) * 10**6 for _ in range(kinds)]
    operators: list[Operator] = []
    storages: list[Storage] = []
    alike: list[tuple[int, list[int]]] = []
    for layer in range(layers):
        for kind in range(kinds):
            copies = range(dice.randint(1, 4))
            ids = [len(storages) + i for i in copies]
            storages += [Storage(id=i, bytes=size[kind]) for i in ids]
            again = seed % 3 == 0
            operators.append(Operator(writes=tuple(ids), duration_us=dice.randint(1, 9) * 1000, recomputable=again))
            alike.append((layer, ids))
    for _, ids in reversed(alike):
        operators.append(Operator(reads=tuple(ids), duration_us=dice.randint(1, 9) * 1000, recomputable=False))
    links = Links(d2h_bytes_per_s=1e9, h2d_bytes_per_s=2e9, duplex=seed % 2 == 0)
    room = 10**10 if seed % 4 else 10**7 * 3
    merged = step(operators, storages, Device(host_bytes=room, links=links))
    apart = tuple(msgspec.structs.replace(s, bytes=s.bytes + s.id) for s in storages)
    single = msgspec.structs.replace(merged, storages=apart)
    budget = Budget(hbm_bytes=int(0.5 * replay(merged).peak_bytes))
    together, own = Fluid(Problem(merged, budget), 48), Fluid(Problem(single, budget), 48)
    assert len(own.gaps.members) >= len(together.gaps.members)
    assert sum(map(len, together.gaps.members)) == sum(map(len, own.gaps.members))
    found = [solve_fluid(fluid, None, tolerance=1e-6).bound_ns for fluid in (together, own)]
    assert found[0] == pytest.approx(found[1], rel=2e-3)


def step(operators: list[Operator], storages: list[Storage], device: Device = NO_TIER) -> Profile:
    profile = Profile(operators=tuple(operators), storages=tuple(storages), device=device)
    check(profile)
    return profile


def run(us: float, reads: tuple[int, ...] = (), writes: tuple[int, ...] = (), *, again: bool = False) -> Operator:
    return Operator(reads=reads, writes=writes, duration_us=us, recomputable=again)


@pytest.mark.parametrize("newer_runs_again", [False, True])
def test_what_is_only_overwritten_may_come_back_in_an_older_version(newer_runs_again: bool) -> None:
    """Operator 5 overwrites storage 0 without reading it: running 0 again (1 us) does, instead of 1 (9 us)."""
    operators = [
        run(1, (), (0,), again=True),
        run(9, (), (0,), again=newer_runs_again),
        run(1, (0,)),
        run(1, (), (1,)),
        run(1, (1,)),
        run(1, (), (0,)),
        run(1, (0,)),
    ]
    storages = [Storage(id=0, bytes=10, offloadable=False), Storage(id=1, bytes=10, offloadable=False)]
    problem = Problem(step(operators, storages), Budget(hbm_bytes=10))
    assert optimum(problem) == 16_000
    assert memory_bound(problem).bytes == 10
    assert solve_fluid(Fluid(problem, 48), None).bound_ns == pytest.approx(16_000)


def test_an_input_whose_copy_is_at_hand_is_not_copied_out_again() -> None:
    """Storage 0 starts in the tier, so its return for operator 0 to run again costs a copy in (1 us), no copy out."""
    operators = [run(1, (0,), (1,), again=True), run(1, (1,)), run(1, (), (2,)), run(1, (2,)), run(1, (1,))]
    storages = [
        Storage(id=0, bytes=10, resident_at_start=True),
        Storage(id=1, bytes=10, offloadable=False),
        Storage(id=2, bytes=20, offloadable=False),
    ]
    device = Device(host_bytes=1000, links=Links(d2h_bytes_per_s=10**4, h2d_bytes_per_s=10**7))
    problem = Problem(step(operators, storages, device), Budget(hbm_bytes=20))
    best = optimum(problem)
    assert best == 8_000
    assert not above(solve_fluid(Fluid(problem, 48), None).bound_ns, best)


def test_an_input_that_is_moved_is_held_until_it_has_left() -> None:
    """Operator 1 runs again from storage 0, which the profile frees before the peak at 2: it has left by then (10 us
    out), or is there. That the link is idle later, during operator 4, helps nothing."""
    operators = [
        run(1, (), (0,)),
        run(1, (0,), (1,), again=True),
        run(1, (), (2,)),
        run(1, (2,)),
        run(20, (), (3,)),
        run(1, (1, 3)),
    ]
    storages = [
        Storage(id=0, bytes=10),
        Storage(id=1, bytes=10, offloadable=False),
        Storage(id=2, bytes=20, offloadable=False),
        Storage(id=3, bytes=1, offloadable=False),
    ]
    device = Device(host_bytes=1000, links=Links(d2h_bytes_per_s=10**6, h2d_bytes_per_s=10**7))
    problem = Problem(step(operators, storages, device), Budget(hbm_bytes=21))
    best = optimum(problem)
    assert best == 35_000
    bound = solve_fluid(Fluid(problem, 48), None).bound_ns
    assert 32_000 < bound <= best  # held at no row, it would be 26 us


def test_one_execution_makes_an_input_and_what_else_is_wanted() -> None:
    """Operator 0 makes storage 0, from which 2 is made again, and storage 1: it runs again once for both."""
    operators = [run(20, (), (0, 1), again=True), run(1, (0,), (2,), again=True), run(1, (), (3,)), run(1, (3,))]
    operators.append(run(1, (1, 2)))
    storages = [Storage(id=i, bytes=size, offloadable=False) for i, size in enumerate((10, 10, 10, 30))]
    problem = Problem(step(operators, storages), Budget(hbm_bytes=30))
    assert optimum(problem) == 45_000
    assert solve_fluid(Fluid(problem, 48), None).bound_ns == pytest.approx(45_000)


@pytest.mark.parametrize("seed", range(8))
def test_the_bound_is_below_every_plan_and_its_guides_share_what_there_is(seed: int) -> None:
    profile = training_step(seed)
    problem = Problem(profile, Budget(hbm_bytes=int(0.7 * replay(profile).peak_bytes)))
    fluid = Fluid(problem, 48)
    solution = solve_fluid(fluid, None)
    proven, _ = fluid.answer(solution.prices)
    assert proven == pytest.approx(solution.bound_ns) or proven <= solution.bound_ns
    assert solution.guides
    for guide in solution.guides:
        used: dict[int, float] = {}
        for share, options in guide.shares:
            unit = int(np.searchsorted(fluid.gaps.first_gap, options[0][0], side="right")) - 1
            used[unit] = used.get(unit, 0.0) + share
        assert all(share <= 1 + 1e-6 for share in used.values())


@pytest.mark.parametrize("seed", range(20))
def test_a_finer_axis_by_any_clock_keeps_the_rows_and_proves_no_more_than_the_optimum(seed: int) -> None:
    dice = np.random.default_rng(seed)
    for problem in problems(seed):
        best = optimum(problem)
        if best is None:
            continue
        clock = np.cumsum(dice.integers(0, 9, problem.n))
        coarse = Fluid(problem, 2)
        known = solve_fluid(coarse, None)
        finer = Fluid(problem, 3, clock, coarse.axis)
        assert set(coarse.axis.ops.tolist()) <= set(finer.axis.ops.tolist())
        told: list[float] = []
        found = solve_fluid(finer, None, guided=False, coarse=(coarse, known), proven=told.append)
        assert known.bound_ns <= found.bound_ns and not above(found.bound_ns, best), (seed, problem.hbm_bytes)
        assert told == sorted(told) and all(bound_ns <= found.bound_ns for bound_ns in told)


@pytest.mark.parametrize("seed", range(6))
def test_journeys_of_a_coarser_axis_stay_where_a_finer_one_lets_them(seed: int) -> None:
    profile = training_step(seed)
    problem = Problem(profile, Budget(hbm_bytes=int(0.5 * replay(profile).peak_bytes)))
    coarse = Fluid(problem, 4)
    known = solve_fluid(coarse, None)
    clock = np.asarray(problem.unlimited.start, dtype=np.int64)
    finer = Fluid(problem, 48, clock, coarse.axis)
    gaps = finer.gaps
    for options in carried(finer, coarse, known.journeys):
        assert len({int(np.searchsorted(gaps.first_gap, g, side="right")) for g, *_ in options}) == 1
        for g, choice, _, start, stop, _ in options:
            assert gaps.first[g] <= start <= stop <= finer.axis.rows
            assert choice == KEEP or stop <= gaps.end[g] or gaps.kind[g] == WRAP_TAIL
    found = solve_fluid(finer, None, guided=False, coarse=(coarse, known))
    assert found.bound_ns >= known.bound_ns


def test_a_program_left_to_itself_is_waited_for_when_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon thread would be torn out of the solver's C++, which aborts the process."""
    fluid = Fluid(problems(0)[0], 3)
    going_on = threading.Event()
    monkeypatch.setattr("solver.residency.master.mathopt.solve", lambda *_, **__: going_on.wait(10))
    before = set(threading.enumerate())
    assert Master(fluid, lambda: True).solve(None) is None
    (left,) = set(threading.enumerate()) - before
    assert not left.daemon
    going_on.set()
    left.join(10)


def test_a_bound_cut_short_is_still_one() -> None:
    """Without time, or stopped at once, prices that prove the step without memory remain, and a guide to go by."""
    profile = training_step(3)
    problem = Problem(profile, Budget(hbm_bytes=int(0.6 * replay(profile).peak_bytes)))
    for solution in (solve_fluid(Fluid(problem, 48), 0.0), solve_fluid(Fluid(problem, 48), None, lambda: True)):
        assert 0 < solution.bound_ns <= solve_fluid(Fluid(problem, 48), None).bound_ns * (1 + 1e-9)
        assert solution.guides
