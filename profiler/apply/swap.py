"""The saved-tensor hooks at work: storages leave HBM, come back ahead of use, and every action is logged.

One `Swapped` stands for one planned storage in one step, however many tensors (views included) autograd
saves of it: one copy out, one copy back. Its life::

    saves ... out issued -> copied -> device block dropped ... in issued -> copied -> loads -> forgotten

The hooks run in the thread that trains; a link has a thread a direction. What the two share are two tickets
and the device tensor, which only the moment after the copy out drops, under a lock.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from hyperopt.plan import Action
from profiler.apply.capability import PlanRefused
from profiler.apply.copies import Buffer, Link, Ticket, address_of, copy_in, copy_out, device_block
from profiler.apply.log import ActionRecord, CopyBack, ExecutionLog
from profiler.apply.schedule import Move, Schedule, after, before
from profiler.capture.observation import detached
from profiler.capture.program import POOL_UNIT

Form = tuple[tuple[int, ...], Any]


@dataclass
class Swapped:
    """The state of one planned storage in one step."""

    move: Move
    record: CopyBack
    actions: dict[str, ActionRecord]
    device: Any = None
    address: int = 0
    size: int = 0
    form: Form | None = None
    """Shape and type of the first tensor saved that is the whole storage: what the block comes back as."""
    saves_seen: int = 0
    loads_seen: int = 0
    out: Ticket | None = None
    back: Ticket | None = None
    host: Buffer | None = None
    release_due: bool = False
    dropped: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def drop_if_copied(self) -> bool:
        """Drops the device tensor once its copy has ended and its release is due. True when it did so now."""
        with self.lock:
            if self.host is None or not self.release_due or self.back is not None or self.device is None:
                return False
            self.device = None
            self.dropped = True
            return True


@dataclass
class Held:
    """What autograd keeps in the place of a tensor. ``tensor`` for what stays, ``swapped`` for what moves."""

    storage: int
    tensor: Any = None
    swapped: Swapped | None = None
    form: Form | None = None
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0
    dtype: Any = None
    entry_of: str | None = None
    """The recomputed layer whose input this is: fetching it means that the layer runs again."""


class Swapper:
    """Hooks for `mindspore.saved_tensors_hooks`. One object serves all steps of a run.

    Raises `PlanRefused` from a hook when the saves of a step are not those of the profile.
    """

    def __init__(self, schedule: Schedule, log: ExecutionLog, out: Link, back: Link) -> None:
        self.schedule = schedule
        self.log = log
        self.links = out, back
        self.step = -1
        self.position = len(schedule.saves)  # the first save begins the first step
        self.loads_seen: dict[int, int] = {}
        self.addresses: dict[int, int] = {}
        self.swapped: dict[int, Swapped] = {}
        self.drops: dict[str, list[ActionRecord]] = {}
        self.again: dict[str, list[ActionRecord]] = {}
        self.host_bytes = 0
        self.entered: str | None = None
        self.entry_addresses: frozenset[int] = frozenset()

    # The pack hook

    def save(self, tensor: Any) -> Held:
        if self.entered is not None:
            return self._save_of_entry(tensor)
        if self.position == len(self.schedule.saves):
            self._begin_step()
        expected = self.schedule.saves[self.position]
        self.position += 1
        self._check(tensor, expected.storage, expected.op)
        held = self._hold(tensor, expected.storage)
        self._advance(after(expected.op), expected.op)
        return held

    def enter_layer(self, layer: str, inputs: list[Any]) -> None:
        """A recomputed layer begins: until it ends, only its inputs are saved."""
        if self.position == len(self.schedule.saves):
            self._begin_step()
        self.entered = layer
        self.entry_addresses = frozenset(address_of(tensor) for tensor in inputs)

    def leave_layer(self, layer: str) -> None:
        self.entered = None
        self._carried_out(self.drops, layer)
        while self.position < len(self.schedule.saves) and self.schedule.saves[self.position].layer == layer:
            self.position += 1

    def _save_of_entry(self, tensor: Any) -> Held:
        """MindSpore saves a recomputed cell's inputs, and an empty tensor before them."""
        layer = str(self.entered)
        source = self.schedule.inputs[layer]
        if source is None or tensor.size == 0 or address_of(tensor) not in self.entry_addresses:
            return Held(-1, detached(tensor), entry_of=layer)
        held = self._hold(tensor, source)
        held.entry_of = layer
        op = self.schedule.saves[self.position].op
        self._advance(before(op), op)
        return held

    def _hold(self, tensor: Any, storage: int) -> Held:
        move = self.schedule.moves.get(storage)
        if move is None:
            return Held(storage, detached(tensor))
        swapped = self.swapped.get(storage) or self._new(move)
        if swapped.device is None and swapped.out is None:
            swapped.device = detached(tensor)
            swapped.address = address_of(tensor)
            swapped.size = int(tensor.untyped_storage().nbytes())
        swapped.saves_seen += 1
        swapped.form = swapped.form or _form(tensor, swapped.size)
        return Held(
            storage,
            swapped=swapped,
            form=_form(tensor, swapped.size),
            shape=tuple(tensor.shape),
            strides=tuple(tensor.stride()),
            offset=int(tensor.storage_offset()),
            dtype=tensor.dtype,
        )

    def _check(self, tensor: Any, storage: int, op: int) -> None:
        """Refuses a save that is not the recorded one: another size, or another storage of the same step."""
        names = f"the tensor saved after operator {op} ({self.schedule.operators[op]})"
        size, recorded = int(tensor.untyped_storage().nbytes()), self.schedule.bytes[storage]
        if storage in self.schedule.made:
            size = -(-max(size, 1) // POOL_UNIT) * POOL_UNIT
        if size != recorded:
            raise PlanRefused([f"the model has changed: {names} has {size} bytes, recorded were {recorded}"])
        address = address_of(tensor)
        if storage in self.schedule.moves and self.addresses.setdefault(storage, address) != address:
            raise PlanRefused([f"the model has changed: {names} is no longer storage {self.schedule.names[storage]}"])

    # The unpack hook

    def load(self, held: Held) -> Any:
        if held.entry_of is not None:
            self._carried_out(self.again, held.entry_of)
        number = self.loads_seen.get(held.storage, 0)
        self.loads_seen[held.storage] = number + 1
        expected = self.schedule.loads.get(held.storage, ())
        if number < len(expected):
            self._advance(before(expected[number]), expected[number])
        if held.swapped is None:
            return held.tensor
        return self._restored(held, held.swapped)

    def _restored(self, held: Held, swapped: Swapped) -> Any:
        from mindspore.ops.auto_generate import as_strided

        record = swapped.record
        first = record.used_us is None
        if swapped.back is None:
            self._issue_back(swapped, swapped.move.consumer_op, ahead=False)
        waits_from = self.log.now_us()
        if swapped.back is not None:
            swapped.back.wait()
        if first:
            record.used_us = self.log.now_us()
            record.waited_us = record.used_us - waits_from
        block = swapped.device
        swapped.loads_seen += 1
        if swapped.loads_seen >= swapped.move.loads:
            self._forget(swapped)
        if held.form is not None and held.form == (tuple(block.shape), block.dtype):
            return block
        return as_strided(_flat(block, held.dtype), held.shape, held.strides, held.offset)

    # The clock

    def _advance(self, moment: int, op: int) -> None:
        for swapped in self.swapped.values():
            if swapped.release_due and swapped.back is None and not swapped.dropped:
                self._wait_for_release(swapped)
        for swapped in list(self.swapped.values()):
            move = swapped.move
            if swapped.out is None and moment >= after(move.out_op) and swapped.saves_seen == move.saves:
                self._issue_out(swapped)
            if not swapped.release_due and swapped.out is not None and moment >= after(move.release_op):
                swapped.release_due = True
                self._drop(swapped)
            if swapped.back is None and swapped.out is not None and moment >= move.in_moment > after(move.release_op):
                self._issue_back(swapped, op, ahead=moment < before(move.consumer_op))

    def _wait_for_release(self, swapped: Swapped) -> None:
        """A block whose release was due at an earlier call must be gone by now: the plan's peak counts on it, and
        replay, too, lets whoever needs the memory wait."""
        assert swapped.out is not None
        waits_from = self.log.now_us()
        swapped.out.wait()
        self._drop(swapped)
        self.log.release_waited_us += self.log.now_us() - waits_from

    def _issue_out(self, swapped: Swapped) -> None:
        tensor, size = swapped.device, swapped.size

        def copy() -> None:
            swapped.host = copy_out(tensor, size)
            self._drop(swapped)

        self._done(swapped, "copy_out")
        self.host_bytes += size
        self.log.host_peak_bytes = max(self.log.host_peak_bytes, self.host_bytes)
        swapped.out = self.links[0].submit(copy)

    def _drop(self, swapped: Swapped) -> None:
        if swapped.drop_if_copied():
            self._done(swapped, "release")

    def _issue_back(self, swapped: Swapped, op: int, *, ahead: bool) -> None:
        import mindspore as ms

        if swapped.out is None:
            return  # never left: the load finds the tensor itself
        if not swapped.release_due:
            swapped.release_due = True
            self._drop(swapped)
        out, record = swapped.out, swapped.record
        if not out.done.is_set():
            out.wait()
        self._drop(swapped)
        block = device_block(*(swapped.form or ((swapped.size,), ms.uint8)))
        record.issued_us, record.issued_before_op, record.ahead = self.log.now_us(), op, ahead
        self._done(swapped, "copy_in")

        def copy() -> None:
            assert swapped.host is not None
            copy_in(swapped.host, block)
            record.completed_us = self.log.now_us()

        swapped.device = block
        swapped.back = self.links[1].submit(copy)

    def _forget(self, swapped: Swapped) -> None:
        if swapped.host is not None:
            self.host_bytes -= swapped.size
        swapped.host = None
        swapped.device = None
        self._done(swapped, "release_host")
        del self.swapped[swapped.move.storage]

    # Steps and the log

    def _begin_step(self) -> None:
        self.finish_step()
        if self.step >= 0 and self.schedule.saves and not self.loads_seen:
            raise PlanRefused(
                [f"the model has changed: more than {len(self.schedule.saves)} saves in one forward pass"]
            )
        self.step += 1
        self.position = 0
        self.loads_seen = {}
        self.addresses = {}
        self.log.steps = self.step + 1
        for move in self.schedule.moves.values():
            self._new(move)
        self.drops = {layer: self._planned(actions) for layer, actions in self.schedule.drops.items()}
        self.again = {
            layer: [
                ActionRecord(self.step, "recompute", e.before_op, e.storage, self.schedule.bytes[e.storage])
                for e in entries
            ]
            for layer, entries in self.schedule.again.items()
        }
        self.log.actions += [record for records in self.again.values() for record in records]

    def _planned(self, actions: tuple[Action, ...]) -> list[ActionRecord]:
        records = [ActionRecord(self.step, a.kind, a.op, a.storage, self.schedule.bytes[a.storage]) for a in actions]
        self.log.actions += records
        return records

    def _carried_out(self, records: dict[str, list[ActionRecord]], layer: str) -> None:
        for record in records.get(layer, ()):
            if record.outcome != "done":
                record.outcome, record.at_us = "done", self.log.now_us()

    def finish_step(self) -> None:
        """Ends what is still under way: a step that was broken off leaves copies behind."""
        for swapped in list(self.swapped.values()):
            for ticket in (swapped.out, swapped.back):
                if ticket is not None:
                    ticket.wait()
        self.swapped = {}
        self.host_bytes = 0

    def _new(self, move: Move) -> Swapped:
        record = CopyBack(self.step, move.storage, move.bytes, move.in_op, move.consumer_op)
        planned = {"copy_out": move.out_op, "release": move.release_op, "copy_in": move.in_op}
        if move.host_release_op is not None:
            planned["release_host"] = move.host_release_op
        actions = {kind: ActionRecord(self.step, kind, op, move.storage, move.bytes) for kind, op in planned.items()}
        self.log.copies_back.append(record)
        self.log.actions.extend(actions.values())
        self.swapped[move.storage] = swapped = Swapped(move, record, actions)
        return swapped

    def _done(self, swapped: Swapped, kind: str) -> None:
        action = swapped.actions.get(kind)
        if action is not None:
            action.outcome, action.at_us = "done", self.log.now_us()


def _form(tensor: Any, size: int) -> Form | None:
    whole = int(tensor.nbytes) == size and int(tensor.storage_offset()) == 0 and tensor.is_contiguous()
    return (tuple(tensor.shape), tensor.dtype) if whole else None


def _flat(block: Any, dtype: Any) -> Any:
    """The block as a flat tensor of another type, on the same memory."""
    flat = block.view((-1,))
    return flat if flat.dtype == dtype else flat.view(dtype)
