"""Which kernels read a block in the middle of its life: inferred from shapes.

Known are a block's first operator (it was asked for there) and its last (it was given back after it). A kernel in
between that reads a tensor of the block's size may have read it. Taken is, for each input, the youngest block alive of
that size, one of the same shape before others, and no block twice for one kernel: activations are used youngest first,
both by the next layer and by backward, which frees them in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from profiler.read.timeline.lives import Lives
from profiler.read.timeline.shapes import Tensor, block_sizes, tensors


@dataclass(frozen=True)
class Accesses:
    """`reads`: by operator the blocks that it reads in the middle of their lives. `tensor`: by block what its first
    operator wrote into it, as "4096,1024 DT_BF16"; missing where no output fits. `shaped`: whether kernels have
    shapes at all; if not, nothing is known about the middle."""

    reads: list[set[int]]
    tensor: dict[int, str]
    shaped: bool


def accesses(kernels: pl.DataFrame, blocks: pl.DataFrame, found: Lives) -> Accesses:
    """`kernels`: those that `found` counts operators by, in that order; `blocks`: those that it has lives of."""
    size = blocks["bytes"].to_list()
    first, last = found.first.tolist(), found.last.tolist()
    born: dict[int, list[int]] = {}
    for block in range(len(size)):
        if first[block] <= last[block]:
            born.setdefault(first[block], []).append(block)
    alive: dict[int, list[int]] = {}
    reads: list[set[int]] = []
    tensor: dict[int, str] = {}
    shape: dict[int, str] = {}
    shaped = kernels["inputs"].null_count() < kernels.height
    if not born or not shaped:
        return Accesses([set()] * kernels.height, {}, shaped)
    columns = kernels.select("inputs", "input_types", "outputs", "output_types")
    for k, (inputs, input_types, outputs, output_types) in enumerate(columns.iter_rows()):
        taken: set[int] = set()
        for one in tensors(inputs, input_types):
            if (read := _youngest(one, alive, last, shape, taken, k)) is not None:
                taken.add(read)
        reads.append({block for block in taken if last[block] > k})
        written = list(tensors(outputs, output_types))
        for block in born.get(k, ()):
            alive.setdefault(size[block], []).append(block)
            fit = next((one for one in written if size[block] in block_sizes(one[1])), None)
            if fit is not None and not found.before[block]:
                written.remove(fit)
                shape[block] = _squeezed(fit[0])
                kind = (output_types or "").split(";")[0]
                tensor[block] = f"{fit[0]} {kind}"
    return Accesses(reads, tensor, shaped)


def _youngest(
    one: Tensor, alive: dict[int, list[int]], last: list[int], shape: dict[int, str], taken: set[int], k: int
) -> int | None:
    other: int | None = None
    wanted = _squeezed(one[0])
    for size in block_sizes(one[1]):
        lying = alive.get(size)
        if not lying:
            continue
        lying[:] = [block for block in lying if last[block] >= k]
        for block in reversed(lying):
            if block in taken:
                continue
            if shape.get(block) == wanted:
                return block
            other = block if other is None else other
    return other


def _squeezed(shape: str) -> str:
    return ",".join(number for number in shape.split(",") if number != "1")
