"""Which dimensions of a step's tensors grow with the batch, or the sequence, and with which power.

Followed from the inputs through every operator, and from the weights, which do not grow: what operators do with
dimensions is told from type and lengths (`hyperopt.cost.extents`), what is written and read again has the same memory.

::

    ids [32, 128] ─▶ [4096] ─▶ Gather ─▶ [4096, 96] ─▶ Reshape ─▶ [32, 128, 4, 24] ...     batch 32
         1    0        1        ▲         1     0                    1    0   0  0         powers
                    table [256, 96]

A dimension whose length is no multiple of the old one does not grow. Where several of one block could (4096 as
[32, 128]) the one of the old length is taken, if it is one alone. What is left is refused, by operator and shapes:
nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod

from hyperopt.cost.extents import Reading, Shape, alignments, between, readings
from hyperopt.cost.formulas import ITEM_BYTES
from hyperopt.cost.powers import Balance, Clash, Powers
from hyperopt.cost.work import Table
from hyperopt.documents import DocumentError
from hyperopt.profile import IDLE, Operator, Profile

UNIT, PADDING = 512, 1024
"""Bytes: what pools round blocks up to, and by how much a storage may then exceed its tensor."""

NOTHING = 2**62
"""A length that no dimension has."""

FIXED = ("parameter", "optimizer_state")


@dataclass(frozen=True)
class Seen:
    """A tensor as an operator names it: `storage` is its memory (None: a constant of the program, or a result that
    nobody reads), `powers` those of its dimensions."""

    shape: Shape
    dtype: str
    storage: int | None
    powers: tuple[int, ...]


@dataclass(frozen=True)
class Followed:
    """`operators`: for each operator of the profile its tensors, in the order of its shapes. `storages`: for each
    storage that some operator names by shape, one such tensor. `assumed`: how many blocks were split by length."""

    operators: tuple[tuple[Seen, ...], ...]
    storages: dict[int, Seen]
    assumed: int


def follow(profile: Profile, table: Table, axis: str, old: int) -> Followed:
    """`axis`: ``batch`` or ``sequence``, of which the step has `old`. Raises `DocumentError` where a dimension cannot
    be followed, naming the operator."""
    return _Follower(profile, table, axis, old).run()


def see(profile: Profile, table: Table) -> Followed:
    """Which tensors lie in which storages, where nothing grows."""
    return _Follower(profile, table, "", NOTHING).run()


class _Follower:
    def __init__(self, profile: Profile, table: Table, axis: str, old: int) -> None:
        self.profile, self.table, self.axis, self.old = profile, table, axis, old
        self.powers = Powers()
        self.rounded = is_rounded(profile)
        self.dims: list[list[list[int]]] = []
        """Operator, tensor, dimension -> its number."""
        self.held: list[list[int | None]] = []
        self.kept: dict[int, tuple[int, int]] = {}
        """Storage -> operator and tensor that show it first."""
        self.balances: list[Balance] = []
        self.open: list[tuple[int, list[Reading]]] = []
        self.unread: list[int] = []
        self.alike: list[tuple[int, int]] = []
        """Operator and tensor of the inputs that have several dimensions of the sequence's length."""
        self.assumed = 0
        self.lengths: dict[int, int] = {}

    def run(self) -> Followed:
        for at, operator in enumerate(self.profile.operators):
            self._number(operator)
            self._match(at, operator)
        for at, operator in enumerate(self.profile.operators):
            if operator.type == IDLE or not self.dims[at]:
                continue
            kind = self.table.kind(operator.type, operator.name)
            name, family = (kind.name, kind.family) if kind else ("", "")
            if operator.inputs is None:
                self._unsaid(at, operator, family)
                continue
            shapes, count = operator.shapes, operator.inputs
            found = list(readings(name, family, shapes[:count], shapes[count:]))
            if not found:
                self.unread.append(at)
            elif len(found) == 1:
                self._take(at, found[0])
            else:
                self.open.append((at, found))
        self._settle()
        self._rest()
        return self._answer()

    # -- what is there -------------------------------------------------------------------------------------

    def _number(self, operator: Operator) -> None:
        found = []
        # Without `inputs` shapes may be of anything, unless there is one for each storage that is written.
        known = operator.inputs is not None or self._shows_results(operator)
        for shape in operator.shapes if known else ():
            numbers = [self.powers.new(self._start(length)) for length in shape]
            self.lengths.update(zip(numbers, shape, strict=True))
            found.append(numbers)
        self.dims.append(found)
        self.held.append([None] * len(found))

    def _shows_results(self, operator: Operator) -> bool:
        return len(operator.shapes) == len(operator.writes) and all(
            self._fits(id, bytes_of(shape, dtype))
            for id, shape, dtype in zip(operator.writes, operator.shapes, operator.dtypes, strict=False)
        )

    def _start(self, length: int) -> int | None:
        """Known at once: what is no multiple of the old length does not grow."""
        return 0 if self.old > 1 and length % self.old else None

    def _match(self, at: int, operator: Operator) -> None:
        """Which tensor lies in which storage: by bytes, and by the shape in which it was seen before."""
        if not self.dims[at]:
            return
        count = operator.inputs or 0
        reads, writes = list(operator.reads), list(operator.writes)
        self._match_side(at, operator, range(count), reads, [])
        self._match_side(at, operator, range(count, len(self.dims[at])), writes, reads)

    def _match_side(
        self, at: int, operator: Operator, places: Sequence[int], ids: list[int], others: list[int]
    ) -> None:
        """`others`: what is matched last (a result is new before it is in place)."""
        left, taken = list(ids), dict[int, Shape]()
        for place in places:
            shape = operator.shapes[place]
            need = bytes_of(shape, operator.dtypes[place])
            fits = [s for s in dict.fromkeys(ids) if self._fits(s, need) and taken.get(s, shape) == shape]
            if fits:
                chosen = min(fits, key=lambda s: self._rank(s, shape, s in taken, s in others))
                self._hold(at, place, chosen)
                taken[chosen] = shape
                if chosen in left:
                    left.remove(chosen)
        # What is left over is seen in part: a view that is smaller than its memory.
        for place in places:
            need = bytes_of(operator.shapes[place], operator.dtypes[place])
            if self.held[at][place] is None and left and operator.shapes[place]:
                whole = self.profile.by_id[left[0]].bytes
                if need and whole > need and whole % need == 0 and len(left) <= len(places):
                    self._hold(at, place, left.pop(0))

    def _rank(self, storage: int, shape: Shape, taken: bool, other: bool) -> tuple[int, bool, bool, bool]:
        """The least is the best match: the tightest, for this tensor alone, seen in this shape."""
        return self.profile.by_id[storage].bytes, taken, other, self._strange(storage, shape)

    def _fits(self, storage: int, need: int) -> bool:
        over = self.profile.by_id[storage].bytes - need
        return need > 0 and (over == 0 or (self.rounded and 0 < over < PADDING))

    def _strange(self, storage: int, shape: Shape) -> bool:
        """Whether the storage was seen in another shape."""
        if storage not in self.kept:
            return False
        at, place = self.kept[storage]
        return self.profile.operators[at].shapes[place] != shape

    def _hold(self, at: int, place: int, storage: int) -> None:
        self.held[at][place] = storage
        mine, shape = self.dims[at][place], self.profile.operators[at].shapes[place]
        kind = self.profile.by_id[storage].kind
        if kind in FIXED:
            for dim in mine:
                self._must(at, lambda dim=dim: self.powers.fix(dim, 0))
        if storage not in self.kept:
            if not self._fits(storage, bytes_of(shape, self.profile.operators[at].dtypes[place])):
                return  # a part tells nothing of the whole
            self.kept[storage] = (at, place)
            if kind == "input":
                self._seed(at, place)
            return
        first, its = self.kept[storage]
        known, theirs = self.profile.operators[first].shapes[its], self.dims[first][its]
        reading = between(known, shape)
        if reading is None:  # a part of it: as much of the batch as the whole
            self.balances.append(Balance(tuple(theirs), tuple(mine), 0, at))
            return
        numbers = [*theirs, *mine]
        self._pairs(at, [(numbers[a], numbers[b]) for a, b in reading.same])
        for left, right in reading.sums:
            self.balances.append(Balance(tuple(numbers[i] for i in left), tuple(numbers[i] for i in right), 0, at))

    def _seed(self, at: int, place: int) -> None:
        """An input grows: along the dimension of the old length, the first of such for a batch; without any, in that of
        which it is a part. Where several could be the sequence (ids of as many sequences as they are long, a mask of
        every position by every other) the step has to say which are."""
        mine = self.dims[at][place]
        equal = [dim for dim in mine if self.lengths[dim] == self.old]
        if self.axis == "batch" and equal:
            equal = equal[:1]
        if len(equal) > 1:
            for dim in mine:
                if dim not in equal:
                    self._must(at, lambda dim=dim: self.powers.fix(dim, 0))
            self.alike.append((at, place))
        elif equal:
            for dim in mine:
                self._must(at, lambda dim=dim: self.powers.fix(dim, int(dim in equal)))
        elif any(self.powers.of(dim) is None for dim in mine):
            self.balances.append(Balance(tuple(mine), (), 1, at))

    # -- going on ------------------------------------------------------------------------------------------

    def _take(self, at: int, reading: Reading) -> None:
        numbers = self._flat(at)
        self._pairs(at, [(numbers[a], numbers[b]) for a, b in reading.same])
        for left, right in reading.sums:
            self.balances.append(Balance(tuple(numbers[i] for i in left), tuple(numbers[i] for i in right), 0, at))

    def _unsaid(self, at: int, operator: Operator, family: str) -> None:
        """A kernel that the source shows by its results alone: element by element, they lie along what it reads."""
        for id in operator.reads if family == "elementwise" else ():
            if id not in self.kept:
                continue
            first, its = self.kept[id]
            was, theirs = self.profile.operators[first].shapes[its], self.dims[first][its]
            for shape, mine in zip(operator.shapes, self.dims[at], strict=True):
                sides = ((was, theirs), (shape, mine))
                (small, small_dims), (large, large_dims) = sorted(sides, key=lambda side: (len(side[0]), prod(side[0])))
                ways = alignments(small, range(len(small)), large, range(len(large)))
                if len(ways) == 1:
                    for a, b in ways[0]:
                        with suppress(Clash):  # what it reads is inferred
                            self.powers.join(small_dims[a], large_dims[b])

    def _flat(self, at: int) -> list[int]:
        return [dim for tensor in self.dims[at] for dim in tensor]

    def _pairs(self, at: int, pairs: Sequence[tuple[int, int]]) -> None:
        for a, b in pairs:
            self._must(at, lambda a=a, b=b: self.powers.join(a, b))

    def _must(self, at: int, act: object) -> None:
        try:
            act()  # type: ignore[operator]
        except Clash:
            raise self._refusal(at, f"its tensors would grow with the {self.axis} in contradictory ways") from None

    def _settle(self) -> None:
        """Until nothing follows any more; then blocks are split by length, one at a time."""
        while True:
            news = True
            while news:
                news, still = False, []
                for balance in self.balances:
                    if not self._known(balance):  # what is known now is weighed once more, and then done with
                        still.append(balance)
                    news = self._weigh(balance) or news
                self.balances = still
                news = self._exclude() or news
            if not self._split():
                return

    def _known(self, balance: Balance) -> bool:
        return all(self.powers.of(d) is not None for d in (*balance.left, *balance.right))

    def _weigh(self, balance: Balance) -> bool:
        rest = balance.plus
        unknown: dict[int, int] = {}
        for side, sign in ((balance.left, -1), (balance.right, 1)):
            for dim in side:
                if (power := self.powers.of(dim)) is None:
                    root = self.powers.root(dim)
                    unknown[root] = unknown.get(root, 0) + sign
                else:
                    rest += sign * power
        unknown = {root: sign for root, sign in unknown.items() if sign}
        if not unknown:
            if rest:
                raise self._refusal(balance.at, f"its tensors would grow with the {self.axis} in contradictory ways")
            return False
        signs = set(unknown.values())
        if rest == 0 and len(signs) == 1:  # none is below 0
            for root in unknown:
                self._must(balance.at, lambda root=root: self.powers.fix(root, 0))
            return True
        if len(unknown) == 1:
            ((root, sign),) = unknown.items()
            if rest % sign == 0:
                self._must(balance.at, lambda: self.powers.fix(root, -rest // sign))
                return True
        return False

    def _exclude(self) -> bool:
        """Readings that contradict what is known go; what all the others say is taken."""
        news, still = False, []
        for at, found in self.open:
            numbers = self._flat(at)
            implied = {r: powers for r in found if (powers := self._implied(numbers, r)) is not None}
            left = list(implied)
            if not left:
                raise self._refusal(at, f"no reading of its shapes agrees with how they grow with the {self.axis}")
            if len(left) == 1:
                self._take(at, left[0])
                news = True
                continue
            for a, b in frozenset.intersection(*(r.same for r in left)):
                news = self.powers.join(numbers[a], numbers[b]) or news
            for dim, told in zip(numbers, zip(*implied.values(), strict=True), strict=True):
                if told[0] is not None and len(set(told)) == 1:
                    news = self.powers.fix(dim, told[0]) or news
            still.append((at, left))
        self.open = still
        return news

    def _implied(self, numbers: Sequence[int], reading: Reading) -> list[int | None] | None:
        """The powers of an operator's dimensions if this is how they go together; None: they contradict it."""
        local: dict[int, int] = {}
        known: dict[int, int | None] = {}

        def root(a: int) -> int:
            a = self.powers.root(a)
            while a in local:
                a = local[a]
            return a

        for a, b in reading.same:
            one, other = root(numbers[a]), root(numbers[b])
            if one == other:
                continue
            first, second = (known.get(r, self.powers.power[r]) for r in (one, other))
            if first is not None and second is not None and first != second:
                return None
            local[other] = one
            known[one] = second if first is None else first
        return [known.get(r, self.powers.power[r]) for r in map(root, numbers)]

    def _split(self) -> bool:
        """One block of several dimensions that could grow: along the one of the old length, if there is one."""
        for balance in self.balances:
            for side, other in ((balance.left, balance.right), (balance.right, balance.left)):
                unknown = [d for d in side if self.powers.of(d) is None]
                if not unknown or any(self.powers.of(d) is None for d in other):
                    continue
                total = sum(self.powers.of(d) or 0 for d in other)
                total += balance.plus if side is balance.left else -balance.plus
                equal = {self.powers.root(d) for d in unknown if self.lengths[d] == self.old}
                if len(equal) == 1 and total - sum(self.powers.of(d) or 0 for d in side) >= 1:
                    self.powers.fix(equal.pop(), 1)
                    self.assumed += 1
                    return True
        return False

    # -- the end -------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """Everything must be known by now, and agree."""
        for at, place in self.alike:
            if any(self.powers.of(dim) is None for dim in self.dims[at][place]):
                shape = list(self.profile.operators[at].shapes[place])
                raise self._refusal(at, f"of an input {shape} nothing tells which dimension is the {self.axis}")
        for at in self.unread:
            if any(self.powers.of(dim) != 0 for dim in self._flat(at)):
                problem = f"what it does with the {self.axis} is not known"
                raise self._refusal(at, problem, "give its type a family with --operators FILE")
        for balance in self.balances:
            if not self._known(balance):
                problem = f"of several dimensions that could be the {self.axis} none is known to be it"
                raise self._refusal(balance.at, problem)
        for at, found in self.open:
            if any(self.powers.of(dim) is None for dim in self._flat(at)):
                problem = f"its shapes can be read in {len(found)} ways, with different growth of the {self.axis}"
                raise self._refusal(at, problem)
        for at in range(len(self.dims)):
            if any(self.powers.of(dim) is None for dim in self._flat(at)):
                if self.profile.operators[at].inputs is None:
                    problem = "its source does not say which tensors go in"
                    raise self._refusal(at, problem, "capture the step with `hyperopt capture`")
                raise self._refusal(at, f"nothing tells whether it grows with the {self.axis}")

    def _answer(self) -> Followed:
        def seen(at: int, place: int) -> Seen:
            operator = self.profile.operators[at]
            powers = tuple(self.powers.of(dim) or 0 for dim in self.dims[at][place])
            return Seen(operator.shapes[place], operator.dtypes[place], self.held[at][place], powers)

        operators = tuple(tuple(seen(at, i) for i in range(len(tensors))) for at, tensors in enumerate(self.dims))
        return Followed(operators, {s: seen(*where) for s, where in self.kept.items()}, self.assumed)

    def _refusal(self, at: int, problem: str, remedy: str = "") -> DocumentError:
        operator = self.profile.operators[at]
        count = operator.inputs or 0
        sides = (operator.shapes[:count], operator.shapes[count:])
        told = " -> ".join(" ".join(str(list(shape)) for shape in side) for side in sides)
        remedy = remedy or f"profile at a {self.axis} whose length no other dimension has, and give it as OLD=NEW"
        return DocumentError(f"$.operators[{at}].shapes", f"{operator.type} {told}: {problem}", remedy)


def is_rounded(profile: Profile) -> bool:
    """Whether all blocks that the step makes are of whole units: a pool has rounded them up."""
    made = [s.bytes for s in profile.storages if not s.resident_at_start]
    return bool(made) and all(size % UNIT == 0 for size in made)


def inputs_of(profile: Profile) -> list[Shape]:
    """Shapes in which operators read the step's inputs, those of two dimensions and more first."""
    found = []
    for operator in profile.operators:
        for id in operator.reads:
            storage = profile.by_id[id]
            if storage.kind == "input":
                for shape, dtype in zip(operator.shapes[: operator.inputs or 0], operator.dtypes, strict=False):
                    if storage.bytes == bytes_of(shape, dtype) and shape:
                        found.append(shape)
    return sorted(dict.fromkeys(found), key=lambda shape: -len(shape))


def bytes_of(shape: Shape, dtype: str) -> int:
    """0 where the element type is unknown."""
    return prod(shape) * ITEM_BYTES.get(dtype.lower().removeprefix("c10::").removeprefix("dt_"), 0)
