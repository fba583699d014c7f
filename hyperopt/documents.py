"""Reading and writing the two JSON documents: compression, typed decoding, clear errors.

A document is JSON, optionally gzip or zstd compressed (recognised by magic bytes, not by file name).
Every problem becomes one `DocumentError` that names the field, its place and the remedy, so that the
command line, the HTTP service and the profiler say the same thing about the same fault.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import zstandard

T = TypeVar("T")

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

# A decompressed document larger than this is refused: 10^6 operators take some 400 MB of JSON, and a
# compressed bomb must not take the service's memory with it.
MAX_DOCUMENT_BYTES = 2 * 1024**3


class DocumentError(ValueError):
    """A document that cannot be used.

    `field` is a JSON path such as ``$.operators[3].reads[0]`` (``$`` for the whole document), `problem`
    says what is wrong there and `remedy` what to do about it.
    """

    def __init__(self, field: str, problem: str, remedy: str = "") -> None:
        self.field, self.problem, self.remedy = field, problem, remedy
        super().__init__(f"{field}: {problem}" + (f" ({remedy})" if remedy else ""))


def decompress(data: bytes, limit: int = MAX_DOCUMENT_BYTES) -> bytes:
    """The plain bytes of a document given plain, gzip or zstd compressed.

    Raises `DocumentError` when the stream is truncated, damaged, or larger than `limit` bytes when
    unpacked.
    """
    if data.startswith(GZIP_MAGIC):
        return _inflate_gzip(data, limit)
    if data.startswith(ZSTD_MAGIC):
        return _inflate_zstd(data, limit)
    if len(data) > limit:
        raise _too_large(limit)
    return data


def _inflate_gzip(data: bytes, limit: int) -> bytes:
    parts: list[bytes] = []
    total, rest = 0, data
    while rest:  # a gzip file may hold several members, one after the other
        member = zlib.decompressobj(wbits=31)
        try:
            part = member.decompress(rest, limit - total + 1)
        except zlib.error as error:
            raise DocumentError("$", f"damaged gzip stream: {error}", "send the file again") from error
        total += len(part)
        if total > limit:
            raise _too_large(limit)
        if not member.eof:
            raise DocumentError("$", "truncated gzip stream", "send the whole file again")
        parts.append(part)
        rest = member.unused_data.lstrip(b"\0")
    return b"".join(parts)


def _inflate_zstd(data: bytes, limit: int) -> bytes:
    inflater = zstandard.ZstdDecompressor().decompressobj()
    out = bytearray()
    try:
        for start in range(0, len(data), 1 << 16):
            out += inflater.decompress(data[start : start + (1 << 16)])
            if len(out) > limit:
                raise _too_large(limit)
    except zstandard.ZstdError as error:
        raise DocumentError("$", f"damaged zstd stream: {error}", "send the file again") from error
    if not inflater.eof:
        raise DocumentError("$", "truncated zstd stream", "send the whole file again")
    return bytes(out)


def _too_large(limit: int) -> DocumentError:
    return DocumentError("$", f"larger than {limit} bytes when unpacked", "profile fewer steps or one rank a file")


def decode(data: bytes, kind: type[T], family: str, major: int) -> tuple[T, list[str]]:
    """A typed document from its bytes, with a warning for every unknown field that was left out.

    `family` and `major` are the expected ``format``, for example ``hyperopt.profile`` and 1; a minor
    version (``hyperopt.profile/1.2``) is accepted.
    """
    try:
        tree = msgspec.json.decode(decompress(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DocumentError("$", f"not JSON: {error}", "send a complete UTF-8 JSON document") from error
    if not isinstance(tree, dict):
        raise DocumentError("$", f"expected an object, got {type(tree).__name__}", f"send a {family}/{major} document")
    _check_format(tree.get("format"), family, major)
    try:
        document = msgspec.convert(tree, kind, str_keys=True)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        field = place.replace("`", "") or "$"
        raise DocumentError(field, problem, "see docs/reference/documents.md") from error
    return document, sorted(f"unknown field {name} left out" for name in _unknown(tree, kind, "$"))


def _check_format(found: object, family: str, major: int) -> None:
    remedy = f'set "format" to "{family}/{major}"'
    if not isinstance(found, str) or not found.startswith(family + "/"):
        raise DocumentError("$.format", f"expected {family}/{major}, got {found!r}", remedy)
    if found.removeprefix(family + "/").partition(".")[0] != str(major):
        raise DocumentError("$.format", f"major version of {found!r} is not supported", remedy)


def _unknown(tree: object, kind: Any, path: str) -> set[str]:
    """Paths of the fields in `tree` that `kind` does not define, list positions folded into ``[]``."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if not isinstance(tree, Mapping):
            return set()
        known = {f.encode_name: f.type for f in msgspec.structs.fields(kind)}
        found = {f"{path}.{name}" for name in tree.keys() - known.keys()}
        for name, inner in known.items():
            if name in tree and _holds_struct(inner):
                found |= _unknown(tree[name], inner, f"{path}.{name}")
        return found
    if get_origin(kind) in (list, tuple) and isinstance(tree, list):
        return _unknown_in_list(tree, get_args(kind)[0], path + "[]")
    for option in get_args(kind):  # unions such as `Struct | None`
        if _holds_struct(option):
            return _unknown(tree, option, path)
    return set()


def _unknown_in_list(items: list[Any], kind: Any, path: str) -> set[str]:
    """As `_unknown`, for a list: only one item of each set of field names is looked into."""
    seen: dict[frozenset[str], Any] = {}
    for item in items:
        if isinstance(item, dict):
            seen.setdefault(frozenset(item), item)
    return set().union(*(_unknown(item, kind, path) for item in seen.values())) if seen else set()


def _holds_struct(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return True
    return any(_holds_struct(option) for option in get_args(kind))


def canonical(document: msgspec.Struct, leave_out: Iterable[str] = ()) -> bytes:
    """The document's JSON in one fixed spelling (no white space, fields in order of definition)."""
    if not (gone := set(leave_out)):
        return msgspec.json.encode(document)
    tree = {name: getattr(document, name) for name in get_type_hints(type(document)) if name not in gone}
    return msgspec.json.encode(tree, order="sorted")


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def write(document: msgspec.Struct, path: Path) -> None:
    """Writes a document; compressed when the name ends in ``.gz`` or ``.zst``.

    Written beside its place and moved there, so that a reader never sees half a file.
    """
    data = msgspec.json.encode(document)
    if path.suffix == ".gz":
        packer = zlib.compressobj(level=6, wbits=31)
        data = packer.compress(data) + packer.flush()
    elif path.suffix == ".zst":
        data = zstandard.ZstdCompressor().compress(data)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    partial.replace(path)
