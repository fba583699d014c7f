"""One verdict of both judges: a regression of either is one; inconclusive is never rounded to a pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from hyperopt.gate.comparable import changes, obstacles
from hyperopt.gate.memory import Memory, Threshold, compare_memory
from hyperopt.gate.throughput import DEFAULT_TOLERANCE_PERCENT, Throughput, compare_throughput
from hyperopt.profile import Profile

Verdict = Literal["pass", "regression", "inconclusive"]


@dataclass(frozen=True)
class Policy:
    """What is allowed: `memory` growth of the replayed peak (None: `memory.default_threshold`), slowdown of the step
    in percent."""

    memory: Threshold | None = None
    tolerance_percent: float = DEFAULT_TOLERANCE_PERCENT


@dataclass(frozen=True)
class Check:
    """`reasons` say why the verdict is what it is; `notes` what else is different; `shown` is never judged."""

    verdict: Verdict
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    memory: Memory
    throughput: Throughput
    shown: dict[str, dict[str, int]]

    def document(self) -> dict[str, Any]:
        """Plain data for `--json`; sizes in bytes, times in microseconds."""
        tree: dict[str, Any] = msgspec.to_builtins(self)
        tree["memory"]["difference_bytes"] = self.memory.difference_bytes
        for group, plain in zip(self.memory.groups, tree["memory"]["groups"], strict=True):
            plain["difference_bytes"] = group.difference_bytes
        tree["throughput"]["difference_percent"] = self.throughput.difference_percent
        return tree


def check(baseline: Profile, candidate: Profile, policy: Policy | None = None) -> Check:
    """Judges `candidate` against `baseline`.

    Profiles of different frameworks, versions, models, devices, modes or ranks are compared and not judged.
    """
    policy = policy or Policy()
    memory = compare_memory(baseline, candidate, policy.memory)
    throughput = compare_throughput(baseline, candidate, policy.tolerance_percent)
    verdict, reasons = _verdict(obstacles(baseline, candidate), memory, throughput)
    notes = changes(baseline, candidate)
    notes += [judge.reason for judge in (memory, throughput) if judge.reason not in reasons]
    shown = {"baseline": _shown(baseline), "candidate": _shown(candidate)}
    return Check(verdict, tuple(reasons), tuple(notes), memory, throughput, shown)


def _verdict(apart: list[str], memory: Memory, throughput: Throughput) -> tuple[Verdict, list[str]]:
    if apart:
        return "inconclusive", apart
    judges = (memory, throughput)
    worst: tuple[Verdict, ...] = ("regression", "inconclusive")
    for verdict in worst:
        if reasons := [judge.reason for judge in judges if judge.status == verdict]:
            return verdict, reasons
    if passed := [judge.reason for judge in judges if judge.status == "pass"]:
        return "pass", passed
    return "inconclusive", [judge.reason for judge in judges]


def _shown(profile: Profile) -> dict[str, int]:
    """Memory as the source measured it: allocators and other processes play a part, so it is not judged."""
    largest = max((storage.bytes for storage in profile.storages), default=0)
    figures = {"base_bytes": profile.device.base_bytes, "largest_storage_bytes": largest}
    if profile.measured is not None:
        figures["measured_peak_bytes"] = profile.measured.peak_bytes
        figures["reserved_bytes"] = profile.measured.reserved_bytes
        figures["external_bytes"] = profile.measured.external_bytes
    return figures
