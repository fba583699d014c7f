"""Which operators run again to make a storage's content anew, from what is alive at that place: compiled.

::

    operators    0: a    1: b from a    2: c from b    ...    9: reads c
    chain of c before 9, when a is alive and b is not:  1, 2; a is held

Freed inputs are made again too, or, in a *shallow* chain, held (or moved) until then where they are smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hyperopt.engine.arrays import rows
from solver.residency.compiled import entry, inner
from solver.residency.problem import Int64s, Problem


@dataclass(frozen=True)
class Chains:
    """Per request (a storage, and the operator before which it is wanted) the operators, rising, `ops[op_at[i] :
    op_at[i + 1]]`; none where there is no chain; and the storages that they need held."""

    op_at: Int64s
    ops: Int64s
    held_at: Int64s
    held: Int64s

    def of(self, i: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Operators and held storages of request i."""
        ops = self.ops[self.op_at[i] : self.op_at[i + 1]]
        held = self.held[self.held_at[i] : self.held_at[i + 1]]
        return tuple(ops.tolist()), tuple(held.tolist())


def chains(problem: Problem, storage: Int64s, before: Int64s, *, shallow: bool, longest: int) -> Chains:
    """The chain of each request, of up to `longest` operators."""
    program = problem.program
    spans = np.asarray([span or (0, 0) for span in problem.alive], dtype=np.int64).reshape(-1, 2)
    found = _chains(
        storage, before, shallow, longest, *rows(program.reads), *rows(program.writers),
        np.asarray([o.recomputable for o in problem.profile.operators], dtype=np.bool_),
        np.ascontiguousarray(spans[:, 0]), np.ascontiguousarray(spans[:, 1]), np.asarray(program.size, dtype=np.int64),
    )  # fmt: skip
    op_at, ops, held_at, held = found
    return Chains(op_at, _rising(op_at, ops), held_at, _rising(held_at, held))


def _rising(at: Int64s, values: Int64s) -> Int64s:
    """Each request's values sorted (numpy's own sort takes a second to compile)."""
    values = values[: at[-1]]
    return np.asarray(values[np.lexsort((values, np.repeat(np.arange(len(at) - 1), np.diff(at))))])


@entry
def _chains(  # type: ignore[no-untyped-def]
    storage, before, shallow, longest, read_at, read, writer_at, writer, recomputable, alive_from, alive_to, size
):
    count = len(storage)
    op_at, held_at = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    ops, held = np.empty(4 * count + longest, np.int64), np.empty(4 * count + len(size), np.int64)
    needs, holds = np.empty(len(recomputable), np.int64), np.empty(len(size), np.int64)  # the last request
    needs[:], holds[:] = -1, -1
    frontier = np.empty(len(read) + 1, np.int64)
    for i in range(count):
        s, at = storage[i], before[i]
        first, first_held = op_at[i], held_at[i]
        if len(ops) < first + longest:
            ops = _longer(ops)
        if len(held) < first_held + len(size):
            held = _longer(held)
        end, end_held, waiting = first, first_held, 1
        frontier[0] = _version(writer_at, writer, s, at)
        while waiting:
            waiting -= 1
            k = frontier[waiting]
            able = k >= 0 and recomputable[k] and end - first < longest
            if able and needs[k] != i:
                needs[k] = i
                ops[end] = k
                end += 1
                for j in range(read_at[k], read_at[k + 1]):
                    r = np.int64(read[j])
                    version = _version(writer_at, writer, r, k)
                    if r == s or version != _version(writer_at, writer, r, at):
                        able = False  # updated in place since: its old content is gone for good
                        break
                    alive = alive_from[r] <= at < alive_to[r]
                    if alive or (shallow and size[r] < size[s]) or version < 0 or not recomputable[version]:
                        if holds[r] != i:
                            holds[r] = i
                            held[end_held] = r
                            end_held += 1
                    else:
                        frontier[waiting] = version
                        waiting += 1
            if not able:
                end, end_held = first, first_held
                break
        op_at[i + 1], held_at[i + 1] = end, end_held
    return op_at, ops, held_at, held


@inner
def _longer(values):  # type: ignore[no-untyped-def]
    """Twice as long, the new half without meaning."""
    longer = np.empty(2 * len(values), np.int64)
    for i in range(len(values)):
        longer[i] = values[i]
    return longer


@inner
def _version(writer_at, writer, s, op):  # type: ignore[no-untyped-def]
    """The operator whose write of `s` operator `op` finds; -1: as at the step's start."""
    low, high = writer_at[s], writer_at[s + 1]
    while low < high:
        middle = (low + high) // 2
        if writer[middle] < op:
            low = middle + 1
        else:
            high = middle
    return writer[low - 1] if low > writer_at[s] else -1
