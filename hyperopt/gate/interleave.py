"""Runs two commands in turns, A B  B A  B A  A B ..., and keeps what each run measured.

ABBA, and then its mirror image: a steady drift cancels within either, and what neighbouring runs have in common (the
end of one pair and the start of the next) counts for one side as often as for the other. With ABBA alone noise that
lasts two or three runs raises more false alarms at the tolerance (docs/why/gate.md).

A command's last line on standard output may be a JSON object of what it measured, name -> number, list of numbers (its
steps), or {"values": [...], "unit": "1/s", "better": "higher"}. Without one, the seconds that it took are the metric.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from hyperopt.documents import DocumentError
from hyperopt.gate.samples import Better, Metric, Samples, Steps, check

SECONDS = "wall_s"


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run says of one metric. A key that is none is refused: a `beter` would turn the verdict."""

    values: Steps
    unit: str = ""
    better: Better = "lower"

    @property
    def kind(self) -> tuple[str, Better]:
        return self.unit, self.better

    @property
    def told_kind(self) -> str:
        return f"{repr(self.unit) if self.unit else 'no unit'} ({self.better} is better)"


Run = dict[str, Measured]
_LINE = dict[str, float | Steps | Measured]


def interleave(
    baseline: Sequence[str],
    candidate: Sequence[str],
    pairs: int,
    *,
    warmup_runs: int = 1,
    warmup_steps: int = 0,
    timeout_s: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Samples:
    """`pairs` that count after `warmup_runs` that do not; `say` is told of each run.

    The pairs that count begin with A B, whatever the warm-up. Raises `DocumentError` where a command fails, takes
    longer than `timeout_s` (what it has started is ended with it), or measures other metrics than before, or in other
    units.
    """
    commands = {"baseline": list(baseline), "candidate": list(candidate)}
    runs: dict[str, list[Run]] = {side: [] for side in commands}
    for pair in range(-warmup_runs, pairs):
        for side in ("candidate", "baseline") if turned(pair) else ("baseline", "candidate"):
            found = _run(side, commands[side], timeout_s)
            expected = next((kept[0] for kept in runs.values() if kept), found)
            if found.keys() != expected.keys():
                told = f"measured {', '.join(sorted(found))}; runs before it {', '.join(sorted(expected))}"
                raise DocumentError(f"--{side}", told, "let both print the same metrics, every time")
            for name, one in found.items():
                if one.kind != expected[name].kind:
                    told = f"measured {name} in {one.told_kind}; runs before it in {expected[name].told_kind}"
                    raise DocumentError(f"--{side}", told, "let both print the same unit and direction, every time")
            runs[side].append(found)
            say(f"pair {pair + 1} of {pairs}, {side}: {_told(found)}")
    before, after = runs["baseline"], runs["candidate"]
    metrics = tuple(
        Metric(
            name=name,
            unit=one.unit,
            better=one.better,
            baseline=tuple(run[name].values for run in before),
            candidate=tuple(run[name].values for run in after),
        )
        for name, one in before[0].items()
    )
    samples = Samples(design="interleaved", warmup_steps=warmup_steps, warmup_runs=warmup_runs, metrics=metrics)
    check(samples)
    return samples


def turned(pair: int) -> bool:
    """Whether that pair, from 0, runs the candidate first: AB BA BA AB, and again."""
    return pair % 4 in (1, 2)


def _run(side: str, command: list[str], timeout_s: float | None) -> Run:
    begun = time.perf_counter()
    try:
        code, out, err = _finished(command, timeout_s)
    except subprocess.TimeoutExpired as late:
        raise DocumentError(f"--{side}", f"not finished after {timeout_s:g} s", "allow more, or measure less") from late
    except OSError as error:
        raise DocumentError(f"--{side}", f"cannot be started: {error}", "give a command that runs here") from error
    seconds = time.perf_counter() - begun
    if code:
        last = (err.strip().splitlines() or ["it said nothing"])[-1]
        remedy = "let the command succeed by itself first"
        raise DocumentError(f"--{side}", f"exit code {code}: {last}", remedy)
    line = (out.strip().splitlines() or [""])[-1]
    if not line.startswith("{"):
        return {SECONDS: Measured((seconds,), "s")}
    try:
        found = msgspec.json.decode(line, type=_LINE)
    except msgspec.DecodeError as error:
        remedy = "print one JSON object of numbers, lists of numbers, or {values, unit, better} as the last line"
        raise DocumentError(f"--{side}", f"its last line: {error}", remedy) from error
    return {name: _measured(value) for name, value in found.items()}


def _finished(command: list[str], timeout_s: float | None) -> tuple[int, str, str]:
    """Exit code, standard output and error. A command that is not let finish is ended with all that it has started,
    which would go on measuring beside the next run: it has a session, and so a process group, of its own."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, errors="replace", start_new_session=True
    ) as running:
        try:
            out, err = running.communicate(timeout=timeout_s)
        except BaseException:  # the time is over, or the user has pressed Ctrl-C
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
            raise
    return running.returncode, out, err


def _measured(value: float | Steps | Measured) -> Measured:
    if isinstance(value, Measured):
        return value
    return Measured(value if isinstance(value, tuple) else (value,))


def _told(run: Run) -> str:
    return ", ".join(f"{name} {one.values[-1]:.6g} {one.unit}".strip() for name, one in run.items() if one.values)
