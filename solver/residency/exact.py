"""The best plan of a small problem, by search through all of them.

A dynamic program over listed order. After each operator a partial plan is a label: where every storage is, and
the times that the rest of the step depends on (`replay.Clock`). All actions in every order are tried; a label is
dropped when another one with the same places has no later time, or when it cannot beat the best plan in hand.

Why dropping is right: what follows is the same list of instructions for both, each instruction's time is a
maximum of times in the label (an allocation's is an order statistic of release times), and both are monotone. So
the label without any later time does at least as well whatever follows.

The reruns are given: the search is over moves only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import combinations, permutations, product

from hyperopt.plan import Action, ActionKind, Recompute, Residency
from hyperopt.replay import Clock
from solver.residency.candidates import Rerun
from solver.residency.problem import Problem

Place = tuple[bool, str]
"""Whether a storage is in HBM, and the tier that has a valid copy ("" for none)."""


class TooLarge(Exception):
    """More labels than allowed: the problem is not small."""


class _Label:
    """A partial plan: places of all storages, HBM taken in listed order, clock, and the actions so far."""

    __slots__ = ("clock", "gone", "orders", "places", "taken", "trail")

    def __init__(
        self, places: list[Place], gone: list[bool], taken: int, clock: Clock, trail: tuple[object, ...]
    ) -> None:
        self.places, self.gone, self.taken, self.clock, self.trail = places, gone, taken, clock, trail
        self.orders = 0

    def order(self, op: int, kind: ActionKind, s: int, tier: str = "") -> None:
        """Notes an action; the trail is shared with the label that this one was forked from."""
        self.trail = (self.trail, (op, kind, s, tier))
        self.orders += 1

    def fork(self) -> _Label:
        clock = copy(self.clock)
        for name in ("in_hbm", "ready", "busy", "copied", "coming", "stream_free", "copies"):
            setattr(clock, name, getattr(clock, name).copy())
        clock.link_free = clock.link_free.copy()
        fork = _Label(self.places.copy(), self.gone.copy(), self.taken, clock, self.trail)
        fork.orders = self.orders
        return fork

    def actions(self) -> list[tuple[int, ActionKind, int, str]]:
        found: list[tuple[int, ActionKind, int, str]] = []
        trail = self.trail
        while trail:
            trail, action = trail  # type: ignore[assignment]
            found.append(action)  # type: ignore[arg-type]
        return found[::-1]


def best_plan(
    problem: Problem, reruns: Sequence[Rerun], *, below_ns: int, max_labels: int
) -> tuple[Residency, int] | None:
    """The plan with the least step time below `below_ns`, among all with the given reruns; None: there is none.

    Returns the residency and its step time in nanoseconds. Raises `TooLarge` past `max_labels` labels.
    """
    search = _Search(problem, reruns, below_ns, max_labels)
    return search.run()


class _Search:
    def __init__(self, problem: Problem, reruns: Sequence[Rerun], below_ns: int, max_labels: int) -> None:
        self.problem, self.program = problem, problem.program
        self.best_ns, self.labels_left = below_ns, max_labels
        program, n = self.program, problem.n
        self.reruns: dict[int, list[Rerun]] = {}
        for rerun in sorted(reruns, key=lambda r: (r.before, r.ops)):
            self.reruns.setdefault(rerun.before, []).append(rerun)
        self.drops: dict[int, set[int]] = {}
        for rerun in reruns:
            for s, leave in rerun.drops:
                self.drops.setdefault(leave, set()).add(s)
        self.dying, self.late = self._lifetimes()
        self.next_use = [
            sorted({*problem.accesses[s], *(r.before for r in reruns for k in r.ops if self._touches(k, s))})
            for s in range(len(program.size))
        ]
        self.movable = {s: sorted(t for t in problem.tiers) for s in {gap.storage for gap in problem.gaps}}
        windows = [problem.window(s) for s in range(len(program.size))]
        self.low = [low for low, _ in windows]
        self.high = [high - problem.by_calls for _, high in windows]
        self.arrivals, self.departures = set(problem.arrivals), set(problem.departures)
        self.rest = [0] * (n + 1)
        for k in range(n - 1, -1, -1):
            own = program.duration[k] if program.stream[k] == 0 else 0
            self.rest[k] = self.rest[k + 1] + own + sum(r.duration_ns for r in self.reruns.get(k, ()))
        movable_bytes = sum(program.size[s] for s in self.movable)
        self.tight = any(movable_bytes > size for size in problem.tier_bytes.values())

    def _touches(self, k: int, s: int) -> bool:
        return s in self.program.reads[k] or s in self.program.writes[k]

    def _lifetimes(self) -> tuple[list[list[int]], dict[tuple[int, int], list[int]]]:
        """Frees by last access per operator, and per (rerun's `before`, index in the joined list) of reruns."""
        program = self.program
        last: dict[int, tuple[int, int]] = {}
        for before in sorted(self.reruns):
            joined = [k for rerun in self.reruns[before] for k in rerun.ops]
            for j, k in enumerate(joined):
                for s in (*program.reads[k], *program.writes[k]):
                    if program.last_access[s] < before and not program.stays[s]:
                        last[s] = (before, j)
        late: dict[tuple[int, int], list[int]] = {}
        for s, place in last.items():
            late.setdefault(place, []).append(s)
        return [[s for s in dying if s not in last] for dying in program.dying], late

    def run(self) -> tuple[Residency, int] | None:
        best: tuple[Residency, int] | None = None
        for initial in self._starts():
            layer = [self._start(initial)]
            for op in range(self.problem.n):
                layer = self._step(layer, op)
                if not layer:
                    break
            done = [label for label in layer if self._ends_well(label, initial)]
            last = min(done, key=lambda label: (label.clock.step_ns, label.orders), default=None)
            if last is not None and last.clock.step_ns < self.best_ns:
                self.best_ns = last.clock.step_ns
                best = self._residency(last, initial), self.best_ns
        return best

    # -- start and end -------------------------------------------------------------------------------------

    def _starts(self) -> Iterator[dict[int, str]]:
        """Every way to begin: each storage with a gap around the step's end in HBM or in a tier."""
        wraps = sorted({gap.storage for gap in self.problem.gaps if gap.wraps})
        for places in product(*(["", *self.movable[s]] for s in wraps)):
            initial = {s: tier for s, tier in zip(wraps, places, strict=True) if tier}
            if all(self._tier_room(initial, tier, 0) for tier in set(initial.values())):
                yield initial

    def _tier_room(self, copies: dict[int, str], tier: str, more: int) -> bool:
        held = sum(self.program.size[s] for s, place in copies.items() if place == tier)
        return held + more <= self.problem.tier_bytes[tier]

    def _start(self, initial: dict[int, str]) -> _Label:
        clock = Clock(self.program, list(initial), self.problem.hbm_bytes)
        places: list[Place] = [(there, initial.get(s, "")) for s, there in enumerate(clock.in_hbm)]
        return _Label(places, [False] * len(places), clock.used, clock, ())

    def _ends_well(self, label: _Label, initial: dict[int, str]) -> bool:
        return all(
            label.places[s] == (False, initial[s]) if s in initial else label.places[s][0]
            for s, stays in enumerate(self.program.stays)
            if stays
        )

    def _residency(self, label: _Label, initial: dict[int, str]) -> Residency:
        ids = [storage.id for storage in self.problem.profile.storages]
        actions = [
            Action(
                op=op,
                when="before" if kind == "copy_in" else "after",
                kind=kind,
                storage=ids[s],
                tier=tier if kind == "copy_out" else None,
            )
            for op, kind, s, tier in label.actions()
        ]
        for s, (in_hbm, tier) in enumerate(label.places):
            if in_hbm and tier and self.program.stays[s]:  # leave no copy behind: the next step starts without it
                last = self.problem.compute[-1]
                actions.append(Action(op=last, when="after", kind="release_host", storage=ids[s]))
        recompute = tuple(
            Recompute(storage=ids[r.target], before_op=r.before, ops=r.ops)
            for before in sorted(self.reruns)
            for r in self.reruns[before]
        )
        return Residency(
            initial={ids[s]: tier for s, tier in initial.items()}, actions=tuple(actions), recompute=recompute
        )

    # -- one operator --------------------------------------------------------------------------------------

    def _step(self, layer: list[_Label], op: int) -> list[_Label]:
        fronts: dict[tuple[Place, ...], list[_Label]] = {}
        for label in layer:
            for ready in self._before(label, op) if self.program.stream[op] == 0 else [label.fork()]:
                if not self._execute(ready, op):
                    continue
                for done in self._after(ready, op) if self.program.stream[op] == 0 else [ready]:
                    self._free(done, self.dying[op])
                    clock = done.clock
                    if max(clock.step_ns, clock.stream_free[0] + self.rest[op + 1]) < self.best_ns:
                        self._keep(fronts.setdefault(tuple(done.places), []), done)
        return [label for front in fronts.values() for label in front]

    def _keep(self, front: list[_Label], label: _Label) -> None:
        """Adds a label unless one in the front does as well; of equals the one with fewer actions stays."""
        for i, other in enumerate(front):
            if _no_later(other, label):
                if other.orders > label.orders and _no_later(label, other):
                    front[i] = label
                return
        front[:] = [other for other in front if not _no_later(label, other)]
        front.append(label)

    def _before(self, label: _Label, op: int) -> Iterator[_Label]:
        wanted = [
            s
            for s, (in_hbm, tier) in enumerate(label.places)
            if not in_hbm
            and tier
            and op in self.arrivals
            and op <= self.high[s]
            and (self._used_from(s, op) or self.program.stays[s])
        ]
        for order in _ordered_subsets(wanted):
            self._count()
            branch = label.fork()
            if all(self._copy_in(branch, op, s) for s in order):
                yield branch

    def _copy_in(self, label: _Label, op: int, s: int) -> bool:
        size, tier = self.program.size[s], label.places[s][1]
        if label.taken + size > self.problem.hbm_bytes:
            return False
        label.taken += size
        label.places[s] = (True, tier)
        label.clock.copy_in(s, op, tier)
        label.order(op, "copy_in", s, tier)
        return True

    def _execute(self, label: _Label, op: int) -> bool:
        joined = [k for rerun in self.reruns.get(op, ()) for k in rerun.ops]
        for j, k in enumerate(joined):
            if not self._run(label, k, op, again=True):
                return False
            self._free(label, self.late.get((op, j), []))
        return self._run(label, op, op, again=False)

    def _run(self, label: _Label, executed: int, op: int, *, again: bool) -> bool:
        program, places = self.program, label.places
        writes = program.writes[executed]
        if any(not places[s][0] for s in program.reads[executed]):
            return False
        fresh = [s for s in writes if not places[s][0]]
        if any(places[s][1] or (label.gone[s] and not again) for s in fresh):
            return False
        need = sum(program.size[s] for s in fresh)
        if label.taken + need + program.workspace[executed] > self.problem.hbm_bytes:
            return False
        label.taken += need
        label.clock.execute(executed, op, again)
        for s in writes:
            places[s] = (True, "")
            label.gone[s] = False
        return True

    def _after(self, label: _Label, op: int) -> Iterator[_Label]:
        forced = self.drops.get(op, set())
        outs = [s for s in self.movable if label.places[s] == (True, "") and s not in forced and self._may_leave(s, op)]
        for order in _ordered_subsets(outs):
            for tiers in product(*(self.movable[s] for s in order)):
                copies = {s: tier for s, (_, tier) in enumerate(label.places) if tier}
                copies.update(zip(order, tiers, strict=True))
                if not all(self._tier_room(copies, tier, 0) for tier in set(tiers)):
                    continue
                yield from self._releases(label, op, list(zip(order, tiers, strict=True)), forced)

    def _releases(self, label: _Label, op: int, outs: list[tuple[int, str]], forced: set[int]) -> Iterator[_Label]:
        copied = [s for s in self.movable if label.places[s][0] and label.places[s][1]] + [s for s, _ in outs]
        could = [s for s in copied if self._may_leave(s, op)]
        for count in range(len(could) + 1):
            for leaving in combinations(could, count):
                staying = [s for s in copied if s not in leaving and s not in dict(outs)]
                for given in _subsets(staying) if self.tight else [()]:
                    self._count()
                    branch = label.fork()
                    for s, tier in outs:
                        branch.clock.copy_out(s, op, tier)
                        branch.places[s] = (True, tier)
                        branch.order(op, "copy_out", s, tier)
                    for s in (*leaving, *sorted(forced)):
                        if branch.places[s][0]:
                            branch.gone[s] = not branch.places[s][1]
                            self._leave(branch, s)
                            branch.order(op, "release", s)
                    for s in given:
                        branch.places[s] = (True, "")
                        branch.order(op, "release_host", s)
                    yield branch

    def _may_leave(self, s: int, op: int) -> bool:
        """Whether `s` has anything to gain by leaving after `op`: it is needed later, or its home is elsewhere."""
        if op not in self.departures or op < self.low[s]:
            return False
        return self._used_from(s, op + 1) or self.program.stays[s]

    def _used_from(self, s: int, op: int) -> bool:
        uses = self.next_use[s]
        return bisect_left(uses, op) < len(uses)

    def _leave(self, label: _Label, s: int) -> None:
        label.places[s] = (False, label.places[s][1])
        label.taken -= self.program.size[s]
        label.clock.release(s)

    def _free(self, label: _Label, dying: list[int]) -> None:
        for s in dying:
            if label.places[s][0]:
                self._leave(label, s)
            label.places[s] = (False, "")

    def _count(self) -> None:
        self.labels_left -= 1
        if self.labels_left < 0:
            raise TooLarge


def _ordered_subsets(items: list[int]) -> Iterator[tuple[int, ...]]:
    for count in range(len(items) + 1):
        yield from permutations(items, count)


def _subsets(items: list[int]) -> Iterator[tuple[int, ...]]:
    for count in range(len(items) + 1):
        yield from combinations(items, count)


def _no_later(a: _Label, b: _Label) -> bool:
    """Whether label `a`, with the same places as `b`, has no later time that still matters."""
    x, y = a.clock, b.clock
    if (
        x.now > y.now
        or x.step_ns > y.step_ns
        or any(max(s, x.now) > max(t, y.now) for s, t in zip(x.stream_free, y.stream_free, strict=True))
    ):
        return False
    for s, (in_hbm, tier) in enumerate(a.places):
        if in_hbm and max(x.ready[s], x.now) > max(y.ready[s], y.now):
            return False
        if max(x.busy[s], x.now) > max(y.busy[s], y.now):
            return False
        if tier and max(x.copied[s], x.now) > max(y.copied[s], y.now):
            return False
    for queue in x.link_free.keys() | y.link_free.keys():
        if max(x.link_free.get(queue, 0), x.now) > max(y.link_free.get(queue, 0), y.now):
            return False
    # Both fall over time, so it is enough to compare where `b` falls.
    moments = {y.now, *(when for when, _ in y.coming if when > y.now)}
    return all(_outstanding(x, t) <= _outstanding(y, t) for t in moments)


def _outstanding(clock: Clock, moment: int) -> int:
    return sum(size for when, size in clock.coming if when > moment)
