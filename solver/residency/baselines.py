"""The published rules of thumb, as plans to beat: judged by the same replay, callable by name.

Each is our own code of the published rule, restricted to what the profile's adapter can do.
"""

from __future__ import annotations

from collections.abc import Callable

from hyperopt.plan import HOST
from solver.residency.candidates import Decisions, Move, Rerun, moves, reruns
from solver.residency.problem import Problem


def keep_all(problem: Problem) -> Decisions:
    """Nothing moves, nothing is recomputed."""
    return Decisions()


def longest_gap(problem: Problem) -> Decisions:
    """HyperOffload's greedy (hyper-parallel, newer `OffloadSession` planner; UPSTREAM 2.2).

    Storages leave in order of their longest gap counted in operators, then size, until the modelled memory is
    within the budget; the copy back is issued at the consuming operator. Neither durations nor bandwidths count.
    """
    load = problem.load.copy()
    chosen: list[Move] = []
    candidates = [m for m in moves(problem) if m.tier == _tier(problem) and not m.gap.wraps]
    for move in sorted(candidates, key=lambda m: (m.gap.after - m.gap.before, -m.gap.bytes, m.gap.storage)):
        if int(load.max(initial=0)) <= problem.hbm_bytes:
            break
        load[move.leave + 1 : move.back] -= move.gap.bytes
        chosen.append(move)
    return Decisions(tuple(chosen))


def offload_all(problem: Problem) -> Decisions:
    """All activations leave after their last forward access and come back one layer ahead of their use.

    The rule of activation offloading in Megatron- and torchtitan-style trainers: load layer i - 1's activations
    before the backward of layer i.
    """
    phases = [o.phase for o in problem.profile.operators]
    lead = _one_layer_earlier(problem)
    chosen = []
    for move in moves(problem):
        gap = move.gap
        storage = problem.profile.storages[gap.storage]
        crosses = gap.after >= 0 and gap.before < problem.n and not gap.wraps
        if move.tier != _tier(problem) or storage.kind != "activation" or not crosses:
            continue
        if (phases[gap.after] == "forward" and phases[gap.before] != "forward") or "forward" not in phases:
            back = max(problem.last_arrival(lead[gap.back]), problem.next_arrival(gap.leave + 1))
            chosen.append(Move(gap, move.tier, gap.leave, gap.leave, min(back, gap.back)))
    return Decisions(tuple(chosen))


def _one_layer_earlier(problem: Problem) -> dict[int, int]:
    """Per compute operator, the first one of the run of equal layers that precedes the run it is in."""
    found: dict[int, int] = {}
    layer, run, before = None, 0, 0
    for op in problem.compute:
        if problem.profile.operators[op].layer != layer:
            layer, before, run = problem.profile.operators[op].layer, run, op
        found[op] = before
    return found


def recompute_all(problem: Problem) -> Decisions:
    """Everything that may be recomputed is, layer by layer where the adapter works in layers."""
    return Decisions(reruns=tuple(compatible(reruns(problem))))


def compatible(candidates: list[Rerun]) -> list[Rerun]:
    """The candidates in order, without those that would read or write what an earlier one has dropped."""
    chosen: list[Rerun] = []
    absent: dict[int, list[tuple[int, int]]] = {}  # storage -> (released after, back before)
    needs: dict[int, list[int]] = {}  # storage -> operators before which it is needed
    for rerun in candidates:
        drops = {s for s, _ in rerun.drops}
        clash = any(a < rerun.before < b for s in rerun.held for a, b in absent.get(s, ()))
        clash = clash or any(
            a < b2 and a2 < b for s, a in rerun.drops for b in [rerun.before] for a2, b2 in absent.get(s, ())
        )
        clash = clash or any(a < at < rerun.before for s, a in rerun.drops for at in needs.get(s, ()))
        if clash:
            continue
        chosen.append(rerun)
        for s, leave in rerun.drops:
            absent.setdefault(s, []).append((leave, rerun.before))
        for s in {*rerun.held, *drops}:
            needs.setdefault(s, []).append(rerun.before)
    return chosen


def _tier(problem: Problem) -> str:
    """The tier that rules knowing only one use: `host`, else the one with the fastest way back."""
    if HOST in problem.tiers or not problem.tiers:
        return HOST
    return max(problem.tiers, key=lambda name: float(problem.tiers[name].h2d_bytes_per_s))


BASELINES: dict[str, Callable[[Problem], Decisions]] = {
    "keep-all": keep_all,
    "longest-gap": longest_gap,
    "offload-all": offload_all,
    "recompute-all": recompute_all,
}
