"""Collectives of the real Ascend run: latency and bandwidth of messages fitted without one rank, and tried on that.

`communication.json` has, for each collective and kind of link, how many messages of which size there were and how long
they took together; sizes are MB of 10^6. What a collective takes beyond its messages is waiting for the other ranks,
which no link model knows: so messages are compared, and of whole collectives those that hardly waited.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hyperopt.cost.analytic import fit_messages

LINK = "HCCS"
HARDLY = 0.85
"""Share of a collective's time that its messages take, for it to count as one that did not wait."""


def collectives(run: Path) -> dict[str, Any] | None:
    """None where the run, or messages in it, are absent."""
    paths = sorted(run.glob("*/ASCEND_PROFILER_OUTPUT/communication.json"))
    ranks = {path.parts[-3]: _messages(path) for path in paths}
    ranks = {name: found for name, found in ranks.items() if found["messages"]}
    if len(ranks) < 2:
        return None
    rows = {}
    for name, found in ranks.items():
        others = np.array([m for other, theirs in ranks.items() if other != name for m in theirs["messages"]])
        latency, bandwidth = fit_messages(np.ones(len(others)), others[:, 0], others[:, 1])
        mine = np.array(found["messages"])
        off = np.abs((latency + mine[:, 0] / bandwidth * 1e6) / mine[:, 1] - 1)
        whole = [
            abs((count * latency + size / bandwidth * 1e6) / us - 1) for count, size, us in found["collectives"]
        ]
        rows[name] = {
            "messages": len(mine),
            "latency_us": latency,
            "bytes_per_s": bandwidth,
            "median": float(np.median(off)),
            "worst": float(off.max()),
            "collectives": len(whole),
            "collectives_median": float(np.median(whole)) if whole else None,
        }
        row = rows[name]
        print(
            f"{name} held out: {row['messages']} sizes of messages, off by {row['median']:.1%} in the median, "
            f"{row['worst']:.1%} at worst; {row['collectives']} collectives that did not wait "
            + ("" if not whole else f"by {row['collectives_median']:.1%} in the median; ")
            + f"latency {latency:.2f} us, {bandwidth / 1e9:.1f} GB/s"
        )
    return rows


def _messages(path: Path) -> dict[str, list[tuple[float, ...]]]:
    """(bytes, us) of messages by size, and (messages, bytes, us) of collectives that hardly waited."""
    messages, whole = [], []
    for step in json.loads(path.read_text()).values():
        for name, found in step.get("collective", {}).items():
            link = found.get("Communication Bandwidth Info", {}).get(LINK, {})
            sizes = link.get("Size Distribution", {})
            if not sizes or name.startswith("Total"):
                continue
            for size, (count, ms) in sizes.items():
                if float(ms) > 0:
                    messages.append((float(size) * 1e6, float(ms) * 1e3 / count))
            elapsed = found["Communication Time Info"]["Elapse Time(ms)"]
            if float(link["Transit Time(ms)"]) > HARDLY * elapsed:
                count = sum(n for n, _ in sizes.values())
                whole.append((float(count), float(link["Transit Size(MB)"]) * 1e6, elapsed * 1e3))
    return {"messages": messages, "collectives": whole}
