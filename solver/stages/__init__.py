"""Stages: layers of unequal cost on pipeline stages, with a level for each, under the simulated schedule."""

from solver.stages.describe import Request, problem
from solver.stages.problem import NoPlanError, Objective, Problem, Schedule
from solver.stages.report import answer
from solver.stages.solve import Solution, solve, value

__all__ = [
    "NoPlanError",
    "Objective",
    "Problem",
    "Request",
    "Schedule",
    "Solution",
    "answer",
    "problem",
    "solve",
    "value",
]
