"""Reading and writing the two JSON documents: compression, typed decoding, clear errors.

A document is JSON, optionally gzip or zstd compressed (recognised by magic bytes, not by file name).
Every problem becomes one `DocumentError` that names the field, its place and the remedy, so that the
command line, the HTTP service and the profiler say the same thing about the same fault.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import zstandard

T = TypeVar("T")

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

# A decompressed document larger than this is refused: 10^6 operators take some 400 MB of JSON, and a
# compressed bomb must not take the service's memory with it.
MAX_DOCUMENT_BYTES = 2 * 1024**3

# Nor do more objects fit than two million operators with as many storages, or more lists than these hold: an
# object of two bytes becomes hundreds in memory. (Brackets in names count too; there is room for them.)
MAX_OBJECTS = 4_000_000
MAX_LISTS = 24_000_000


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
        # In small pieces: a kilobyte becomes 32 MB at most, and the limit is looked at after each.
        for start in range(0, len(data), 1 << 10):
            out += inflater.decompress(data[start : start + (1 << 10)])
            if len(out) > limit:
                raise _too_large(limit)
            if inflater.eof and (inflater.unused_data or start + (1 << 10) < len(data)):
                raise DocumentError("$", "more than one zstd frame", "compress the document in one piece")
    except zstandard.ZstdError as error:
        raise DocumentError("$", f"damaged zstd stream: {error}", "send the file again") from error
    if not inflater.eof:
        raise DocumentError("$", "truncated zstd stream", "send the whole file again")
    return bytes(out)


def _too_large(limit: int) -> DocumentError:
    return DocumentError("$", f"larger than {limit} bytes when unpacked", "profile fewer steps or one rank a file")


def decode(data: bytes, kind: type[T], family: str, major: int, limit: int = MAX_DOCUMENT_BYTES) -> tuple[T, list[str]]:
    """A typed document from its bytes, with a warning for every unknown field that was left out.

    `family` and `major` are the expected ``format``, for example ``hyperopt.profile`` and 1; a minor
    version (``hyperopt.profile/1.2``) is accepted. The bytes are unpacked once, to at most `limit` bytes: a
    document compressed twice is refused. No generic tree of the document is ever built: a small upload of
    many tiny objects would fill the memory with it.
    """
    plain = decompress(data, limit)
    if plain.startswith((GZIP_MAGIC, ZSTD_MAGIC)):
        raise DocumentError("$", "not JSON: compressed twice", "compress it once")
    for what, mark, most in (("objects", b"{", MAX_OBJECTS), ("lists", b"[", MAX_LISTS)):
        if plain.count(mark) > most:
            raise DocumentError("$", f"more than {most} {what}", "profile fewer steps or one rank a file")
    try:
        _check_format(plain, family, major)
        document = msgspec.json.decode(plain, type=kind)
        unknown = _unknown(msgspec.Raw(plain), kind, "$")
    except msgspec.ValidationError as error:
        field, problem = _place(error)
        raise DocumentError(field, problem, _remedy(kind, field, problem)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_number(plain, kind, error) or DocumentError(
            "$", f"not JSON: {error}", "send a complete UTF-8 JSON document"
        ) from error
    return document, sorted(f"unknown field {name} left out" for name in unknown)


def _place(error: msgspec.ValidationError) -> tuple[str, str]:
    """(field, problem) of a message such as ``Expected `int` - at `$.operators[0].reads[1]` ``."""
    problem, _, place = str(error).partition(" - at ")
    return place.replace("`", "") or "$", problem


_NO_NUMBER = re.compile(rb"-?(NaN|Infinity)\b", re.IGNORECASE)


def _no_number(plain: bytes, kind: Any, error: Exception) -> DocumentError | None:
    """The fault of a NaN or an infinity, by its field: with an object in its place the decoder says which that is."""
    at = re.search(r"\(byte (\d+)\)", str(error))
    start = int(at[1]) if at else 0
    start -= plain[start - 1 : start] == b"-"
    found = _NO_NUMBER.match(plain, start) if at else None
    if found is None:
        return None
    try:
        msgspec.json.decode(plain[:start] + b"{}" + _NO_NUMBER.sub(b"0", plain[found.end() :]), type=kind)
    except msgspec.ValidationError as misplaced:
        field, problem = _place(misplaced)
        if problem.endswith("got `object`"):  # else it is another fault, before this one
            return DocumentError(field, f"not JSON: {found[0].decode()} is no number there", "give a finite number")
    except msgspec.DecodeError:
        pass
    return None


def _remedy(kind: Any, field: str, problem: str) -> str:
    """What to do about a value of the wrong kind: for one of a few words, which there are."""
    if problem.startswith("Invalid enum value"):
        words = _words(kind, [name for name in re.split(r"\[[^\]]*\]|\.", field.removeprefix("$")) if name])
        if words:
            return f"use one of {', '.join(map(str, words))}"
    return "see docs/reference/documents.md"


def _words(kind: Any, names: list[str]) -> tuple[Any, ...]:
    """The permitted values of the field that `names` lead to from a type; none where it is not one of a few words."""
    if get_origin(kind) is Literal:
        return get_args(kind) if not names else ()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if not names:
            return ()
        inner = [f.type for f in msgspec.structs.fields(kind) if f.encode_name == names[0]]
        return _words(inner[0], names[1:]) if inner else ()
    return next((found for option in get_args(kind) if (found := _words(option, names))), ())


class _Head(msgspec.Struct):
    format: str | None = None


def _check_format(plain: bytes, family: str, major: int) -> None:
    """Also the first look at the whole text: what is not JSON, or not an object, is said before anything else."""
    remedy = f'set "format" to "{family}/{major}"'
    try:
        found = msgspec.json.decode(plain, type=_Head).format
    except msgspec.ValidationError as error:
        field, problem = _place(error)
        if field == "$":
            what = problem[0].lower() + problem[1:].replace("`object`", "an object").replace("`", "")
            raise DocumentError("$", what, f"send a {family}/{major} document") from error
        raise DocumentError("$.format", f"expected {family}/{major}: {problem}", remedy) from error
    if found is None or not found.startswith(family + "/"):
        problem = f"expected {family}/{major}, got {found!r}"
        kind, _, theirs = (found or "").partition("/")
        if theirs and kind.startswith("hyperopt."):  # one of ours, in another's place
            remedy = f"this is a {kind.removeprefix('hyperopt.')}: give a {family.removeprefix('hyperopt.')} here"
        raise DocumentError("$.format", problem, remedy)
    if found.removeprefix(family + "/").partition(".")[0] != str(major):
        raise DocumentError("$.format", f"major version of {found!r} is not supported", remedy)


def _unknown(text: msgspec.Raw, kind: Any, path: str) -> set[str]:
    """Paths of the fields in a valid `text` that `kind` does not define, list positions folded into ``[]`` and keys
    that are names into ``{}``.

    Objects are looked into one by one, as slices of the text that is there anyway.
    """
    if _is_object(kind):
        found = msgspec.json.decode(text, type=dict[str, msgspec.Raw] | None)
        if found is None:
            return set()
        known = _fields(kind)
        names = {f"{path}.{name}" for name in found.keys() - known.keys()}
        for name, inner in known.items():
            if inner is not None and name in found:
                names |= _unknown(found[name], inner, f"{path}.{name}")
        return names
    if get_origin(kind) in (list, tuple):
        return _unknown_in_list(text, get_args(kind)[0], path + "[]")
    if get_origin(kind) in (dict, Mapping):
        values = msgspec.json.decode(text, type=dict[str, msgspec.Raw] | None) or {}
        return {name for item in values.values() for name in _unknown(item, get_args(kind)[1], path + "{}")}
    for option in get_args(kind):  # unions such as `Struct | None`, `str | Struct`
        if _holds_struct(option):
            an_object = memoryview(text)[0] == ord("{")
            return _unknown(text, option, path) if an_object or not isinstance(option, type) else set()
    return set()


def unknown_keys(plain: bytes, kind: Any) -> list[str]:
    """A warning for each key in valid JSON, at any depth, that `kind` does not define; the first twenty."""
    paths = (path.rpartition(".") for path in sorted(_unknown(msgspec.Raw(plain), kind, "$")))
    told = [(f" of {at}" if at != "$" else "", name) for at, _, name in paths]
    return [f"unknown key {name!r:.80}{at} left out" for at, name in told[:20]]


def _unknown_in_list(text: msgspec.Raw, kind: Any, path: str) -> set[str]:
    """As `_unknown`, for a list. Of objects without unknown fields nothing is kept, and they are most."""
    flat = isinstance(kind, type) and issubclass(kind, msgspec.Struct) and not any(_fields(kind).values())
    strict = msgspec.json.Decoder(_strict(kind)) if flat else None
    names: set[str] = set()
    for item in msgspec.json.decode(text, type=list[msgspec.Raw] | None) or ():
        if strict is not None:
            try:
                strict.decode(item)
                continue
            except msgspec.ValidationError:
                pass
        names |= _unknown(item, kind, path)
    return names


@lru_cache
def _fields(kind: type) -> dict[str, Any]:
    """Type by name of the fields that hold objects with fields, None for the others."""
    types = (
        get_type_hints(kind) if is_dataclass(kind) else {f.encode_name: f.type for f in msgspec.structs.fields(kind)}
    )
    return {name: found if _holds_struct(found) else None for name, found in types.items()}


def _is_object(kind: Any) -> bool:
    return isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or is_dataclass(kind))


def _strict(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The same, but refusing unknown fields."""
    return msgspec.defstruct(kind.__name__, [], bases=(kind,), forbid_unknown_fields=True, kw_only=True, frozen=True)


def _holds_struct(kind: Any) -> bool:
    if _is_object(kind):
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

    Written beside its place and moved there, so that a reader never sees half a file. Symbolic links are
    followed. What is no ordinary file (a device, a pipe, ``/dev/stdout``) is written to, and not replaced.
    """
    data = msgspec.json.encode(document)
    if path.suffix == ".gz":
        packer = zlib.compressobj(level=6, wbits=31)
        data = packer.compress(data) + packer.flush()
    elif path.suffix == ".zst":
        data = zstandard.ZstdCompressor().compress(data)
    write_bytes(data, path)


def write_bytes(data: bytes, path: Path) -> None:
    """As `write`, of bytes as they are. Where that fails nothing is left behind, and the `OSError` names the file."""
    if path.exists() and (not path.is_file() or path.absolute().parts[:2] in _DEVICES):
        with path.open("wb") as special:
            special.write(data)
        return
    path = path.resolve()
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


# A standard output that goes to a file looks like that file, yet has a place in it.
_DEVICES = (("/", "dev"), ("/", "proc"))
