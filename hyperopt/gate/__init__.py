"""The gate: does a change cost memory or time? Two profiles in, one verdict with reasons out.

comparable.py   may the two be compared at all, and what differs besides the code
memory.py       replayed peaks, exactly, with the storages that make the difference
throughput.py   measured step times against a tolerance, with the spread that was measured
verdict.py      pass, regression or inconclusive
"""

from hyperopt.gate.memory import Threshold
from hyperopt.gate.verdict import Check, Policy, check

__all__ = ["Check", "Policy", "Threshold", "check"]
