"""The stage problem of one candidate, and what a split of it takes when every stage has its own residency plan.

The stage solver sees a layer as one time and a choice of levels. Here the split is taken at its word: each stage's
step is put together (`stage`), planned within the real budget and replayed; what every forward and backward took then
goes through the schedule once more. That is the step time which counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from hyperopt.plan import HOST, Budget, Plan
from hyperopt.profile import IDLE
from hyperopt.replay import Timeline, replay
from solver.joint.draft import drafted
from solver.joint.levels import LayerCost, Level
from solver.joint.sample import HEAD, TAIL, Part, Sample
from solver.joint.stage import Exchange, StageStep, stage_step
from solver.placement import Sharding
from solver.request import Infeasible, Request
from solver.residency.solve import solve_residency
from solver.stages.problem import NO_LIMIT, Column, Problem
from solver.stages.schedule import BACKWARD, FORWARD, Task, graph, orders

I64 = NDArray[np.int64]

STEADY = 4
"""Micro-batches of a stage's step beyond those in flight at its start; the rest repeat them."""


@dataclass(frozen=True)
class Candidate:
    """One way to shard the model over the devices of a stage: what one of them does (`sample`), on how many `stages`
    of `devices` each, with so many micro-batches a step; `sharding`, where the sharding solver made it; `ranks` of all
    devices along the pipeline, from 0 unless given."""

    name: str
    sample: Sample
    stages: int
    devices: int
    micro_batches: int
    exchange: Exchange
    sharding: Sharding | None = None
    ranks: tuple[int, ...] = ()


Kind = Literal["kept", "apart", "moved", "states"]
"""What placement reckons with: nothing leaves HBM, and nothing may (`kept`); nothing, but residency may move what it
likes (`apart`: one after the other); activations leave (`moved`), and optimizer states too (`states`)."""


@dataclass(frozen=True)
class Terms:
    """What placement is told by residency: how many times a stage's work takes what its layers take alone (`price`),
    and bytes of its budget that it has to leave (`short`); without an entry 1 and 0."""

    kind: Kind
    price: tuple[float, ...] = ()
    short: tuple[int, ...] = ()

    @property
    def moves(self) -> bool:
        return self.kind in ("moved", "states")

    @property
    def states_out(self) -> bool:
        return self.kind == "states"

    def budget(self, given: Budget, tiers: Iterable[str]) -> Budget:
        """What residency may use."""
        return msgspec.structs.replace(given, tiers=dict.fromkeys(tiers, 0)) if self.kind == "kept" else given


def stage_problem(candidate: Candidate, costs: Mapping[str, LayerCost], budget: Budget, terms: Terms | None) -> Problem:
    """The stages of a candidate in nanoseconds and bytes. Without `terms` memory is no limit, nothing is given up, and
    all communication is hidden: its optimum is below every placement's step."""
    sample, stages = candidate.sample, candidate.stages
    device = sample.profile.device
    types = tuple(sample.layers)
    columns: list[Column] = []
    rows: list[tuple[LayerCost, Level]] = []
    for t, name in enumerate(types):
        for level in costs[name].levels[: None if terms else 1]:
            if level.moved and not (terms and terms.moves):
                continue
            columns.append(Column(t, level.name, "offload" if level.moved else "recompute"))
            rows.append((costs[name], level))
    tier = device.tiers[HOST]
    price = np.array(terms.price if terms and terms.price else [1.0] * stages)[:, None]

    def by_stage(values: Sequence[float]) -> I64:
        return np.tile(np.array([round(v) for v in values], np.int64), (stages, 1))

    def priced(values: Sequence[float]) -> I64:
        return np.asarray(np.round(by_stage(values) * price), np.int64)

    def copies(rate: float) -> I64:
        return by_stage([level.moved / rate * 1e9 if level.moved else 0 for _, level in rows])

    ends = [costs[HEAD], costs[TAIL]]
    held = [cost.parameters - (cost.states if terms and terms.states_out else 0) for cost in ends]
    if stages == 1:  # one stage holds what head and tail share once
        tied = costs[TAIL].tied
        held[1] -= tied[0] - (tied[1] if terms and terms.states_out else 0)
    working = max(cost.working for cost in costs.values())
    sent = sum(sample.profile.by_id[s].bytes for s in sample.layers[types[-1]].leaves)
    passing = 4 * sent  # one hidden state and one gradient that come, and one of each that goes
    static = np.full(stages, device.base_bytes + working + (passing if stages > 1 else 0), np.int64)
    static[0] += held[0] + costs[HEAD].levels[0].kept * min(stages, candidate.micro_batches)
    static[-1] += held[1] + costs[TAIL].levels[0].kept
    hbm = budget.hbm_bytes if budget.hbm_bytes is not None else device.hbm_bytes
    short = np.array(terms.short if terms and terms.short else [0] * stages, np.int64)
    host = budget.tier_bytes(sample.profile).get(HOST, 0)
    if terms and terms.states_out:
        host = max(0, host - round(sum(costs[t].states for t in sample.types) / stages))
    parameters = [costs[t].parameters - (costs[t].states if terms and terms.states_out else 0) for t in types]
    lag = candidate.exchange.us(sent) * 1000
    nothing = np.zeros((stages, len(columns)), np.int64)  # backward is whole
    return Problem(
        stages=stages,
        chunks=1,
        micro_batches=candidate.micro_batches,
        schedule="1f1b",
        runs=tuple((types.index(name), count) for name, count in sample.stack),
        columns=tuple(columns),
        types=types,
        forward=priced([cost.forward_ns if terms else cost.compute_ns[0] for cost, _ in rows]),
        backward=priced([cost.backward_ns + level.extra_ns if terms else cost.compute_ns[1] for cost, level in rows]),
        weight=nothing,
        copy_out=copies(float(tier.d2h_bytes_per_s) or 1.0),
        copy_in=copies(float(tier.h2d_bytes_per_s) or 1.0),
        device=by_stage([level.kept - level.moved for _, level in rows]),
        late=nothing,
        host=by_stage([level.moved for _, level in rows]),
        parameter=by_stage(parameters),
        first=_at(stages, costs[HEAD], bool(terms)),
        last=_at(stages, costs[TAIL], bool(terms)),
        beside=np.zeros((stages, 2), np.int64),
        static=static,
        limit=np.full(stages, hbm, np.int64) - short if terms else np.full(stages, NO_LIMIT, np.int64),
        host_limit=np.full(stages, host, np.int64),
        transfer=np.full(stages, round(lag), np.int64),
        min_layers=1,
        tick=1e-3,
        grain=1.0,
    )


def _at(stages: int, cost: LayerCost, whole: bool) -> tuple[I64, I64]:
    forward, backward = (cost.forward_ns, cost.backward_ns) if whole else cost.compute_ns
    return np.full(stages, forward, np.int64), np.full(stages, backward, np.int64)


@dataclass(frozen=True)
class Took:
    """Nanoseconds of each of a stage's tasks, in order, and of its optimizer."""

    tasks: tuple[int, ...]
    optimizer: int


@dataclass(frozen=True)
class StageRun:
    """A stage's step with its plan, replayed, and what it would take with all memory in the world (`free`)."""

    types: tuple[str, ...]
    step: StageStep
    plan: Plan
    timeline: Timeline
    took: Took
    free: Took
    unplanned_peak_bytes: int


@dataclass(frozen=True)
class Run:
    """All stages of a split: the step in nanoseconds, by replay of each stage and simulation of the schedule;
    `free_ns`: the same split with all memory in the world."""

    step_ns: int
    free_ns: int
    stages: tuple[StageRun, ...]


@dataclass(frozen=True)
class Refused:
    """The stage whose budget cannot be met, and the residency solver's answer; `why` in words."""

    stage: int
    answer: Infeasible | None
    why: str


def run(
    candidate: Candidate,
    costs: Mapping[str, LayerCost],
    terms: Terms,
    problem: Problem,
    split: I64,
    budget: Budget,
    deadline: float,
    seed: int,
    cancelled: Callable[[], bool],
) -> Run | Refused:
    """The split with every stage planned within `budget`; each has its share of the time until `deadline`."""
    stages = candidate.stages
    held = _types(problem, split)
    chosen = _levels(problem, split, costs)
    short = min(candidate.micro_batches, stages + STEADY)
    order = orders("1f1b", stages, 1, short)
    waits = _waits(problem, split, short)
    runs: list[StageRun] = []
    for s in range(stages):
        step = stage_step(
            candidate.sample, held[s], order[s], candidate.exchange, first=s == 0, last=s == stages - 1,
            waits_us=waits[s],
        )  # fmt: skip
        parts, levels = _parts(candidate.sample, held[s], s == 0, s == stages - 1), chosen[s]
        start = drafted(step, parts, [*([None] if s == 0 else []), *levels, *([None] if s == stages - 1 else [])],
                        terms.states_out)  # fmt: skip
        left = max(0.1, (deadline - time.monotonic()) / (stages - s))
        request = Request(budget, time_limit_s=left, seed=seed, starts=(start,))
        answer = solve_residency(step.profile, request, cancelled, lambda _: None)
        if isinstance(answer, Infeasible):
            least = answer.lower_bound_bytes if answer.proven else answer.reachable_bytes
            told = f"stage {s} needs {least} bytes of HBM" if least else f"stage {s}: no plan within the budget"
            return Refused(s, answer, told)
        planned, free = replay(step.profile, answer), replay(step.profile, hbm_bytes=2**62)
        took = _took(step, planned), _took(step, free)
        runs.append(StageRun(held[s], step, answer, planned, *took, free.peak_bytes))
    tasks = [one.step.tasks for one in runs]
    step_ns, free_ns = (
        _makespan(candidate, problem, tasks, took, short)
        for took in ([one.took for one in runs], [one.free for one in runs])
    )
    return Run(step_ns, free_ns, tuple(runs))


def _types(problem: Problem, split: I64) -> list[tuple[str, ...]]:
    """The types of layers that each stage holds, in order."""
    made, start = [], 0
    for count in split.sum(1):
        made.append(tuple(problem.types[t] for t in problem.layer_types[start : start + int(count)]))
        start += int(count)
    return made


def _levels(problem: Problem, split: I64, costs: Mapping[str, LayerCost]) -> list[list[Level]]:
    """The level of each layer of each stage: of a type the first layers have the costliest, theirs is the longest
    wait."""
    made: list[list[Level]] = []
    start = 0
    for g in range(problem.groups):
        count = int(split[g].sum())
        levels: list[Level] = []
        for t in dict.fromkeys(int(t) for t in problem.layer_types[start : start + count]):
            named = {level.name: level for level in costs[problem.types[t]].levels}
            for k in reversed(np.flatnonzero(problem.type_of == t)):
                levels += [named[problem.columns[k].level]] * int(split[g, k])
        made.append(levels)
        start += count
    return made


def _parts(sample: Sample, types: Sequence[str], first: bool, last: bool) -> list[Part]:
    parts = [sample.head] if first else []
    parts += [sample.layers[name] for name in types]
    return [*parts, sample.tail] if last else parts


def _waits(problem: Problem, split: I64, micro_batches: int) -> list[dict[int, float]]:
    """[stage]: microseconds before each of its tasks in which it waits for others, by the stage solver's times."""
    made = graph("1f1b", problem.stages, 1, micro_batches)
    durations = problem.durations(split).ravel()
    ends = _ends(made.duration, made.before, made.needs, made.link, durations[made.duration], problem.transfer)
    waits: list[dict[int, float]] = [{} for _ in range(problem.stages)]
    for s, tasks in enumerate(made.orders):
        before = 0
        for k, task in enumerate(tasks):
            i = made.position[s, task]
            start = int(ends[i] - durations[made.duration[i]])
            if k and start > before:
                waits[s][k] = (start - before) / 1000
            before = int(ends[i])
    return waits


def _ends(index: I64, before: I64, needs: I64, link: I64, lengths: I64, transfer: I64) -> I64:
    """When each task ends, tasks in an order in which none waits for a later one."""
    ends = np.zeros(len(index), np.int64)
    for i in range(len(index)):
        start = 0 if before[i] < 0 else ends[before[i]]
        if needs[i] >= 0:
            start = max(start, ends[needs[i]] + (transfer[link[i]] if link[i] >= 0 else 0))
        ends[i] = start + lengths[i]
    return ends


def _took(step: StageStep, timeline: Timeline) -> Took:
    """A task takes from the end of the one before it to its own, without the waiting for other stages in between."""
    ends = [0] * len(step.tasks)
    idle = [0] * len(step.tasks)
    for i, (task, o) in enumerate(zip(step.task, step.profile.operators, strict=True)):
        if task < 0 or o.stream != "compute":
            continue
        if o.type == IDLE:
            idle[task] += timeline.end[i] - timeline.start[i]
        else:
            ends[task] = max(ends[task], timeline.end[i])
    tasks: list[int] = []
    before = 0
    for end, waited in zip(ends, idle, strict=True):
        tasks.append(max(0, end - before - waited))
        before = max(before, end)
    return Took(tuple(tasks), timeline.step_ns - before)


def _makespan(
    candidate: Candidate, problem: Problem, tasks: Sequence[Sequence[Task]], runs: Sequence[Took], short: int
) -> int:
    """Nanoseconds of the whole step: tasks take what they took in replay; micro-batches beyond those replayed what
    the steady ones did. The step ends with the last stage's optimizer."""
    count = candidate.micro_batches
    made = graph("1f1b", problem.stages, 1, count)
    lengths = np.zeros(len(made.duration), np.int64)
    for s, one in enumerate(runs):
        took = dict(zip(tasks[s], one.tasks, strict=True))
        steady = {
            d: round(median(took[Task(d, 0, m)] for m in range(short // 2, short // 2 + STEADY) if m < short))
            for d in (FORWARD, BACKWARD)
        }
        head = short // 2
        for task in made.orders[s]:
            m = task.micro_batch
            like = m if m < head else m - (count - short) if m >= count - (short - head) else -1
            known = took[Task(task.direction, 0, like)] if like >= 0 else steady[task.direction]
            lengths[made.position[s, task]] = known
    ends = _ends(made.duration, made.before, made.needs, made.link, lengths, problem.transfer)
    last = [0] * problem.stages
    for (s, _), i in made.position.items():
        last[s] = max(last[s], int(ends[i]))
    return max(end + one.optimizer for end, one in zip(last, runs, strict=True))
