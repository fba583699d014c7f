"""Outcomes as a table, a row for each case, and as what was wanted beside what was seen.

A *case* is a step and a budget. Ratios are to the bound that our plan proves; where we have no plan, to the step
without a plan, since plans only add waits. *Overhead* is step time over the unlimited step without a plan.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.trial import Outcome
from hyperopt.profile import ns

RIVALS = (
    "keep-all",
    "longest-gap",
    "offload-all",
    "recompute-all",
    "capuchin",
    "two-level",
    "knapsack",
    "checkmate",
)

NEAR = 1.5
"""A plan is near our final one at so many times its distance to the bound."""

NEAR_S = {"small": 5.0, "medium": 60.0, "large": 300.0}
"""Seconds within which such a plan is wanted, and a first one within a tenth of them."""

MOST_BYTES = 4 * 2**30
MEDIAN, P95, SHARE, WORTH, FLOOR = 1.01, 1.05, 1 / 3, 1.01, 0.001

WORDS = {"out of memory": "OOM", "gave up": "refused", "memory": "8 GiB"}


@dataclass(frozen=True)
class Case:
    """What ours and each rival did on one step and budget. `size` is by operators, for real steps too."""

    ours: Outcome
    rivals: dict[str, Outcome]
    size: str

    @property
    def name(self) -> str:
        return f"{self.ours.trace} ({self.ours.count} operators) at {self.ours.percent} %"

    @property
    def floor_us(self) -> float:
        """The bound, microseconds; the unlimited step where we have none."""
        return self.ours.unlimited_us if self.ours.bound_us is None else self.ours.bound_us

    @property
    def best(self) -> Outcome | None:
        """The fastest rival within the budget."""
        return min((o for o in self.rivals.values() if o.step_us is not None), key=_step, default=None)

    @property
    def reachable(self) -> bool:
        return self.ours.step_us is not None or self.best is not None

    def ratio(self, outcome: Outcome | None) -> float:
        """Step time over the bound; infinite without a plan."""
        return math.inf if outcome is None or outcome.step_us is None else outcome.step_us / self.floor_us

    @property
    def above_rival(self) -> bool:
        return self.best is not None and (self.ours.step_us is None or ns(self.ours.step_us) > ns(_step(self.best)))

    @property
    def share(self) -> float | None:
        """Our overhead in that of the best rival, both with FLOOR of the step added; None where the best rival is
        within WORTH of the bound, or there is none."""
        best, free = self.best, self.ours.unlimited_us
        if best is None or self.ratio(best) <= WORTH:
            return None
        if self.ours.step_us is None:
            return math.inf
        return (self.ours.step_us - free + FLOOR * free) / (_step(best) - free + FLOOR * free)

    @property
    def first_s(self) -> float | None:
        """Seconds to the first plan."""
        return self.progress[0][0] if self.progress else None

    @property
    def near_s(self) -> float | None:
        """Seconds to a plan at most NEAR times as far from the final bound as the final plan."""
        if self.ours.step_us is None or self.ours.bound_us is None:
            return None
        most = self.ours.bound_us + NEAR * (self.ours.step_us - self.ours.bound_us)
        return next((at for at, step in self.progress if ns(step) <= ns(most)), None)

    @property
    def progress(self) -> tuple[tuple[float, float], ...]:
        """(seconds, microseconds) of each better plan, the final one last."""
        ours = self.ours
        if ours.step_us is None or ours.seconds is None:
            return ()
        return (*ours.progress, (ours.seconds, ours.step_us))


def _step(outcome: Outcome) -> float:
    assert outcome.step_us is not None
    return outcome.step_us


# -- a row for each case -----------------------------------------------------------------------------------


def rows(cases: Sequence[Case], rivals: Sequence[str]) -> list[str]:
    """The table, in Markdown."""
    heads = ["trace", "operators", "budget", "bound / unlimited", "ours", "best rival", *rivals]
    heads += ["first plan s", "near s", "all s", "MiB"]
    lines = [_row(heads), "|---|" + "---:|" * 4 + "---|" + "---:|" * (len(heads) - 6)]
    for case in cases:
        ours, best = case.ours, case.best
        bound = "" if ours.bound_us is None else f"{ours.bound_us / ours.unlimited_us:.4f}"
        cells = [ours.trace, str(ours.count), f"{ours.percent} %", bound, _ours(case)]
        cells.append("" if best is None else f"{case.ratio(best):.4f} {best.contender}")
        cells += [_rival(case, case.rivals.get(name)) for name in rivals]
        cells += [_seconds(case.first_s), _seconds(case.near_s), _seconds(ours.seconds)]
        lines.append(_row([*cells, f"{ours.rss_bytes / 2**20:.0f}"]))
    return lines


def _ours(case: Case) -> str:
    ours = case.ours
    if ours.step_us is not None:
        return f"{case.ratio(ours):.4f}" + (" **above**" if case.above_rival else "")
    if ours.status == "infeasible":
        return "none, proven" if ours.proven else "none found"
    return f"**{ours.status}**"


def _rival(case: Case, outcome: Outcome | None) -> str:
    if outcome is None:
        return "?"
    if outcome.step_us is not None:
        return f"{case.ratio(outcome):.4f}"
    return WORDS.get(outcome.status, outcome.status)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


# -- wanted and seen ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """`met`: None where nothing is wanted, or there was nothing to see."""

    what: str
    wanted: str
    seen: str
    met: bool | None


def summary(cases: Sequence[Case]) -> list[Line]:
    """What the issue wants beside what was seen, and what would be a defect."""
    reachable = [case for case in cases if case.reachable]
    proven = [case for case in cases if not case.reachable and case.ours.proven]
    open_ = len(cases) - len(reachable) - len(proven)
    seen = f"{len(reachable)} of {len(cases)}; {len(proven)} proven out of reach, {open_} where nobody has a plan"
    lines = [Line("cases with a plan", "", seen, None)]
    planned = [case for case in reachable if case.ours.step_us is not None]
    lines.append(_none_of("ours without a plan that the judge passes", reachable, lambda c: c.ours.step_us is None))
    ratios = sorted(case.ratio(case.ours) for case in reachable)
    if ratios:
        middle, p95 = median(ratios), ratios[math.ceil(0.95 * len(ratios)) - 1]
        lines.append(Line("step / bound, median", f"<= {MEDIAN}", f"{middle:.4f}", middle <= MEDIAN))
        lines.append(Line("step / bound, 95th percentile", f"<= {P95}", f"{p95:.4f}", p95 <= P95))
        worst = max(reachable, key=lambda case: case.ratio(case.ours))
        lines.append(Line("step / bound, worst", "", f"{worst.ratio(worst.ours):.4f}: {worst.name}", None))
    lines.append(_none_of("ours above a rival", reachable, lambda c: c.above_rival))
    lines += _against_rivals(reachable)
    for size, most in NEAR_S.items():
        lines += _times([case for case in planned if case.size == size], size, most)
    if cases:
        largest = max(cases, key=lambda case: case.ours.rss_bytes)
        mib = largest.ours.rss_bytes / 2**20
        met = largest.ours.rss_bytes <= MOST_BYTES
        lines.append(Line("memory, most", "<= 4096 MiB", f"{mib:.0f} MiB: {largest.name}", met))
    return lines + _defects(cases)


def _against_rivals(cases: Sequence[Case]) -> list[Line]:
    shares = [share for case in cases if (share := case.share) is not None]
    what = "overhead of ours in the best rival's, where that is over 1 % above the bound, geometric mean"
    alone = sum(case.best is None for case in cases)
    lines = [Line("cases where no rival has a plan", "", f"{alone} of {len(cases)}", None)]
    if shares:
        mean = math.exp(sum(map(math.log, shares)) / len(shares))
        seen = f"{mean:.3f} over {len(shares)} cases, {min(shares):.3f} to {max(shares):.3f}"
        lines.append(Line(what, "<= 0.333", seen, mean <= SHARE))
    else:
        lines.append(Line(what, "<= 0.333", "no such case", None))
    best = Counter(case.best.contender for case in cases if case.best is not None)
    named = ", ".join(f"{name} {count}" for name, count in best.most_common())
    return [*lines, Line("best rival, cases", "", named, None)]


def _times(cases: Sequence[Case], size: str, most: float) -> list[Line]:
    if not cases:
        return []
    lines = []
    near, first = [(c.near_s, c) for c in cases], [(c.first_s, c) for c in cases]
    for what, times, limit in (("near plan", near, most), ("first plan", first, most / 10)):
        seconds = [(math.inf if at is None else at, case) for at, case in times]
        late = sum(at > limit for at, _ in seconds)
        worst, case = max(seconds, key=lambda pair: pair[0])
        seen = f"{worst:.2f}: {case.name}; median {median(at for at, _ in seconds):.2f}, late in {late} of {len(cases)}"
        lines.append(Line(f"{what}, seconds, {size}, most", f"<= {limit:g}", seen, not late))
    return lines


def _defects(cases: Sequence[Case]) -> list[Line]:
    """What must not be at all."""

    def proven_wrong(case: Case) -> bool:
        return case.ours.proven and case.best is not None

    def below_bound(case: Case) -> bool:
        bound = case.ours.bound_us
        every = (case.ours, *case.rivals.values())
        return bound is not None and any(o.step_us is not None and ns(o.step_us) < ns(bound) for o in every)

    def predicted_wrong(case: Case) -> bool:
        return any(o.detail.startswith("predicted ") for o in (case.ours, *case.rivals.values()))

    def not_well(case: Case) -> bool:
        return case.ours.status not in ("plan", "infeasible")

    def late(case: Case) -> bool:
        return case.ours.seconds is not None and case.ours.seconds > case.ours.limit_s * 1.1 + 1

    def rival_illegal(case: Case) -> bool:
        return any(o.status in ("illegal", "failed") for o in case.rivals.values())

    return [
        _none_of("said to be out of reach, and a rival has a plan", cases, proven_wrong),
        _none_of("a plan faster than our bound", cases, below_bound),
        _none_of("step time predicted otherwise than judged", cases, predicted_wrong),
        _none_of("ours illegal, killed or failed", cases, not_well),
        _none_of("ours over its time limit by more than a tenth and a second", cases, late),
        _none_of("a rival's plan illegal, or its code failed", cases, rival_illegal),
    ]


def _none_of(what: str, cases: Sequence[Case], wrong: Callable[[Case], bool]) -> Line:
    found = [case.name for case in cases if wrong(case)]
    seen = f"{len(found)} of {len(cases)}" + (": " + "; ".join(found[:3]) if found else "")
    return Line(what, "0", seen + (", ..." if len(found) > 3 else ""), not found)


def told(lines: Sequence[Line]) -> list[str]:
    """The summary, in Markdown."""
    marks = {True: "yes", False: "**no**", None: ""}
    return [
        "| what | wanted | seen | met |",
        "|---|---|---|---|",
        *(_row((line.what, line.wanted, line.seen, marks[line.met])) for line in lines),
    ]
