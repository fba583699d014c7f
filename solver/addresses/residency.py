"""The buffers of a plan: every stay of a storage in HBM, and every workspace, when replay has them there.

::

    storage 7   ├──stay 0──┤ copied out       back ├─stay 1─┤       two buffers: it may return to another address
    workspace 3         ├┤ of operator 3

Times are the places of allocations and releases in the order of the replay, where releases at an instant come first.
"""

from __future__ import annotations

from collections import Counter

from hyperopt.occupancy import Recorder
from hyperopt.plan import EMPTY, Plan
from hyperopt.profile import Profile
from hyperopt.script import write_script
from solver.addresses.problem import Buffer


def buffers_of(
    profile: Profile, plan: Plan | None = None, hbm_bytes: int | None = None, alignment: int = 1
) -> list[Buffer]:
    """Buffers "7/0" (storage 7, first stay) and "op 3/0" (a workspace of operator 3), of at least one byte each.

    Their load is the replayed peak less `base_bytes`, which lies elsewhere. Raises as `hyperopt.replay.replay`.
    """
    plan = plan or EMPTY
    limit = hbm_bytes if hbm_bytes is not None else plan.budget.hbm_bytes
    script = write_script(profile, plan, limit)
    recorder = Recorder(profile, script, limit)  # `occupancy` tells only the blocks at the peak
    recorder.run(script)
    held = [note for note in recorder.notes if note.bytes]
    ends = [(n.end, n.given, i) for i, n in enumerate(held) if n.end is not None and n.given is not None]
    moments = sorted([(n.start, n.taken, i) for i, n in enumerate(held)] + ends)
    last = len(moments)
    lower, upper = [0] * len(held), [last] * len(held)
    for at, (time, place, i) in enumerate(moments):
        if (held[i].start, held[i].taken) == (time, place):
            lower[i] = at
        else:
            upper[i] = at
    stays: Counter[str] = Counter()
    buffers = []
    for i, note in enumerate(held):
        name = f"op {note.operator}" if note.storage is None else f"{note.storage}"
        buffers.append(Buffer(f"{name}/{stays[name]}", lower[i], upper[i], note.bytes, alignment))
        stays[name] += 1
    return buffers
