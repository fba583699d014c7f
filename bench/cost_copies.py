"""Copies: the link model against copies that it was not fitted to, on this CPU and of a published sweep.

The sweep: hyper-parallel's document of `ep_host_swap` (mindspore-ai/hyper-parallel, Apache-2.0, read in 2026): 64 dies
of Ascend A3, Qwen3-VL-30B-A3B, 8 text layers, sequence 8192, 16 steps; experts moved to the host and back each step.
A step without moves took 1.972 s in the median; with all 16 dies of a node copying, a die got 9 to 37 GB/s.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hyperopt import profile as profiles
from hyperopt.cost.analytic import UNSHARED, Link, fit_link
from hyperopt.cost.features import F64, rows_of
from hyperopt.cost.model import LINK
from hyperopt.cost.work import Table

GIB = 2**30
STEP_MS = 1972.0
MOVED_GIB = np.array([0.09, 0.38, 0.81, 1.22, 2.00, 2.83, 3.24, 3.57])
PEAK_GIB = np.array([-0.12, -0.32, -0.77, -1.25, -1.88, -2.52, -2.86, -3.11])
STEP_PERCENT = np.array([0.5, 0.7, 0.8, 1.5, 2.0, 2.1, 3.3, 3.6])
CONTENDED = (9e9, 37e9)
"""Bytes/s of a die while all of a node copy: least and most that was seen."""


def copies(calibration: Path) -> dict[str, Any]:
    return {"cpu": this_cpu(calibration), "sweep": sweep()}


def this_cpu(calibration: Path) -> dict[str, Any]:
    """Fitted without one size at a time, and without the largest number of copiers."""
    rows = rows_of(profiles.load(calibration.read_bytes())[0], Table.load())
    found: dict[str, Any] = {}
    for way in sorted(set(rows.names[rows.families == LINK].tolist())):
        mine = rows.names == way
        size, us = rows.signatures.written[rows.signature[mine]], rows.us[mine]
        copiers = 1.0 + rows.context[mine, 0]
        off = np.zeros(len(us))
        for one in np.unique(size):
            out = size == one
            off[out] = fit_link(size[~out], copiers[~out], us[~out]).us(size[out], copiers[out]) / us[out] - 1
        crowd = copiers > 2.5
        ahead = fit_link(size[~crowd], copiers[~crowd], us[~crowd]).us(size[crowd], copiers[crowd]) / us[crowd] - 1
        link = fit_link(size, copiers, us)
        found[way] = {
            "copies": len(us),
            "size_held_out": float(np.median(np.abs(off))),
            "size_held_out_p90": float(np.quantile(np.abs(off), 0.9)),
            "crowd_held_out": float(np.median(np.abs(ahead))) if len(ahead) else None,
            "link": asdict(link),
        }
        row = found[way]
        print(
            f"{way}: {len(us)} copies; size held out {row['size_held_out']:.1%} in the median (90th "
            f"{row['size_held_out_p90']:.1%}); 3 and more at a time held out {row['crowd_held_out']:.1%}; "
            f"{len(link.nearer) + 1} classes of size; largest: alone {link.alone / 1e3:.1f} GB/s, {_together(link)}"
        )
    return found


def _together(link: Link) -> str:
    if link.capacity >= link.alone * UNSHARED:
        return "no limit seen for all together"
    return f"all together {link.capacity / 1e3:.1f} GB/s"


def sweep() -> dict[str, Any]:
    """Of each point, predicted from the seven others: peak = c x moved; step = a + b x moved."""
    peak, step = np.zeros(len(MOVED_GIB)), np.zeros(len(MOVED_GIB))
    for i in range(len(MOVED_GIB)):
        others = np.arange(len(MOVED_GIB)) != i
        c = _slope(MOVED_GIB[others], PEAK_GIB[others])
        peak[i] = c * MOVED_GIB[i]
        b, a = np.polyfit(MOVED_GIB[others], STEP_PERCENT[others], 1)
        step[i] = a + b * MOVED_GIB[i]
    b, a = np.polyfit(MOVED_GIB, STEP_PERCENT, 1)
    per_gib_ms = b / 100 * STEP_MS
    on_link = [2 * GIB / speed * 1e3 for speed in CONTENDED]
    found = {
        "peak_gib_per_gib": _slope(MOVED_GIB, PEAK_GIB),
        "peak_off_gib": float(np.max(np.abs(peak - PEAK_GIB))),
        "peak_off": float(np.median(np.abs(peak / PEAK_GIB - 1))),
        "step_percent": [float(a), float(b)],
        "step_off_points": float(np.max(np.abs(step - STEP_PERCENT))),
        "step_off": float(np.median(np.abs(step / STEP_PERCENT - 1))),
        "step_ms_per_gib": float(per_gib_ms),
        "link_ms_per_gib_out_and_back": on_link,
        "hidden": [1 - per_gib_ms / ms for ms in on_link],
    }
    print(
        f"published sweep (8 points, each from the 7 others): peak {found['peak_gib_per_gib']:+.2f} GiB per GiB moved, "
        f"off by {found['peak_off']:.0%} in the median and {found['peak_off_gib']:.2f} GiB at most; step {a:.2f} % + "
        f"{b:.2f} % per GiB, off by {found['step_off']:.0%} in the median and {found['step_off_points']:.2f} points of "
        f"the step at most\n  a GiB out and back takes {on_link[1]:.0f} to {on_link[0]:.0f} ms on the contended link "
        f"and costs {per_gib_ms:.0f} ms of step: {found['hidden'][1]:.0%} to {found['hidden'][0]:.0%} is hidden"
    )
    return found


def _slope(x: F64, y: F64) -> float:
    return float((x * y).sum() / (x * x).sum())
