"""Runs two commands in turns, A B  B A  B A  A B ..., and keeps what each run measured.

ABBA, and then its mirror image: a steady drift cancels within either, and what neighbouring runs have in common (the
end of one pair and the start of the next) counts for one side as often as for the other. With ABBA alone noise that
lasts two or three runs raises more false alarms at the tolerance (docs/why/gate.md).

A command's last line on standard output may be a JSON object of what it measured, name -> number, list of numbers (its
steps), or {"values": [...], "unit": "1/s", "better": "higher"}. Without one, the seconds that it took are the metric.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence

import msgspec

from hyperopt.documents import DocumentError
from hyperopt.gate.samples import Better, Metric, Samples, Steps, check

SECONDS = "wall_s"


class Measured(msgspec.Struct, frozen=True):
    """What a run says of one metric."""

    values: Steps
    unit: str = ""
    better: Better = "lower"


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

    Raises `DocumentError` where a command fails, takes longer than `timeout_s`, or measures other things than before.
    """
    commands = {"baseline": list(baseline), "candidate": list(candidate)}
    runs: dict[str, list[Run]] = {side: [] for side in commands}
    for pair in range(warmup_runs + pairs):
        for side in ("candidate", "baseline") if turned(pair) else ("baseline", "candidate"):
            found = _run(side, commands[side], timeout_s)
            expected = next((kept[0] for kept in runs.values() if kept), found)
            if found.keys() != expected.keys():
                told = f"measured {', '.join(sorted(found))}; runs before it {', '.join(sorted(expected))}"
                raise DocumentError(f"--{side}", told, "let both print the same metrics, every time")
            runs[side].append(found)
            say(f"pair {pair + 1 - warmup_runs} of {pairs}, {side}: {_told(found)}")
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
        ran = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as late:
        raise DocumentError(f"--{side}", f"not finished after {timeout_s:g} s", "allow more, or measure less") from late
    except OSError as error:
        raise DocumentError(f"--{side}", f"cannot be started: {error}", "give a command that runs here") from error
    seconds = time.perf_counter() - begun
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["it said nothing"])[-1]
        remedy = "let the command succeed by itself first"
        raise DocumentError(f"--{side}", f"exit code {ran.returncode}: {last}", remedy)
    line = (ran.stdout.strip().splitlines() or [""])[-1]
    if not line.startswith("{"):
        return {SECONDS: Measured((seconds,), "s")}
    try:
        found = msgspec.json.decode(line, type=_LINE)
    except msgspec.DecodeError as error:
        remedy = "print one JSON object of numbers, lists of numbers, or {values, unit, better} as the last line"
        raise DocumentError(f"--{side}", f"its last line: {error}", remedy) from error
    return {name: _measured(value) for name, value in found.items()}


def _measured(value: float | Steps | Measured) -> Measured:
    if isinstance(value, Measured):
        return value
    return Measured(value if isinstance(value, tuple) else (value,))


def _told(run: Run) -> str:
    return ", ".join(f"{name} {one.values[-1]:.6g} {one.unit}".strip() for name, one in run.items() if one.values)
