"""The rules of thumb: keep all, the longest gap, offload all, recompute all.

Each is our own code of the published rule, restricted to what the profile's adapter can do.
"""

from __future__ import annotations

from solver.residency.candidates import Decisions, Move
from solver.residency.problem import Problem
from solver.residency.rivals.blocks import blocks_of, crossings, handed_on, one_run_earlier
from solver.residency.rivals.places import Load, TierRoom, swaps
from solver.residency.rivals.remat import drops, recompute


def keep_all(problem: Problem) -> Decisions:
    """Nothing moves, nothing is recomputed."""
    return Decisions()


def longest_gap(problem: Problem) -> Decisions:
    """HyperOffload's greedy (hyper-parallel, newer `OffloadSession` planner).

    Storages leave in order of their longest gap counted in operators, then size, until the modelled memory is
    within the budget; the copy back is issued at the consuming operator. Neither durations nor bandwidths count.
    Where the tiers have no room left, a storage stays.
    """
    load, room = Load(problem), TierRoom(problem)
    chosen: list[Move] = []
    candidates = [m for m in swaps(problem) if not m.gap.wraps]
    for move in sorted(candidates, key=lambda m: (m.gap.after - m.gap.before, -m.gap.bytes, m.gap.storage)):
        if load.peak <= problem.hbm_bytes:
            break
        placed = room.place(move)
        if placed is not None:
            load.add(placed)
            chosen.append(placed)
    return Decisions(tuple(chosen))


def offload_all(problem: Problem) -> Decisions:
    """All activations leave after their last forward access and come back one layer ahead of their use.

    The rule of activation offloading in Megatron- and torchtitan-style trainers: load layer i - 1's activations
    before the backward of layer i. The layers are the profile's, else as `blocks` cuts them. Where the tiers have no
    room left, a storage stays.
    """
    phases = [o.phase for o in problem.profile.operators]
    lead, room = one_run_earlier(problem, blocks_of(problem)), TierRoom(problem)
    chosen = []
    for move in swaps(problem):
        gap = move.gap
        storage = problem.profile.storages[gap.storage]
        crosses = gap.after >= 0 and gap.before < problem.n and not gap.wraps
        if storage.kind != "activation" or not crosses:
            continue
        if (phases[gap.after] == "forward" and phases[gap.before] != "forward") or "forward" not in phases:
            placed = room.place(move)
            if placed is not None:
                back = max(problem.last_arrival(lead[gap.back]), problem.next_arrival(gap.leave + 1))
                chosen.append(Move(gap, placed.tier, gap.leave, gap.leave, min(back, gap.back)))
    return Decisions(tuple(chosen))


def recompute_all(problem: Problem) -> Decisions:
    """Everything that may be recomputed is, but what one layer hands to the next (full activation checkpointing).

    The layers are the profile's, else as `blocks` cuts them. In an adapter that works in layers: every layer that
    it can.
    """
    kept = handed_on(problem, blocks_of(problem)) if problem.profile.adapter.recompute == "operator" else set[int]()
    candidates = drops(problem, kept)
    if problem.profile.adapter.recompute == "operator":
        crossing = set(crossings(problem))
        candidates = [d for d in candidates if (d.storages[0], *d.gap) in crossing]
    return Decisions(reruns=tuple(recompute(problem, candidates, (), kept)[0]))
