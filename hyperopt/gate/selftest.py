"""The gate against itself: with a regression put into what it was given, does it see it?

A gate that passes everything looks like one whose code is fine. Noise, too few pairs or too wide a threshold can make
it so, and nobody would know. So the candidate is replaced by the baseline made worse: the pairs keep their noise, lose
their own effect, and get a slowdown of `SLOWER_PERCENT` (or BEYOND_PERCENT beyond a wider tolerance); and a storage is
there all the time, as large as what is allowed and one percent of the peak.
"""

from __future__ import annotations

import msgspec
import numpy as np

from hyperopt.gate.memory import Memory, Threshold, default_threshold
from hyperopt.gate.ranks import of_groups, of_pairs
from hyperopt.gate.samples import Metric, Samples
from hyperopt.gate.throughput import Finding
from hyperopt.gate.verdict import Check
from hyperopt.occupancy import occupancy
from hyperopt.profile import Profile, Storage

SLOWER_PERCENT = 15.0
BEYOND_PERCENT = 10.0


def slowed(samples: Samples, tolerance_percent: float) -> Samples:
    """The same samples with a candidate that is as noisy as it was, and that much worse than the baseline."""
    return msgspec.structs.replace(
        samples, metrics=tuple(_slowed(samples, metric, tolerance_percent) for metric in samples.metrics)
    )


def _slowed(samples: Samples, metric: Metric, tolerance_percent: float) -> Metric:
    old, new = (np.log(np.asarray(side)) for side in samples.values(metric))
    paired = samples.design == "interleaved"
    effect = (of_pairs(new - old, 0.0, 0.01) if paired else of_groups(old, new, 0.0, 0.01)).center
    allowed = tolerance_percent if metric.tolerance_percent is None else metric.tolerance_percent
    worse = 1 + max(SLOWER_PERCENT, allowed + BEYOND_PERCENT) / 100
    factor = float(np.exp(-effect)) * (worse if metric.better == "lower" else 1 / worse)
    candidate = tuple(tuple(factor * value for value in run) for run in metric.candidate)
    return msgspec.structs.replace(metric, candidate=candidate)


def grown(baseline: Profile, threshold: Threshold | None) -> Profile:
    """The baseline with more in HBM at its peak than the threshold allows; without storages it stays as it is."""
    if baseline.timing_only:
        return baseline
    peak = occupancy(baseline).peak_bytes
    by = (threshold or default_threshold(baseline, baseline)).allowed(peak) + max(1, peak // 100)
    id = max(storage.id for storage in baseline.storages) + 1
    more = Storage(id=id, name="put in by the self-test", bytes=by, resident_at_start=True, resident_at_end=True)
    return msgspec.structs.replace(baseline, storages=(*baseline.storages, more))


def missed(found: Check) -> list[str]:
    """What was put in and not found: the reasons of those judges."""
    judges: list[Memory | Finding] = [found.memory, *found.metrics]
    return [judge.reason for judge in judges if judge.status not in ("regression", "not judged")]


def blind(found: Check) -> list[str]:
    """Of the check of what was given, as it is: why no regression could be found in it, whatever was put in."""
    if found.apart:
        return list(found.reasons)
    one_sided = found.memory.status == "inconclusive" and not found.memory.baseline_peak_bytes
    return [found.memory.reason] if one_sided else []
