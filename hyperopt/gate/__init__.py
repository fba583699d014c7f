"""The gate: does a change cost memory or time? Two profiles, and samples of both, in; one verdict with reasons out.

comparable.py   may the two be compared at all, and what differs besides the code
memory.py       replayed peaks, exactly, with the storages that make the difference
samples.py      measured values of both sides, interleaved or of separate jobs
clock.py        the tick of the clock that readings come from
ranks.py        the statistics: signed ranks, rank sums, bounds, many metrics
fit.py          must it fit in a limit: by itself, with a plan, or not
history.py      where a branch's figures changed: advice
power.py        how many pairs are enough
throughput.py   samples, or one run each, against a tolerance
verdict.py      pass, regression or inconclusive
"""

from hyperopt.gate.memory import Threshold
from hyperopt.gate.samples import Metric, Samples
from hyperopt.gate.throughput import Finding, Sensitivity
from hyperopt.gate.verdict import Check, Policy, check, check_samples, nothing_to_compare, with_fit

__all__ = [
    "Check",
    "Finding",
    "Metric",
    "Policy",
    "Samples",
    "Sensitivity",
    "Threshold",
    "check",
    "check_samples",
    "nothing_to_compare",
    "with_fit",
]
