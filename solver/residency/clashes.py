"""Which reruns cannot be made side by side: one drops what the other needs, or drops too, at that moment.

::

    operators    0    1    2    3    4    5    6    7
    rerun a           |-- drops s --|                     released after 1, back before 4
    rerun b                    reads s before 3           clashes with a: s is not there
    rerun c                     |-- drops s --|           clashes with a
"""

from __future__ import annotations

import numpy as np

from solver.residency.compiled import entry
from solver.residency.problem import Int64s


def clashes(parts: Int64s, reruns: int, storages: int) -> tuple[Int64s, Int64s]:
    """(at, other): `other[at[r] : at[r + 1]]` clash with rerun r. `parts`: as in `draft.Table`."""
    drops = parts[(parts[:, 4] == 0) | (parts[:, 4] == 2)]
    drops = drops[np.argsort(drops[:, 1], kind="stable")]
    drop_at = np.searchsorted(drops[:, 1], np.arange(storages + 1))
    found = np.empty((_pairs(parts, drops, drop_at, np.empty((0, 2), dtype=np.int64)), 2), dtype=np.int64)
    _pairs(parts, drops, drop_at, found)
    one, two = found[:, 0], found[:, 1]
    keys = np.unique(np.concatenate([one * reruns + two, two * reruns + one]))
    at = np.searchsorted(keys, np.arange(reruns + 1) * reruns)
    return np.asarray(at, dtype=np.int64), np.asarray(keys % max(reruns, 1), dtype=np.int64)


@entry
def _pairs(parts, drops, drop_at, found):  # type: ignore[no-untyped-def]
    """Writes as many pairs as `found` has room for; returns how many there are, some of them twice."""
    count = 0
    for p in range(len(parts)):
        r, s, since, before = parts[p, 0], parts[p, 1], parts[p, 2], parts[p, 3]
        drops_it = parts[p, 4] == 0 or parts[p, 4] == 2
        for d in range(drop_at[s], drop_at[s + 1]):
            leave, until = drops[d, 2], drops[d, 3]
            meets = leave < before and (since < until if drops_it else before < until)
            if meets and drops[d, 0] != r:
                if count < len(found):
                    found[count, 0], found[count, 1] = r, drops[d, 0]
                count += 1
    return count
