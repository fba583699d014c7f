"""The arithmetic and the traffic of an operator, from its type and its tensors' shapes.

One table (`operators.toml`) gives each spelling of a type, whatever framework wrote it, a canonical name, a family and
a formula; the formulas are in `formulas`. Nothing is guessed: an operator of unknown type, or whose tensors do not fit
its formula, is `Uncounted`, and whoever counts many says how many and which.

    MatMulExt, MatMulV3, aclnnMatmul_MatMulV3Common_MatMulV3, aten::mm  ->  MatMul, family matmul, formula matmul
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from msgspec import json

from hyperopt.cost.formulas import FORMULAS, Tensor, Uncounted, Work
from hyperopt.documents import sha256
from hyperopt.profile import Operator

__all__ = ["Kind", "OperatorFileError", "Table", "Tensor", "Uncounted", "Work", "tensors_of"]

PREFIX = re.compile(r"^(aclnn|aten::|torch_npu::|c10d::)?(npu_)?(inplace)?_?", re.IGNORECASE)
ATEN = "aten::"
FIELDS = {"family", "formula", "flops", "updates", "layout", "names", "types"}
UPDATING = ("update", "update_apart", "update_all")
"""Formulas that need `updates`."""
LAYOUTS = ("", "BNSD", "BSND")


class OperatorFileError(ValueError):
    """A table of operator types that cannot be used; the message names the file, the entry and the remedy."""


@dataclass(frozen=True)
class Kind:
    """What is known of a type: `flops` per element for formulas that count elements; `updates`: how many of the
    leading inputs an optimizer writes; `layout`: of four axes in attention, where all kernels of the type have it."""

    name: str
    family: str
    formula: str
    flops: int = 1
    updates: int = 0
    layout: str = ""


@dataclass(frozen=True)
class Table:
    """Spellings (as `spelled` has them, and ``aten::`` ones that are ATen's alone) -> kinds."""

    kinds: Mapping[str, Kind]

    @classmethod
    def load(cls, own: Path | None = None) -> Table:
        """The package's table, with what a file of one's own adds or replaces. Raises `OperatorFileError`."""
        return _load(own)

    @cached_property
    def digest(self) -> str:
        """sha256 of all of it: what the same profiles teach depends on it."""
        return sha256(json.encode(sorted((word, *astuple(kind)) for word, kind in self.kinds.items())))

    def kind(self, type: str, name: str = "") -> Kind | None:
        """The kind of an operator; None: unknown. Without a type the last word of its name is looked up, which is
        where Ascend's profilers keep it (``aclnnMatmul_MatMulV3Common_MatMulV3``)."""
        if type:
            return self._known(type)
        last = re.sub(r"-op\d+$", "", name.rsplit("/", 1)[-1])
        return self._known(last) or self._known(last.rstrip("_").rsplit("_", 1)[-1])

    def _known(self, word: str) -> Kind | None:
        return self.kinds.get(_key(word)) or self.kinds.get(spelled(word))

    def work(
        self,
        kind: Kind,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        attributes: Mapping[str, Any] | None = None,
    ) -> Work:
        """FLOPs, bytes read and bytes written. `attributes`: ``causal`` (attention: half the scores), ``heads`` and
        ``layout`` (attention: where shapes do not tell). Raises `Uncounted`."""
        return FORMULAS[kind.formula](kind, inputs, outputs, attributes or {})

    def of(self, operator: Operator) -> tuple[Kind, Work]:
        """Kind and work of a profile's operator. Raises `Uncounted` where the type is unknown, the source does not say
        which tensors go in, or the shapes do not fit the formula."""
        kind = self.kind(operator.type, operator.name)
        if kind is None:
            raise Uncounted(f"type {operator.type or operator.name!r} is unknown")
        inputs, outputs = tensors_of(operator)
        if kind.name == "MatMul" and _batched(inputs, outputs):
            kind = self.kinds["batchmatmul"]
        return kind, self.work(kind, inputs, outputs)


def _batched(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
    """Whether each matrix of the first input meets one of its own: `MatMulExt` and ``aten::matmul`` are both."""
    if len(inputs) < 2 or not outputs:
        return False
    matrices = inputs[1].shape[:-2]
    return any(n > 1 for n in matrices) and matrices == outputs[0].shape[:-2]


def tensors_of(operator: Operator) -> tuple[list[Tensor], list[Tensor]]:
    """What goes in, what comes out. Raises `Uncounted` where the document does not say which is which."""
    if operator.inputs is None and operator.shapes:
        raise Uncounted("the source does not say which tensors go in")
    if operator.inputs is None and operator.type != "idle":
        raise Uncounted("no shapes")
    pairs = [Tensor(shape, dtype) for shape, dtype in zip(operator.shapes, operator.dtypes, strict=False)]
    return pairs[: operator.inputs or 0], pairs[operator.inputs or 0 :]


@lru_cache(maxsize=1 << 14)
def spelled(name: str) -> str:
    """``aclnnInplaceCopy`` and ``aten::copy_`` -> ``copy``; ``hcom_allReduce_`` -> ``hcomallreduce``."""
    bare = PREFIX.sub("", name)
    return (bare or name).replace("_", "").lower()


def _key(word: str) -> str:
    """Under which a spelling of the table is kept: with ``aten::`` in front it is ATen's alone, in all its letters."""
    return word.lower() if word.lower().startswith(ATEN) else spelled(word)


@lru_cache(maxsize=4)
def _load(own: Path | None) -> Table:
    shipped = resources.files(__package__).joinpath("operators.toml").read_text()
    kinds = _read(tomllib.loads(shipped), {}, "operators.toml")
    if own is not None:
        try:
            given = tomllib.loads(own.read_text())
        except OSError as error:
            raise OperatorFileError(f"{own}: cannot be read: {error.strerror} (name an existing file)") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise OperatorFileError(f"{own}: not TOML: {error} (see docs/reference/cost.md)") from error
        kinds = _read(given, kinds, own.name)
    return Table(kinds)


def _read(tables: Mapping[str, Any], known: Mapping[str, Kind], file: str) -> dict[str, Kind]:
    """`known` and what `tables` say. In one file a spelling may stand once; a later file's goes first."""
    found: dict[str, Kind] = {}
    for name, table in tables.items():
        _check(table, name, file)
        groups = table.get("types") or {name: []}
        for canonical, others in groups.items():
            base = known.get(_key(canonical)) or Kind(canonical, "", "")
            kind = replace(base, **{field: table[field] for field in table.keys() - {"names", "types"}})
            if not kind.family or kind.formula not in FORMULAS:
                raise OperatorFileError(
                    f"{file}: [{name}] {canonical} has family {kind.family!r} and formula {kind.formula!r} "
                    f"(give a family, and a formula of: {', '.join(sorted(FORMULAS))})"
                )
            if kind.formula in UPDATING and not kind.updates:
                raise OperatorFileError(
                    f"{file}: [{name}] {canonical} has formula {kind.formula!r} and no `updates` "
                    "(give `updates`, how many of the leading inputs it writes)"
                )
            for spelling in {_key(word): word for word in (canonical, *others, *table.get("names", ()))}:
                if spelling in found:
                    raise OperatorFileError(
                        f"{file}: [{name}] {spelling!r} is also {found[spelling].name} (give it once)"
                    )
                found[spelling] = kind
    return {**known, **found}


def _check(table: object, name: str, file: str) -> None:
    fits = isinstance(table, dict) and table.keys() <= FIELDS
    if fits:
        assert isinstance(table, dict)
        names, types = table.get("names", []), table.get("types", {})
        fits = (
            all(isinstance(table.get(field, ""), str) for field in ("family", "formula"))
            and table.get("layout", "") in LAYOUTS
            and all(type(table.get(field, 0)) is int and table.get(field, 0) >= 0 for field in ("flops", "updates"))
            and isinstance(types, dict)
            and all(
                isinstance(words, list) and all(isinstance(word, str) for word in words)
                for words in (names, *types.values())
            )
        )
    if not fits:
        raise OperatorFileError(
            f"{file}: [{name}] is no table of family, formula (words), layout (BNSD or BSND), flops, updates (whole "
            "numbers), names (a list of words) and types (lists of words by name)"
        )
