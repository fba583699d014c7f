"""What a job does when its turn comes: read the request, work in a child process, store the answer.

A job may be run again after a crash, so everything it leaves behind is written in one transaction at its end,
and a job already finished returns at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from api import judging, training
from api.engine import Interrupted
from api.judging import CheckAsked, judged
from api.training import Trained, Trainer
from hyperopt.cost.child import TrainingFailed
from hyperopt.gate.fit import Fit, Requirement
from hyperopt.plan import Plan
from hyperopt.profile import Profile
from hyperopt.store import Database, jobs
from hyperopt.store.checks import put_check
from hyperopt.store.plans import put_plan
from hyperopt.store.profiles import get_document
from solver.child import SolveFailed
from solver.fit import fit
from solver.request import Infeasible, Request

log = logging.getLogger("hyperopt.work")

REPORT_EVERY_S = 0.25
ASK_EVERY_S = 0.2


class Solve(Protocol):
    """As `solver.child.solve_in_child`."""

    def __call__(
        self,
        profile_bytes: bytes,
        request: Request,
        *,
        memory_limit_bytes: int | None,
        cancelled: Callable[[], bool],
        progress: Callable[[dict[str, Any]], None],
    ) -> Plan | Infeasible: ...


class Worker:
    """Runs jobs of the kinds it knows. `solve` is the solver, and `trainer` trains, in processes of their own."""

    def __init__(self, database: Database, solve: Solve, trainer: Trainer, memory_limit_bytes: int) -> None:
        self.database, self.solve, self.trainer = database, solve, trainer
        self.memory_limit_bytes = memory_limit_bytes

    def run(self, id: str, stopping: Callable[[], bool]) -> None:
        """Does job `id` to its end. Raises `Interrupted` when `stopping()`: the job is to be run again."""
        with self.database.write() as session:
            job = jobs.start_job(session, id)
        if job.outcome is not None:
            return
        if job.cancel_requested_at is not None:
            self._finish(id, "cancelled", {"status": "cancelled", "reason": "cancelled while it was waiting"})
            return
        try:
            if job.kind == training.KIND:
                self._train(job, stopping)
            elif job.kind == judging.KIND:
                self._check(job, stopping)
            else:
                self._plan(job, stopping)
        except (SolveFailed, TrainingFailed) as failure:
            self._failed(id, str(failure), stopping)
        except Exception as error:
            # The job ends here whatever went wrong, or its caller would wait for ever; the log has the rest.
            log.exception("job %s failed", id)
            self._failed(id, f"{type(error).__name__}: {error}", stopping)

    def _plan(self, job: jobs.JobRecord, stopping: Callable[[], bool]) -> None:
        assert job.profile_id is not None
        with self.database.read() as session:
            document = get_document(session, job.profile_id)
        assert document is not None, "a job's profile cannot be deleted without the job"
        request = msgspec.convert(job.request, Request)
        report = _Reports(self.database, job.id)
        report({"stage": "started", "attempt": job.attempts})
        answer = self.solve(
            document.data,
            request,
            memory_limit_bytes=self.memory_limit_bytes,
            cancelled=_Question(lambda: stopping() or self._cancel_requested(job.id)),
            progress=report,
        )
        report.flush()
        self._check_interrupt(job.id, stopping)
        outcome: jobs.Outcome = "cancelled" if self._cancel_requested(job.id) else "succeeded"
        if isinstance(answer, Infeasible):
            self._finish(job.id, outcome, {"status": "infeasible", "infeasible": msgspec.to_builtins(answer)})
            return
        with self.database.write() as session:
            plan_id = put_plan(session, job.profile_id, answer)
            result = {
                "status": "planned",
                "plan_id": plan_id,
                "predicted": msgspec.to_builtins(answer.predicted),
                "bound": msgspec.to_builtins(answer.bound),
            }
            jobs.finish_job(session, job.id, outcome, result, plan_id)

    def _train(self, job: jobs.JobRecord, stopping: Callable[[], bool]) -> None:
        """Cancelled or failed in between, what devices were done before is kept."""
        report = _Reports(self.database, job.id)
        report({"stage": "started", "attempt": job.attempts})
        cancelled = _Question(lambda: stopping() or self._cancel_requested(job.id))
        done: list[Trained] = []
        failure = ""
        try:
            # Those done before a failure stay in the list.
            done.extend(self.trainer.devices(job.request, cancelled, report))
        except TrainingFailed as failed:
            failure = str(failed)
        report.flush()
        self._check_interrupt(job.id, stopping)
        if failure and not done:
            raise TrainingFailed(failure)
        outcome: jobs.Outcome = "cancelled" if self._cancel_requested(job.id) else "failed" if failure else "succeeded"
        self.trainer.finish(job, done, outcome, failure)

    def _check(self, job: jobs.JobRecord, stopping: Callable[[], bool]) -> None:
        """A check whose policy has a limit that the candidate must fit in: solved as a plan is."""
        asked = CheckAsked.model_validate(job.request)
        report = _Reports(self.database, job.id)
        report({"stage": "started", "attempt": job.attempts})
        cancelled = _Question(lambda: stopping() or self._cancel_requested(job.id))

        plans: list[tuple[str, Plan]] = []

        def fits(id: str, profile: Profile, required: Requirement) -> Fit:
            def solve(_: Profile, request: Request) -> Plan | Infeasible:
                with self.database.read() as session:
                    document = get_document(session, id)
                assert document is not None, "read just before"
                limit = self.memory_limit_bytes
                answer = self.solve(
                    document.data, request, memory_limit_bytes=limit, cancelled=cancelled, progress=report
                )
                if isinstance(answer, Plan):
                    plans.append((id, answer))
                return answer

            return fit(profile, required, asked.policy.time_limit_s, solve=solve)

        found = judged(self.database, asked, fits)
        report.flush()
        self._check_interrupt(job.id, stopping)
        if self._cancel_requested(job.id):
            self._finish(job.id, "cancelled", {"status": "cancelled", "reason": "cancelled before it was judged"})
            return
        with self.database.write() as session:
            kept = put_check(session, **found)
            # The plans that the answer names; the candidate's is the job's.
            ids = {profile: put_plan(session, profile, plan) for profile, plan in plans}
            result = {"status": "checked", "check": kept.id, "verdict": kept.verdict}
            jobs.finish_job(session, job.id, "succeeded", result, ids.get(asked.candidate))

    def _failed(self, id: str, reason: str, stopping: Callable[[], bool]) -> None:
        self._check_interrupt(id, stopping)
        if self._cancel_requested(id):
            self._finish(id, "cancelled", {"status": "cancelled", "reason": reason})
        else:
            self._finish(id, "failed", {"status": "failed", "reason": reason})

    def _check_interrupt(self, id: str, stopping: Callable[[], bool]) -> None:
        if stopping() and not self._cancel_requested(id):
            raise Interrupted(id)

    def _finish(self, id: str, outcome: jobs.Outcome, result: dict[str, Any]) -> None:
        with self.database.write() as session:
            jobs.finish_job(session, id, outcome, result)

    def _cancel_requested(self, id: str) -> bool:
        with self.database.read() as session:
            return jobs.cancel_requested(session, id)


class _Reports:
    """Writes reports of progress, at most one every REPORT_EVERY_S; of those in between only the last."""

    def __init__(self, database: Database, id: str) -> None:
        self.database, self.id = database, id
        self.held: dict[str, Any] | None = None
        self.next = 0.0

    def __call__(self, report: dict[str, Any]) -> None:
        self.held = report
        if time.monotonic() >= self.next:
            self.flush()

    def flush(self) -> None:
        if self.held is not None:
            with self.database.write() as session:
                jobs.add_event(session, self.id, self.held)
            self.held = None
            self.next = time.monotonic() + REPORT_EVERY_S


class _Question:
    """Asks a slow question at most every ASK_EVERY_S, however often it is put; a yes stays."""

    def __init__(self, ask: Callable[[], bool]) -> None:
        self.ask, self.answer, self.next = ask, False, 0.0

    def __call__(self) -> bool:
        if not self.answer and time.monotonic() >= self.next:
            self.answer = self.ask()
            self.next = time.monotonic() + ASK_EVERY_S
        return self.answer
