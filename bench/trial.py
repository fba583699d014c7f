"""A contender on a case: run in a child, measured, judged here by replay and validate, and put on record.

::

    cases ─▶ Bench.outcome ─▶ child (contender.py, in a copy of the sources) ─▶ judge ─▶ solver.jsonl

An outcome on record is not measured again: an interrupted run goes on where it was.
"""

from __future__ import annotations

import hashlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec

from bench.cases import Step
from bench.contender import OURS, Event, Job
from hyperopt import plan as plans
from hyperopt.documents import DocumentError
from hyperopt.legality import IllegalPlan, OutOfMemory
from hyperopt.plan import Budget, Plan
from hyperopt.profile import Profile, ns
from hyperopt.replay import replay
from hyperopt.validate import validate

ROOT = Path(__file__).parents[1]

SOURCES = ("solver/**/*.py", "hyperopt/**/*.py")
APART = {"cli", "client.py", "demo", "gate", "report", "store"}
"""What an outcome depends on, and what among it does not matter: any change is another code version."""

LOAD_S = 120.0
"""Seconds a child has to load sources and profile, which are not counted."""

MOST_RSS = 8 * 2**30
"""Bytes of memory at which a contender is stopped, so that the machine lives on."""

SAMPLE_S = 0.25


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a contender did on a case.

    `status`: plan, infeasible, out of memory, gave up (said so itself), timeout, memory (MOST_RSS), illegal (the
    judge refused its plan), failed. `step_us` and `peak_bytes` are the judge's. `seconds`, and those of `progress`
    (with the step time of each better plan in microseconds), count from the call, profile loaded; `processor_s` of them
    were spent by the child itself, and `load` is the machine's load average at the end: beyond its cores, others were
    at work. `rss_bytes`: the most memory of the child and its children.
    """

    trace: str
    operators: int
    seed: int
    percent: int
    contender: str
    code: str
    limit_s: float
    solve_seed: int

    group: str
    count: int
    budget_bytes: int
    unplanned_peak_bytes: int
    unlimited_us: float

    status: str
    step_us: float | None = None
    peak_bytes: int | None = None
    bound_us: float | None = None
    proven: bool = False
    detail: str = ""
    seconds: float | None = None
    processor_s: float = 0.0
    load: float = 0.0
    rss_bytes: int = 0
    progress: tuple[tuple[float, float], ...] = ()

    @property
    def key(self) -> tuple[str | int | float, ...]:
        limit = self.limit_s, self.solve_seed
        return self.trace, self.operators, self.seed, self.percent, self.contender, self.code, *limit


class Record:
    """Outcomes in a file of JSON lines, one appended for each; the later of two with the same key counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[tuple[str | int | float, ...], Outcome] = {}
        self.torn = False
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            text = path.read_bytes()
            self.torn = bool(text) and not text.endswith(b"\n")
            for line in text.splitlines():
                try:
                    found = msgspec.json.decode(line, type=Outcome)
                except msgspec.DecodeError:
                    continue  # torn by an interruption, or of an older form: measured again
                self.known[found.key] = found

    def add(self, outcome: Outcome) -> None:
        self.known[outcome.key] = outcome
        line = msgspec.json.encode(outcome) + b"\n"
        with self.path.open("ab", buffering=0) as file:
            file.write(b"\n" + line if self.torn else line)
        self.torn = False


@dataclass
class Ended:
    """How a child ended: its last event, the progress before it, and the most memory seen."""

    last: Event
    progress: list[tuple[float, float]] = field(default_factory=list)
    rss_bytes: int = 0


class Bench:
    """Where outcomes come from: the record, or else a child that runs the code version `code`."""

    def __init__(self, folder: Path, record: str, code: str | None = None, fresh: bool = False) -> None:
        """`code`: a version that was run before; None: the sources as they are now, of which a copy is taken.
        `fresh`: what is on record is forgotten."""
        if fresh:
            (folder / record).unlink(missing_ok=True)
        self.record = Record(folder / record)
        self.code = code or digest_of_sources()
        self.sources = folder / "code" / self.code
        if code is None:
            _copy_sources(self.sources)
        elif not self.sources.is_dir():
            raise SystemExit(f"no code version {code!r} was run here: there are {sorted(_names(folder / 'code'))}")
        _copy_into(self.sources, ROOT / "bench" / "contender.py")
        self._open: tuple[Step, Path, Profile] | None = None

    def known(
        self, step: Step, percent: int, contender: str, limit_s: float, seed: int = 0, *, older: bool = False
    ) -> Outcome | None:
        """What is on record. `older`: of any code version, rather of this one."""
        rest = step.name, step.operators, step.seed, percent, contender
        found = self.record.known.get((*rest, self.code, limit_s, seed))
        if found is None and older:
            of_others = (o for o in self.record.known.values() if (*o.key[:5], *o.key[6:]) == (*rest, limit_s, seed))
            found = next(reversed(list(of_others)), None)
        return found

    def measure(self, step: Step, percent: int, contender: str, limit_s: float, seed: int = 0) -> Outcome:
        """Runs it now, and records it."""
        self._warm_up()
        path, profile = self._profile(step)
        free = replay(profile)
        budget = free.peak_bytes * percent // 100
        with tempfile.TemporaryDirectory() as folder:
            left = Path(folder) / "plan.json"
            late = limit_s + max(30.0, limit_s / 2) if contender == OURS else limit_s
            job = Job(
                contender=contender,
                profile=str(path),
                plan=str(left),
                budget_bytes=budget,
                limit_s=limit_s,
                give_up_s=late,
                seed=seed,
            )
            ended = run(job, self.sources, late + 10 if contender == OURS else limit_s)
            last = ended.last
            outcome = Outcome(
                trace=step.name,
                operators=step.operators,
                seed=step.seed,
                percent=percent,
                contender=contender,
                code=self.code,
                limit_s=limit_s,
                solve_seed=seed,
                group=step.group,
                count=len(profile.operators),
                budget_bytes=budget,
                unplanned_peak_bytes=free.peak_bytes,
                unlimited_us=free.step_us,
                status=last.kind,
                bound_us=last.bound_us,
                proven=last.proven,
                detail=last.detail,
                seconds=last.at,
                processor_s=last.processor_s,
                load=os.getloadavg()[0],
                rss_bytes=ended.rss_bytes,
                progress=tuple(ended.progress),
            )
            if last.kind == "plan":
                outcome = judged(outcome, profile, left.read_bytes(), last.step_us)
        self.record.add(outcome)
        return outcome

    def _profile(self, step: Step) -> tuple[Path, Profile]:
        if self._open is None or self._open[0] != step:
            self._open = None
            path, profile = step.profile(self.sources / "traces")
            self._open = step, path.resolve(), profile
        return self._open[1:]

    def _warm_up(self) -> None:
        """Compiles what is compiled at first use (kept beside the copied sources), so that no contender pays."""
        mark = self.sources / "warm"
        if mark.exists():
            return
        for operators in (700, 6_000):
            path, profile = Step("qwen3-30b-a3b", operators).profile(self.sources / "traces")
            budget = replay(profile).peak_bytes // 2
            with tempfile.TemporaryDirectory() as folder:
                left = str(Path(folder) / "plan.json")
                for contender in (OURS, "capuchin"):
                    job = Job(
                        contender=contender,
                        profile=str(path.resolve()),
                        plan=left,
                        budget_bytes=budget,
                        limit_s=5.0,
                        give_up_s=300.0,
                    )
                    run(job, self.sources, 310.0)
        mark.touch()


# -- the judge ---------------------------------------------------------------------------------------------


def judged(outcome: Outcome, profile: Profile, text: bytes, predicted_us: float | None) -> Outcome:
    """The outcome with what validate and replay say of the plan in `text`, whatever it says of itself."""
    replace = msgspec.structs.replace
    budget = Budget(hbm_bytes=outcome.budget_bytes)
    try:
        plan: Plan = replace(plans.load(text)[0], budget=budget)
        found = validate(profile, plan, outcome.budget_bytes)
        if found:
            return replace(outcome, status="illegal", detail=f"{found[0].code}: {found[0].message}")
        timeline = replay(profile, plan, outcome.budget_bytes)
    except (DocumentError, IllegalPlan, OutOfMemory) as refused:
        return replace(outcome, status="illegal", detail=f"{type(refused).__name__}: {refused}")
    if timeline.peak_bytes > outcome.budget_bytes:
        return replace(outcome, status="illegal", detail=f"peak of {timeline.peak_bytes} bytes")
    detail = outcome.detail
    if predicted_us is None or ns(predicted_us) != timeline.step_ns:
        detail = f"predicted {predicted_us}; {detail}"
    return replace(outcome, step_us=timeline.step_us, peak_bytes=timeline.peak_bytes, detail=detail)


# -- the child ---------------------------------------------------------------------------------------------


def run(job: Job, sources: Path, kill_after_s: float) -> Ended:
    """The job in a child; killed when its seconds are over, counted from its start, or at MOST_RSS."""
    with tempfile.TemporaryFile() as complaints:
        child = subprocess.Popen(
            [sys.executable, "-m", "bench.contender", msgspec.json.encode(job).decode()],
            cwd=sources,
            stdout=subprocess.PIPE,
            stderr=complaints,
            start_new_session=True,  # so that it can be ended with all its children
        )
        try:
            ended = _listen(child, kill_after_s)
        finally:
            _end(child)
        if ended.last.kind == "failed" and not ended.last.detail:
            complaints.seek(0)
            told = complaints.read().decode(errors="replace").strip().splitlines()
            why = f"exit {child.returncode}: {told[-1] if told else 'nothing said'}"
            ended.last = msgspec.structs.replace(ended.last, detail=why)
        return ended


def _listen(child: subprocess.Popen[bytes], kill_after_s: float) -> Ended:
    assert child.stdout is not None
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(child.stdout, lines), daemon=True).start()
    ended = Ended(Event(kind="failed"))
    started: float | None = None
    begun = sampled = time.monotonic()
    while True:
        try:
            line = lines.get(timeout=SAMPLE_S)
        except queue.Empty:
            line = b""
        now = time.monotonic()
        if line is None:
            return ended
        if line:
            event = msgspec.json.decode(line, type=Event)
            if event.kind == "start":
                started = now
            elif event.kind == "progress":
                assert event.step_us is not None
                ended.progress.append((round(event.at, 4), event.step_us))
            else:
                ended.last = event
                ended.rss_bytes = max(ended.rss_bytes, event.rss_bytes)
                return ended
        if now - sampled >= SAMPLE_S:
            sampled = now
            ended.rss_bytes = max(ended.rss_bytes, _rss(child.pid))
        if ended.rss_bytes > MOST_RSS:
            ended.last = Event(kind="memory", at=now - (started or begun))
            return ended
        if now - (begun + LOAD_S if started is None else started + kill_after_s) > 0:
            ended.last = Event(kind="timeout", at=now - (started or begun))
            return ended


def _read(stream: IO[bytes], lines: queue.SimpleQueue[bytes | None]) -> None:
    with suppress(ValueError):  # closed, since nobody listens any more
        for line in stream:
            lines.put(line)
    lines.put(None)


def _rss(pid: int) -> int:
    """Bytes in memory of a process and all below it; what they share is counted for each. 0 where there is no /proc:
    then the child's own word has to do."""
    process = Path(f"/proc/{pid}")
    total = 0
    with suppress(OSError, ValueError):  # it may just have ended
        total = int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        for thread in (process / "task").iterdir():
            total += sum(_rss(int(child)) for child in (thread / "children").read_text().split())
    return total


def _end(child: subprocess.Popen[bytes]) -> None:
    # Not reaped yet, so the number still is this child's and its group's.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdout is not None:
        child.stdout.close()


# -- the sources -------------------------------------------------------------------------------------------


def _files() -> list[Path]:
    found = (path for pattern in SOURCES for path in ROOT.glob(pattern))
    return sorted(path for path in found if not APART & set(path.relative_to(ROOT).parts))


def digest_of_sources() -> str:
    """12 hexadecimal digits over all that an outcome depends on."""
    digest = hashlib.sha256()
    for path in _files():
        digest.update(f"{path.relative_to(ROOT)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _copy_sources(target: Path) -> None:
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        for path in _files():
            copy = Path(folder) / "code" / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        try:
            (Path(folder) / "code").rename(target)
        except OSError:
            if not target.is_dir():  # else another run was first
                raise


def _copy_into(sources: Path, path: Path) -> None:
    target = sources / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_suffix(f".{os.getpid()}")
    shutil.copyfile(path, fresh)
    fresh.rename(target)


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []
