"""A word to the user where compilation takes long, which it does once on a machine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LONG_S = 2.0
"""Compiled code is loaded from the cache within this."""

MESSAGE = "hyperopt: compiling the search, once on a machine (half a minute or so, not counted within time limits)"

_told = threading.Event()


@contextmanager
def compiling() -> Iterator[None]:
    """Around what compiles: warns once in a process, as soon as it takes longer than loading does."""
    timer = threading.Timer(LONG_S, _tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell() -> None:
    if not _told.is_set():
        _told.set()
        logging.getLogger(__name__).warning(MESSAGE)
