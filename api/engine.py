"""Durable jobs: the port that the endpoints use, and DBOS Transact behind it.

A job is a row in our own database (`hyperopt.store.jobs`) and, under the same id, a DBOS workflow that
carries nothing but that id. DBOS answers one question, "whose turn is it, and did the worker die?"; requests,
progress, results and requests to cancel are ours. Why so, and what was measured: docs/why/jobs.md.

::

    POST /v1/plans ── row, then enqueue ──▶ DBOS queue ──▶ worker thread ──▶ work.run ──▶ child process
         GET, DELETE ──▶ row  ◀──────────── progress, result ───────────────────┘
"""

from __future__ import annotations

import fcntl
import sqlite3
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from dbos import DBOS, DBOSClient, DBOSConfig, EnqueueOptions, WorkflowSerializationFormat
from dbos import error as dbos_errors

from hyperopt.settings import SettingError, Settings
from hyperopt.store import Database, jobs

APPLICATION = "hyperopt"
QUEUE = "jobs"
WORKFLOW = "job"
# DBOS runs a workflow only on the application version it was queued for, by default a hash of the code: an
# upgrade would strand every queued job. Ours is fixed; a job is one idempotent call, whoever runs it.
VERSION = "1"
# A job that has brought down its worker so many times is given up. The solve runs in a child that may die
# alone, so this is for restarts of the service, not for solves that run out of memory.
MAX_ATTEMPTS = 50
POLL_S = 0.2

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]


@dataclass(frozen=True)
class JobStatus:
    """A job as its caller sees it. `progress` is the newest report; `result` once it is finished."""

    job: jobs.JobRecord
    state: State
    progress: dict[str, Any] | None


class JobEngine(Protocol):
    """What endpoints need of durable jobs. Unknown ids give None."""

    works_here: bool

    def start(self, kind: str, profile_id: str | None, request: dict[str, Any]) -> str: ...

    def status(self, id: str) -> JobStatus | None: ...

    def cancel(self, id: str) -> JobStatus | None: ...

    def events(self, id: str, after: int = 0) -> Sequence[jobs.EventRecord] | None: ...

    def close(self) -> None: ...


class Interrupted(BaseException):
    """Leaves a running job unfinished because its worker is shutting down.

    Not an `Exception`, because DBOS records every Exception as the job's result; so the job stays as it is,
    and is started again with the next worker of this name.
    """


Run = Callable[[str, Callable[[], bool]], None]
"""`run(job_id, stopping)` does a job to its end, or raises `Interrupted` once `stopping()`."""


class DbosEngine:
    """Jobs on DBOS. With `run`, this process is also a worker; a process has at most one such engine."""

    def __init__(self, database: Database, settings: Settings, run: Run | None = None) -> None:
        self.database = database
        self.works_here = run is not None
        self._stopping = threading.Event()
        self._idle = threading.Condition()
        self._running = 0
        self._lock: IO[str] | None = None
        _prepare(settings.queue_url)
        DBOS.migrate(settings.queue_url)
        self._client = DBOSClient(system_database_url=settings.queue_url, application_name=APPLICATION)
        # A job whose row was written, but which was not queued yet when the server died, is queued now.
        with database.read() as session:
            waiting = jobs.unfinished_jobs(session)
        for id in waiting:
            self._enqueue(id)
        if run is not None:
            self._lock = _claim_name(settings)
            if not _process.acquire(blocking=False):
                raise NameTaken("this process is a worker already: DBOS allows one")
            self._work(settings, run)

    def start(self, kind: str, profile_id: str | None, request: dict[str, Any]) -> str:
        """Accepts a job and returns its id: from now on it will be done, whatever happens to this process."""
        id = f"job-{uuid.uuid4().hex}"
        with self.database.write() as session:
            jobs.add_job(session, id, kind, profile_id, request)
        self._enqueue(id)
        return id

    def status(self, id: str) -> JobStatus | None:
        with self.database.read() as session:
            job = jobs.get_job(session, id)
            last = None if job is None else jobs.last_event(session, id)
        if job is None:
            return None
        return JobStatus(job, self._state(job), None if last is None else last.data)

    def cancel(self, id: str) -> JobStatus | None:
        """Asks a job to stop. Queued, it will not be solved; running, it ends with its best plan so far."""
        with self.database.write() as session:
            jobs.request_cancel(session, id)
        return self.status(id)

    def events(self, id: str, after: int = 0) -> Sequence[jobs.EventRecord] | None:
        with self.database.read() as session:
            return None if jobs.get_job(session, id) is None else jobs.list_events(session, id, after)

    def close(self) -> None:
        """Stops working: running jobs are interrupted, and go on with the next worker of this name."""
        self._stopping.set()
        if self.works_here:
            with self._idle:
                self._idle.wait_for(lambda: self._running == 0, timeout=30)
            DBOS.destroy(destroy_registry=True)
            _process.release()
        self._client.destroy()
        if self._lock is not None:
            self._lock.close()

    def _state(self, job: jobs.JobRecord) -> State:
        if job.outcome is not None:
            return job.outcome
        try:
            found = self._client.retrieve_workflow(job.id).get_status().status
        except dbos_errors.DBOSNonExistentWorkflowError:
            return "queued"  # between row and queue: the enqueue follows, now or at the next start
        if found in ("ERROR", "MAX_RECOVERY_ATTEMPTS_EXCEEDED", "CANCELLED"):
            return "failed"
        if found == "ENQUEUED" and job.cancel_requested_at is not None:
            return "cancelled"  # whoever takes it from the queue sees the request before anything else
        return "queued" if found in ("ENQUEUED", "DELAYED") else "running"

    def _enqueue(self, id: str) -> None:
        # The id is the workflow's own: enqueueing once more attaches to the one there is.
        options: EnqueueOptions = {
            "workflow_name": WORKFLOW,
            "queue_name": QUEUE,
            "workflow_id": id,
            "app_version": VERSION,
            "serialization_type": WorkflowSerializationFormat.PORTABLE,  # JSON: no pickles in the queue
        }
        self._client.enqueue(options, id)

    def _work(self, settings: Settings, run: Run) -> None:
        def job(id: str) -> None:
            with self._idle:
                self._running += 1
            try:
                run(id, self._stopping.is_set)
            finally:
                with self._idle:
                    self._running -= 1
                    self._idle.notify_all()

        DBOS.workflow(name=WORKFLOW, max_recovery_attempts=MAX_ATTEMPTS)(job)
        config: DBOSConfig = {
            "name": APPLICATION,
            "system_database_url": settings.queue_url,
            "application_version": VERSION,
            "executor_id": settings.worker_name,
            "log_level": "WARNING",
            "run_migrations": False,
        }
        # Before the launch: DBOS looks for queues that are new only once a second.
        self._client.register_queue(QUEUE, worker_concurrency=settings.worker_jobs, polling_interval_sec=POLL_S)
        DBOS(config=config)
        DBOS.launch()


_process = threading.Lock()


class NameTaken(SettingError):
    """Another worker of the same name is at work on this data folder."""


def _claim_name(settings: Settings) -> IO[str]:
    """A lock on the worker's name, freed by the kernel when the process ends, however it ends.

    At its start a worker takes back all jobs that its name left running; two at once would take each other's.
    """
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    name = "".join(c if c.isalnum() or c in "-." else "_" for c in settings.worker_name)
    file = (settings.data_dir / f"worker-{name}.lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise NameTaken(
            f"a worker named {settings.worker_name!r} is already at work in {settings.data_dir}: "
            "set HYPEROPT_WORKER_NAME to another name, or HYPEROPT_WORKER=false to serve without working"
        ) from error
    return file


def _prepare(url: str) -> None:
    """Creates the SQLite file of the queue in WAL mode, which DBOS leaves as it finds it."""
    if not url.startswith("sqlite"):
        return
    path = Path(url.partition(":///")[2])
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=30)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
    finally:
        connection.close()
