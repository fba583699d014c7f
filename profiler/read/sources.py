"""The kinds of profile that are understood, in the order in which they are asked whether a place is theirs.

Specific ones come before general ones: a Chrome trace lies in folders of nearly every other kind.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from profiler.read.ranks import Source

MODULES = (
    "documents",
    "ascend.database",
    "ascend.text",
    "mindspore.memory_tracker",
    "mindspore.cpu",
    "torch.snapshot",
    "torch.activation_trace",
    "torch.chakra",
    "mindspore.mindinsight",
    "torch.chrome_trace",
)
"""Modules of `profiler.read`, each with its `SOURCE`."""


@cache
def all_sources() -> tuple[Source, ...]:
    """All of them, imported when they are first asked for: some bring libraries that take their time."""
    found = []
    for name in MODULES:
        source = import_module(f"profiler.read.{name}").SOURCE
        assert isinstance(source, Source), f"profiler.read.{name}.SOURCE is no Source"
        found.append(source)
    return tuple(found)
