"""The demonstration's data: a public-domain text as bytes, cut into batches.

The text (Lincoln, Shakespeare, Dickens, Jefferson) ships with the package, so a run
needs no network, and the same seed always gives the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]


def corpus() -> Ids:
    """The whole text as byte values, shape (bytes,), int32 in 0..255."""
    raw = resources.files(__package__).joinpath("text.txt").read_bytes()
    return np.frombuffer(raw, dtype=np.uint8).astype(np.int32)


def batches(batch: int, sequence: int, seed: int = 0) -> Iterator[tuple[Ids, Ids]]:
    """Endless (ids, targets) pairs, each of shape (batch, sequence), int32.

    ``targets`` is ``ids`` moved on by one byte. Raises ValueError if the text is
    shorter than one sequence.
    """
    text = corpus()
    if sequence >= len(text):
        raise ValueError(f"sequence {sequence} does not fit the text of {len(text)} bytes")
    random = np.random.default_rng(seed)
    while True:
        starts = random.integers(0, len(text) - sequence, size=batch)
        window = starts[:, None] + np.arange(sequence + 1)[None, :]
        piece = text[window]
        yield np.ascontiguousarray(piece[:, :-1]), np.ascontiguousarray(piece[:, 1:])
