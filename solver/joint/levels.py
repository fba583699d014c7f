"""What a layer's activations may cost: levels of recomputation and offload, as the residency solver prices them.

::

    forward │ gap │ backward        the gap needs so much memory that only there anything has to leave

The residency solver is asked for the fastest way through one layer with ever less kept in the gap: first without any
tier, which gives the recomputation that is worth its time for each amount, then everything that is kept at such a
level, or half of it, moved out. Moving is priced where a stage's layers share the link (`solver.stages`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from hyperopt.plan import EMPTY, Budget, Plan
from hyperopt.profile import COMPUTE, Operator, Storage, ns
from hyperopt.replay import replay
from solver.joint.sample import HEAD, TAIL, Part, Sample
from solver.joint.stage import EXCHANGE, RECEIVE, StageStep, layer_step
from solver.request import Request
from solver.residency.solve import solve_residency

SHARES = (0.75, 0.5, 0.25, 0.0)
"""Of what can be given up by recomputation, how much is still kept at each level."""

MOVED = (0.5, 1.0)
"""Shares of what a level keeps that may be moved out."""


@dataclass(frozen=True)
class Level:
    """`kept`: bytes per micro-batch between forward and backward, of which `moved` are not in HBM; `extra_ns`: what
    backward takes longer. How it is done, in the sample's operators and storages: what is dropped, as (storage, after
    which operator), and made again, as (storage, before which operator, by which operators); `held`: what is kept, of
    which `moves` leave."""

    name: str
    kept: int
    moved: int
    extra_ns: int
    drops: tuple[tuple[int, int], ...] = ()
    reruns: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
    held: tuple[int, ...] = ()
    moves: tuple[int, ...] = ()


@dataclass(frozen=True)
class LayerCost:
    """A part on one device: nanoseconds of a micro-batch, and of them on the compute stream alone (`compute_ns`,
    forward and backward), which no overlap hides; bytes that are there all the time (`parameters`, with gradients), of
    them `states` that only the optimizer touches, and what a pass needs besides (`working`); `tied`: of parameters and
    of states what the head and the tail share, which each of them counts."""

    forward_ns: int
    backward_ns: int
    compute_ns: tuple[int, int]
    optimizer_ns: int
    parameters: int
    states: int
    working: int
    levels: tuple[Level, ...]
    tied: tuple[int, int] = (0, 0)


def layer_cost(sample: Sample, part: Part, level_s: float | None, seed: int) -> LayerCost:
    """Times, memory and levels of a part; `level_s` seconds at most for each question to the residency solver (None:
    none is asked, everything is kept)."""
    gap = Operator(duration_us=1000.0, name="gap", type="gap", recomputable=False)
    step = layer_step(sample, part, gap)
    plain = step.profile
    at = next(i for i, o in enumerate(plain.operators) if o.name == gap.name)
    timeline = replay(plain)
    forward = max((timeline.end[i] for i in range(at) if plain.operators[i].stream != EXCHANGE), default=0)
    forward -= max((timeline.end[i] for i in range(at) if plain.operators[i].type == RECEIVE), default=0)
    resident = plain.device.base_bytes + sum(s.bytes for s in plain.storages if s.resident_at_start)
    question = _Question(step, at, timeline.peak_bytes, resident + timeline.peak_bytes, level_s or 0.0, seed)
    whole = question.level("none", EMPTY)
    shared = [s for s in sample.profile.storages if s.id in sample.ends] if part.name in (HEAD, TAIL) else []
    own = [s for s in sample.profile.storages if sample.owner.get(s.id) == part.name]
    return LayerCost(
        forward_ns=forward,
        backward_ns=timeline.step_ns - timeline.end[at],
        compute_ns=(
            _compute(sample, part.forward),
            _compute(sample, [i for i in part.backward if i not in sample.closing]),
        ),
        optimizer_ns=round(sum(sample.profile.operators[i].duration_us for i in part.optimizer) * 1000),
        parameters=_held(sample, [*own, *shared])[0],
        states=_held(sample, [*own, *shared])[1],
        working=max(0, timeline.peak_bytes - resident - whole.kept),
        levels=(whole,) if level_s is None or plain.timing_only else tuple(question.levels(whole)),
        tied=_held(sample, shared),
    )


def _held(sample: Sample, storages: Iterable[Storage]) -> tuple[int, int]:
    """Bytes of those that are there all the time, gradients with them, and of optimizer states that may leave."""
    always = [s for s in storages if s.resident_at_start or s.id in sample.gradients]
    states = [s for s in always if s.kind == "optimizer_state" and s.resident_at_start and s.offloadable]
    return sum(s.bytes for s in always), sum(s.bytes for s in states)


def _compute(sample: Sample, indices: Iterable[int]) -> int:
    operators = [sample.profile.operators[i] for i in indices]
    return sum(ns(o.duration_us) for o in operators if o.stream == COMPUTE)


class _Question:
    """A layer with a gap at operator `at` that needs `room` bytes; `besides`: bytes in HBM there whatever is kept."""

    def __init__(self, step: StageStep, at: int, room: int, besides: int, seconds: float, seed: int) -> None:
        operators = list(step.profile.operators)
        operators[at] = msgspec.structs.replace(operators[at], workspace_bytes=room)
        self.profile = msgspec.structs.replace(step.profile, operators=tuple(operators))
        self.step, self.at, self.besides, self.seconds, self.seed = step, at, besides, seconds, seed
        self.unplanned_ns = replay(self.profile).step_ns
        self.operators = {listed: place[0] for place, listed in step.operators.items()}
        self.storages = {id: place[0] for place, id in step.storages.items()}

    def levels(self, whole: Level) -> list[Level]:
        """All of them, those that only recompute first."""
        found = [whole]
        least = self._plan(self.besides)
        if least is not None:
            floor = self.level("", least).kept
            for share in SHARES:
                amount = floor + round((whole.kept - floor) * share)
                plan = least if share == 0 else self._plan(self.besides + amount)
                if plan is not None:
                    level = self.level(f"recompute-{round(100 * share)}", plan)
                    if level.kept < found[-1].kept:
                        found.append(level)
        return found + [moved for level in found for share in MOVED for moved in self._moved(level, share)]

    def level(self, name: str, plan: Plan) -> Level:
        """What a plan without tiers keeps and costs."""
        timeline = replay(self.profile, plan, 2**62)
        released = [a for a in plan.residency.actions if a.kind == "release"]
        drops = tuple((self.storages[a.storage], self._operator(a.op, -1)) for a in released)
        reruns = tuple(
            (self.storages[r.storage], self._operator(r.before_op, 1), tuple(self.operators[i] for i in r.ops))
            for r in plan.residency.recompute
        )
        held = self._held({a.storage for a in released if a.op <= self.at}, [i for _, _, ops in reruns for i in ops])
        extra = max(0, timeline.step_ns - self.unplanned_ns)
        return Level(name, timeline.peak_bytes - self.besides, 0, extra, drops, reruns, held)

    def _moved(self, level: Level, share: float) -> list[Level]:
        """The level with the largest of what it holds moved out, about that share of it."""
        by_id = {self.storages[id]: self.profile.by_id[id] for id in self.storages}
        moves: list[int] = []
        moved = 0
        for s in sorted(level.held, key=lambda s: -by_id[s].bytes):
            if by_id[s].offloadable and moved + by_id[s].bytes <= share * level.kept:
                moves.append(s)
                moved += by_id[s].bytes
        name = f"{level.name}+offload-{round(100 * share)}"
        return [replace(level, name=name, moved=moved, moves=tuple(moves))] if moves else []

    def _held(self, dropped: set[int], rerun: Sequence[int]) -> tuple[int, ...]:
        """Storages of the sample that lie in HBM during the gap because backward, or a rerun, wants them."""
        operators = self.profile.operators
        listed = {place: at for at, place in self.operators.items()}
        wanted = {s for o in operators[self.at + 1 :] for s in o.reads}
        wanted |= {s for i in rerun for s in operators[listed[i]].reads}
        made = {s for o in operators[: self.at] for s in o.writes}
        return tuple(
            self.storages[s] for s in sorted((wanted & made) - dropped) if not self.profile.by_id[s].resident_at_start
        )

    def _operator(self, listed: int, step: int) -> int:
        """The sample's operator there, or the next one before or behind."""
        while listed not in self.operators:
            listed += step
        return self.operators[listed]

    def _plan(self, hbm_bytes: int) -> Plan | None:
        """The fastest way through the layer within the budget, or the smallest reachable, without any tier."""
        tiers = dict.fromkeys(self.profile.device.tiers, 0)
        request = Request(Budget(hbm_bytes=hbm_bytes, tiers=tiers), time_limit_s=self.seconds, seed=self.seed)
        answer = solve_residency(self.profile, request, lambda: False, lambda _: None)
        if isinstance(answer, Plan):
            return answer
        if answer.in_hand is None:
            return None
        return Plan(residency=answer.in_hand, budget=Budget(hbm_bytes=answer.reachable_bytes, tiers=tiers))
