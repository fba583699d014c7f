"""The time line of programs: as text, two rows a group, or as SVG.

In text a column is a slice of time: the upper row has the call's letter, the lower one the digit of the micro-batch;
`.` is waiting, `~` copies of programs that are swapped.
"""

from __future__ import annotations

from html import escape

from hyperopt.programs import Programs
from solver.programs.solve import Found
from solver.stages.picture import HUES, NAMES, WIDTH

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def draw(said: Programs, found: Found, svg: bool = False, width: int = WIDTH) -> str:
    """The picture; ends with a line break."""
    return _svg(said, found) if svg else _text(said, found, width)


def _text(said: Programs, found: Found, width: int) -> str:
    end, p = max(1, found.value), found.placed
    lines = [
        f"time 0 .. {found.value * p.tick:g}; " + ", ".join(f"{LETTERS[c]} {x.name}" for c, x in enumerate(said.calls))
    ]
    for g, (group, order) in enumerate(zip(p.groups, found.orders, strict=True)):
        above, below = ["."] * width, ["."] * width
        for c, m in order:
            start, copies = found.line.start[c, m], found.line.copies[c, m]
            for x in range(round((start - copies) * width / end), round(start * width / end)):
                above[x] = "~"
            first = round(start * width / end)
            if p.duration[c]:
                for x in range(first, min(width, max(first + 1, round((start + p.duration[c]) * width / end)))):
                    above[x] = LETTERS[c]
                    below[x] = NAMES[m % len(NAMES)] if said.calls[c].per == "micro_batch" else " "
        names = ", ".join(said.programs[q].name for q in group.programs)
        lines += [
            f"group {g}: {group.on.devices} {group.on.name}, {names}",
            f"  {''.join(above)}",
            f"  {''.join(below)}",
        ]
    return "\n".join(lines) + "\n"


def _svg(said: Programs, found: Found) -> str:
    wide, high, left, p, end = 1200, 24, 160, found.placed, max(1, found.value)
    tall = len(p.groups) * (high + 4) + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide + left + 10}" height="{tall}" '
        'font-family="sans-serif" font-size="10">'
    ]
    for g, (group, order) in enumerate(zip(p.groups, found.orders, strict=True)):
        y = g * (high + 4) + 4
        names = ", ".join(said.programs[q].name for q in group.programs)
        parts.append(f'<text x="2" y="{y + 16}">{escape(f"{group.on.devices} {group.on.name}: {names}"):.60}</text>')
        for c, m in order:
            start, copies = found.line.start[c, m], found.line.copies[c, m]
            for what, at, takes, fill in (
                (f"{said.calls[c].name} {m}", start, p.duration[c], HUES[c % len(HUES)]),
                (f"copies before {said.calls[c].name} {m}", start - copies, copies, "#ddd"),
            ):
                if takes:
                    parts.append(
                        f'<rect x="{left + at * wide / end:.2f}" y="{y}" width="{takes * wide / end:.2f}" '
                        f'height="{high}" fill="{fill}" stroke="#333" stroke-width="0.4">'
                        f"<title>{escape(what)}</title></rect>"
                    )
    bottom = len(p.groups) * (high + 4) + 20
    for c, call in enumerate(said.calls):
        parts.append(
            f'<rect x="{left + c * 130}" y="{bottom + 8}" width="10" height="10" fill="{HUES[c % len(HUES)]}"/>'
        )
        parts.append(f'<text x="{left + c * 130 + 14}" y="{bottom + 17}">{escape(call.name):.24}</text>')
    parts.append(f'<text x="{left}" y="{bottom}">0 .. {found.value * p.tick:g}; grey: programs swapped</text></svg>')
    return "\n".join(parts) + "\n"
