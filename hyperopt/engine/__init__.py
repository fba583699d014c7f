"""The compiled replay: the execution model on flat integer arrays, for profiles of 100,000 operators and for searches.

    arrays = arrays_of(profile)                     # once per profile
    outcome = run(arrays, orders_of(profile, plan), hbm_bytes=34_000_000_000)

`script` and `replay.Clock` are the definition; the engine is held equal to them by tests/engine. It needs numba
(the `server` extra); `replay` uses it for large profiles where it can be imported.
"""

from hyperopt.engine.arrays import Arrays, arrays_of
from hyperopt.engine.kernel import COPY_OUT, RELEASE, RELEASE_HOST, Orders
from hyperopt.engine.orders import OutOfPlace, first_change, orders_from, orders_of
from hyperopt.engine.outcome import Checkpoints, Outcome, resume, run

__all__ = [
    "COPY_OUT",
    "RELEASE",
    "RELEASE_HOST",
    "Arrays",
    "Checkpoints",
    "Orders",
    "OutOfPlace",
    "Outcome",
    "arrays_of",
    "first_change",
    "orders_from",
    "orders_of",
    "resume",
    "run",
]
