"""Events of a Chrome trace, sorted into what a profile needs, in columns: a trace of a gigabyte has millions.

::

    host lane    ─[aten::mm ──────]──[ProfilerStep#3 ──    spans of operators, marks of steps
                     [launch]  │ [memory] +512             launches; blocks taken and given back
                        │ link
    device lane         └────▶ ═[gemm]═                    spans on a device

Which lane is a device is told by an event's category (Kineto) or by the name of its process (Ascend), which may stand
behind the events: so spans without a category are kept until the end. Times are integer nanoseconds.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from profiler.read.labels import label
from profiler.read.torch.shape_text import shapes_text, types_text

NOT_KNOWN = -1
"""In columns of links and of names."""

DEVICE, LAUNCH, OPERATOR, PLAIN = range(4)
"""What a span is: on a device, the call that sent it there, an operator of the framework; or not said."""

DEVICE_CATEGORIES = {
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "concurrent_kernel",
    "mtia_ccp_events",
    "privateuse1_kernel",
    "npu_kernel",
}
LAUNCH_CATEGORIES = {"cuda_runtime", "cuda_driver", "runtime", "privateuse1_runtime", "mtia_runtime", "xpu_runtime"}
OPERATOR_CATEGORIES = {"cpu_op", "Operator"}
MARK_CATEGORIES = {"cpu_op", "user_annotation", "Operator", ""}
KINDS = {
    "": PLAIN,
    **dict.fromkeys(LAUNCH_CATEGORIES, LAUNCH),
    **dict.fromkeys(DEVICE_CATEGORIES, DEVICE),
    **dict.fromkeys(OPERATOR_CATEGORIES, OPERATOR),
}
"""By category; spans of others are passed over."""
LAUNCH_FLOWS = ("async_npu", "HostToDevice")
"""Arrows from the host to a device; the first one starts where the framework asked, where memory is taken too."""

STEP = re.compile(r"ProfilerStep\s?#\s?(\d{1,9})$")
_DECIMAL = re.compile(r"\s*(-?)(\d{1,18})(?:\.(\d{1,30}))?\s*$")
_LARGEST = 2**62


def nanoseconds(value: object, per_unit: int = 1000) -> int | None:
    """Integer ns of a time in units of `per_unit` ns, a number or its text; None where it is neither.

    "1736412474701224.784" -> 1736412474701224784: exact where a double would lose the last digits."""
    if type(value) is int:
        found = value * per_unit
    elif isinstance(value, str):
        # Most times are microseconds with three decimals.
        if per_unit == 1000 and value[-4:-3] == "." and len(value) < 20:
            plain = value[:-4] + value[-3:]
            if plain.isascii() and plain.isdecimal():
                return int(plain)
        match = _DECIMAL.match(value)
        if match is not None:
            sign, whole, part = match.groups()
            digits = len(part or "")
            found = int(whole) * per_unit + ((int(part) * per_unit * 2 + 10**digits) // (2 * 10**digits) if part else 0)
            found = -found if sign else found
        else:
            try:
                number = float(value) * per_unit
            except ValueError:
                return None
            if not math.isfinite(number) or abs(number) > _LARGEST:
                return None
            found = round(number)
    else:
        return None
    return found if -_LARGEST < found < _LARGEST else None


@dataclass
class Names:
    """Texts, each kept once."""

    texts: list[str] = field(default_factory=list)
    index: dict[str, int] = field(default_factory=dict)

    def of(self, text: str) -> int:
        found = self.index.get(text)
        if found is None:
            found = self.index[text] = len(self.texts)
            self.texts.append(text)
        return found

    def label(self, value: object) -> int:
        """As `of`, of the `label` of a value; a text that is there is its own label."""
        found = self.index.get(value) if type(value) is str else None
        return self.of(label(value)) if found is None else found


class MemoryEvent(NamedTuple):
    """Memory taken (`bytes` > 0) or given back; `allocated` and `reserved` after it. `NOT_KNOWN` where not said."""

    time: int
    lane: int
    address: int
    bytes: int
    kind: int
    device: int
    allocated: int
    reserved: int


COLUMNS = ("what", "lane", "name", "kind", "start", "duration", "link", "operator", "shapes", "types", "device")
Lane = tuple[str, str]
"""Process and thread, as the trace numbers them."""


@dataclass
class Trace:
    """Filled by `add`, an event at a time. `per_unit`: nanoseconds of the trace's unit of time."""

    per_unit: int = 1000
    spans: array[int] = field(default_factory=lambda: array("q"))
    """`COLUMNS` of the first one, of the second, and so on."""
    names: Names = field(default_factory=Names)
    lanes: dict[Lane, int] = field(default_factory=dict)
    numbered: dict[tuple[int, int], int] = field(default_factory=dict)
    """As `lanes`, by numbers."""
    processes: dict[str, str] = field(default_factory=dict)
    threads: dict[Lane, str] = field(default_factory=dict)
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    """(number, start, duration)"""
    memory: list[MemoryEvent] = field(default_factory=list)
    arrows: dict[tuple[str, str], int] = field(default_factory=dict)
    """(category, id) -> start on the host"""
    heads: list[tuple[str, str, int, int]] = field(default_factory=list)
    """(category, id, lane, time on the device)"""
    dropped: Counter[str] = field(default_factory=Counter)
    passed: Counter[str] = field(default_factory=Counter)
    """Spans of categories that say nothing about the device, by category."""
    open: dict[int, list[tuple[int, dict[str, Any]]]] = field(default_factory=dict)

    def add(self, event: object) -> None:
        if not isinstance(event, dict):
            self.dropped["elements that are no events"] += 1
            return
        phase = event.get("ph")
        if phase == "X":
            self._span(event, event.get("dur"))
        elif phase == "M":
            self._name_lane(event)
        elif phase == "i" and event.get("name") == "[memory]":
            self._memory(event)
        elif phase in ("s", "f") and event.get("cat") in LAUNCH_FLOWS:
            self._arrow(event, phase)
        elif phase == "B" or phase == "E":
            self._half(event, phase)
        elif not isinstance(phase, str):
            self.dropped["events without a phase"] += 1

    def lane(self, event: dict[str, Any]) -> int:
        process, thread = event.get("pid"), event.get("tid")
        plain = type(process) is int and type(thread) is int
        found = self.numbered.get((process, thread)) if plain else None  # type: ignore[arg-type]
        if found is None:
            found = self.lanes.setdefault((_key(process), _key(thread)), len(self.lanes))
            if plain:
                self.numbered[process, thread] = found  # type: ignore[index]
        return found

    def _span(self, event: dict[str, Any], duration: object) -> None:
        told = event.get("cat") or ""
        category = told if isinstance(told, str) else "?"
        what = KINDS.get(category)
        name = event.get("name")
        mark = STEP.match(name) if isinstance(name, str) and category in MARK_CATEGORIES else None
        if what is None and mark is None:
            self.passed[label(category)] += 1
            return
        start, length = nanoseconds(event.get("ts"), self.per_unit), nanoseconds(duration, self.per_unit)
        if start is None or length is None:
            self.dropped["spans without a time or duration"] += 1
        elif length < 0:
            self.dropped["spans of a negative duration"] += 1
        elif mark is not None:
            self.steps.append((int(mark[1]), start, length))
        elif what is not None:
            args = event.get("args")
            self._keep(what, event, start, length, args if isinstance(args, dict) else {})

    def _keep(self, what: int, event: dict[str, Any], start: int, length: int, args: dict[str, Any]) -> None:
        names = self.names
        kind = args.get("Task Type") or args.get("task type") or "" if what == PLAIN else event.get("cat")
        dims = args.get("Input Dims")
        self.spans.extend(
            (
                what,
                self.lane(event),
                names.label(event.get("name")),
                names.label(kind),
                start,
                length,
                _number(args.get("correlation")),
                _number(args.get("External id", args.get("external id"))),
                NOT_KNOWN if dims is None else names.of(shapes_text(dims)),
                NOT_KNOWN if dims is None else names.of(types_text(args.get("Input type"))),
                _number(args.get("device")),
            )
        )

    def _name_lane(self, event: dict[str, Any]) -> None:
        args = event.get("args")
        name = args.get("name") if isinstance(args, dict) else None
        process = _key(event.get("pid"))
        if event.get("name") == "process_name":
            self.processes[process] = label(name)
        elif event.get("name") == "thread_name":
            self.threads[process, _key(event.get("tid"))] = label(name)

    def _memory(self, event: dict[str, Any]) -> None:
        time, args = nanoseconds(event.get("ts"), self.per_unit), event.get("args")
        if time is None or not isinstance(args, dict):
            self.dropped["memory events without a time or figures"] += 1
            return
        named = ("Addr", "Bytes", "Device Type", "Device Id", "Total Allocated", "Total Reserved")
        address, size, kind, device, allocated, reserved = (_integer(args.get(name)) for name in named)
        if address is None or size is None or kind is None or not 0 < abs(size) <= 2**53:
            self.dropped["memory events without a time or figures"] += 1
            return
        device = NOT_KNOWN if device is None else device
        allocated, reserved = (NOT_KNOWN if n is None or not 0 <= n <= 2**53 else n for n in (allocated, reserved))
        self.memory.append(MemoryEvent(time, self.lane(event), address, size, kind, device, allocated, reserved))

    def _arrow(self, event: dict[str, Any], phase: str) -> None:
        category, arrow = event["cat"], _key(event.get("id"))
        time = nanoseconds(event.get("ts"), self.per_unit)
        if time is None:
            self.dropped["arrows without a time"] += 1
        elif phase == "s":
            self.arrows[category, arrow] = time
        else:
            self.heads.append((category, arrow, self.lane(event), time))

    def _half(self, event: dict[str, Any], phase: str) -> None:
        """A span in two events: kept with the first one's name."""
        time, lane = nanoseconds(event.get("ts"), self.per_unit), self.lane(event)
        begun = self.open.setdefault(lane, [])
        if time is None:
            self.dropped["spans without a time or duration"] += 1
        elif phase == "B":
            begun.append((time, event))
        elif begun:
            start, first = begun.pop()
            self._span({**first, "ts": _text(start, self.per_unit)}, _text(time - start, self.per_unit))
        else:
            self.dropped["ends of spans without a begin"] += 1

    def finish(self) -> None:
        """Nothing follows: spans that have begun and not ended are dropped."""
        self.dropped["spans without an end"] += sum(len(begun) for begun in self.open.values())
        self.open.clear()

    def frame(self) -> pl.DataFrame:
        """Spans in order of start, names as text."""
        table = np.frombuffer(self.spans, np.int64).reshape(-1, len(COLUMNS))
        raw = pl.DataFrame(
            {column: table[:, i] for i, column in enumerate(COLUMNS)}, schema=dict.fromkeys(COLUMNS, pl.Int64)
        )
        texts = pl.Series("texts", self.names.texts, pl.String)

        def text(column: str) -> pl.Expr:
            known = pl.when(pl.col(column) >= 0).then(pl.col(column))
            return known.replace_strict(
                pl.int_range(texts.len(), eager=True), texts, default=None, return_dtype=pl.String
            ).alias(column)

        if not self.names.texts:
            return raw.with_columns(pl.col("name", "kind", "shapes", "types").cast(pl.String))
        named = raw.with_columns(text(column) for column in ("name", "kind", "shapes", "types"))
        return named.sort("start", "duration", descending=[False, True], maintain_order=True)


def _key(value: object) -> str:
    return str(value) if type(value) is int and -_LARGEST < value < _LARGEST else label(value)


def _integer(value: object) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,20}", value):
        value = int(value)
    return value if type(value) is int and -(2**64) <= value <= 2**64 else None


def _number(value: object) -> int:
    """An id that links events; they are counted from 0 or 1."""
    if value is None:
        return NOT_KNOWN
    if type(value) is int and 0 <= value < _LARGEST:
        return value
    number = _integer(value)
    return number if number is not None and 0 <= number < _LARGEST else NOT_KNOWN


def _text(time: int, per_unit: int) -> str:
    """`time` in ns as text in the trace's unit: what `nanoseconds` reads back exactly."""
    digits = len(str(per_unit)) - 1
    sign, time = ("-", -time) if time < 0 else ("", time)
    return f"{sign}{time // per_unit}.{time % per_unit:0{digits}d}" if digits else f"{sign}{time}"
