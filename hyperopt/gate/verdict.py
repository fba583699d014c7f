"""One verdict of all judges: a regression of any is one; inconclusive is never rounded to a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from hyperopt.gate.comparable import changes, obstacles
from hyperopt.gate.fit import Fit, compared
from hyperopt.gate.memory import Memory, Status, Threshold, compare_memory
from hyperopt.gate.samples import Samples
from hyperopt.gate.throughput import (
    DEFAULT_TOLERANCE_PERCENT,
    Finding,
    Sensitivity,
    Throughput,
    compare_throughput,
    judge_samples,
)
from hyperopt.profile import Profile

Verdict = Literal["pass", "regression", "inconclusive"]
STRICT = Sensitivity()

MOST_NAMED = 16
"""Ranks named in a note."""


@dataclass(frozen=True)
class Policy:
    """What is allowed: `memory` growth of the replayed peak (None: `memory.default_threshold`), slowdown of the step
    in percent, and how sure a regression must be. `memory_only`: times are shown and not judged."""

    memory: Threshold | None = None
    tolerance_percent: float = DEFAULT_TOLERANCE_PERCENT
    sensitivity: Sensitivity = STRICT
    memory_only: bool = False


@dataclass(frozen=True)
class Check:
    """`reasons` say why the verdict is what it is; `notes` what else is different; `shown` is never judged.

    `metrics`: a finding for each metric of the samples. Where there are samples they are judged, and `throughput`
    (one run each, of the profiles) is shown. `apart`: the two must not be compared, and the reasons say why. `fit`: the
    limit that the candidate must fit in, where one was given; it is the candidate's alone, and judged in any case.
    Of a run with several ranks `memory` is the worst one's. `unjudged`: what should have been judged and could not be,
    name -> reason; without a regression it makes the check inconclusive.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    memory: Memory
    throughput: Throughput
    shown: dict[str, dict[str, int]]
    metrics: tuple[Finding, ...] = ()
    apart: bool = False
    fit: Fit | None = None
    unjudged: dict[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Plain data for `--json`; sizes in bytes, times in microseconds.

        Of a metric, `effect_percent` and its bounds say how much worse it became, whatever is better;
        `change_percent` and `change_interval_percent` how the value itself changed, as reasons do.
        """
        tree: dict[str, Any] = msgspec.to_builtins(self)
        tree["memory"]["difference_bytes"] = self.memory.difference_bytes
        if self.fit is not None:
            tree["fit"]["status"] = self.fit.status
        for group, plain in zip(self.memory.groups, tree["memory"]["groups"], strict=True):
            plain["difference_bytes"] = group.difference_bytes
        for one, plain in zip(self.metrics, tree["metrics"], strict=True):
            plain["change_percent"] = one.change(one.effect_percent)
            plain["change_interval_percent"] = one.interval
        tree["throughput"]["difference_percent"] = self.throughput.difference_percent
        return tree


def check(
    baseline: Profile,
    candidate: Profile,
    policy: Policy | None = None,
    samples: Samples | None = None,
    others: Sequence[tuple[Profile, Profile]] = (),
) -> Check:
    """Judges `candidate` against `baseline`, and the samples that were taken of both.

    `others`: further ranks of the same two runs (baseline, candidate), judged for memory. Profiles of different
    frameworks, versions, models, devices, modes or ranks are compared and not judged.
    """
    policy = policy or Policy()
    apart = obstacles(baseline, candidate)
    of_ranks: list[str] = []
    if not others:
        memory = compare_memory(baseline, candidate, policy.memory)
    else:
        memory, of_ranks = _worst(((baseline, candidate), *others), policy.memory)
        for one, other in others:
            apart += [f"rank {other.run.rank}: {why}" for why in obstacles(one, other)]
    throughput = compare_throughput(baseline, candidate, policy.tolerance_percent)
    metrics: tuple[Finding, ...] = ()
    unjudged: dict[str, str] = {}
    if samples is not None:
        metrics = _judged(samples, policy)
        unjudged = {} if policy.memory_only else samples.unjudged()
        throughput = replace(throughput, status="not judged")
    if policy.memory_only:
        unasked = "not judged: only memory was asked for"
        throughput = replace(throughput, status="not judged", reason=f"{throughput.reason}; {unasked}")
        metrics = tuple(replace(one, status="not judged", reason=f"{one.reason}; {unasked}") for one in metrics)
    judges: list[_Judge] = [memory, throughput, *metrics, *map(_Unjudged, unjudged.values())]
    verdict, reasons = _verdict(apart, judges)
    notes = changes(baseline, candidate) + of_ranks + _new(samples)
    notes += [judge.reason for judge in judges if judge.reason not in reasons]
    shown = {"baseline": _shown(baseline), "candidate": _shown(candidate)}
    return Check(
        verdict, tuple(reasons), tuple(notes), memory, throughput, shown, metrics, bool(apart), unjudged=unjudged
    )


@dataclass(frozen=True)
class _Unjudged:
    """What could not be judged, among the judges."""

    reason: str
    status: Status = "inconclusive"


_Judge = Memory | Throughput | Finding | Fit | _Unjudged


def _judged(samples: Samples, policy: Policy) -> tuple[Finding, ...]:
    """Findings of the samples; of runs that are never compared they are shown alone."""
    found = judge_samples(samples, policy.tolerance_percent, policy.sensitivity)
    if not samples.obstacles:
        return found
    return tuple(replace(one, status="not judged", reason=f"{one.name} is not judged: other machines") for one in found)


def _new(samples: Samples | None) -> list[str]:
    return [f"{name} is new: only the candidate measured it" for name in (samples.added if samples else ())]


def _worst(ranks: Sequence[tuple[Profile, Profile]], threshold: Threshold | None) -> tuple[Memory, list[str]]:
    """The memory of the rank that is furthest beyond what is allowed, its rank named, and notes on all of them."""
    found = {candidate.run.rank: compare_memory(baseline, candidate, threshold) for baseline, candidate in ranks}
    order = ("not judged", "pass", "inconclusive", "regression")
    rank, worst = max(
        found.items(), key=lambda item: (order.index(item[1].status), item[1].judged_bytes - item[1].allowed_bytes)
    )
    notes = [f"memory of {len(found)} ranks is judged, the worst is rank {rank}"]
    for status in order[::-1]:
        if named := [str(other) for other, memory in sorted(found.items()) if memory.status == status]:
            more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
            notes.append(f"{status}: rank {', '.join(named[:MOST_NAMED])}{more}")
    return replace(worst, reason=f"rank {rank}: {worst.reason}"), notes


def check_samples(samples: Samples, policy: Policy | None = None) -> Check:
    """Judges samples alone: no profiles, so nothing is said of memory."""
    policy = policy or Policy()
    metrics, unjudged = _judged(samples, policy), samples.unjudged()
    judges: list[_Judge] = [*metrics, *map(_Unjudged, unjudged.values())]
    verdict, reasons = _verdict([], judges)
    notes = _new(samples) + [judge.reason for judge in judges if judge.reason not in reasons]
    none = "no profiles were given"
    return Check(
        verdict,
        tuple(reasons),
        tuple(notes),
        Memory("not judged", none),
        Throughput("not judged", none),
        {"baseline": {}, "candidate": {}},
        metrics,
        unjudged=unjudged,
    )


def nothing_to_compare(reason: str) -> Check:
    """Inconclusive: there is no baseline, and so nothing was judged."""
    none = Memory("not judged", reason), Throughput("not judged", reason)
    return Check("inconclusive", (reason,), (), *none, {"baseline": {}, "candidate": {}}, apart=True)


def with_fit(found: Check | None, fit: Fit, before: Fit | None = None) -> Check:
    """The check together with the limit that the candidate must fit in; None: that limit alone.

    `before`: of the baseline, told as a note.
    """
    none = "no baseline was given"
    if found is None:
        bare = Memory("not judged", none), Throughput("not judged", none)
        verdict, reasons = _verdict([], (fit,))
        shown = _with_host({"baseline": {}, "candidate": {}}, fit, None)
        return Check(verdict, tuple(reasons), (), *bare, shown, fit=fit)
    notes = found.notes if before is None else (*found.notes, compared(before, fit))
    found = replace(found, shown=_with_host(found.shown, fit, before))
    if fit.status == found.verdict:
        return replace(found, fit=fit, reasons=(*found.reasons, fit.reason), notes=notes)
    order = ("pass", "inconclusive", "regression")
    if order.index(fit.status) < order.index(found.verdict):
        return replace(found, fit=fit, notes=(*notes, fit.reason))
    verdict, reasons = _verdict([], (fit,))
    return replace(found, fit=fit, verdict=verdict, reasons=tuple(reasons), notes=(*notes, *found.reasons))


def _with_host(shown: dict[str, dict[str, int]], fit: Fit, before: Fit | None) -> dict[str, dict[str, int]]:
    """What a plan takes of other tiers at most, where a plan was made, or none needed: nothing."""
    told = {side: dict(figures) for side, figures in shown.items()}
    for side, one in (("baseline", before), ("candidate", fit)):
        if one is not None and one.host_peak_bytes is not None:
            told[side]["host_peak_bytes"] = one.host_peak_bytes
    return told


def _verdict(apart: list[str], judges: Sequence[_Judge]) -> tuple[Verdict, list[str]]:
    if apart:
        return "inconclusive", apart
    worst: tuple[Verdict, ...] = ("regression", "inconclusive")
    for verdict in worst:
        if reasons := [judge.reason for judge in judges if judge.status == verdict]:
            return verdict, reasons
    if passed := [judge.reason for judge in judges if judge.status == "pass"]:
        return "pass", passed
    return "inconclusive", [judge.reason for judge in judges]


def _shown(profile: Profile) -> dict[str, int]:
    """Memory as the source measured it: allocators and other processes play a part, so it is not judged.

    `fragmentation_bytes`: what the allocator had reserved beyond what was allocated at most; `external_bytes`: of the
    process (communication, runtime), outside the framework. Those that were not measured are left out.
    """
    largest = max((storage.bytes for storage in profile.storages), default=0)
    figures = {"base_bytes": profile.device.base_bytes, "largest_storage_bytes": largest}
    if profile.measured is not None:
        seen = profile.measured
        figures["measured_peak_bytes"] = seen.peak_bytes
        figures["reserved_bytes"] = seen.reserved_bytes
        figures["external_bytes"] = seen.external_bytes
        if seen.reserved_bytes and seen.peak_bytes:
            figures["fragmentation_bytes"] = max(0, seen.reserved_bytes - seen.peak_bytes)
    return figures
