"""The command history: where a branch's figures changed, from the answers of its checks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from hyperopt.cli.files import AsJson
from hyperopt.documents import DocumentError
from hyperopt.gate.history import Point, changes


def register(app: typer.Typer) -> None:
    app.command("history")(history)


class _Memory(msgspec.Struct):
    status: str
    candidate_peak_bytes: int = 0


class _Throughput(msgspec.Struct):
    candidate_us: float = 0.0


class _Finding(msgspec.Struct):
    name: str
    candidate: float


class _Answer(msgspec.Struct):
    """Of `hyperopt check -o`, what is charted."""

    verdict: str
    memory: _Memory
    throughput: _Throughput
    metrics: tuple[_Finding, ...] = ()


def history(
    answers: Annotated[
        list[Path],
        typer.Argument(metavar="ANSWER...", help="of `hyperopt check -o`, oldest first, each named as its commit"),
    ],
    as_json: AsJson = False,
) -> int:
    """Say where memory or times of a branch changed, and between which commits. Advice: exit 0 whatever it says."""
    series: dict[str, list[Point]] = {}
    for path in answers:
        for name, value in _figures(path):
            series.setdefault(name, []).append(Point(path.stem, value))
    found = changes(series)
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        print("\n".join(change.told for change in found) or f"no change in {len(series)} series of {len(answers)} runs")
    return 0


def _figures(path: Path) -> list[tuple[str, float]]:
    try:
        answer = msgspec.json.decode(path.read_bytes(), type=_Answer)
    except msgspec.DecodeError as error:
        remedy = "give what `hyperopt check -o` wrote"
        raise DocumentError(path.name, f"no answer of a check: {error}", remedy) from error
    figures: list[tuple[str, Any]] = [(one.name, one.candidate) for one in answer.metrics]
    if answer.memory.status != "not judged":
        figures.append(("replayed peak", answer.memory.candidate_peak_bytes))
    if not answer.metrics:
        figures.append(("step_us", answer.throughput.candidate_us))
    return [(name, float(value)) for name, value in figures if value > 0]
