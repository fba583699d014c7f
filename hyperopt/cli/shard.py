"""Commands on sharding: shard, shard-model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from hyperopt import mesh as meshes
from hyperopt import plan as plans
from hyperopt import profile as profiles
from hyperopt.cli.files import INFEASIBLE, MOST_SEED, STANDARD_OUTPUT, AsJson, check_output, read_model, say
from hyperopt.documents import DocumentError, decompress, write, write_bytes
from hyperopt.graph import Graph
from hyperopt.profile_graph import graph_of

if TYPE_CHECKING:
    from solver.placement import Sharding

NOT_FOUND = 4
LIMIT_S = 60.0


def register(app: typer.Typer) -> None:
    app.command("shard")(shard)
    app.command("shard-model")(shard_model)


def shard(
    instance: Annotated[Path, typer.Argument(metavar="INSTANCE", help="the contest's JSON, plain, .gz or .zst")],
    output: Annotated[Path, typer.Option("-o", "--output", help="where to write the strategies, a JSON list")],
    time_limit: Annotated[float, typer.Option(min=0, help="seconds, all included but starting Python")] = LIMIT_S,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="of the search")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="as every command takes it; the answer is JSON anyway")
    ] = True,
) -> int:
    """One strategy a node, at least cost within memory. Exit 0: written; 3: proven not to fit; 4: none found that fits.

    On standard output, in JSON: cost, bound, feasible, gap, stop_reason, seconds; where it does not fit, the moment and
    the shortfall.
    """
    import time

    began = time.monotonic()
    from solver.sharding import ShardingError, read, solve, write_solution
    from solver.sharding.warm import warm

    check_output(output)
    try:
        problem = read(instance.read_bytes())
    except ShardingError as error:
        raise DocumentError(f"{instance}: {error.field}", error.problem, error.remedy) from error
    warm()
    spent = time.monotonic() - began
    found = solve(problem, max(0.0, time_limit - spent), seed)
    judged = found.evaluation
    summary = {
        "name": problem.name,
        "nodes": problem.nodes,
        "cost": judged.cost,
        "bound": found.bound,
        "feasible": judged.feasible,
        "gap": found.gap,
        "stop_reason": found.stop_reason,
        "seconds": round(time.monotonic() - began, 3),
        "first_feasible_seconds": None if found.first_feasible_s is None else round(found.first_feasible_s + spent, 3),
        "peak": judged.peak,
        "usage_limit": problem.usage_limit,
        "moment": None if judged.feasible else judged.moment,
        "shortfall": judged.shortfall,
        "output": str(output) if judged.feasible else None,
    }
    if judged.feasible:
        write_bytes(write_solution(found.solution), output)
    if output not in STANDARD_OUTPUT:
        print(msgspec.json.encode(summary).decode())
    if judged.feasible:
        return 0
    proven = "no choice fits (proven)" if found.impossible else "none found that fits; give a larger --time-limit"
    say(f"memory is short of {judged.shortfall} bytes at moment {judged.moment}: {proven}; nothing was written")
    return INFEASIBLE if found.impossible else NOT_FOUND


def shard_model(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="a profile of one device, or a MindIR export")],
    mesh: Annotated[Path, typer.Option(metavar="MESH", help="the device mesh, JSON")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="where to write the plan")] = None,
    memory: Annotated[int | None, typer.Option(min=1, help="bytes of one device; no limit without it")] = None,
    sequences: Annotated[int, typer.Option(min=1, help="of a micro-batch, in a profile's rows")] = 1,
    strategy: Annotated[Path | None, typer.Option(help="where to write MindSpore's operator strategies")] = None,
    layouts: Annotated[
        Path | None, typer.Option(help="where to write MindSpore's Layouts and HyperParallel's plan")
    ] = None,
    device_profile: Annotated[Path | None, typer.Option(help="where to write one device's profile")] = None,
    rivals: Annotated[bool, typer.Option("--rivals", help="compare with layouts as people write them")] = False,
    cost_model: Annotated[
        Path | None,
        typer.Option("--model", metavar="COST", help="prices the mesh's levels by what it has measured of their links"),
    ] = None,
    time_limit: Annotated[float, typer.Option(min=0, help="seconds of search")] = LIMIT_S,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="of the search")] = 0,
    as_json: AsJson = False,
) -> int:
    """Layouts of a model's tensors on a device mesh, at least step time within memory. Exit 0: found; 3: none fits."""
    from solver.placement import DoesNotFit, export, shard
    from solver.placement.compare import compare

    for path in (output, strategy, layouts, device_profile):
        check_output(path)
    on, warnings = meshes.load(mesh.read_bytes())
    if cost_model is not None:
        from hyperopt.cost.messages import on_mesh

        on, taken = on_mesh(on, read_model(cost_model).messages)
        warnings += taken or ["no level has the name of a link that the model has measured: priced as the mesh says"]
    graph, profile = _graph(model, sequences)
    for warning in warnings:
        say(f"{mesh.name}: {warning}")
    others = compare(graph, on, memory_bytes=memory, time_limit_s=time_limit / 4, seed=seed) if rivals else {}
    try:
        known = [other.choice for other in others.values() if other is not None]
        found = shard(graph, on, None, memory, time_limit, seed, starts=known)
    except DoesNotFit as none:
        if as_json:
            answer = {"status": "infeasible" if none.proven else "none found", "why": str(none),
                      "shortfall": none.shortfall}  # fmt: skip
            print(msgspec.json.encode(answer).decode())
        say(f"{model.name}: {none}")
        return INFEASIBLE
    for warning in found.warnings:
        say(f"{model.name}: {warning}")
    if output is not None:
        write(_plan(found, profile, memory), output)
    if strategy is not None:
        write_bytes(msgspec.json.format(msgspec.json.encode(export.mindspore_strategy(found))), strategy)
    if layouts is not None:
        both = {"layouts": export.mindspore_layouts(found), "hyperparallel": export.hyperparallel_plan(found)}
        write_bytes(msgspec.json.format(msgspec.json.encode(both)), layouts)
    if device_profile is not None:
        base = None if profile is None else profile.device
        write(found.per_device_profile(base), device_profile)
    summary = _summary(found, memory, others)
    print(msgspec.json.encode(summary).decode() if as_json else "\n".join(_lines(found, summary)))
    return 0


def _graph(model: Path, sequences: int) -> tuple[Graph, profiles.Profile | None]:
    """Of a profile (JSON, perhaps packed), or else of a MindIR export."""
    data = model.read_bytes()
    plain = decompress(data)
    if plain.lstrip()[:1] == b"{":
        profile, warnings = profiles.load(data)
        for warning in warnings:
            say(f"{model.name}: {warning}")
        return graph_of(profile, sequences), profile
    from profiler.read.mindspore import mindir

    try:
        return mindir.read(plain, model.stem), None
    except DocumentError as error:
        raise DocumentError(f"{model}: {error.field}", error.problem, error.remedy) from error


def _plan(found: Sharding, profile: profiles.Profile | None, memory: int | None) -> plans.Plan:
    from solver.placement import export

    made = plans.Plan(
        profile_digest="" if profile is None else profile.digest,
        program_digest="" if profile is None else profile.program_digest,
        budget=plans.Budget(hbm_bytes=memory),
        sharding=export.plan_sharding(found),
        predicted=plans.Predicted(step_us=found.step.us, peak_bytes=found.peak_bytes),
        bound=plans.Bound(
            step_us=found.bound_us,
            gap=found.gap or 0.0,
            status="optimal" if found.status == "optimal" else "feasible",
            stop_reason=found.stop_reason,
        ),
        provenance={"solver": "placement", "source": found.graph.source, "warnings": list(found.warnings)},
    )
    return msgspec.structs.replace(made, plan_id=made.content_id)


def _summary(found: Sharding, memory: int | None, others: dict[str, Sharding | None]) -> dict[str, Any]:
    step = found.step
    return {
        "status": found.status,
        "step_us": step.us,
        "compute_us": step.compute_us,
        "communication_us": step.communication_us,
        "bound_us": found.bound_us,
        "gap": found.gap,
        "stop_reason": found.stop_reason,
        "seconds": found.seconds,
        "peak_bytes": found.peak_bytes,
        "memory_bytes": memory,
        "devices": found.mesh.devices,
        "sent_bytes": step.sent_bytes,
        "parameters": _parameters(found),
        "rivals": {
            name: None if other is None else {"step_us": other.step.us, "peak_bytes": other.peak_bytes}
            for name, other in others.items()
        },
        "warnings": list(found.warnings),
    }


def _parameters(found: Sharding) -> list[dict[str, Any]]:
    """Layouts of parameters, those of layers that look the same once: with the bytes of one device."""
    from solver.placement.export import axes_of

    kinds: dict[tuple[Any, ...], dict[str, Any]] = {}
    held = found.bytes_per_device
    for tensor in found.graph.tensors:
        if tensor.kind != "parameter":
            continue
        dims = axes_of(found.layouts[tensor.id], len(tensor.shape), found.mesh)
        key = (re.sub(r"\d+", "*", tensor.name), tensor.shape, dims)
        entry = kinds.setdefault(key, {"name": key[0], "shape": tensor.shape, "dims": dims, "count": 0, "bytes": 0})
        entry["count"] += 1
        entry["bytes"] += held[tensor.id]
    return list(kinds.values())


def _lines(found: Sharding, summary: dict[str, Any]) -> list[str]:
    gap = summary["gap"]
    lines = [
        f"step {summary['step_us'] / 1000:.3f} ms (computing {summary['compute_us'] / 1000:.3f}, communication "
        f"{summary['communication_us'] / 1000:.3f}; estimated, without overlap), bound "
        f"{summary['bound_us'] / 1000:.3f} ms" + ("" if gap is None else f", gap {100 * gap:.3f} %")
        + f", {summary['status']}: {summary['stop_reason']}; {summary['seconds']:.1f} s",
        f"peak {summary['peak_bytes'] / 2**20:.1f} MiB a device (simulated)"
        + ("" if summary["memory_bytes"] is None else f" of {summary['memory_bytes'] / 2**20:.1f}"),
    ]  # fmt: skip
    lines.extend(
        f"sends {size / 2**20:.1f} MiB a device and step by {kind}" for kind, size in summary["sent_bytes"].items()
    )
    for entry in summary["parameters"]:
        cuts = " x ".join(
            str(n) + (f"/{'.'.join(axes)}" if axes else "")
            for n, axes in zip(entry["shape"], entry["dims"], strict=True)
        )
        lines.append(f"{entry['count']:>4} {entry['name']}: {cuts}, {entry['bytes'] / 2**20:.1f} MiB a device")
    for name, other in summary["rivals"].items():
        said = "does not fit"
        if other is not None:
            said = f"{other['step_us'] / 1000:.3f} ms, peak {other['peak_bytes'] / 2**20:.1f} MiB"
        lines.append(f"rival {name}: {said}")
    return lines
