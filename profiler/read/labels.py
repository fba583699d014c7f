"""Names out of files, made harmless: one line of printable text of bounded length.

Names of operators, streams and frames end in terminals, pages and databases. None of these builds commands from them;
still, a control character or a megabyte of text in a name helps nobody.
"""

from __future__ import annotations

import re
from functools import lru_cache

LONGEST = 200
"""Characters of a name that are kept."""

_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]+")


def label(value: object) -> str:
    """`value` as a name, if it is text: control, direction and half characters are blanks, and what is more than
    `LONGEST` characters is cut off. Anything but text has no name. Equal names are one object: a step repeats its
    names a million times."""
    return _label(value) if isinstance(value, str) else ""


@lru_cache(maxsize=1 << 16)
def _label(value: str) -> str:
    if len(value) <= LONGEST and value.isascii() and value.isprintable():
        return value
    text = _ODD.sub(" ", value[: 2 * LONGEST]).strip()
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
