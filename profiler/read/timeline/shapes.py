"""Bytes of tensors from shapes as Ascend's profilers write them: ``"4096,1024;4096,1;;"`` with ``"DT_BF16;FLOAT;.."``.

Parts are separated by semicolons; a scalar is an empty part. A block of torch_npu's pool is the tensor's bytes and a
header of 32, rounded up to 512 (16 MiB take 16384.5 KB: PROFILE_FORMATS, A.3); MindSpore rounds up to 512 alone.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import polars as pl

UNIT = 512
HEADER = 32

ITEM_BYTES = {
    "FLOAT": 4, "FLOAT32": 4, "FLOAT16": 2, "BF16": 2, "BFLOAT16": 2, "DOUBLE": 8, "FLOAT64": 8,
    "INT8": 1, "UINT8": 1, "INT16": 2, "UINT16": 2, "INT32": 4, "UINT32": 4, "INT64": 8, "UINT64": 8, "INT": 4,
    "BOOL": 1, "COMPLEX64": 8, "COMPLEX128": 16, "HIFLOAT8": 1, "FLOAT8_E4M3FN": 1, "FLOAT8_E5M2": 1,
}  # fmt: skip

Tensor = tuple[str, int]
"""Shape as written, and bytes."""


@lru_cache(maxsize=1 << 16)
def tensors(shapes: str | None, types: str | None) -> tuple[Tensor, ...]:
    """The tensors of one side of a kernel that have a shape and a known type; ``("4096,1024", 8388608)``."""
    if not shapes or not types:
        return ()
    found = []
    for shape, kind in zip(shapes.split(";"), types.split(";"), strict=False):
        item = ITEM_BYTES.get(kind.strip().upper().removeprefix("DT_"))
        numbers = [number.strip() for number in shape.split(",")]
        if item is None or not all(number.isdigit() and len(number) < 16 for number in numbers):
            continue
        found.append((",".join(numbers), prod(int(number) for number in numbers) * item))
    return tuple(found)


Side = tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]
"""Shapes and types, in order."""

NOT_SAID = "N/A"


def signature(
    inputs: str | None, input_types: str | None, outputs: str | None, output_types: str | None
) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...], int | None]:
    """For an `Operator`: shapes and types of the inputs, then of the outputs, and how many are inputs (None: neither
    side is said). An optimizer that works in place is shown without outputs, and so it stays."""
    if all(side in (None, "", NOT_SAID) for side in (input_types, output_types)):
        return (), (), None
    (shapes, types), (out_shapes, out_types) = listed(inputs, input_types), listed(outputs, output_types)
    return shapes + out_shapes, types + out_types, len(shapes) if input_types not in (None, NOT_SAID) else None


@lru_cache(maxsize=1 << 16)
def listed(shapes: str | None, types: str | None) -> Side:
    """Shapes and types of one side: those of `tensors` (scalars, and inputs left away, have none), types in small
    letters without ``DT_``."""
    if not shapes or not types:
        return (), ()
    found = [
        (tuple(int(number) for number in shape.split(",")), kind.strip().lower().removeprefix("dt_"))
        for shape, kind in zip(shapes.split(";"), types.split(";"), strict=False)
        if tensors(shape, kind)
    ]
    return tuple(shape for shape, _ in found), tuple(kind for _, kind in found)


@lru_cache(maxsize=1 << 16)
def block_sizes(size: int) -> tuple[int, int]:
    """Bytes of the block that a tensor of `size` bytes may lie in: torch_npu's and MindSpore's way."""
    return -(-(size + HEADER) // UNIT) * UNIT, -(-max(size, 1) // UNIT) * UNIT


def sizes_of(kernels: pl.DataFrame) -> list[tuple[int, ...]]:
    """For each kernel the sizes of blocks that its outputs may lie in."""
    pairs = kernels.select("outputs", "output_types").iter_rows()
    return [tuple(b for _, size in tensors(*pair) for b in block_sizes(size)) for pair in pairs]
