"""Sharding: one strategy a node, least cost within memory at every moment (`problem` has the definition)."""

from solver.sharding.document import read, write, write_solution
from solver.sharding.problem import Evaluation, Problem, ShardingError, evaluate
from solver.sharding.solve import Answer, solve

__all__ = ["Answer", "Evaluation", "Problem", "ShardingError", "evaluate", "read", "solve", "write", "write_solution"]
