"""What the demonstration measured, which of its claims hold, and the table at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hyperopt.report import Case, Measurement
from hyperopt.report.page import ahead_of_consumer

MIB = 2**20

PEAK_SHARE = 0.60
"""The peak that must be reached in PyNative at most, as a share of the one before."""

PREDICTION = 0.10
"""How far a measured peak may be from the predicted one."""

REPLAY = {"pynative": 0.10, "graph": 0.05}
"""How far the replayed peak of a profile may be from the measured one."""


@dataclass(frozen=True)
class Claim:
    """Something that must be so, and whether it was."""

    text: str
    holds: bool


@dataclass(frozen=True)
class Outcome:
    """`cases`: tight and loose budget in PyNative, then graph mode; each applied and measured."""

    cases: tuple[Case, Case, Case]
    claims: tuple[Claim, ...]
    report: str
    seconds: float

    @property
    def broken(self) -> tuple[Claim, ...]:
        return tuple(claim for claim in self.claims if not claim.holds)

    def told(self) -> str:
        lines = ["", *_table(self.cases), ""]
        lines += [f"{'ok ' if claim.holds else 'NOT'} {claim.text}" for claim in self.claims]
        lines += ["", f"report {self.report} ({self.seconds:.0f} s)"]
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        """The figures for `--json`: bytes and microseconds."""
        return {
            "cases": [_figures(case) for case in self.cases],
            "claims": [{"claim": claim.text, "holds": claim.holds} for claim in self.claims],
            "report": self.report,
            "seconds": self.seconds,
        }


def claims(tight: Case, loose: Case, graph: Case) -> tuple[Claim, ...]:
    """What issue and README promise, judged on measurements."""
    found = [_peak_claim(tight)]
    for case in (tight, loose, graph):
        assert case.before is not None and case.after is not None
        steps = min(len(case.before.losses), len(case.after.losses))
        found.append(Claim(f"{case.title}: losses of {steps} steps are bit-identical", bool(case.losses_equal)))
        off = case.after.peak_bytes / case.timeline.peak_bytes - 1
        text = f"{case.title}: measured peak within {PREDICTION:.0%} of the predicted one ({off:+.1%})"
        found.append(Claim(text, abs(off) <= PREDICTION))
    for case in (tight, loose, graph):
        budget = case.plan.budget.hbm_bytes
        assert case.after is not None and budget is not None
        text = f"{case.title}: measured peak within the budget ({case.after.peak_bytes / budget:.1%} of it)"
        found.append(Claim(text, case.after.peak_bytes <= budget))
    for case in (tight, graph):
        assert case.before is not None
        off, most = case.occupancies[0].peak_bytes / case.before.peak_bytes - 1, REPLAY[case.profile.adapter.mode]
        text = f"{case.profile.adapter.mode}: replayed peak within {most:.0%} of the measured one ({off:+.1%})"
        found.append(Claim(text, abs(off) <= most))
    ahead = ahead_of_consumer(tight)
    text = f"{tight.title}: at least half of the copies back issued ahead of their consumer"
    if ahead is not None:
        text += f" ({ahead[0]} of {ahead[1]})"
    found.append(Claim(text, ahead is not None and 2 * ahead[0] >= ahead[1]))
    for case in (tight, loose, graph):
        log = case.execution or {"steps": 0, "summary": {"actions": 0, "actions_done": 0}}
        done, planned = log["summary"]["actions_done"], log["summary"]["actions"]
        assert case.after is not None
        residency, steps = case.plan.residency, len(case.after.losses)
        text = f"{case.title}: {done} of {planned} planned actions carried out in {log['steps']} of {steps} steps"
        due = steps * (len(residency.actions) + len(residency.recompute))
        found.append(Claim(text, done == planned == due > 0 and log["steps"] == steps))
    apart = len(tight.moved ^ loose.moved)
    found.append(Claim(f"the two budgets move different storages ({apart} of them)", apart > 0))
    assert graph.before is not None and graph.after is not None
    fell = graph.after.peak_bytes < graph.before.peak_bytes
    found.append(Claim("graph: the peak fell by recomputing layers", fell and bool(graph.plan.residency.recompute)))
    return tuple(found)


def _peak_claim(tight: Case) -> Claim:
    assert tight.before is not None and tight.after is not None
    share = tight.after.peak_bytes / tight.before.peak_bytes
    text = f"{tight.title}: peak at {share:.1%} of before, at most {PEAK_SHARE:.0%}"
    return Claim(text, share <= PEAK_SHARE)


def _figures(case: Case) -> dict[str, Any]:
    assert case.before is not None and case.after is not None
    return {
        "title": case.title,
        "mode": case.profile.adapter.mode,
        "plan_id": case.plan.plan_id,
        "budget_bytes": case.plan.budget.hbm_bytes,
        "peak_bytes": {
            "before": case.before.peak_bytes,
            "predicted": case.timeline.peak_bytes,
            "after": case.after.peak_bytes,
        },
        "step_us": {
            "before": case.before.step_us,
            "predicted": case.timeline.step_us,
            "after": case.after.step_us,
        },
        "resident_peak_bytes": {
            "before": case.before.resident_peak_bytes,
            "after": case.after.resident_peak_bytes,
        },
        "losses_equal": case.losses_equal,
        "moved": len(case.moved),
        "recomputed": len(case.plan.residency.recompute),
        "ahead": ahead_of_consumer(case),
    }


def _spread(run: Measurement) -> str:
    """One timed step has none."""
    return f"{run.step_us_spread / 1000:.0f} ms" if run.step_us_spread else "unknown"


def _table(cases: tuple[Case, ...]) -> list[str]:
    head = ("", "before", "predicted", "after", "")
    kinds = ("", "measured", "simulated", "measured", "")
    rows: list[tuple[str, ...]] = [head, kinds]
    for case in cases:
        before, after = case.before, case.after
        assert before is not None and after is not None
        rows.append((case.title, "", "", "", ""))
        budget = case.plan.budget.hbm_bytes
        share = f"{after.peak_bytes / before.peak_bytes:.1%} of before" + (
            f", budget {budget / MIB:.1f} MiB" if budget is not None else ""
        )
        peaks = (f"{size / MIB:.1f} MiB" for size in (before.peak_bytes, case.timeline.peak_bytes, after.peak_bytes))
        rows.append(("  peak", *peaks, share))
        times = (before.step_us, case.timeline.step_us, after.step_us)
        noise = f"spread {_spread(before)} and {_spread(after)}"
        rows.append(("  step", *(f"{time / 1000:.0f} ms" for time in times), noise))
        resident = (before.resident_peak_bytes, after.resident_peak_bytes)
        host = " (host copies included)" if case.moved else ""
        rows.append(
            ("  process, resident", f"{resident[0] / MIB:.0f} MiB", "", f"{resident[1] / MIB:.0f} MiB", host.strip())
        )
        rows.append(
            (
                "  losses",
                "",
                "",
                "equal" if case.losses_equal else "DIFFERENT",
                f"bit by bit, {len(after.losses)} steps",
            )
        )
        if (ahead := ahead_of_consumer(case)) is not None:
            rows.append(
                ("  copies back ahead", "", "", f"{ahead[0]} of {ahead[1]}", f"{len(case.moved)} storages moved")
            )
    widths = [max(len(row[i]) for row in rows if row[1] or row[3] or i) for i in range(4)]
    lines = []
    for name, *cells, note in rows:
        line = name.ljust(widths[0]) + "".join("  " + c.rjust(w) for c, w in zip(cells, widths[1:], strict=True))
        lines.append(f"{line}  {note}".rstrip())
    return lines
