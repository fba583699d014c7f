"""How the search is compiled: `entry` for what Python calls, `inner` for what only compiled code calls.

An inner function has no wrapper that takes Python's objects apart: with many arrays that is most of its machine code.
Nor is it in numba's cache, as those that call it contain it. Calling it from Python crashes. What numba rewrites (array
expressions, exceptions) there is none of; dividing by zero gives what IEEE 754 says, as numpy does.

Numba compiles a function again for a literal argument, or one that it takes for a literal at first: `moved = 0` before
a loop that adds to it. So counters that are handed over start as ZERO, which is none, and modes are two functions.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from hyperopt.engine.compiled import compiled

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_rewrites": True, "no_cfunc_wrapper": True}
"""The same for both, and for the engine's loop: else numpy's functions are compiled for each. Numba's targets take the
last two; its type hints leave them out."""

entry = compiled(**OPTIONS)
inner = numba.njit(no_cpython_wrapper=True, **OPTIONS)  # type: ignore[call-overload]

ZERO: Any = np.int64(0)
