"""Plain values out of a pickle, by a machine that knows nothing else.

A pickle is a program. Python's own unpickler can be kept from importing (`find_class`), but not from setting aside
gigabytes for one memo index, or from hashing a nested tuple for hours or until the stack ends. This machine has only
the instructions that build None, bool, int, float, str, bytes, list, tuple and dict; there is no instruction in it
that calls anything::

    ]  \\x94  K\\x01  a  .          [ 1 ]
    │  │     │       │  └ stop
    │  │     │       └ append
    │  │     └ 1
    │  └ remember the list
    └ empty list

Lists may hold each other, and even themselves: whoever walks the result bounds the walk.
"""

from __future__ import annotations

import gc
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from profiler.read.findings import UnreadableError
from profiler.read.labels import label

MAX_BYTES = 2 << 30
"""Of the file."""

MAX_CONTAINERS = 8_000_000
"""Lists, dicts and tuples: each takes one byte of a pickle and some 60 of memory. A snapshot has two an event."""

MAX_INTEGER = 16
"""Bytes of an integer: addresses have 8."""


def read_plain(path: Path) -> object:
    """The value in the pickle at `path`.

    Raises `UnreadableError` that names what it wants besides plain values (`os.system`), or where it is damaged.
    """
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise UnreadableError(f"{path.name} has {size:,} bytes: no more than {MAX_BYTES:,} of a pickle are read")
    if not size:
        raise UnreadableError(f"{path.name} is empty")
    collects = gc.isenabled()
    # Nothing becomes garbage meanwhile, and the collector would visit millions of new containers again and again.
    gc.disable()
    try:
        return Machine(path.read_bytes()).run()
    except UnreadableError as error:
        raise UnreadableError(f"{path.name}: {error}") from None
    finally:
        if collects:
            gc.enable()


class Machine:
    """Runs the pickle `data` once. Protocols 2 (torch's C++ writer) to 5, as far as plain values need them; the text
    forms of 0 and 1 are not known."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}
        self.containers = 0

    def run(self) -> object:
        data, known, memo, stack = self.data, _INSTRUCTIONS, self.memo, self.stack
        try:
            while True:
                code = data[self.at]
                self.at += 1
                # Nearly all of a snapshot are these three: frames are lists of what has been said before.
                if code == MEMOIZE:
                    memo[len(memo)] = stack[-1]
                elif code == LONG_BINGET:
                    stack.append(memo[_FOUR(data, self.at)[0]])
                    self.at += 4
                elif code == BINGET:
                    stack.append(memo[data[self.at]])
                    self.at += 1
                elif code == STOP:
                    if len(stack) != 1 or self.marks:
                        self.damaged("it stops with more or less than one value")
                    return stack[0]
                else:
                    do = known[code]
                    if do is None:
                        self.refuse(code)
                    do(self)
        except (IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
            self.damaged("its end is missing" if self.at >= len(data) else type(error).__name__)

    def damaged(self, why: str) -> NoReturn:
        raise UnreadableError(f"the pickle is damaged at byte {self.at} ({why}); was the file copied whole?")

    def refuse(self, code: int) -> NoReturn:
        """Name what the pickle wants, as far as it can be told without doing it."""
        if code in (GLOBAL, INST):
            wanted = self._line() + "." + self._line()
        elif code == STACK_GLOBAL and len(self.stack) >= 2:
            module, name = self.stack[-2:]
            wanted = f"{label(module) or '?'}.{label(name) or '?'}"
        else:
            wanted = f"instruction 0x{code:02x} ({_REFUSED.get(code, 'unknown')})"
        raise UnreadableError(
            f"the pickle wants {wanted} at byte {self.at - 1}: only plain values are read from pickles, and nothing in "
            "them is ever run"
        )

    def _line(self) -> str:
        end = self.data.find(b"\n", self.at, self.at + 1000)
        text = self.data[self.at : end if end >= 0 else self.at]
        self.at += len(text) + 1
        return label(text.decode("utf-8", "replace")) or "?"

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        start = self.at
        if count > len(self.data) - start:
            self.damaged("it says more bytes follow than do")
        self.at = start + count
        return self.data[start : start + count]

    def take_number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def contain(self, value: object) -> None:
        self.containers += 1
        if self.containers > MAX_CONTAINERS:
            raise UnreadableError(f"the pickle has more than {MAX_CONTAINERS:,} lists, dicts and tuples")
        self.stack.append(value)

    def since_mark(self) -> list[object]:
        """What has been stacked since the last mark, taken off with it."""
        mark = self.marks.pop()
        if mark > len(self.stack):
            self.damaged("values before a mark are gone")
        values = self.stack[mark:]
        del self.stack[mark:]
        return values

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count + (self.marks[-1] if self.marks else 0):
            self.damaged("a tuple lacks values")
        values = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        self.contain(tuple(values))

    def append(self, values: list[object]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            self.damaged("it appends to what is no list")
        target.extend(values)

    def set_items(self, values: list[object]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(values) % 2:
            self.damaged("it sets items of what is no dict")
        keys = values[::2]
        # A nested tuple as key would be hashed all the way down, each time.
        if not all(type(key) in (str, int) for key in keys):
            raise UnreadableError(f"the pickle has a key that is neither text nor integer, at byte {self.at}")
        target.update(zip(keys, values[1::2], strict=True))

    def integer(self, size: int) -> None:
        if size > MAX_INTEGER:
            self.damaged(f"an integer of {size} bytes")
        self.stack.append(int.from_bytes(self.take(size), "little", signed=True))

    def text(self, size: int) -> None:
        self.stack.append(self.take(size).decode("utf-8", "surrogatepass"))

    def pop(self) -> None:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.stack.pop()

    def item(self) -> None:
        value = self.stack.pop()
        key = self.stack.pop()
        self.set_items([key, value])

    def remember(self, index: int) -> None:
        self.memo[index] = self.stack[-1]


STOP, MEMOIZE, BINGET, LONG_BINGET = 0x2E, 0x94, 0x68, 0x6A
GLOBAL, INST, STACK_GLOBAL = 0x63, 0x69, 0x93

_FOUR = struct.Struct("<I").unpack_from

_REFUSED = {
    0x52: "call",
    0x62: "set state",
    0x6F: "make object",
    0x81: "make object",
    0x92: "make object",
    0x50: "object kept elsewhere",
    0x51: "object kept elsewhere",
    0x82: "registered object",
    0x83: "registered object",
    0x84: "registered object",
    0x8F: "set",
    0x90: "set",
    0x91: "frozen set",
    0x96: "bytearray",
    0x97: "buffer kept elsewhere",
    0x98: "buffer kept elsewhere",
}

Instruction = Callable[[Machine], object]

_KNOWN: dict[int, Instruction] = {
    0x80: lambda m: m.take(1),  # protocol
    0x95: lambda m: m.take(8),  # frame: how the writer has cut the file, of no meaning here
    0x28: lambda m: m.marks.append(len(m.stack)),
    0x30: lambda m: m.pop(),
    0x31: lambda m: m.since_mark(),
    0x32: lambda m: m.stack.append(m.stack[-1]),
    # values
    0x4E: lambda m: m.stack.append(None),
    0x88: lambda m: m.stack.append(True),
    0x89: lambda m: m.stack.append(False),
    0x4B: lambda m: m.stack.append(m.take_number(1)),
    0x4D: lambda m: m.stack.append(m.take_number(2)),
    0x4A: lambda m: m.integer(4),
    0x8A: lambda m: m.integer(m.take_number(1)),
    0x8B: lambda m: m.integer(m.take_number(4)),
    0x47: lambda m: m.stack.append(struct.unpack(">d", m.take(8))[0]),
    0x8C: lambda m: m.text(m.take_number(1)),
    0x58: lambda m: m.text(m.take_number(4)),
    0x8D: lambda m: m.text(m.take_number(8)),
    0x43: lambda m: m.stack.append(m.take(m.take_number(1))),
    0x42: lambda m: m.stack.append(m.take(m.take_number(4))),
    0x8E: lambda m: m.stack.append(m.take(m.take_number(8))),
    # containers
    0x5D: lambda m: m.contain([]),
    0x7D: lambda m: m.contain({}),
    0x29: lambda m: m.contain(()),
    0x6C: lambda m: m.contain(m.since_mark()),
    0x74: lambda m: m.contain(tuple(m.since_mark())),
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    0x61: lambda m: m.append([m.stack.pop()]),
    0x65: lambda m: m.append(m.since_mark()),
    0x73: lambda m: m.item(),
    0x75: lambda m: m.set_items(m.since_mark()),
    # memo
    0x71: lambda m: m.remember(m.take_number(1)),
    0x72: lambda m: m.remember(m.take_number(4)),
}

_INSTRUCTIONS: list[Instruction | None] = [_KNOWN.get(code) for code in range(256)]
