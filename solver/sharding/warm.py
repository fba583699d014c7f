"""The compiled parts, compiled or loaded before the search begins.

Compilation takes some twenty seconds the first time on a machine; numba keeps the result beside the sources or in the
user's cache, from where it is loaded in about one. The command counts it within its time limit.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from solver.compiling import compiling
from solver.sharding.core import Pieces, make_core
from solver.sharding.dual import Dual
from solver.sharding.reduce import undominated
from solver.sharding.search import Search


@cache
def warm() -> None:
    """Runs every compiled function once in this process, on a ring of three nodes."""
    with compiling():
        _run()


def _run() -> None:
    ones = np.ones((2, 2))
    piece = Pieces(np.zeros(1, np.int64), np.ones(1, np.int64), np.array([[1.0, 0.0]]))
    ring = {(0, 1): ones, (1, 2): ones, (0, 2): ones}
    core = make_core([np.array([0.0, 3.0])] * 3, [piece] * 3, np.array([2.0]), ring, 64.0, 0)
    undominated(core.cost[:2], np.zeros((2, 1)), ones, np.array([2], np.int64))
    dual = Dual(core)
    dual.round(np.inf)
    dual.exact()
    search = Search(core, 0)
    search.start(dual.decoded())
    search.slice()
