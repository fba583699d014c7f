"""What a layer's activations may cost: levels of recomputation and offload, as the residency solver prices them.

::

    forward │ gap │ backward        the gap needs so much memory that only there anything has to leave

The residency solver is asked for the fastest way through one layer with ever less kept in the gap: first without any
tier, which gives the recomputation that is worth its time for each amount, then everything that is kept at such a
level, or half of it, moved out. Moving is priced where a stage's layers share the link (`solver.stages`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from hyperopt.plan import Budget, Plan
from hyperopt.profile import COMPUTE, Operator, Profile, ns
from hyperopt.replay import Timeline, replay
from solver.joint.sample import Part, Sample
from solver.joint.stage import EXCHANGE, layer_step
from solver.request import Request
from solver.residency.solve import solve_residency

SHARES = (0.75, 0.5, 0.25, 0.0)
"""Of what can be given up by recomputation, how much is still kept at each level."""

MOVED = (0.5, 1.0)
"""Shares of what a level keeps that may be moved out."""


@dataclass(frozen=True)
class Level:
    """`kept`: bytes per micro-batch between forward and backward, of which `moved` are not in HBM; `extra_ns`: what
    backward takes longer."""

    name: str
    kept: int
    moved: int
    extra_ns: int


@dataclass(frozen=True)
class LayerCost:
    """A part on one device: nanoseconds of a micro-batch, and of them on the compute stream alone (`compute_ns`,
    forward and backward), which no overlap hides; bytes that are there all the time (`parameters`, with gradients), of
    them `states` that only the optimizer touches, and what a pass needs besides (`working`)."""

    forward_ns: int
    backward_ns: int
    compute_ns: tuple[int, int]
    optimizer_ns: int
    parameters: int
    states: int
    working: int
    levels: tuple[Level, ...]


def layer_cost(sample: Sample, part: Part, level_s: float | None, seed: int) -> LayerCost:
    """Times, memory and levels of a part; `level_s` seconds at most for each question to the residency solver (None:
    none is asked, everything is kept)."""
    gap = Operator(duration_us=1000.0, name="gap", type="gap", recomputable=False)
    plain = layer_step(sample, part, gap)
    at = next(i for i, o in enumerate(plain.operators) if o.name == gap.name)
    timeline = replay(plain)
    forward = max((timeline.end[i] for i in range(at) if plain.operators[i].stream != EXCHANGE), default=0)
    forward -= max((timeline.end[i] for i in range(at) if plain.operators[i].type == "Receive"), default=0)
    backward = timeline.step_ns - timeline.end[at]
    resident = plain.device.base_bytes + sum(s.bytes for s in plain.storages if s.resident_at_start)
    room = timeline.peak_bytes
    wide = _widened(plain, at, room)
    kept = replay(wide).peak_bytes - resident - room
    own = [s for s in sample.profile.storages if sample.owner.get(s.id) == part.name]
    return LayerCost(
        forward_ns=forward,
        backward_ns=backward,
        compute_ns=(
            _compute(sample, part.forward),
            _compute(sample, [i for i in part.backward if i not in sample.closing]),
        ),
        optimizer_ns=round(sum(sample.profile.operators[i].duration_us for i in part.optimizer) * 1000),
        parameters=sum(s.bytes for s in own if s.resident_at_start or s.id in sample.gradients),
        states=sum(s.bytes for s in own if s.kind == "optimizer_state" and s.resident_at_start and s.offloadable),
        working=max(0, timeline.peak_bytes - resident - kept),
        levels=(
            Level("none", kept, 0, 0),
            *(() if level_s is None else _levels(wide, kept, resident + room, level_s, seed)),
        ),
    )


def _compute(sample: Sample, indices: Iterable[int]) -> int:
    operators = [sample.profile.operators[i] for i in indices]
    return sum(ns(o.duration_us) for o in operators if o.stream == COMPUTE)


def _widened(profile: Profile, at: int, room: int) -> Profile:
    operators = list(profile.operators)
    operators[at] = msgspec.structs.replace(operators[at], workspace_bytes=room)
    return msgspec.structs.replace(profile, operators=tuple(operators))


def _levels(wide: Profile, kept: int, besides: int, level_s: float, seed: int) -> list[Level]:
    """Further levels of a layer that keeps `kept` bytes in a gap where `besides` bytes are in HBM anyway."""
    unplanned = replay(wide)
    found = [Level("none", kept, 0, 0)]
    least = _recomputed(wide, besides, level_s, seed)
    floor = kept if least is None else least.peak_bytes - besides
    for share in SHARES:
        amount = floor + round((kept - floor) * share)
        timeline = least if share == 0 else _recomputed(wide, besides + amount, level_s, seed)
        if timeline is None or timeline.peak_bytes - besides >= found[-1].kept:
            continue
        extra = max(0, timeline.step_ns - unplanned.step_ns)
        found.append(Level(f"recompute-{round(100 * share)}", timeline.peak_bytes - besides, 0, extra))
    moves = [
        Level(f"{level.name}+offload-{round(100 * share)}", level.kept, round(level.kept * share), level.extra_ns)
        for level in found
        for share in MOVED
    ]
    return found[1:] + moves


def _recomputed(profile: Profile, hbm_bytes: int, seconds: float, seed: int) -> Timeline | None:
    """The fastest way through the profile within the budget, or the smallest reachable, without any tier."""
    tiers = dict.fromkeys(profile.device.tiers, 0)
    request = Request(Budget(hbm_bytes=hbm_bytes, tiers=tiers), time_limit_s=seconds, seed=seed)
    answer = solve_residency(profile, request, lambda: False, lambda _: None)
    if isinstance(answer, Plan):
        return replay(profile, answer)
    if answer.in_hand is None:
        return None
    plan = Plan(residency=answer.in_hand, budget=Budget(hbm_bytes=answer.reachable_bytes, tiers=tiers))
    return replay(profile, plan)
