"""The time line of a split: as text, a line a stage, or as SVG.

In text a column is a slice of time: the digit of the micro-batch that fills most of it (`0`-`9`, then `a`-`z`), in the
upper row forward, in the lower one backward, in a third one the weights' gradients where they are apart; `.` is
waiting.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from solver.stages.problem import Problem
from solver.stages.simulate import clock

I64 = NDArray[np.int64]
NAMES = "0123456789abcdefghijklmnopqrstuvwxyz"
WIDTH = 110
PARTS = "FBW"
PALER = ("", ' fill-opacity="0.55"', ' fill-opacity="0.25"')
HUES = ("#4c78a8", "#72b7b2", "#54a24b", "#eeca3b", "#b279a2", "#ff9da6", "#9d755d", "#bab0ac")


def spans(problem: Problem, split: I64) -> tuple[list[list[tuple[int, int, int, int, int]]], int]:
    """[stage]: (start, end, direction, chunk, micro-batch) in ticks, in order; and the makespan."""
    told = clock(problem, "makespan")
    g, durations = told.graph, problem.durations(split)
    ends, _, _ = told.times(durations)
    lengths = durations.ravel()
    rows: list[list[tuple[int, int, int, int, int]]] = [[] for _ in range(problem.stages)]
    for (stage, task), i in g.position.items():
        end = int(ends[i])
        rows[stage].append((end - int(lengths[g.duration[i]]), end, task.direction, task.chunk, task.micro_batch))
    return [sorted(row) for row in rows], int(ends.max())


def draw(problem: Problem, split: I64, svg: bool = False, width: int = WIDTH) -> str:
    """The picture; ends with a line break."""
    rows, end = spans(problem, split)
    return _svg(problem, rows, end) if svg else _text(problem, rows, end, width)


def _text(problem: Problem, rows: list[list[tuple[int, int, int, int, int]]], end: int, width: int) -> str:
    told = "" if problem.parts == 2 else " (W: of weights alone)"
    lines = [f"time 0 .. {end * problem.tick:g}; forward above, backward below{told}, digits are micro-batches"]
    for stage, row in enumerate(rows):
        drawn = [["."] * width for _ in range(problem.parts)]
        for start, stop, direction, _, micro_batch in row:
            first, last = round(start * width / end), max(round(start * width / end) + 1, round(stop * width / end))
            for x in range(first, min(last, width)):
                drawn[direction][x] = NAMES[micro_batch % len(NAMES)]
        heads = [f"stage {stage:2}", *[" " * 8] * (problem.parts - 1)]
        lines += [f"{head} {part} {''.join(line)}" for head, part, line in zip(heads, PARTS, drawn, strict=False)]
    return "\n".join(lines) + "\n"


def _svg(problem: Problem, rows: list[list[tuple[int, int, int, int, int]]], end: int) -> str:
    wide, high, left = 1200, 24, 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide + left + 10}" height="{len(rows) * (high + 4) + 30}" '
        'font-family="sans-serif" font-size="10">'
    ]
    for stage, row in enumerate(rows):
        y = stage * (high + 4) + 4
        parts.append(f'<text x="2" y="{y + 16}">stage {stage}</text>')
        for start, stop, direction, chunk, micro_batch in row:
            x, w = left + start * wide / end, (stop - start) * wide / end
            title = f"{PARTS[direction]}{micro_batch} of chunk {chunk}"
            parts.append(
                f'<rect x="{x:.2f}" y="{y}" width="{w:.2f}" height="{high}" fill="{HUES[micro_batch % len(HUES)]}"'
                f'{PALER[direction]} stroke="#333" stroke-width="0.4"><title>{title}</title></rect>'
            )
    bottom = len(rows) * (high + 4) + 20
    parts.append(f'<text x="{left}" y="{bottom}">0 .. {end * problem.tick:g}; backward is paler</text></svg>')
    return "\n".join(parts) + "\n"
