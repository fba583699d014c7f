"""What a storage can do in one gap in several turns, against every sequence of them."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from solver.residency import turns

FIRST, END, WRITTEN, DUE, SIZE = 1, 5, 0, 6, 3
INNER, HEAD, TAIL = 0, 3, 4


@numba.njit
def in_turns(kind, size, first, end, written, due, out_ns, in_ns, held, out, back, ending, dropped, copied):  # type: ignore[no-untyped-def]
    """The compiled code calls it from compiled code."""
    return turns.in_turns(
        kind, size, first, end, written, due, out_ns, in_ns, held, out, back, ending, dropped, copied
    )  # fmt: skip


def least_turns(kind: int, out_ns, in_ns, held, out, back, ending, dropped: bool, copied: bool) -> float:  # type: ignore[no-untyped-def]
    """The best saving with at least one move, by trying all turns."""
    best = -np.inf

    def returns(t: int, k: int) -> float:
        return float(in_ns[t] * back[t, k : DUE + 1].min())

    def leaves(t: int, i: int) -> float:
        return 0.0 if copied else float(out_ns[t] * out[t, WRITTEN : i + 1].min())

    def go(row: int, saving: float, moves: int) -> None:
        nonlocal best
        if moves and kind != TAIL:
            best = max(best, saving)
        for t in range(len(out_ns)):
            for i in range(row, END + 1):
                gone = saving - leaves(t, i)
                if kind == TAIL:
                    best = max(best, gone + SIZE * (held[t, END] - held[t, i]))
                for k in range(i + 1, END + 1):
                    go(k, gone + SIZE * (held[t, k] - held[t, i]) - returns(t, k), moves + 1)

    if kind == HEAD:
        for t in range(len(out_ns)):
            for k in range(FIRST, END + 1):
                go(k, SIZE * (held[t, k] - held[t, FIRST]) - returns(t, k), 1)
        return best
    go(FIRST, 0.0, 0)
    for k in range(FIRST + 1, END + 1) if dropped else ():
        go(k, ending[k - FIRST], 0)
    return best


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("kind", [INNER, HEAD, TAIL])
def test_as_good_as_the_best_of_all_turns(kind: int, seed: int) -> None:
    dice = np.random.default_rng(seed)
    tiers, slots = int(dice.integers(1, 4)), 8
    out_ns, in_ns = dice.integers(1, 9, tiers), dice.integers(1, 9, tiers)
    held = np.cumsum(dice.normal(0.3, 1.0, (tiers, slots)), axis=1)
    out, back = dice.random((2, tiers, slots))
    ending = dice.normal(0.0, 2.0, slots)
    for dropped in (False, True) if kind == INNER else (False,):
        for copied in (False, True) if kind != HEAD else (False,):
            found = in_turns(
                kind, SIZE, FIRST, END, WRITTEN, DUE, out_ns, in_ns, held, out, back, ending, dropped, copied
            )
            known = least_turns(kind, out_ns, in_ns, held, out, back, ending, dropped, copied)
            assert found == pytest.approx(known)
