"""Why the plan is as it is: per moved or recomputed storage, what it brings and costs, and what else could be done.

All times are simulated. Nothing here is searched: what is told of an alternative is its own cost, with everything else
left as it is.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hyperopt.plan import Budget, Plan, Recompute
from hyperopt.profile import Storage
from hyperopt.replay import Copy
from hyperopt.script import write_script
from solver.residency.absence import Absence, Ran, absences
from solver.residency.executions import Executions
from solver.residency.levels import Levels
from solver.residency.problem import Problem

DETAILED = 2000
"""Storages with an entry of their own, by bytes x time; of all others there is a sum for each kind."""

CHAIN = 64
"""Operators followed back for what a recompute would cost."""

GIB_SECOND = 2**30 * 10**9
"""Bytes x nanoseconds."""


def explain(problem: Problem, ran: Ran) -> tuple[dict[str, Any], ...]:
    """One entry a decision, the largest savings (bytes x time off HBM) first.

    *move*: `gib_seconds` saved, `absent_us` in all, `copies_out_us`, `copies_in_us`, `slack_us` of each copy back (how
    long before its first user started, for the first time or again, it was complete; negative: how long that one
    waited for it), `link_share` (of the step, by tier and direction). *recompute*: `recompute_us`, and `also`, what
    comes back by the same operators.
    `alternatives`: `keep`, `recompute` or `move`: {us} or {why_not}. `why`: the same in a sentence.
    """
    if ran.residency.empty:
        return ({"note": "everything fits: nothing is gained by moving or recomputing anything"},)
    return _Explainer(problem, ran).entries()


class _Explainer:
    def __init__(self, problem: Problem, ran: Ran) -> None:
        self.problem, self.ran, self.timeline = problem, ran, ran.timeline
        roomy = Budget(hbm_bytes=2**53, tiers=problem.budget.tiers)
        script = write_script(problem.profile, Plan(budget=roomy, residency=ran.residency), None)
        self.levels = Levels(problem, ran.residency, script)
        self.executions = Executions(problem, ran.residency, ran.timeline, script)
        self.copies: dict[int, list[Copy]] = defaultdict(list)
        position = problem.program.position
        for copy in self.timeline.copies:
            self.copies[position[copy.storage]].append(copy)
        for id in ran.residency.initial:
            self.copies[position[id]]  # an entry, even where it never comes
        self.moved: dict[int, list[Absence]] = {s: [] for s in self.copies}
        self.remade: dict[int, list[Absence]] = defaultdict(list)
        for s, own in absences(problem, ran, self.executions).items():
            for absence in own:
                if absence.rerun is not None:
                    self.remade[absence.rerun].append(absence)
                else:
                    self.moved.setdefault(s, []).append(absence)

    def entries(self) -> tuple[dict[str, Any], ...]:
        sizes, recompute = self.problem.program.size, self.ran.residency.recompute
        saved = [(sum(sizes[s] * a.length for a in own), False, s) for s, own in self.moved.items()]
        saved += [(sum(sizes[a.storage] * a.length for a in self.remade[i]), True, i) for i in range(len(recompute))]
        saved.sort(key=lambda entry: (-entry[0], entry[1], entry[2]))
        detailed, others = saved[:DETAILED], saved[DETAILED:]
        entries = [self._remade(i, saving) if again else self._moved(i, saving) for saving, again, i in detailed]
        return tuple(entries) + self._others(others)

    def _head(self, storage: Storage, decision: str, saving: int) -> dict[str, Any]:
        return {
            "storage": storage.id,
            "name": storage.name,
            "kind": storage.kind,
            "bytes": storage.bytes,
            "decision": decision,
            "gib_seconds": saving / GIB_SECOND,
            "accesses": len(self.problem.accesses[self.problem.program.position[storage.id]]),
            "steps_observed": storage.steps_observed,
            "steps_accessed": storage.steps_accessed,
            "access_probability": storage.steps_accessed / storage.steps_observed if storage.steps_observed else None,
        }

    # -- moves -------------------------------------------------------------------------------------------------

    def _moved(self, s: int, saving: int) -> dict[str, Any]:
        storage, own, copies = self.problem.profile.storages[s], self.moved[s], self.copies[s]
        back = [copy for copy in copies if not copy.out]
        keep = self._keep(own)
        longest = max(own, key=lambda absence: absence.length, default=None)
        again = {"why_not": "it does not leave"} if longest is None else _remake(self.problem, s, longest)
        used = {copy.tier for copy in copies} | {self.ran.residency.initial.get(storage.id, "")}
        entry = self._head(storage, "move", saving) | {
            "absent_us": sum(absence.length for absence in own) / 1000,
            "absences": len(own),
            "copies_out_us": [(copy.end - copy.start) / 1000 for copy in copies if copy.out],
            "copies_in_us": [(copy.end - copy.start) / 1000 for copy in back],
            "slack_us": [self._slack(s, copy) for copy in back],
            "link_share": self._link_share(copies),
            "alternatives": {
                "keep": keep,
                "recompute": again,
                "tiers": {name: told for name, told in self._tiers(storage).items() if name not in used},
            },
        }
        return entry | {"why": self._why_moved(entry, keep, again)}

    def _slack(self, s: int, copy: Copy) -> float | None:
        """Microseconds from the copy's end to the start of its first user, or, negative, from when that user's stream
        was free to the copy's end; None without a user."""
        user = self.executions.user(s, copy.op)
        if user is None:
            return None
        if user.start > copy.end:
            return (user.start - copy.end) / 1000
        return min(0, user.free - copy.end) / 1000

    def _link_share(self, copies: list[Copy]) -> dict[str, float]:
        share: dict[str, float] = defaultdict(float)
        for copy in copies:
            share[f"{copy.tier} {'out' if copy.out else 'in'}"] += (copy.end - copy.start) / max(
                1, self.timeline.step_ns
            )
        return dict(share)

    def _keep(self, own: list[Absence], recompute: int | None = None) -> dict[str, Any]:
        """The least HBM in which the plan would run if these absences did not happen, and all others did."""
        hbm = self.levels.kept(own, recompute)
        return {"hbm_bytes": hbm, "over_budget_bytes": max(0, hbm - self.problem.hbm_bytes)}

    def _tiers(self, storage: Storage) -> dict[str, dict[str, Any]]:
        """By tier, microseconds to copy the storage out and back, or why it cannot be there."""
        found: dict[str, dict[str, Any]] = {}
        for name, tier in self.problem.profile.device.tiers.items():
            if name not in self.problem.tiers:
                if tier.bytes or tier.d2h_bytes_per_s or tier.h2d_bytes_per_s:
                    found[name] = {"why_not": "no budget, or no link in both directions"}
            elif storage.bytes > self.problem.tier_bytes[name]:
                found[name] = {"why_not": "larger than the tier"}
            else:
                out, back = tier.copy_ns(storage.bytes, out=True), tier.copy_ns(storage.bytes, out=False)
                found[name] = {"us": (out + back) / 1000}
        return found

    def _why_moved(self, entry: dict[str, Any], keep: dict[str, Any], again: dict[str, Any]) -> str:
        parts = [self._away(entry), _touched(entry)]
        if entry["copies_out_us"]:
            parts.append(f"copies out take {sum(entry['copies_out_us']) / 1000:.3f} ms")
        elif entry["copies_in_us"]:
            parts.append("leaves without a copy, for the one outside is still good")
        slacks = [slack for slack in entry["slack_us"] if slack is not None]
        if entry["copies_in_us"]:
            parts.append(f"copies back {sum(entry['copies_in_us']) / 1000:.3f} ms")
        if slacks:
            least = min(slacks)
            waits = f"{-least / 1000:.3f} ms late" if least < 0 else f"{least / 1000:.3f} ms to spare"
            parts.append(f"the tightest with {waits}")
        parts.append(_kept(keep))
        parts.append(
            f"recomputing it would take {again['us'] / 1000:.3f} ms"
            if "us" in again
            else f"no recompute: {again['why_not']}"
        )
        return "; ".join(parts)

    def _away(self, entry: dict[str, Any]) -> str:
        share = min(1.0, entry["absent_us"] / max(1e-3, self.timeline.step_us))
        return f"out of HBM for {entry['absent_us'] / 1000:.3f} ms ({share:.0%} of the step)"

    # -- recomputes --------------------------------------------------------------------------------------------

    def _remade(self, i: int, saving: int) -> dict[str, Any]:
        problem, own = self.problem, self.remade[i]
        recompute: Recompute = self.ran.residency.recompute[i]
        storage = problem.profile.by_id[recompute.storage]
        keep, move = self._keep(own, i), self._move(storage)
        storages = problem.profile.storages
        entry = self._head(storage, "recompute", saving) | {
            "before_op": recompute.before_op,
            "operators": len(recompute.ops),
            "recompute_us": sum(problem.program.duration[k] for k in recompute.ops) / 1000,
            "also": [storages[a.storage].id for a in own if storages[a.storage].id != storage.id],
            "absent_us": max((absence.length for absence in own), default=0) / 1000,
            "alternatives": {"keep": keep, "move": move},
        }
        costs = [f"{told['us'] / 1000:.3f} ms over {name}" for name, told in move.items() if "us" in told]
        refused = next((told["why_not"] for told in move.values() if "why_not" in told), "there is no tier")
        parts = [
            f"made again in {entry['recompute_us'] / 1000:.3f} ms by {len(recompute.ops)} operators",
            self._away(entry),
            _touched(entry),
            _kept(keep),
            f"copying it out and back would take {', '.join(costs)}" if costs else f"no move: {refused}",
        ]
        return entry | {"why": "; ".join(parts)}

    def _move(self, storage: Storage) -> dict[str, dict[str, Any]]:
        adapter = self.problem.profile.adapter
        refusal = ""
        if not storage.offloadable:
            refusal = "it may not leave HBM"
        elif adapter.moves == "none" or (adapter.moves == "window" and storage.window is None):
            refusal = "the adapter does not move it"
        return {"any": {"why_not": refusal}} if refusal else self._tiers(storage)

    def _others(self, others: list[tuple[int, bool, int]]) -> tuple[dict[str, Any], ...]:
        """Sums of what has no entry of its own, by decision and kind."""
        sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        recompute, by_id = self.ran.residency.recompute, self.problem.profile.by_id
        for saving, again, i in others:
            storage = by_id[recompute[i].storage] if again else self.problem.profile.storages[i]
            total = sums["recompute" if again else "move", storage.kind]
            total[0] += 1
            total[1] += storage.bytes
            total[2] += saving
        return tuple(
            {
                "decision": decision,
                "kind": kind,
                "storages": count,
                "bytes": size,
                "gib_seconds": saving / GIB_SECOND,
                "note": f"{count} smaller savings together",
            }
            for (decision, kind), (count, size, saving) in sorted(sums.items())
        )


def _touched(entry: dict[str, Any]) -> str:
    told = f"touched by {entry['accesses']} operators"
    if entry["access_probability"] is not None:
        told += (
            f" and in {entry['steps_accessed']} of {entry['steps_observed']} steps "
            f"(probability {entry['access_probability']:.2f})"
        )
    return told


def _kept(keep: dict[str, Any]) -> str:
    over = keep["over_budget_bytes"]
    return f"kept, HBM would be {over} bytes short" if over else "kept, it would still fit"


def _remake(problem: Problem, s: int, absence: Absence) -> dict[str, Any]:
    """What running the storage's content again before its return would take: {us, operators} or {why_not}."""
    program, operators = problem.program, problem.profile.operators
    if problem.profile.adapter.recompute == "none":
        return {"why_not": "the adapter does not recompute"}
    at = absence.back
    needed: set[int] = set()
    frontier = [program.version_before(s, at)]
    while frontier:
        writer = frontier.pop()
        if writer < 0:
            return {"why_not": "no operator of the step makes it"}
        if writer in needed:
            continue
        if not operators[writer].recomputable:
            return {
                "why_not": f"operator {writer} ({operators[writer].name or operators[writer].type}) may not run again"
            }
        needed.add(writer)
        if len(needed) > CHAIN:
            return {"why_not": f"it takes more than {CHAIN} operators"}
        for read in program.reads[writer]:
            version = program.version_before(read, writer)
            if read == s or version != program.version_before(read, at):
                return {"why_not": f"operator {writer} reads what has been overwritten since"}
            span = problem.alive[read]
            if span is None or not span[0] <= at < span[1]:
                frontier.append(version)
    return {"us": sum(program.duration[k] for k in needed) / 1000, "operators": len(needed)}
