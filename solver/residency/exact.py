"""The best plan of a small problem, by search through all of them.

A dynamic program over listed order. After each operator a partial plan is a label: where every storage is, and
the times that the rest of the step depends on (`replay.Clock`). All actions and recomputes in every order are
tried; a label is dropped when another one with the same places has no later time (`label`), or when it cannot beat
the best plan in hand.

Recomputed executions lengthen lifetimes (rule 7), which a search in listed order learns too late. So where a
storage has been accessed for what may be the last time, the search tries both: it is free and no execution
touches it again, or it is *owed* another access, without which the plan is not one.

With a `width` only so many labels go on after each operator (`label.thinned`): plans are found, and nothing is proven.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, permutations, product

from hyperopt.plan import Action, Recompute, Residency
from hyperopt.replay import Clock
from solver.residency.candidates import Rerun
from solver.residency.label import COPIED, DEAD, GONE, OWED, Label, Order, Place, no_later, thinned
from solver.residency.problem import Problem

CHECK_EVERY = 64
"""Labels between two checks: some milliseconds."""

LAYER = 64
"""Labels of one operator, in widths, from which they are thinned before all are made."""


class TooLarge(Exception):
    """More labels than allowed: the problem is not small."""


def best_plan(
    problem: Problem, reruns: Sequence[Rerun] | None, *, below_ns: int, max_labels: int
) -> tuple[Residency, int] | None:
    """The plan with the least step time below `below_ns`, among all with the given reruns; None: there is none.

    `reruns` None: recompute what, when and how often the search likes. Returns the residency and its step time in
    nanoseconds. Raises `TooLarge` past `max_labels` labels.
    """
    plans = deque(better_plans(problem, reruns, below_ns=below_ns, max_labels=max_labels), maxlen=1)
    return plans[0] if plans else None


def better_plans(
    problem: Problem,
    reruns: Sequence[Rerun] | None,
    *,
    below_ns: int,
    max_labels: int,
    check: Callable[[int], None] = lambda _: None,
    width: int | None = None,
) -> Iterator[tuple[Residency, int]]:
    """As `best_plan`, each better plan as it is found: the last one is the best.

    `check` is told, every few milliseconds, how many labels have been made since; it may raise to end the search.
    `width`: go on with so many labels after each operator, some of the earliest and some that hold least; what is
    found is a plan then, and that nothing is found proves nothing.
    """
    return _Search(problem, reruns, below_ns, max_labels, check, width).run()


class _Search:
    def __init__(
        self,
        problem: Problem,
        reruns: Sequence[Rerun] | None,
        below_ns: int,
        max_labels: int,
        check: Callable[[int], None],
        width: int | None,
    ) -> None:
        self.problem, self.program, self.width = problem, problem.program, width
        self.best_ns, self.labels_left, self.check = below_ns, max_labels, check
        self.free = reruns is None
        program, n = self.program, problem.n
        self.reruns: dict[int, list[Rerun]] = {}
        self.drops: dict[int, set[int]] = {}
        for rerun in sorted(reruns or (), key=lambda r: (r.before, r.ops)):
            self.reruns.setdefault(rerun.before, []).append(rerun)
            for s, leave in rerun.drops:
                self.drops.setdefault(leave, set()).add(s)
        operators = problem.profile.operators
        self.again = [k for k in range(n) if self.free and operators[k].recomputable and program.writes[k]]
        self.remade = {s for k in self.again for s in program.writes[k]}
        self.reread = self.remade | {s for k in self.again for s in program.reads[k]}
        self.dying, self.late = self._lifetimes()
        self.next_use = [
            sorted({*problem.accesses[s], *(r.before for r in reruns or () for k in r.ops if self._touches(k, s))})
            for s in range(len(program.size))
        ]
        self.movable = {s: sorted(problem.tiers) for s in sorted(problem.movable)}
        self.returning = {name for name, tier in problem.places.items() if tier.h2d_bytes_per_s > 0}
        windows = [problem.window(s) for s in range(len(program.size))]
        self.low = [low for low, _ in windows]
        for s in problem.movable - {gap.storage for gap in problem.gaps}:  # only what a recompute keeps has to gain
            self.low[s] = max([self.low[s], *program.writers[s][-1:]])  # by a copy of its last content
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
        """Frees by last access per operator, and per (rerun's `before`, index in the joined list) of given reruns."""
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

    def run(self) -> Iterator[tuple[Residency, int]]:
        for initial in self._starts():
            layer = [self._start(initial)]
            for op in range(self.problem.n):
                layer = self._step(layer, op)
                if not layer:
                    break
                layer = self._thinned(layer, 1)
            done = [label for label in layer if self._ends_well(label, initial)]
            last = min(done, key=lambda label: (label.clock.step_ns, label.count), default=None)
            if last is not None and last.clock.step_ns < self.best_ns:
                self.best_ns = last.clock.step_ns
                yield self._residency(last, initial), self.best_ns

    # -- start and end -------------------------------------------------------------------------------------

    def _starts(self) -> Iterator[dict[int, str]]:
        """Every way to begin: each storage with a gap around the step's end in HBM or in a tier."""
        wraps = sorted({gap.storage for gap in self.problem.gaps if gap.wraps})
        for places in product(*(["", *sorted(self.problem.homes(s))] for s in wraps)):
            initial = {s: tier for s, tier in zip(wraps, places, strict=True) if tier}
            if self._tiers_hold(initial):
                yield initial

    def _tiers_hold(self, copies: dict[int, str]) -> bool:
        held = dict.fromkeys(self.problem.tier_bytes, 0)
        for s, tier in copies.items():
            held[tier] += self.program.size[s]
        return all(held[tier] <= size for tier, size in self.problem.tier_bytes.items())

    def _start(self, initial: dict[int, str]) -> Label:
        clock = Clock(self.program, list(initial), self.problem.hbm_bytes)
        places = [Place(there, initial.get(s, ""), -1, 0) for s, there in enumerate(clock.in_hbm)]
        return Label(places, clock.used, clock)

    def _ends_well(self, label: Label, initial: dict[int, str]) -> bool:
        for s, place in enumerate(label.places):
            if place.marks & OWED:
                return False
            if not self.program.returns[s]:
                continue
            home = initial.get(s, "")
            if place.in_hbm == bool(home) or (home and place.tier != home):
                return False
            if place.version != self.program.version_before(s, self.problem.n):
                return False
        return True

    def _residency(self, label: Label, initial: dict[int, str]) -> Residency:
        ids = [storage.id for storage in self.problem.profile.storages]
        actions: list[Action] = []
        recompute = [
            Recompute(storage=ids[r.target], before_op=r.before, ops=r.ops)
            for before in sorted(self.reruns)
            for r in self.reruns[before]
        ]
        for order in label.orders():
            if order.kind == "rerun":
                recompute.append(Recompute(storage=ids[order.storage], before_op=order.op, ops=(order.again,)))
            else:
                actions.append(_action(order, ids[order.storage]))
        for s, place in enumerate(label.places):
            if place.in_hbm and place.tier and self.program.returns[s]:
                # Leave no copy behind: the next step starts without it.
                actions.append(_action(Order(self.problem.compute[-1], "release_host", s), ids[s]))
        starts = {ids[s]: tier for s, tier in initial.items()}
        return Residency(initial=starts, actions=tuple(actions), recompute=tuple(recompute))

    # -- one operator --------------------------------------------------------------------------------------

    def _step(self, layer: list[Label], op: int) -> list[Label]:
        fronts: dict[tuple[Place, ...], list[Label]] = {}
        made = 0
        for label in layer:
            for done in self._through(label, op):
                clock = done.clock
                if max(clock.step_ns, clock.stream_free[0] + self.rest[op + 1]) < self.best_ns:
                    self._keep(fronts.setdefault(tuple(done.places), []), done)
                    made += 1
            if self.width is not None and made > LAYER * self.width:  # no more in memory than that
                some = self._thinned([label for front in fronts.values() for label in front], LAYER // 4)
                fronts, made = {}, len(some)
                for kept in some:
                    fronts.setdefault(tuple(kept.places), []).append(kept)
        return [label for front in fronts.values() for label in front]

    def _thinned(self, labels: list[Label], times: int) -> list[Label]:
        return labels if self.width is None else thinned(labels, times * self.width)

    def _through(self, label: Label, op: int) -> Iterator[Label]:
        """Every way past operator `op`."""
        compute = self.program.stream[op] == 0
        for ready in self._before(label, op) if compute else [label.fork()]:
            for again in self._again(ready, op) if compute else [ready]:
                if self._run(again, op, op, again=False):
                    for done in self._after(again, op) if compute else [again]:
                        yield from self._end(done, self.dying[op])

    def _keep(self, front: list[Label], label: Label) -> None:
        """Adds a label unless one in the front does as well; of equals the one with fewer orders stays."""
        for i, other in enumerate(front):
            if no_later(other, label):
                if other.count > label.count and no_later(label, other):
                    front[i] = label
                return
        front[:] = [other for other in front if not no_later(label, other)]
        front.append(label)

    def _before(self, label: Label, op: int) -> Iterator[Label]:
        wanted = [
            s
            for s, place in enumerate(label.places)
            if not place.in_hbm
            and place.tier in self.returning
            and op in self.arrivals
            and op <= self.high[s]
            and self._useful(s, op)
        ]
        for order in _ordered_subsets(wanted):
            self._count()
            branch = label.fork()
            if all(self._copy_in(branch, op, s) for s in order):
                yield branch

    def _copy_in(self, label: Label, op: int, s: int) -> bool:
        size, place = self.program.size[s], label.places[s]
        if label.taken + size > self.problem.hbm_bytes:
            return False
        label.taken += size
        label.places[s] = place._replace(in_hbm=True, marks=place.marks | COPIED)
        label.clock.copy_in(s, op, place.tier)
        label.order(Order(op, "copy_in", s))
        return True

    # -- executions ----------------------------------------------------------------------------------------

    def _again(self, label: Label, op: int) -> Iterator[Label]:
        """The given reruns, or every sequence of executions that bring dropped storages back before `op`."""
        if not self.free:
            joined = [k for rerun in self.reruns.get(op, ()) for k in rerun.ops]
            for j, k in enumerate(joined):
                if not self._run(label, k, op, again=True):
                    return
                self._release_all(label, self.late.get((op, j), []))
            yield label
            return
        yield label.fork()  # who gets a label goes on with it in place
        for k in (k for k in self.again if k < op):
            target = next((s for s in self.program.writes[k] if self._wants(label.places[s], s, k, op)), None)
            if target is None or label.places[target].marks & COPIED:
                continue
            self._count()
            branch = label.fork()
            branch.order(Order(op, "rerun", target, again=k))
            if self._run(branch, k, op, again=True):
                touched = {*self.program.reads[k], *self.program.writes[k]}
                over = [s for s in touched if self.program.last_access[s] < op and not self.program.stays[s]]
                for ended in self._end(branch, over):
                    yield from self._again(ended, op)

    def _wants(self, place: Place, s: int, k: int, op: int) -> bool:
        """Whether running `k` again brings `s` nearer to what is wanted before `op`: it is dropped, or older."""
        older = place.version < k <= self.program.version_before(s, op)
        return bool(place.marks & GONE) or (place.in_hbm and older)

    def _run(self, label: Label, executed: int, op: int, *, again: bool) -> bool:
        """Executes an operator in place; whether rules 2 to 8 let it."""
        program, places = self.program, label.places
        reads, writes = program.reads[executed], program.writes[executed]
        if any(not places[s].in_hbm or places[s].version != program.version_before(s, executed) for s in reads):
            return False
        forbidden = DEAD if again else DEAD | GONE
        fresh = [s for s in writes if not places[s].in_hbm]
        if any(places[s].tier or places[s].marks & forbidden for s in fresh):
            return False
        need = sum(program.size[s] for s in fresh)
        if label.taken + need + program.workspace[executed] > self.problem.hbm_bytes:
            return False
        label.taken += need
        label.clock.execute(executed, op, again)
        settled = OWED if again else OWED | COPIED
        for s in reads:
            places[s] = places[s]._replace(marks=places[s].marks & ~settled)
        for s in writes:
            places[s] = Place(True, "", executed, places[s].marks & ~(settled | GONE))
        return True

    def _end(self, label: Label, over: Iterable[int]) -> Iterator[Label]:
        """Storages that may have had their last access: freed, or, where it can be, owed another one."""
        over = [s for s in over if not label.places[s].marks & (OWED | DEAD)]
        open_ = [s for s in over if s in self.reread]
        for owed in _subsets(open_):
            branch = label.fork() if owed else label
            if owed:
                self._count()
            for s in owed:
                branch.places[s] = branch.places[s]._replace(marks=branch.places[s].marks | OWED)
            if owed:
                self._release_all(branch, [s for s in over if s not in owed])
                yield branch
        self._release_all(label, over)
        yield label

    def _release_all(self, label: Label, over: Iterable[int]) -> None:
        """Frees by last access (rule 7), copies outside HBM included."""
        for s in over:
            if label.places[s].in_hbm:
                self._leave(label, s)
            label.places[s] = Place(False, "", -1, DEAD)

    # -- actions after an operator -------------------------------------------------------------------------

    def _after(self, label: Label, op: int) -> Iterator[Label]:
        forced = self.drops.get(op, set())
        held = [s for s in self.movable if label.places[s].in_hbm and label.places[s].tier]
        for given in _subsets(held) if self.tight else [()]:  # first: what is given up makes room for what comes
            outs = [
                s
                for s in self.movable
                if label.places[s].in_hbm
                and (s in given or not label.places[s].tier)
                and s not in forced
                and self._may_leave(s, op)
            ]
            for order in _ordered_subsets(outs):
                for tiers in product(*(self.movable[s] for s in order)):
                    copies = {s: place.tier for s, place in enumerate(label.places) if place.tier and s not in given}
                    copies.update(zip(order, tiers, strict=True))
                    if self._tiers_hold(copies):
                        chosen = dict(zip(order, tiers, strict=True))
                        yield from self._releases(label, op, given, chosen, forced)

    def _releases(
        self, label: Label, op: int, given: tuple[int, ...], outs: dict[int, str], forced: set[int]
    ) -> Iterator[Label]:
        copied = [s for s in self.movable if label.places[s].in_hbm and label.places[s].tier and s not in given]
        copied += list(outs)
        could = [s for s in copied if self._may_leave(s, op)]
        could += [
            s for s in self.remade if s not in copied and s not in forced and (s in given or self._may_drop(label, s))
        ]
        for leaving in _subsets(could):
            self._count()
            branch = label.fork()
            for s in given:
                branch.places[s] = branch.places[s]._replace(tier="")
                branch.order(Order(op, "release_host", s))
            for s, tier in outs.items():
                branch.clock.copy_out(s, op, tier)
                place = branch.places[s]
                branch.places[s] = place._replace(tier=tier, marks=place.marks | COPIED)
                branch.order(Order(op, "copy_out", s, tier))
            for s in (*leaving, *sorted(s for s in forced if branch.places[s].in_hbm)):
                place = branch.places[s]
                self._leave(branch, s)
                marks = place.marks if place.tier else place.marks | GONE
                branch.places[s] = place._replace(in_hbm=False, marks=marks)
                branch.order(Order(op, "release", s))
            yield branch

    def _may_drop(self, label: Label, s: int) -> bool:
        """Whether a storage in HBM without a copy may be released in the hope of a recompute."""
        place = label.places[s]
        return place.in_hbm and not place.tier and not place.marks & COPIED

    def _may_leave(self, s: int, op: int) -> bool:
        """Whether `s` has anything to gain by leaving after `op`: it is needed later, or its home is elsewhere."""
        return op in self.departures and op >= self.low[s] and self._useful(s, op + 1)

    def _useful(self, s: int, op: int) -> bool:
        """Whether anybody may want the content of `s` from operator `op` on."""
        uses = self.next_use[s]
        return bisect_left(uses, op) < len(uses) or self.program.returns[s] or s in self.reread

    def _leave(self, label: Label, s: int) -> None:
        label.taken -= self.program.size[s]
        label.clock.release(s)

    def _count(self) -> None:
        self.labels_left -= 1
        if self.labels_left < 0:
            raise TooLarge
        if self.labels_left % CHECK_EVERY == 0:
            self.check(CHECK_EVERY)


def _action(order: Order, storage: int) -> Action:
    return Action(
        op=order.op,
        when="before" if order.kind == "copy_in" else "after",
        kind=order.kind,  # type: ignore[arg-type]  # reruns are not actions
        storage=storage,
        tier=order.tier or None,
    )


def _ordered_subsets(items: list[int]) -> Iterator[tuple[int, ...]]:
    for count in range(len(items) + 1):
        yield from permutations(items, count)


def _subsets(items: list[int]) -> Iterator[tuple[int, ...]]:
    for count in range(len(items) + 1):
        yield from combinations(items, count)
