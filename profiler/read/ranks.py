"""What a source of profiles is, for `profiler.read.read`: it recognises a place on disk and reads one rank of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hyperopt.profile import Profile
from profiler.read.findings import Findings


@dataclass(frozen=True)
class RankFiles:
    """One rank as it lies on disk: a folder or a single file. `rank`: None where nothing there says which."""

    path: Path
    rank: int | None = None


@dataclass(frozen=True)
class Source:
    """A kind of profile.

    `find`: the ranks at this folder or file, if it is of this kind (it looks at names and first bytes, not further
    down than the kind's own layout); empty if it is not. `read`: a checked profile of one of them; what it had to
    drop, convert or do without goes to the findings. It raises `UnreadableError` where nothing can be made of it.
    `passed_over`: what must be said of a place in which `find` saw nothing of use, if another source reads it.
    """

    kind: str
    about: str
    find: Callable[[Path], list[RankFiles]]
    read: Callable[[RankFiles, Findings], Profile]
    passed_over: Callable[[Path], Sequence[str]] = lambda path: ()
