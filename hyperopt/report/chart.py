"""HBM in use over a step, as inline SVG: the area without a plan, the line under it, the budget."""

from __future__ import annotations

from hyperopt.occupancy import Occupancy

WIDTH, HEIGHT = 960, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 40
COLUMNS = WIDTH - LEFT - RIGHT
MIB = 2**20


def chart(before: Occupancy, after: Occupancy, budget_bytes: int | None, steps_ns: tuple[int, int]) -> str:
    """An `<svg>` of both levels over time. `steps_ns`: step times without and with the plan, nanoseconds."""
    end = max(*steps_ns, 1)
    tops = [before.peak_bytes, after.peak_bytes, *([] if budget_bytes is None else [budget_bytes])]
    top = _round_up(max(tops) / MIB)
    across, up = COLUMNS / end, (HEIGHT - TOP - BOTTOM) / top / MIB
    floor = HEIGHT - BOTTOM

    def path(levels: Occupancy, step_ns: int) -> str:
        parts = []
        for column, (low, high) in enumerate(_columns(levels, step_ns, end)):
            x = LEFT + column
            parts.append(f"{x},{floor - high * up:.1f}")
            if low != high:
                parts.append(f"{x},{floor - low * up:.1f}")
        return " ".join(parts)

    first, second = path(before, steps_ns[0]), path(after, steps_ns[1])
    last = LEFT + steps_ns[0] * across
    lines = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="HBM in use over the step, simulated">',
        *_grid(top, end),
        f'<polygon class="before" points="{LEFT},{floor} {first} {last:.1f},{floor}"/>',
        f'<polyline class="after" points="{second}"/>',
    ]
    if budget_bytes is not None:
        y = floor - budget_bytes * up
        lines.append(f'<line class="budget" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        label = f"budget {budget_bytes / MIB:.1f} MiB"
        lines.append(f'<text class="budget" x="{WIDTH - RIGHT - 4}" y="{y - 5:.1f}" text-anchor="end">{label}</text>')
    return "\n".join([*lines, "</svg>"])


def _columns(levels: Occupancy, step_ns: int, end: int) -> list[tuple[int, int]]:
    """Lowest and highest level within each pixel column up to the step's end; the level between changes lasts."""
    last = min(COLUMNS, max(1, round(COLUMNS * step_ns / end)))
    found: list[tuple[int, int]] = []
    level, i = levels.base_bytes, 0
    for column in range(last + 1):
        until = (column + 1) * end / COLUMNS
        seen = [level]
        while i < len(levels.times) and levels.times[i] < until and levels.times[i] < step_ns:
            level = levels.used[i]
            seen.append(level)
            i += 1
        if column == 0 and len(seen) > 1:
            seen = seen[1:]  # what is there at the start was not brought in then
        found.append((min(seen), max(seen)))
    return found


def _grid(top: int, end: int) -> list[str]:
    lines, floor = [], HEIGHT - BOTTOM
    for k in range(5):
        y = floor - (HEIGHT - TOP - BOTTOM) * k / 4
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{top * k / 4:g} MiB</text>')
    for k in range(6):
        x = LEFT + COLUMNS * k / 5
        anchor = "end" if k == 5 else "middle" if k else "start"
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - 16}" text-anchor="{anchor}">{end * k / 5e6:.4g} ms</text>')
    return lines


def _round_up(mib: float) -> int:
    """To a number of MiB that divides into four round parts."""
    step = 4
    while step * 10 < mib:
        step *= 2
    return max(step, -(-int(mib + 1) // step) * step)
