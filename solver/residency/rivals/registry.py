"""The rules by name. The four rules of thumb come first: they are quick, and the solver starts with them."""

from __future__ import annotations

from collections.abc import Callable

from solver.residency.baselines import BASELINES
from solver.residency.candidates import Decisions
from solver.residency.problem import Problem
from solver.residency.rivals.capuchin import capuchin
from solver.residency.rivals.checkmate import checkmate
from solver.residency.rivals.knapsack import knapsack
from solver.residency.rivals.two_level import two_level

RIVALS: dict[str, Callable[[Problem], Decisions]] = {
    **BASELINES,
    "capuchin": capuchin,
    "two-level": two_level,
    "knapsack": knapsack,
    "checkmate": checkmate,
}
