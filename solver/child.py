"""Solving in a process of its own, that can be killed.

OR-Tools can overrun its time limit and native code cannot be interrupted from Python; a solve therefore runs in
a child with an address-space limit, and the parent keeps the best plan that the child has reported.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from hyperopt import plan as plans
from hyperopt import profile as profiles
from hyperopt.documents import canonical
from hyperopt.plan import Plan
from solver.request import Infeasible, Progress, Request

GRACE_S = 2.0
"""Seconds past its time limit after which the child is killed; its own stop criteria come first."""

FIRST_PLAN_S = 60.0
"""As GRACE_S, while there is no plan yet: a late first plan is worth more than none."""


class SolveFailed(RuntimeError):
    """The child ended without an answer: out of memory, killed, or a fault of ours; the message says which."""


def solve_in_child(
    profile_bytes: bytes,
    request: Request,
    *,
    memory_limit_bytes: int | None,
    cancelled: Callable[[], bool],
    progress: Callable[[dict[str, Any]], None],
) -> Plan | Infeasible:
    """As `solver.solve`, in a child process.

    `progress` gets {stage, step_us, bound_us} for each better plan. When `cancelled` answers true, or the time
    limit has passed by GRACE_S, the child is killed and the best plan so far is the answer. Raises `SolveFailed`
    when there is none.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(theirs, profile_bytes, request, memory_limit_bytes), daemon=True)
    child.start()
    theirs.close()
    try:
        return _listen(ours, child, request, cancelled, progress)
    finally:
        if child.is_alive():
            child.kill()
        child.join()
        ours.close()


def _listen(
    ours: Connection,
    child: Any,
    request: Request,
    cancelled: Callable[[], bool],
    progress: Callable[[dict[str, Any]], None],
) -> Plan | Infeasible:
    best: Plan | None = None
    deadline: float | None = None
    while True:
        if ours.poll(0.1):
            try:
                kind, *content = ours.recv()
            except EOFError:
                break
            if kind == "start" and request.time_limit_s is not None:
                deadline = time.monotonic() + request.time_limit_s + GRACE_S
            elif kind == "progress":
                best, _ = plans.load(content[1])
                progress(content[0])
            elif kind == "plan":
                return plans.load(content[0])[0]
            elif kind == "infeasible":
                return msgspec.json.decode(content[0], type=Infeasible)
            elif kind == "failed":
                raise SolveFailed(content[0])
        if cancelled() and best is not None:
            return _stopped(best, "cancelled")
        if cancelled():
            raise SolveFailed("cancelled before a first plan was found")
        late = 0.0 if deadline is None else time.monotonic() - deadline
        if late > 0 and best is not None:
            return _stopped(best, f"time limit of {request.time_limit_s:g} s")
        if late > FIRST_PLAN_S:
            raise SolveFailed(f"no plan {late:.0f} s after the time limit of {request.time_limit_s:g} s")
    child.join()
    if best is not None:
        return _stopped(best, f"solver process ended with code {child.exitcode}")
    raise SolveFailed(f"solver process ended with code {child.exitcode} before a first plan (its memory limit?)")


def _stopped(best: Plan, reason: str) -> Plan:
    assert best.bound is not None
    return msgspec.structs.replace(best, bound=msgspec.structs.replace(best.bound, stop_reason=reason))


def _child(pipe: Connection, profile_bytes: bytes, request: Request, memory_limit_bytes: int | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    parent = os.getppid()
    from solver import solve
    from solver.residency.warm import warm

    warm()  # before the limits begin: compilation is not the search's time, nor its memory
    if memory_limit_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit_bytes, memory_limit_bytes))
    try:
        profile, _ = profiles.load(profile_bytes)
        pipe.send(("start",))
        answer = solve(
            profile,
            request,
            cancelled=lambda: os.getppid() != parent,  # an orphan stops by itself
            on_progress=lambda found: pipe.send(("progress", _summary(found), canonical(found.plan))),
        )
    except BrokenPipeError:
        return  # the parent is gone: nobody waits for an answer
    except MemoryError:
        pipe.send(("failed", f"out of its memory limit of {memory_limit_bytes} bytes"))
    except Exception as error:  # reported to the parent, whole, instead of to a lost stderr
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
    else:
        kind = "plan" if isinstance(answer, Plan) else "infeasible"
        pipe.send((kind, msgspec.json.encode(answer)))


def _summary(found: Progress) -> dict[str, Any]:
    return {"stage": found.stage, "step_us": found.step_us, "bound_us": found.bound_us}
