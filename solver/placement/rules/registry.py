"""Where the signatures of operator types are put down: one rule a family."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hyperopt.graph import Operator, Tensor
from solver.placement.signature import Labels, Signature

Shape = tuple[int, ...]
Rule = Callable[[Operator, Sequence[Tensor], Sequence[Tensor]], Signature | None]

RULES: dict[str, Rule] = {}
"""Type -> what its operands' dimensions are; None for a form that the rule does not explain."""


def rule(*types: str) -> Callable[[Rule], Rule]:
    """Puts a rule down for some types."""

    def put(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(types, function))
        return function

    return put


def blank(tensors: Sequence[Tensor]) -> tuple[Labels, ...]:
    """Labels of operands that stay whole."""
    return tuple(tuple("" for _ in t.shape) for t in tensors)


def letters(text: str) -> Labels:
    """A letter a dimension; a dot for what stays whole."""
    return tuple(letter.replace(".", "") for letter in text)
