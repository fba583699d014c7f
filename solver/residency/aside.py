"""Work done beside the search, on the other core: the fine bound, then rules of thumb.

Compiled rounds of the search and the linear program's solver hold no lock, so that both go on at once. Where a limit
is in work instead of time, each piece is done when its answer is asked for: the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread

from solver.stop import Stopped

PATIENCE_S = 0.3
"""How long work in hand may take to end before it is left to itself."""

Job = tuple[str, Callable[[], object]]


class Aside:
    """Jobs in order; `beside`: in a thread of their own, from entering to leaving. One that raises `Stopped` has no
    answer."""

    def __init__(self, jobs: list[Job], *, beside: bool) -> None:
        self.jobs, self.left = jobs, len(jobs)
        self._found: SimpleQueue[tuple[str, object | None, Exception | None]] = SimpleQueue()
        self._closed = Event()
        self._thread = Thread(target=self._work, daemon=True) if beside else None

    def __enter__(self) -> Aside:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the work; what is in hand at the time ends when it next asks, which is not waited for long."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)

    def ready(self) -> bool:
        """Whether an answer can be had without waiting for another thread."""
        return self.left > 0 and (self._thread is None or not self._found.empty())

    @property
    def next(self) -> str:
        return self.jobs[-self.left][0]

    def take(self) -> tuple[str, object | None]:
        """The next job's name and answer, None where it has none; waits for it. Raises what the job has raised."""
        if self._thread is None:
            self._do(self.jobs[-self.left])
        self.left -= 1
        name, answer, wrong = self._found.get()
        if wrong is not None:
            raise wrong
        return name, answer

    def closed(self) -> bool:
        return self._closed.is_set()

    def _work(self) -> None:
        for job in self.jobs:
            if self.closed():
                return
            self._do(job)

    def _do(self, job: Job) -> None:
        name, answer = job
        try:
            self._found.put((name, answer(), None))
        except Stopped:
            self._found.put((name, None, None))
        except Exception as wrong:
            self._found.put((name, None, wrong))
