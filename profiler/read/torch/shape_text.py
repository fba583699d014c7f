"""Shapes and types as torch's traces say them -> the text in tables of kernels (``"2,3;4;"``, ``"FLOAT;INT64;"``).

A part for each argument; it is empty for scalars, for what is no tensor and for lists of tensors.
"""

from __future__ import annotations

TYPES = {
    "float": "FLOAT",
    "double": "DOUBLE",
    "c10::Half": "FLOAT16",
    "c10::BFloat16": "BF16",
    "long int": "INT64",
    "long": "INT64",
    "int": "INT32",
    "short": "INT16",
    "short int": "INT16",
    "signed char": "INT8",
    "unsigned char": "UINT8",
    "bool": "BOOL",
    "c10::complex<float>": "COMPLEX64",
    "c10::complex<double>": "COMPLEX128",
    "c10::Float8_e4m3fn": "FLOAT8_E4M3FN",
    "c10::Float8_e5m2": "FLOAT8_E5M2",
}
"""C++'s names, as torch writes them, in the words of Ascend's profilers."""

MAX_ARGUMENTS, MAX_DIMENSIONS = 256, 16


def shapes_text(dims: object) -> str:
    """``[[2, 3], [4], []]``, or torch_npu's ``"2,3;\\r\\n4;\\r\\n"``, as ``"2,3;4;"``."""
    if isinstance(dims, str):
        return ";".join(part.strip() if _is_shape(part) else "" for part in dims.split(";")[:MAX_ARGUMENTS])
    if not isinstance(dims, list):
        return ""
    return ";".join(",".join(map(str, shape_of(dim))) for dim in dims[:MAX_ARGUMENTS])


def types_text(types: object) -> str:
    """``["float", "Scalar"]``, or ``"float;\\r\\nScalar"``, as ``"FLOAT;"``."""
    parts = types.split(";") if isinstance(types, str) else types if isinstance(types, list) else []
    return ";".join(TYPES.get(part.strip(), "") if isinstance(part, str) else "" for part in parts[:MAX_ARGUMENTS])


def shape_of(dim: object) -> tuple[int, ...]:
    """A tensor's shape; empty for anything else."""
    if not isinstance(dim, list) or len(dim) > MAX_DIMENSIONS:
        return ()
    return tuple(dim) if all(type(size) is int and 0 <= size <= 2**53 for size in dim) else ()


def _is_shape(part: str) -> bool:
    return all(size.strip().isdigit() for size in part.split(",")) and len(part) < 200
