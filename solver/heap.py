"""Python's garbage collector, kept off what was there before a solve.

Set-up makes millions of small objects that stay, so the collector looks through everything again and again, the
profile too: three tenths of the time to a first plan at 20,000 operators. What is frozen it passes over.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen() -> Iterator[None]:
    """Until the end, objects that exist by now are not looked through; where somebody has frozen some, nothing is
    done."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
