"""One solve in a process of its own, told of on standard output, a line of JSON for each event.

    python -m bench.contender JOB

The parent (`bench.trial`) measures memory, ends it when its time is over, and judges the plan it leaves in a file.
Clocks start when solver and profile are loaded. It runs in a copy of the sources, so that a run of hours may go on
while the project is worked on.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import msgspec

OURS = "ours"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to do: `contender` is OURS or a rival's name, budgets are bytes, the plan goes to the file `plan`.

    `give_up_s`: seconds after which OURS hands in its best plan so far even if the solver has not returned.
    """

    contender: str
    profile: str
    plan: str
    budget_bytes: int
    limit_s: float
    give_up_s: float
    seed: int = 0


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`at` in seconds since `start`. `kind`: start, progress, or the end: plan, infeasible, out of memory, gave up,
    failed."""

    kind: str
    at: float = 0.0
    step_us: float | None = None
    bound_us: float | None = None
    proven: bool = False
    detail: str = ""
    rss_bytes: int = 0
    processor_s: float = 0.0


class Stage:
    """Where events are told of; the first end is the only one."""

    def __init__(self) -> None:
        # What a library prints must not come between the events.
        self.channel = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)
        self.lock = threading.Lock()
        self.begun, self.used = time.monotonic(), time.process_time()

    def tell(self, event: Event) -> None:
        with self.lock:
            self.channel.write(msgspec.json.encode(event) + b"\n")

    def start(self) -> None:
        self.begun, self.used = time.monotonic(), time.process_time()
        self.tell(Event(kind="start"))

    @property
    def now(self) -> float:
        return time.monotonic() - self.begun

    def end(self, event: Event) -> NoReturn:
        """Says it and ends the process: nothing that is still running may add to its time or memory."""
        used = round(time.process_time() - self.used, 3)
        self.tell(msgspec.structs.replace(event, rss_bytes=peak_rss(), processor_s=used))
        os._exit(0)


def peak_rss() -> int:
    """The most bytes this process has had in memory.

    From the kernel's record of this address space, where there is one: `ru_maxrss` also counts what the parent had
    when it started us.
    """
    status = Path("/proc/self/status")
    if status.exists():
        found = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        if found:
            return int(found[0].split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=Job)
    stage = Stage()
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    import solver

    assert Path(str(solver.__file__)).is_relative_to(Path.cwd()), "these are not the sources that were to be measured"
    try:
        _ours(job, stage) if job.contender == OURS else _rival(job, stage)
    except MemoryError:
        stage.end(Event(kind="failed", at=stage.now, detail="MemoryError"))
    except Exception as error:  # told of in the table, whatever it is
        stage.end(Event(kind="failed", at=stage.now, detail=f"{type(error).__name__}: {error}"))


def _ours(job: Job, stage: Stage) -> None:
    from hyperopt.plan import Budget, Plan
    from hyperopt.profile import load
    from solver import Infeasible, NotPlannable, Progress, Request, solve

    profile, _ = load(Path(job.profile).read_bytes())
    request = Request(Budget(hbm_bytes=job.budget_bytes), time_limit_s=job.limit_s, seed=job.seed)
    best: list[Plan] = []
    handing_in = threading.Lock()

    def hand_in(plan: Plan, at: float, detail: str) -> NoReturn:
        with handing_in:
            Path(job.plan).write_bytes(msgspec.json.encode(plan))
            assert plan.bound is not None and plan.predicted is not None
            told = {"step_us": plan.predicted.step_us, "bound_us": plan.bound.step_us, "detail": detail}
            stage.end(Event(kind="plan", at=at, **told))  # type: ignore[arg-type]

    def give_up() -> None:
        if best:
            hand_in(best[-1], stage.now, "handed in for it: the solver did not return")

    def on_progress(found: Progress) -> None:
        at = stage.now
        best[:] = [found.plan]
        stage.tell(Event(kind="progress", at=at, step_us=found.step_us, bound_us=found.bound_us, detail=found.stage))

    impatience = threading.Timer(job.give_up_s, give_up)
    impatience.daemon = True
    stage.start()
    impatience.start()
    try:
        answer: Any = solve(profile, request, on_progress=on_progress)
    except NotPlannable as refused:
        stage.end(Event(kind="gave up", at=stage.now, detail=str(refused)))
    at = stage.now
    if isinstance(answer, Infeasible):
        reachable = answer.reachable_bytes
        detail = f"at least {answer.lower_bound_bytes}, reachable {'unknown' if reachable is None else reachable}"
        stage.end(Event(kind="infeasible", at=at, proven=answer.proven, detail=detail))
    assert isinstance(answer, Plan) and answer.bound is not None
    hand_in(answer, at, answer.bound.stop_reason)


def _rival(job: Job, stage: Stage) -> None:
    from hyperopt.legality import OutOfMemory
    from hyperopt.plan import Budget
    from hyperopt.profile import load
    from solver.residency.rival import rival_plan
    from solver.residency.rivals.checkmate import DidNotSolve

    profile, _ = load(Path(job.profile).read_bytes())
    stage.start()
    try:
        plan = rival_plan(profile, job.contender, Budget(hbm_bytes=job.budget_bytes))
    except OutOfMemory as short:
        stage.end(Event(kind="out of memory", at=stage.now, detail=str(short)))
    except DidNotSolve as why:
        stage.end(Event(kind="gave up", at=stage.now, detail=str(why)))
    at = stage.now
    Path(job.plan).write_bytes(msgspec.json.encode(plan))
    assert plan.predicted is not None
    stage.end(Event(kind="plan", at=at, step_us=plan.predicted.step_us))


def _end_with(parent: int) -> None:
    """Nobody waits for the answer once the parent is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
