"""Stages: layers of unequal cost on pipeline stages, with a level for each, under the simulated schedule."""

from solver.stages.describe import Request, problem
from solver.stages.groups import Grouped, place
from solver.stages.problem import NoPlanError, Objective, Problem, Schedule
from solver.stages.report import answer, grouped_answer
from solver.stages.solve import Solution, value
from solver.stages.ways import solve

__all__ = [
    "Grouped",
    "NoPlanError",
    "Objective",
    "Problem",
    "Request",
    "Schedule",
    "Solution",
    "answer",
    "grouped_answer",
    "place",
    "problem",
    "solve",
    "value",
]
