"""A placement as a plan document, and as what the command prints."""

from __future__ import annotations

from typing import Any

import msgspec

from hyperopt.plan import Bound, Budget, Plan, Predicted, check_stages
from hyperopt.profile import Profile
from solver.joint.pipeline import StageRun
from solver.joint.solve import Placement, Tried
from solver.placement.export import plan_sharding
from solver.stages.report import plan_stages


def plan_of(placement: Placement, profile: Profile, budget: Budget) -> Plan:
    """The plan: `stages` with a residency for each, `sharding` where the sharding solver made it: its mesh is the first
    stage's, and the devices of each other stage stand in the same order.

    `profile`: what was asked with, one micro-batch of the short model. A stage's residency is for the step that
    `Placement.run` has of it (`stage_steps` in the provenance names its digest); the figures are of the slowest step
    and the fullest device, simulated.
    """
    candidate, run = placement.candidate, placement.run
    placed = plan_stages(placement.problem, placement.split, [candidate.devices] * candidate.stages)
    ranks = candidate.ranks or tuple(range(candidate.stages * candidate.devices))
    stages = tuple(
        msgspec.structs.replace(
            stage,
            devices=tuple(ranks[place] for place in stage.devices),
            residency=one.plan.residency,
            recompute_levels={},
            offload_levels={},
        )
        for stage, one in zip(placed, run.stages, strict=True)
    )
    check_stages(stages)
    tiers: dict[str, int] = {}
    for one in run.stages:
        for name, size in one.timeline.tier_peak_bytes.items():
            tiers[name] = max(tiers.get(name, 0), size)
    optimal = run.step_ns <= placement.bound_ns
    plan = Plan(
        profile_digest=profile.digest,
        budget=budget,
        stages=stages,
        sharding=None if candidate.sharding is None else plan_sharding(candidate.sharding),
        predicted=Predicted(
            step_us=run.step_ns / 1000,
            peak_bytes=max(one.timeline.peak_bytes for one in run.stages),
            stall_us=sum(one.timeline.stall_us for one in run.stages),
            tier_peak_bytes=tiers,
            baseline_step_us=run.free_ns / 1000,
            baseline_peak_bytes=max(one.unplanned_peak_bytes for one in run.stages),
        ),
        bound=Bound(
            step_us=placement.bound_ns / 1000,
            gap=placement.gap,
            status="optimal" if optimal else "feasible",
            stop_reason="bound reached" if optimal else placement.stop_reason,
        ),
        alternatives=tuple(_tried(one) for one in placement.tried),
        explain=tuple(stage_figures(placement)),
        provenance={
            "candidate": candidate.name,
            "without_moves_us": None if placement.without is None else placement.without / 1000,
            "stage_steps": [one.step.profile.digest for one in run.stages],
        },
    )
    return msgspec.structs.replace(plan, plan_id=plan.content_id)


def stage_figures(placement: Placement) -> list[dict[str, Any]]:
    """For each stage: layers, bytes and times of one device, simulated."""
    return [{"stage": s} | _figures(one) for s, one in enumerate(placement.run.stages)]


def _figures(one: StageRun) -> dict[str, Any]:
    moved = {True: 0, False: 0}
    for copy in one.timeline.copies:
        moved[copy.out] += one.step.profile.by_id[copy.storage].bytes
    return {
        "layers": {name: one.types.count(name) for name in dict.fromkeys(one.types)},
        "peak_bytes": one.timeline.peak_bytes,
        "unplanned_peak_bytes": one.unplanned_peak_bytes,
        "copied_out_bytes": moved[True],
        "copied_in_bytes": moved[False],
        "recompute_us": one.timeline.recompute_ns / 1000,
        "stall_us": one.timeline.stall_us,
        "micro_batches_replayed": len(one.step.tasks) // 2,
    }


def _tried(one: Tried) -> dict[str, Any]:
    return {
        "candidate": one.candidate,
        "kind": one.terms.kind,
        "estimate_us": one.estimate_ns / 1000,
        "step_us": None if one.step_ns is None else one.step_ns / 1000,
        "why": one.why,
    }
