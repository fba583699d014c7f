"""How long a first plan and a near one take as steps grow: one dense and one mixture-of-experts trace.

    python -m bench.growth [--sizes 500,1000,...] [--percent 50] [--svg docs/why/growth.svg]

Measured as in `bench.solver`, with the same limits by size; on record in build/bench/growth.jsonl, so that an
interrupted run goes on. Results go to build/bench/growth.json, the plot, both axes logarithmic, to --svg.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression
from typing import Any

from bench.cases import Step
from bench.contender import OURS
from bench.solver import FOLDER, LIMITS
from bench.table import NEAR_S, Case
from bench.trial import Bench

TRACES = ("llama3-8b", "qwen3-30b-a3b")
OPERATORS = (500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
SVG = Path("docs/why/growth.svg")
WANTED = {2_000: NEAR_S["small"], 20_000: NEAR_S["medium"], 100_000: NEAR_S["large"]}
"""Seconds within which a near plan is wanted, by operators."""

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 64, 230, 20, 52
COLOURS = ("#0072b2", "#d55e00")
SHORTEST_S = 0.01
"""Seconds below which a time is drawn as this: the axis has no 0."""


@dataclass(frozen=True)
class Series:
    """A named line of (operators, seconds); `dashed` for first plans."""

    name: str
    points: tuple[tuple[int, float], ...]
    colour: str
    dashed: bool

    @property
    def exponent(self) -> float | None:
        """b of the least-squares fit seconds = a * operators^b; None under two sizes."""
        if len({x for x, _ in self.points}) < 2:
            return None
        xs, ys = zip(*((math.log(x), math.log(max(y, SHORTEST_S))) for x, y in self.points), strict=True)
        return float(linear_regression(xs, ys).slope)


def series_of(cases: Sequence[Case]) -> list[Series]:
    """First and near plan of each trace."""
    found = []
    for trace, colour in zip(TRACES, COLOURS, strict=True):
        own = [case for case in cases if case.ours.trace == trace]
        for what, dashed in (("first plan", True), ("near plan", False)):
            times = [(case.ours.count, case.first_s if dashed else case.near_s) for case in own]
            points = tuple((count, at) for count, at in times if at is not None)
            found.append(Series(f"{trace}, {what}", points, colour, dashed))
    return found


def plot(series: Sequence[Series], title: str) -> str:
    """An `<svg>` with both axes logarithmic, whole decades of seconds, and what is wanted as hollow squares."""
    drawn = [line for line in series if line.points]
    xs = [x for line in drawn for x, _ in line.points] + list(WANTED)
    ys = [max(y, SHORTEST_S) for line in drawn for _, y in line.points] + list(WANTED.values())
    low_x, high_x = math.log10(min(xs)) - 0.05, math.log10(max(xs)) + 0.05
    low_y, high_y = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    right, floor = WIDTH - RIGHT, HEIGHT - BOTTOM

    def across(x: float) -> float:
        return LEFT + (right - LEFT) * (math.log10(x) - low_x) / (high_x - low_x)

    def up(y: float) -> float:
        share = (math.log10(max(y, SHORTEST_S)) - low_y) / (high_y - low_y)
        return floor - (floor - TOP) * share

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}" '
        'font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for power in range(low_y, high_y + 1):
        y = up(10.0**power)
        lines.append(f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g} s</text>')
    for tick in OPERATORS:
        if low_x <= math.log10(tick) <= high_x:
            x = across(tick)
            lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{floor}" stroke="#eee"/>')
            lines.append(f'<text x="{x:.1f}" y="{floor + 18}" text-anchor="middle">{tick:,}</text>')
    lines.append(f'<text x="{(LEFT + right) / 2:.1f}" y="{HEIGHT - 12}" text-anchor="middle">operators</text>')
    for x, y in WANTED.items():
        lines.append(
            f'<rect x="{across(x) - 5:.1f}" y="{up(y) - 5:.1f}" width="10" height="10" fill="none" stroke="#333"/>'
        )
    for i, line in enumerate(drawn):
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        style = f'fill="none" stroke="{line.colour}" stroke-width="2"{dash}'
        points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in line.points)
        lines.append(f'<polyline points="{points}" {style}/>')
        lines += [f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3" fill="{line.colour}"/>' for x, y in line.points]
        y = TOP + 10 + 34 * i
        lines.append(f'<line x1="{right + 12}" x2="{right + 36}" y1="{y}" y2="{y}" {style}/>')
        lines.append(f'<text x="{right + 42}" y="{y + 4}">{line.name}</text>')
        if line.exponent is not None:
            lines.append(f'<text x="{right + 42}" y="{y + 18}" fill="#777">grows as n^{line.exponent:.2f}</text>')
    y = TOP + 10 + 34 * len(drawn)
    lines.append(f'<rect x="{right + 19}" y="{y - 5}" width="10" height="10" fill="none" stroke="#333"/>')
    lines.append(f'<text x="{right + 42}" y="{y + 4}">wanted for a near plan</text>')
    return "\n".join([*lines, "</svg>", ""])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, prog="python -m bench.growth", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=lambda t: [int(n) for n in t.split(",")], default=list(OPERATORS))
    parser.add_argument("--percent", type=int, default=50, help="budget, of the unplanned peak")
    parser.add_argument("--seed", type=int, default=0, help="of the search")
    for size, seconds in LIMITS.items():
        parser.add_argument(f"--{size}-s", type=float, default=seconds, help=f"time limit for {size} steps")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the record and the results")
    parser.add_argument("--svg", type=Path, default=SVG, help="where the plot goes")
    parser.add_argument("--code", help="go on with the sources of an earlier run, by the version it printed")
    parser.add_argument("--fresh", action="store_true", help="forget what is on record")
    given = parser.parse_args(argv)
    bench = Bench(given.folder, "growth.jsonl", given.code, given.fresh)
    cases = []
    print(f"code version {bench.code}, budget {given.percent} %", flush=True)
    print(f"{'trace':16} {'operators':>9} {'first s':>8} {'near s':>8} {'all s':>8} {'/ bound':>8} {'MiB':>6}")
    for operators in sorted(given.sizes):
        for trace in TRACES:
            step = Step(trace, operators)
            limit = getattr(given, f"{step.size}_s")
            ours = bench.known(step, given.percent, OURS, limit, given.seed)
            if ours is None:
                ours = bench.measure(step, given.percent, OURS, limit, given.seed)
            case = Case(ours, {}, step.size)
            cases.append(case)
            times = (
                f"{'none' if s is None else format(s, '.2f'):>8}" for s in (case.first_s, case.near_s, ours.seconds)
            )
            ratio = f"{case.ratio(ours):8.4f} {ours.rss_bytes / 2**20:6.0f}"
            print(f"{trace:16} {ours.count:9} {' '.join(times)} {ratio} {ours.status}", flush=True)
    series = series_of(cases)
    results: dict[str, Any] = {"code": bench.code, "percent": given.percent, "series": {}}
    for line in series:
        results["series"][line.name] = {"points": line.points, "exponent": line.exponent}
    (given.folder / "growth.json").write_text(json.dumps(results, indent=1) + "\n")
    given.svg.parent.mkdir(parents=True, exist_ok=True)
    given.svg.write_text(plot(series, f"Seconds to a plan over operators, budget {given.percent} % of the peak"))
    print(f"{given.svg} and {given.folder / 'growth.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
