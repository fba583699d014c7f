"""Copies between MindSpore's memory pool ("HBM" on a CPU) and host buffers (numpy), one thread a direction.

`Tensor.asnumpy` and `Tensor(array)` copy nothing on a CPU: both share memory, so a swap made of them would
move no byte and leave the pool's record. These copies move bytes: out of a block of the pool into a buffer of
numpy's, and back into a *new* block of the pool, which the record sees. `ctypes.memmove` lets go of the
interpreter lock, so a copy runs beside the kernels.
"""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Buffer = npt.NDArray[np.uint8]


def host_buffer(size: int) -> Buffer:
    """An uninitialised host buffer of `size` bytes."""
    return np.empty(size, np.uint8)


def device_block(shape: tuple[int, ...], dtype: Any) -> Any:
    """An uninitialised tensor in the pool. Allocated on return.

    With its shape and type from the start: MindSpore copies a *view* of a block, contiguous or not, to memory of
    its own before a kernel reads it, so handing out views would cost each block twice.
    """
    from mindspore import mint

    block = mint.empty(shape, dtype=dtype)
    address_of(block)  # waits until the block is really there
    return block


def address_of(tensor: Any) -> int:
    """Address of the tensor's storage; waits until the kernel that makes the tensor has run."""
    return int(tensor.untyped_storage().data_ptr())


def copy_out(tensor: Any, size: int) -> Buffer:
    """The storage's first `size` bytes in a new host buffer."""
    buffer = host_buffer(size)
    ctypes.memmove(buffer.ctypes.data, address_of(tensor), size)
    return buffer


def copy_in(buffer: Buffer, block: Any) -> None:
    """The buffer's bytes into the block, which must be as large."""
    ctypes.memmove(address_of(block), buffer.ctypes.data, buffer.nbytes)


class Link:
    """One direction of the link: a thread that does the copies handed to it, first in, first out.

    An error in a copy is kept and raised to whoever waits for it. Use as a context manager.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"hyperopt-{name}", daemon=True)

    def __enter__(self) -> Link:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._jobs.put(None)
        self._thread.join()

    def submit(self, copy: Callable[[], None]) -> Ticket:
        """Queues the copy; the ticket tells when it has ended."""
        ticket = Ticket()

        def job() -> None:
            try:
                copy()
            except BaseException as error:  # whatever it is, the waiting thread must see it
                ticket.error = error
            finally:
                ticket.done.set()

        self._jobs.put(job)
        return ticket

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job


class Ticket:
    """One queued copy."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error: BaseException | None = None

    def wait(self) -> None:
        """Returns when the copy has ended. Raises its error."""
        self.done.wait()
        if self.error is not None:
            raise self.error
