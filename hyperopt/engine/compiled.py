"""Machine code kept between processes, as old as everything that went into it.

numba keeps what it has compiled beside the sources, or in the user's cache, for as long as the file that the function
is in stays the same. But callees are compiled into their callers: after a new version of this package, where a callee's
file has changed and its caller's has not, the old callee would run on, silently. So here the kept code is also told
apart by a digest of all sources in the function's folder and in this one, which is all that compiled functions call.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import caching


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: numba's `njit` with these options, kept; where nothing can be written, compiled in each process."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = njit(**options)(function)
        with suppress(RuntimeError):  # no place that can be written to
            dispatcher._cache = _kept(function)  # as `enable_caching` sets numba's own
        return dispatcher

    return decorate


def _kept(function: Callable[..., Any]) -> Any:
    """numba's cache of a function, with one more part in its keys; entries of other versions are never read again."""
    make: Any = caching.FunctionCache
    kept = make(function)
    usual, folder = kept._index_key, Path(function.__code__.co_filename).parent
    kept._index_key = lambda *of: (*usual(*of), _digest(folder))
    return kept


@cache
def _digest(folder: Path) -> str:
    found = sha256()
    for place in sorted({folder, Path(__file__).parent}):
        for path in sorted(place.glob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()
