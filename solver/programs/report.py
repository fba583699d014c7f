"""A solution in the description's units: what the command prints, and the `stages` of a plan."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import msgspec

from hyperopt.plan import Stage, Turn, check_stages
from hyperopt.programs import Programs
from solver.programs.problem import GRAINS, static
from solver.programs.simulate import held
from solver.programs.solve import Found, Solution


def answer(said: Programs, solution: Solution) -> dict[str, Any]:
    """The document of `hyperopt programs --json` (docs/reference/programs.md)."""
    best = solution.best
    return {
        "status": solution.status,
        "stop_reason": solution.stop_reason,
        "makespan": _time(best, best.value),
        "bound": _time(best, best.bound),
        "gap": (best.value - best.bound) / best.bound if best.bound else 0.0,
        "seconds": round(solution.seconds, 3),
        "ways": solution.ways,
        "groups": groups(said, best),
        "calls": calls(said, best),
        "together": _rival(said, solution.together),
        "equal": _rival(said, solution.equal),
        "plan": {"stages": msgspec.to_builtins(plan_stages(said, best))},
    }


def groups(said: Programs, found: Found) -> list[dict[str, Any]]:
    """Devices, programs, memory and work of each group."""
    p, made = found.placed, []
    for group, order in zip(p.groups, found.orders, strict=True):
        on = group.on
        busy = sum(p.duration[c] + found.line.copies[c, m] for c, m in order)
        made.append(
            {
                "kind": on.name,
                "devices": on.devices,
                "programs": [said.programs[q].name for q in group.programs],
                "parallel": [said.programs[q].parallel.get(on.devices, "") for q in group.programs],
                "swapped": [said.programs[q].name for q in group.swapped],
                "limit": on.memory,
                "peak": (static(said, group) + held(p, order)) / GRAINS / on.devices,
                "copies": _time(found, sum(found.line.copies[run] for run in order)),
                "busy": round(busy / found.value, 6) if found.value else 0.0,
            }
        )
    return made


def calls(said: Programs, found: Found) -> list[dict[str, Any]]:
    """Where each call runs, how long a run takes, and when each starts."""
    p = found.placed
    return [
        {
            "call": call.name,
            "program": call.program,
            "group": p.group[c],
            "time": _time(found, p.duration[c]),
            "starts": [_time(found, found.line.start[c, m]) for m in range(p.runs[c])],
        }
        for c, call in enumerate(said.calls)
    ]


def plan_stages(said: Programs, found: Found) -> tuple[Stage, ...]:
    """A group of devices as a stage of a plan, which has programs and their turns instead of layers."""
    firsts = dict(
        zip((kind.name for kind in said.pool), accumulate([0, *(k.devices for k in said.pool)]), strict=False)
    )
    made = []
    for group, order in zip(found.placed.groups, found.orders, strict=True):
        start = firsts.get(group.on.name, 0)  # a group of all kinds begins with the first of them
        if group.on.name in firsts:
            firsts[group.on.name] += group.on.devices
        made.append(
            Stage(
                devices=tuple(range(start, start + group.on.devices)),
                micro_batches=said.micro_batches,
                programs=_names(said, group.programs),
                swapped=_names(said, group.swapped),
                turns=tuple(
                    Turn(call=said.calls[c].name, micro_batch=m if said.calls[c].per == "micro_batch" else None)
                    for c, m in order
                ),
            )
        )
    check_stages(made)
    return tuple(made)


def _names(said: Programs, which: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(said.programs[p].name for p in which)


def _rival(said: Programs, found: Found | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "makespan": _time(found, found.value),
        "bound": _time(found, found.bound),
        "groups": [
            {"kind": g.on.name, "devices": g.on.devices, "programs": _names(said, g.programs)}
            | {"swapped": _names(said, g.swapped)}
            for g in found.placed.groups
        ],
    }


def _time(found: Found, ticks: float) -> float:
    return float(f"{ticks * found.placed.tick:.12g}")
