"""Ctrl-C while a plan is sought: the first one asks for the best plan so far, a second one ends the command at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from hyperopt.cli.files import say

INTERRUPTED = 130
"""Exit code of a command that was interrupted, with or without an answer: 128 and the number of the signal."""


@dataclass
class Interrupt:
    """Whether the user has pressed Ctrl-C; to be called as a solver's `cancelled`."""

    asked: bool = False

    def __call__(self) -> bool:
        return self.asked


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Within it Ctrl-C sets the answer of the `Interrupt`; again, it raises `KeyboardInterrupt` as ever."""
    interrupt = Interrupt()
    elsewhere = threading.current_thread() is not threading.main_thread()  # where no signals can be caught
    if elsewhere or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: Ctrl-C is not for it
        yield interrupt
        return

    def ask(number: int, frame: FrameType | None) -> None:
        interrupt.asked = True
        signal.signal(signal.SIGINT, before)
        say("interrupted: ending with the best plan so far (again: at once, without one)")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
