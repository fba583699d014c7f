"""Sub-models that are no chain, on groups of devices of their own or shared in time, by simulated makespan."""

from solver.programs.report import answer
from solver.programs.solve import Solution, solve

__all__ = ["Solution", "answer", "solve"]
