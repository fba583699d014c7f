"""JSON of any size, one event at a time: traces of gigabytes are a single line.

The outermost list (or the list under one key of the outermost object) is gone through in pieces; each element is
decoded by itself with the decoder of the standard library, in C, and is all that is held::

    {"schemaVersion": 1, "traceEvents": [ {...}, {...}, {...   │ not read yet
     └── header ───────┘                  └ yielded ┘  └ waits for the next piece

A streaming parser (ijson, with its C backend) hands out values without a bound on their size, for one dependency more
and the same speed (measured: 198 MB, 890,000 events, 1.8 s; here 1.9 s). Here an element larger than `MAX_ELEMENT` ends
the reading. Numbers with a point stay text, so that no digit of a time is lost.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any, cast

from profiler.read.findings import Findings, UnreadableError

MAX_ELEMENT = 16 << 20
"""Characters of one element of the list, or of one value beside it. Events have hundreds, with stacks thousands."""

TOO_LARGE = "an element has more than {:,} characters"

MAX_TEXT = 64 << 30
"""Characters in all. A compressed file of a few megabytes can say so much."""

CHUNK = 1 << 20

GZIP_MAGIC = b"\x1f\x8b"

_NUMBER = re.compile(r"[-+.eE0-9]*")
_BLANK = re.compile(r"[ \t\r\n]*")
_COMMA = re.compile(r"[ \t\r\n]*,[ \t\r\n]*(?=\{)")


def head_of(path: Path, size: int) -> bytes:
    """The first `size` bytes of the text in a file, plain or gzip; empty where there is none."""
    try:
        with path.open("rb") as file:
            head = file.read(size)
        return zlib.decompressobj(31).decompress(head, size) if head.startswith(GZIP_MAGIC) else head
    except (OSError, zlib.error):
        return b""


class Damaged(Exception):
    """The text ends too early or is no JSON from here on; the message says which."""


class JsonStream:
    """The JSON text in the file at `path` (plain or gzip).

    `elements(key)` yields what the outermost list holds, or the list under `key` of the outermost object. `header`:
    the values of that object under the keys to `keep`, as far as they have been passed. `damage`: why the reading
    ended early, if it did.
    """

    def __init__(self, path: Path, findings: Findings, keep: Collection[str] = ()) -> None:
        self.path, self.findings, self.keep = path, findings, keep
        self.header: dict[str, Any] = {}
        self.damage = ""
        self._decode = json.JSONDecoder(parse_float=str, parse_constant=str).raw_decode
        self._text, self._at, self._read, self._ended = "", 0, 0, False
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")("replace")

    def elements(self, key: str) -> Iterator[Any]:
        """Elements in order. Where the text is damaged the iteration ends, and the findings say so."""
        with self.path.open("rb") as file:
            zipped = file.read(2) == GZIP_MAGIC
            file.seek(0)
            self._file = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if zipped else file
            count = 0
            try:
                for element in self._outermost(key):
                    count += 1
                    yield element
            except Damaged as error:
                self.damage = f"{error}, at character {self._read - len(self._text) + self._at:,}"
                self.findings.warn(
                    f"{self.findings.name(self.path)}: {self.damage}; the {count:,} elements before are read"
                )

    def but(self, without: str) -> UnreadableError:
        """What to raise where the text is of no use: it is `without` something, and that is why if it is damaged."""
        why = f": {self.damage}" if self.damage else ""
        return UnreadableError(f"{self.path.name} has no {without}{why}")

    def _outermost(self, key: str) -> Iterator[Any]:
        first = self._next()
        if first == "[":
            yield from self._list()
        elif first == "{":
            yield from self._object(key)
        else:
            raise UnreadableError(f"{self.path.name} is no JSON list or object")

    def _object(self, key: str) -> Iterator[Any]:
        self._at += 1
        while (sign := self._next()) != "}":
            if sign == ",":
                self._at += 1
                self._next()
            name = self._value()
            if not isinstance(name, str) or self._next() != ":":
                raise Damaged("no key, where one must be")
            self._at += 1
            if self._next() == "[" and name == key:
                yield from self._list()
            else:
                value = self._value()
                if name in self.keep:
                    self.header[name] = value

    def _list(self) -> Iterator[Any]:
        self._at += 1
        while True:
            yield from self._objects()
            sign = self._next()
            if sign == "]":
                break
            if sign == ",":
                self._at += 1
                # A comma before the bracket is no JSON, but a tool's habit.
                if self._next() == "]":
                    break
            yield self._value()
        self._at += 1

    def _objects(self) -> Iterator[Any]:
        """Objects of a list, as long as they lie whole in what has been read: most of a trace, and each ends at its
        bracket. What is wrong with the one after them is not looked into here."""
        decode, comma = self._decode, _COMMA.match
        while following := comma(self._text, self._at):
            begin = following.end()
            try:
                value, end = decode(self._text, begin)
            except (ValueError, RecursionError):
                return
            if end - begin > MAX_ELEMENT:
                return
            self._at = end
            yield value

    def _next(self) -> str:
        """The next character that is not blank; it stays to be read."""
        while True:
            blank = _BLANK.match(self._text, self._at)
            assert blank is not None
            self._at = blank.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more(CHUNK):
                raise Damaged("the file ends in the middle")

    def _value(self) -> Any:
        """The value that begins here. What is cut off and what is wrong look alike until more has been read."""
        size = CHUNK
        while True:
            fault = ""
            try:
                value, end = self._decode(self._text, self._at)
                # A number at the end of what is read may go on: "12" with "3", "0." with "5", "1e" with "-3".
                rest = _NUMBER.match(self._text, end)
                if self._ended or (rest is not None and rest.end() < len(self._text)):
                    if end - self._at > MAX_ELEMENT:
                        raise Damaged(TOO_LARGE.format(MAX_ELEMENT))
                    self._at = end
                    return value
            except json.JSONDecodeError as error:
                fault = f", or is no JSON ({error.msg})"
            except RecursionError:
                raise Damaged("brackets are nested too deeply") from None
            except ValueError:
                raise Damaged("a number has thousands of digits") from None
            if len(self._text) - self._at > MAX_ELEMENT:
                raise Damaged(TOO_LARGE.format(MAX_ELEMENT) + fault)
            if not self._more(size):
                raise Damaged(f"the file ends in the middle{fault}")
            size *= 2

    def _more(self, size: int) -> bool:
        """Reads on, forgetting what has been passed. False at the end."""
        if self._ended:
            return False
        try:
            data = self._file.read(size)
        except (OSError, EOFError, zlib.error) as error:
            self._ended = True
            raise Damaged(f"cannot be unpacked further ({type(error).__name__})") from None
        self._ended = not data
        piece = self._utf8.decode(data, final=self._ended)
        self._read += len(piece)
        if self._read > MAX_TEXT:
            raise Damaged(f"more than {MAX_TEXT:,} characters")
        self._text = self._text[self._at :] + piece
        self._at = 0
        return not self._ended or bool(piece)
