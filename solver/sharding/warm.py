"""The compiled parts, compiled or loaded before the search begins.

Compilation takes some twenty seconds the first time on a machine; numba keeps the result beside the sources or in the
user's cache, from where it is loaded in about one. The command counts it within its time limit.
"""

from __future__ import annotations

from functools import cache

from solver.sharding.document import read
from solver.sharding.solve import solve

TWO = b"""{"problem": {"nodes": {"intervals": [[0, 2], [1, 3], [1, 3]], "costs": [[1, 2], [2, 1], [1, 1]],
"usages": [[5, 1], [4, 1], [4, 1]]}, "edges": {"nodes": [[0, 1], [1, 2], [0, 2]],
"costs": [[0, 1, 1, 0], [0, 1, 1, 0], [0, 3, 2, 0]]}, "usage_limit": 9}}"""


@cache
def warm() -> None:
    """Runs every compiled function once in this process."""
    solve(read(TWO), time_limit_s=None, work_limit=2)
