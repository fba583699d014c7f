"""A stage's residency as placement meant it: every layer at its level, for every micro-batch.

::

    forward   layer 0 │ layer 1 │ ..       what is dropped goes as in the level's plan, what moves after its last use
    backward  .. │ layer 1 │ layer 0       and comes back a layer ahead of the one that wants it

A start for the residency solver, and what the stage takes at least as well as: it fits where the levels' memory was
counted right.
"""

from __future__ import annotations

from collections.abc import Sequence

from hyperopt.plan import HOST, Action, Recompute, Residency
from hyperopt.profile import COMPUTE
from solver.joint.levels import Level
from solver.joint.sample import Part
from solver.joint.stage import StageStep
from solver.stages.schedule import FORWARD

LEAD = 20
"""Operators by which an optimizer state returns before its update."""


def drafted(step: StageStep, parts: Sequence[Part], levels: Sequence[Level | None], states_out: bool) -> Residency:
    """`levels[i]`: of `parts[i]`, None where everything is kept; `states_out`: optimizer states are moved too."""
    return _Draft(step, parts, levels).residency(states_out)


class _Draft:
    def __init__(self, step: StageStep, parts: Sequence[Part], levels: Sequence[Level | None]) -> None:
        self.step, self.parts, self.levels = step, parts, levels
        self.operators = step.profile.operators
        self.actions: list[Action] = []
        self.reruns: list[Recompute] = []
        self.initial: dict[int, str] = {}

    def residency(self, states_out: bool) -> Residency:
        batches = [task.micro_batch for task in self.step.tasks if task.direction == FORWARD]
        for layer, level in enumerate(self.levels):
            if level is not None:
                for micro_batch in batches:
                    self._layer(layer, level, micro_batch)
        if states_out:
            self._states()
        order = {"copy_out": 0, "release": 1, "copy_in": 0}
        self.actions.sort(key=lambda a: (a.op, a.when == "after", order[a.kind]))
        self.reruns.sort(key=lambda r: (r.before_op, r.ops))
        return Residency(initial=self.initial, actions=tuple(self.actions), recompute=tuple(self.reruns))

    def _layer(self, layer: int, level: Level, m: int) -> None:
        at, storages = self.step.operators, self.step.storages
        for s, after in level.drops:
            self._after(at[after, layer, m], "release", storages[s, layer, m])
        for s, before, ops in level.reruns:
            before_op = self._at_compute(at[before, layer, m])
            self.reruns.append(
                Recompute(storage=storages[s, layer, m], before_op=before_op, ops=tuple(at[i, layer, m] for i in ops))
            )
        ahead = next((b for b in self._back(layer + 1, m) if self.operators[b].stream == COMPUTE), None)
        first = next(b for b in self._back(layer, m) if self.operators[b].stream == COMPUTE)
        for s in level.moves:
            id = storages[s, layer, m]
            last = max(
                at[i, layer, m] for i in self.parts[layer].forward if id in self.operators[at[i, layer, m]].accesses
            )
            self._after(last, "copy_out", id)
            self._after(last, "release", id)
            self.actions.append(Action(op=first if ahead is None else ahead, when="before", kind="copy_in", storage=id))

    def _back(self, layer: int, m: int) -> list[int]:
        """Backward operators of a layer for a micro-batch, where they stand."""
        if layer >= len(self.parts):
            return []
        at = self.step.operators
        return sorted(at[i, layer, m] for i in self.parts[layer].backward if (i, layer, m) in at)

    def _states(self) -> None:
        """Optimizer states start in the host's memory and are back a little before their update."""
        by_id = self.step.profile.by_id
        updates = [i for i, task in enumerate(self.step.task) if task < 0 and self.operators[i].stream == COMPUTE]
        for place, i in enumerate(updates):
            for s in sorted(self.operators[i].accesses):
                if by_id[s].kind != "optimizer_state" or not by_id[s].offloadable or s in self.initial:
                    continue
                self.initial[s] = HOST
                self.actions.append(Action(op=updates[max(0, place - LEAD)], when="before", kind="copy_in", storage=s))
                last = max(k for k in updates if s in self.operators[k].accesses)
                self._after(last, "copy_out", s)
                self._after(last, "release", s)

    def _after(self, op: int, kind: str, storage: int) -> None:
        tier = HOST if kind == "copy_out" else None
        at = self._at_compute(op)
        self.actions.append(Action(op=at, when="after", kind=kind, storage=storage, tier=tier))  # type: ignore[arg-type]

    def _at_compute(self, op: int) -> int:
        """Actions stand at operators of the compute stream only: the next one."""
        while self.operators[op].stream != COMPUTE:
            op += 1
        return op
