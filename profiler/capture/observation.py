"""One training step, seen from inside: every dispatched operator, every tensor that autograd saves and loads.

MindSpore's dispatch mode calls us for each operator with its arguments, the saved-tensor hooks for each
tensor kept for backward. Storages are told apart by their address, which is exact only while nothing is
freed: the observer keeps every storage it has seen, so the observed step holds the *sum* of all storages,
not the peak. (In dispatch mode autograd keeps every forward output anyway; measured: the peak doubles.
Therefore memory and times are taken from other steps, without dispatch: see `profiler.capture.recording`.)

A strided view that meets a kernel which wants contiguous memory is copied below the dispatcher; only its new
address shows. The observer looks for the latest result with the same shape and the same bytes: the source.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Place = Literal["forward", "backward", "outside"]

BACKWARD_ENTRIES = frozenset({"grad", "backward", "_pynative_func_grad_backward"})
"""Functions of the mindspore package under which, and only under which, the autograd engine runs."""


HELD_BYTES = 64 << 10
"""Smaller tensors in Python variables are not followed."""


@dataclass(frozen=True)
class TensorRef:
    """A tensor as an operator met it. ``address`` and ``storage_bytes`` are those of its whole storage."""

    address: int
    storage_bytes: int
    shape: tuple[int, ...]
    dtype: str
    parameter: str | None = None
    trainable: bool = False
    copied_from: int | None = None


@dataclass(frozen=True)
class Call:
    """One dispatched operator: nanoseconds of the wall clock, results waited for."""

    name: str
    start: int
    end: int
    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef, ...]
    overwrites: int
    """How many of the inputs, from the first on, the operator updates in place."""
    cell: str | None
    place: Place
    held: tuple[int, ...] = ()
    """Addresses that variables of the Python frames above hold meanwhile: nothing frees them yet."""


@dataclass(frozen=True)
class Save:
    """Autograd keeps a tensor; ``ordinal`` counts the saves of the step."""

    at: int
    ordinal: int
    tensor: TensorRef


@dataclass(frozen=True)
class Load:
    """Backward fetches what save number ``ordinal`` kept."""

    at: int
    ordinal: int


@dataclass
class Observation:
    events: list[Call | Save | Load] = field(default_factory=list)

    @property
    def calls(self) -> list[Call]:
        return [event for event in self.events if isinstance(event, Call)]


def observe(run: Callable[[], Any], net: Any) -> Observation:
    """The events of ``run()``, which does one whole training step of ``net`` in PyNative mode and waits for
    it."""
    import mindspore as ms

    observer = _Observer(net)

    class Dispatch(ms.MsDispatchMode):  # type: ignore[misc, name-defined, unused-ignore]
        def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
            return observer.call(func, args, kwargs or {}, sys._getframe(1))

    with ms.saved_tensors_hooks(observer.save, observer.load), Dispatch():
        run()
    return observer.observation


def tensors_in(value: Any) -> Iterator[Any]:
    """All tensors in arbitrarily nested lists and tuples, in order."""
    import mindspore as ms

    if isinstance(value, ms.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)


@dataclass
class _Kept:
    """A save handed to autograd in the place of the tensor."""

    ordinal: int
    tensor: Any


class _Observer:
    def __init__(self, net: Any) -> None:
        self.observation = Observation()
        self.cells = {id(cell): name for name, cell in net.cells_and_names()}
        self.alive: dict[int, Any] = {}
        self.results: list[tuple[TensorRef, np.ndarray[Any, Any]]] = []
        self.saves = 0
        self.watching = True

    def call(self, func: Any, args: Any, kwargs: dict[str, Any], frame: Any) -> Any:
        if not self.watching:
            return func(*args, **kwargs)
        cell, place = self._where(frame)
        held = self._held(frame) if place == "forward" else ()
        inputs = tuple(self._ref(tensor, fresh_may_be_copy=True) for tensor in tensors_in([*args, *kwargs.values()]))
        start = time.time_ns()
        result = func(*args, **kwargs)
        tensors = list(tensors_in(result))
        outputs = tuple(self._ref(tensor) for tensor in tensors)  # asking for the address waits for the kernel
        end = time.time_ns()
        self.results += [(ref, _bytes_of(tensor)) for tensor, ref in zip(tensors, outputs, strict=True)]
        call = Call(
            name=str(func.name),
            start=start,
            end=end,
            inputs=inputs,
            outputs=outputs,
            overwrites=len(outputs) if _updates_in_place(str(func.name), args) else 0,
            cell=cell,
            place=place,
            held=held,
        )
        self.observation.events.append(call)
        return result

    def save(self, tensor: Any) -> _Kept:
        ordinal = self.saves
        self.saves += 1
        self.observation.events.append(Save(time.time_ns(), ordinal, self._ref(tensor, fresh_may_be_copy=True)))
        self.watching = False
        try:
            return _Kept(ordinal, detached(tensor))
        finally:
            self.watching = True

    def load(self, kept: _Kept) -> Any:
        self.observation.events.append(Load(time.time_ns(), kept.ordinal))
        return kept.tensor

    def _where(self, frame: Any) -> tuple[str | None, Place]:
        """Nearest cell of the net on the Python stack, and whether the autograd engine is."""
        cell: str | None = None
        while frame is not None:
            code = frame.f_code
            if code.co_name in BACKWARD_ENTRIES and str(frame.f_globals.get("__name__")).startswith("mindspore"):
                return None, "backward"
            if cell is None and code.co_name == "construct" and code.co_argcount:
                cell = self.cells.get(id(frame.f_locals.get(code.co_varnames[0])))  # `self`, whatever it is called
            frame = frame.f_back
        return cell, "outside" if cell is None else "forward"

    def _held(self, frame: Any) -> tuple[int, ...]:
        held: dict[int, None] = {}
        while frame is not None:
            for value in frame.f_locals.values():
                for tensor in tensors_in(value):
                    if tensor.size * tensor.itemsize >= HELD_BYTES:
                        held[int(tensor.untyped_storage().data_ptr())] = None
            frame = frame.f_back
        return tuple(held)

    def _ref(self, tensor: Any, *, fresh_may_be_copy: bool = False) -> TensorRef:
        import mindspore as ms

        storage = tensor.untyped_storage()
        address = int(storage.data_ptr())
        is_parameter = isinstance(tensor, ms.Parameter)
        ref = TensorRef(
            address=address,
            storage_bytes=int(storage.nbytes()),
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).lower(),
            parameter=tensor.name if is_parameter else None,
            trainable=bool(is_parameter and tensor.requires_grad),
            copied_from=None,
        )
        if address not in self.alive:
            self.alive[address] = storage
            if fresh_may_be_copy and not is_parameter:
                source = self._source_of_copy(ref, tensor)
                if source is not None:
                    return TensorRef(**{**ref.__dict__, "copied_from": source})
        return ref

    def _source_of_copy(self, ref: TensorRef, tensor: Any) -> int | None:
        mine = _bytes_of(tensor)
        start = mine.flat[:64]
        for result, content in reversed(self.results):
            if result.shape != ref.shape or result.dtype != ref.dtype:
                continue
            if np.array_equal(content.flat[:64], start) and np.array_equal(content, mine):
                return int(result.address)
        return None


def detached(tensor: Any) -> Any:
    """The tensor without its autograd node. A hook that hands a node's own output back to it closes a cycle
    that is never freed (measured: 36 MiB lost a step on the demo model)."""
    from mindspore import ops

    return ops.stop_gradient(tensor) if tensor._requires_grad and tensor._grad_node is not None else tensor


def _updates_in_place(name: str, args: Any) -> bool:
    """Primitives say so with the attribute ``side_effect_mem``; functional operators by their name."""
    attributes = getattr(args[0], "attrs", None) if args else None
    declared = isinstance(attributes, dict) and bool(attributes.get("side_effect_mem"))
    return declared or name.startswith(("Assign", "Inplace"))


def _bytes_of(tensor: Any) -> np.ndarray[Any, Any]:
    """The tensor's elements as raw unsigned integers, read in place with its own strides (CPU memory)."""
    storage = tensor.untyped_storage()
    size = int(tensor.itemsize)
    raw = (ctypes.c_char * int(storage.nbytes())).from_address(int(storage.data_ptr()))
    flat = np.frombuffer(
        memoryview(raw),
        dtype=np.dtype(f"u{size}" if size <= 8 else f"V{size}"),
        offset=int(tensor.storage_offset()) * size,
    )
    strides = [step * size for step in tensor.stride()]
    return np.lib.stride_tricks.as_strided(flat, tuple(tensor.shape), strides, writeable=False)
