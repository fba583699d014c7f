"""The command that places a model on a mesh: sharding, stages and residency together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from hyperopt import mesh as meshes
from hyperopt.cli.files import (
    INFEASIBLE,
    MOST_SEED,
    AsJson,
    HbmBytes,
    Output,
    TierBytes,
    check_output,
    emit_plan,
    read_profile,
    say,
    tier_budgets,
)
from hyperopt.documents import write
from hyperopt.plan import Budget, Plan

MOST_COUNT, MOST_MICRO_BATCHES, MOST_STAGES = 10_000, 100_000, 512
SHARDING_SHARE = 0.4
"""Of the time limit."""


def register(app: typer.Typer) -> None:
    app.command("place")(place)


def place(
    sample: Annotated[
        Path, typer.Argument(metavar="SAMPLE", help="profile of one micro-batch of a short model on one device")
    ],
    mesh: Annotated[Path, typer.Option(help="hyperopt.mesh/1: the devices and their links")],
    layers: Annotated[str, typer.Option(metavar="LABEL=COUNT,..", help="the model's layers, by labels in the sample")],
    micro_batches: Annotated[int, typer.Option(min=1, max=MOST_MICRO_BATCHES, help="micro-batches of a step")],
    hbm_bytes: HbmBytes,
    tier_bytes: TierBytes = None,
    stages: Annotated[
        str | None, typer.Option(metavar="N,..", help="numbers of stages to try; all that divide")
    ] = None,
    sequences: Annotated[int, typer.Option(min=1, help="sequences in the sample's micro-batch")] = 1,
    time_limit: Annotated[float, typer.Option(min=1, help="seconds, two fifths of them for shardings")] = 240.0,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="of the searches")] = 0,
    output: Output = None,
    steps: Annotated[
        Path | None, typer.Option(help="folder for the step of each stage: its residency is for it")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Say which devices hold which layers, how tensors are sharded, and what leaves HBM. Exit 0: a plan; 3: none."""
    from hyperopt.profile_graph import graph_of
    from solver.joint import candidates, plan_of
    from solver.joint import place as solve
    from solver.stages import NoPlanError

    check_output(output)
    profile = read_profile(sample)
    told, warnings = meshes.load(mesh.read_bytes())
    for warning in warnings:
        say(f"{mesh.name}: {warning}")
    counts = layer_counts(layers)
    tried = _stages(stages, told.devices, sum(count for _, count in counts))
    graph = graph_of(profile, sequences)
    for warning in graph.warnings:
        say(f"{sample.name}: {warning}")
    budget = Budget(hbm_bytes=hbm_bytes, tiers=tier_budgets(profile, tier_bytes))
    device = msgspec.structs.replace(profile.device, hbm_bytes=hbm_bytes)
    try:
        ways = candidates(profile, graph, told, counts, micro_batches, device, tried, SHARDING_SHARE * time_limit, seed)
        found = solve(ways, budget, (1 - SHARDING_SHARE) * time_limit, seed)
    except NoPlanError as none:
        if as_json:
            print(msgspec.json.encode({"status": "none found", "why": str(none)}).decode())
        say(f"{sample.name}: {none}")
        return INFEASIBLE
    plan = plan_of(found, profile, budget)
    if steps is not None:
        steps.mkdir(parents=True, exist_ok=True)
        for s, one in enumerate(found.run.stages):
            write(one.step.profile, steps / f"stage{s}.profile.json.gz")
            write(one.plan, steps / f"stage{s}.plan.json.gz")
    for line in _lines(plan):
        say(line)
    emit_plan(plan, output, as_json)
    return 0


def layer_counts(text: str) -> list[tuple[str, int]]:
    """`dense=3,moe=58`. A label may hold '=': the last one counts."""
    counts = []
    for part in text.split(","):
        label, _, count = part.rpartition("=")
        if not label or not count.isdecimal() or not 1 <= int(count) <= MOST_COUNT:
            problem = f"{part!r} is not LABEL=COUNT with a count of 1 to {MOST_COUNT}"
            raise typer.BadParameter(problem, param_hint="--layers")
        counts.append((label, int(count)))
    return counts


def _stages(text: str | None, devices: int, layers: int) -> list[int]:
    """The numbers of stages to try: those asked for, else all that divide the devices and have a layer each."""
    most = min(MOST_STAGES, devices, layers)
    if text is None:
        return [n for n in range(1, most + 1) if devices % n == 0]
    numbers = []
    for part in text.split(","):
        if not part.isdecimal() or not 1 <= int(part) <= most or devices % int(part):
            problem = f"{part!r}: {devices} devices and {layers} layers cannot be divided into so many stages"
            raise typer.BadParameter(problem, param_hint="--stages")
        numbers.append(int(part))
    return numbers


def _lines(plan: Plan) -> list[str]:
    assert plan.predicted is not None and plan.bound is not None
    without = plan.provenance["without_moves_us"]
    lines = [
        f"{plan.provenance['candidate']}: step {plan.predicted.step_us / 1000:.1f} ms (simulated), bound "
        f"{plan.bound.step_us / 1000:.1f} ms; nothing moved: "
        + ("none found that fits" if without is None else f"{without / 1000:.1f} ms")
    ]
    for one in plan.explain:
        held = ", ".join(f"{count} {name}" for name, count in one["layers"].items())
        lines.append(
            f"stage {one['stage']}: {held}; peak {one['peak_bytes'] >> 20} MiB (unplanned "
            f"{one['unplanned_peak_bytes'] >> 20}), {one['copied_out_bytes'] >> 20} MiB copied out, recompute "
            f"{one['recompute_us'] / 1000:.1f} ms, stalls {one['stall_us'] / 1000:.1f} ms"
        )
    return lines
