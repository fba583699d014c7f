"""Rounds of ruin and refill, compiled: what `search` spends most of its time in.

::

    current ──▶ some moves near lost time taken out ─▶ refilled at other costs ──▶ timed ──▶ rehearsed ──▶ taken on?
        └─────▶ or some copies shifted ────────────────────────────────────────────┘

`play` runs so many rounds and can be called again to go on: all that it knows is in its arguments, so that how the
rounds are cut into calls does not change what they find.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hyperopt.engine import Outcome
from hyperopt.engine.kernel import COPIES, FOR_COPY_IN, STEP
from solver.residency.clockwork import LEAD, set_positions
from solver.residency.compiled import ZERO, entry, inner
from solver.residency.draft import Draft
from solver.residency.filling import add_until_fits, remove_surplus
from solver.residency.layout import BEFORE, BYTES, FIRST_GAP, PART_AT, RERUN_BEFORE, Layout
from solver.residency.problem import Int64s
from solver.residency.rehearsal import FITS, most_copies, rehearse
from solver.residency.ruin import (
    BACK,
    END,
    MEMORY_NS,
    ON_LINKS,
    OUT,
    ROWS,
    START,
    STEP_NS,
    TIER,
    WAIT_FOR,
    WAIT_KIND,
    WAIT_NS,
    Known,
    force_move,
    force_rerun,
    gap_of,
    last_used,
    ruin,
    settle,
    shift,
)

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

NOISE = 0.4
"""Spread of the logarithm of the costs in a refill."""

HEAT = 0.02
"""A worse plan is taken on when it is worse by some of the distance to the bound: so much of it, on average."""

PATIENCE = 200
"""Rounds without a better plan after which the search goes back to the best."""

LEARN, FORGET = 0.3, 0.99
"""Of what a plan waits for a gap, the part added to its cost in later refills, and what is left of it a round later."""

RETREATS = 6
"""Times that a draft is filled anew without the reruns that take room where nothing else can make any."""

SHIFT, RUIN, FORCE_MOVE, FORCE_RERUN = range(4)
"""Ways to another plan."""

WAYS = np.asarray([0.25, 0.35, 0.15, 0.25])
"""How often each is gone. Learning it from how often a way led to a better plan gained nothing: shifts often do, a
little."""


class Prices(NamedTuple):
    """Several costs of moves (cost, tier, gap), apart the copy out, and of reruns (cost, rerun); `merit` is how well
    each has served."""

    out: Floats
    back: Floats
    reruns: Floats
    merit: Floats


class Setting(NamedTuple):
    """Operators off HBM per gap, as in `filling.Spans`: by listed order, and (line, gap) on the time line of the step
    without a plan, and on that of the best plan, which is taken in a share `own` of fillings in time. `noise`: factors
    of costs, a power of two of them."""

    listed_first: Int64s
    listed_end: Int64s
    timed_first: Int64s
    timed_end: Int64s
    own: float
    unlimited_ns: int
    bound_ns: float
    batch: int
    ways: Floats
    noise: Floats


class Course(NamedTuple):
    """Where the rounds are: `current`, `best`; `trial` is work space. `penalty`: what earlier refills waited for each
    gap; `idle[0]`: rounds since the best plan was found."""

    current: Known
    best: Known
    trial: Known
    penalty: Floats
    idle: Int64s


def course_from(draft: Draft, outcome: Outcome, layout: Layout) -> Course:
    """Rounds that start from a plan."""
    record, rows = outcome.record, len(outcome.copies)

    def known() -> Known:
        copies = np.zeros((most_copies(layout), 7), dtype=np.int64)
        copies[:rows] = outcome.copies
        on_links = int((outcome.copies[:, 6] - outcome.copies[:, 5]).sum())
        times = (record.start, record.end, record.wait_ns, record.wait_for, record.wait_kind, record.memory_ns)
        return Known(
            np.stack([draft.tier, draft.out, draft.back]), draft.chosen.copy(), np.stack(times).astype(np.int64),
            copies, np.asarray([outcome.step_ns, on_links, rows], dtype=np.int64),
        )  # fmt: skip

    return Course(known(), known(), known(), np.zeros(len(draft.tier)), np.ones(1, dtype=np.int64))


@entry
def play(most, dice, world, layout, stage, setting, prices, course):  # type: ignore[no-untyped-def]
    """Rounds until `most` plans have been judged (or refills failed), or one is better than the best; returns how many
    were judged."""
    current, best, trial, penalty = course.current, course.best, course.trial, course.penalty
    tier, out, back = trial.moves[TIER], trial.moves[OUT], trial.moves[BACK]
    work, gaps, tiers = 0, len(tier), layout.tiers.shape[1]
    kept, noise = current.moves[TIER], setting.noise
    keep = np.zeros(gaps, np.bool_)
    out_cost, back_cost = np.empty((tiers, gaps)), np.empty((tiers, gaps))
    rerun_cost = np.empty(len(trial.chosen))
    known_out, known_back = np.empty(gaps, np.int64), np.empty(gaps, np.int64)
    while work < most:
        _copy_draft(current, trial)
        arm = _pick(dice, prices.merit)
        way = _pick(dice, setting.ways)
        fits = True
        if way == SHIFT:
            shift(dice, layout, current, trial)
        else:
            forced_gap = forced_rerun = -1
            if way == RUIN:
                ruin(dice, layout, current, trial)
            elif way == FORCE_MOVE:
                forced_gap = force_move(dice, layout, current, trial, prices, arm)
            else:
                forced_rerun = force_rerun(dice, layout, current, trial, prices, arm)
            since, last = int(dice.random() * len(noise)), len(noise) - 1
            for t in range(tiers):
                for g in range(gaps):
                    out_cost[t, g] = prices.out[arm, t, g] * noise[(since + g) & last]
                    back_cost[t, g] = prices.back[arm, t, g] * noise[(since + g) & last] + penalty[g]
            since += gaps
            for r in range(len(rerun_cost)):
                rerun_cost[r] = prices.reruns[arm, r] * noise[(since + r) & last]
            in_time = dice.random() < 0.7
            line = 1 if dice.random() < setting.own else 0
            filled = _filled(world.limit, layout, setting, trial, out_cost, back_cost, rerun_cost, in_time, line)
            fits = filled >= 0
            if fits:
                if forced_gap >= 0 or forced_rerun >= 0 or dice.random() < 0.3:
                    _prune(
                        world.limit, layout, setting, trial, out_cost, back_cost, rerun_cost, filled == 1, line,
                        forced_gap, forced_rerun,
                    )  # fmt: skip
                for g in range(gaps):
                    keep[g] = False
                if dice.random() < 0.7:
                    for g in range(gaps):
                        keep[g] = kept[g] >= 0 and tier[g] == kept[g]
                lead = 1.0 if dice.random() < 0.6 else 1.0 + 0.5 * dice.random()
                start, end = current.times[START], current.times[END]
                set_positions(layout, world.limit, start, end, lead, tier, out, back, trial.chosen, keep)
        work += 1
        if not fits:
            continue
        judged = False
        for again in range(2):  # timed once more by its own time line where that is better than the current plan
            if again:
                if not _before(trial.figures, current.figures):
                    break
                for g in range(gaps):
                    known_out[g], known_back[g], keep[g] = out[g], back[g], False
                set_positions(
                    layout, world.limit, trial.times[START], trial.times[END], LEAD, tier, out, back, trial.chosen, keep
                )
                work += 1
            taken = rehearse(world, layout, stage, tier, out, back, trial.chosen) == FITS
            if taken:
                taken = _take(stage.record, stage.state.register, trial, again == 1)
            if again and not taken:
                for g in range(gaps):
                    out[g], back[g] = known_out[g], known_back[g]
            if not again:
                if not taken:
                    break
                judged = True
        if not judged:
            continue
        better = _before(trial.figures, current.figures)
        for g in range(gaps):
            penalty[g] *= FORGET
        _charge(layout, setting.unlimited_ns, trial, penalty)
        slack = best.figures[STEP_NS] - setting.bound_ns
        limit = current.figures[STEP_NS] - HEAT * slack * np.log(max(dice.random(), 1e-9))
        prices.merit[arm] = 0.98 * prices.merit[arm] + 0.02 * (0.1 + 5.0 * better)
        if trial.figures[STEP_NS] <= limit:
            _copy(trial, current)
        if _before(trial.figures, best.figures):
            _copy(trial, best)
            course.idle[0] = 0
            break
        course.idle[0] += 1
        if course.idle[0] % PATIENCE == 0:
            _copy(best, current)
    return work


@inner
def _copy_draft(source, target):  # type: ignore[no-untyped-def]
    _copy_rows(source.moves, target.moves, len(source.moves))
    for r in range(len(source.chosen)):
        target.chosen[r] = source.chosen[r]


@inner
def _copy(source, target):  # type: ignore[no-untyped-def]
    _copy_draft(source, target)
    _copy_rows(source.times, target.times, len(source.times))
    _copy_rows(source.copies, target.copies, source.figures[ROWS])
    for i in range(len(source.figures)):
        target.figures[i] = source.figures[i]


@inner
def _copy_rows(source, target, rows):  # type: ignore[no-untyped-def]
    """As a loop: numba's assignment of slices takes long to compile."""
    for i in range(rows):
        for j in range(source.shape[1]):
            target[i, j] = source[i, j]


@inner
def _take(record, register, trial, if_better):  # type: ignore[no-untyped-def]
    """Takes over what has become of the trial, or, `if_better`, only where it is better than what is known of it;
    whether it did."""
    times, copies, figures, rows = trial.times, record.copies, np.empty(3, np.int64), register[COPIES]
    total = 0
    for i in range(rows):
        total += copies[i, 6] - copies[i, 5]
    figures[STEP_NS], figures[ON_LINKS], figures[ROWS] = register[STEP], total, rows
    if if_better and not _before(figures, trial.figures):
        return False
    for i in range(len(figures)):
        trial.figures[i] = figures[i]
    for k in range(times.shape[1]):
        times[START, k], times[END, k] = record.start[k], record.end[k]
        times[WAIT_NS, k], times[WAIT_FOR, k] = record.wait_ns[k], record.wait_for[k]
        times[WAIT_KIND, k], times[MEMORY_NS, k] = record.wait_kind[k], record.memory_ns[k]
    _copy_rows(copies, trial.copies, rows)
    return True


@inner
def _before(one, other):  # type: ignore[no-untyped-def]
    """Whether a plan of these figures is better than one of the others."""
    return one[STEP_NS] < other[STEP_NS] or (one[STEP_NS] == other[STEP_NS] and one[ON_LINKS] < other[ON_LINKS])


@inner
def _pick(dice, weights):  # type: ignore[no-untyped-def]
    """A place, as often as its weight says."""
    total = 0.0
    for i in range(len(weights)):
        total += weights[i]
    left = dice.random() * total
    for i in range(len(weights)):
        left -= weights[i]
        if left < 0:
            return i
    return len(weights) - 1


@inner
def _filled(budget, layout, setting, trial, out_cost, back_cost, rerun_cost, timed, line):  # type: ignore[no-untyped-def]
    """Fills the trial, in time if that goes, at least in listed order: 1, or 0; -1 where it cannot be."""
    tier, chosen = trial.moves[TIER], trial.chosen
    shut = np.zeros(len(chosen), np.bool_)
    all_shut = False
    first_tier, first_chosen = tier.copy(), chosen.copy()
    for attempt in range(0 if timed else 1, 1 + RETREATS):
        for g in range(len(tier)):
            tier[g] = first_tier[g]
        for r in range(len(shut)):
            chosen[r] = first_chosen[r] and not shut[r]
            if shut[r]:
                rerun_cost[r] = np.inf
        settle(layout, trial)
        first = setting.timed_first[line] if attempt == 0 else setting.listed_first
        end = setting.timed_end[line] if attempt == 0 else setting.listed_end
        stuck = add_until_fits(
            layout, budget, first, end, out_cost, back_cost, rerun_cost, setting.batch, tier, chosen
        )  # fmt: skip
        if stuck < 0:
            return 1 if attempt == 0 else 0
        if attempt:
            if all_shut:
                break
            any_shut = False
            for r in range(len(shut)):
                if chosen[r] and _takes_room(layout, r, stuck):
                    shut[r], any_shut = True, True
            all_shut = True
            for r in range(len(shut)):
                shut[r] = shut[r] or not any_shut
                all_shut = all_shut and shut[r]
    return -1


@inner
def _takes_room(layout, r, op):  # type: ignore[no-untyped-def]
    """Whether a rerun runs before an operator, or keeps something past its last access until later."""
    if layout.reruns[RERUN_BEFORE, r] == op:
        return True
    parts = layout.parts
    for p in range(layout.reruns[PART_AT, r], layout.reruns[PART_AT, r + 1]):
        since, until = parts[p, 2], parts[p, 3]
        if parts[p, 4] & 1 and since < until and since <= op <= until:
            return True
    return False


@inner
def _prune(  # type: ignore[no-untyped-def]
    budget, layout, setting, trial, out_cost, back_cost, rerun_cost, timed, line, forced_gap, forced_rerun
):
    """Takes out, dearest first, what the trial fits without, but for what has been forced in."""
    settle(layout, trial)
    tier, chosen, size = trial.moves[TIER], trial.chosen, layout.gaps[BYTES]
    order, dear = np.empty(len(tier), np.int64), np.empty(len(tier))
    made, dear_made = np.empty(len(chosen), np.int64), np.empty(len(chosen))
    moved = again = ZERO
    for g in range(len(tier)):
        if tier[g] >= 0 and g != forced_gap:
            order[moved], dear[moved] = g, (out_cost[tier[g], g] + back_cost[tier[g], g]) / max(size[g], 1)
            moved += 1
    for r in range(len(chosen)):
        if chosen[r] and r != forced_rerun:
            made[again], dear_made[again] = r, rerun_cost[r]
            again += 1
    dearest_first(order, dear, moved)
    dearest_first(made, dear_made, again)
    first = setting.timed_first[line] if timed else setting.listed_first
    end = setting.timed_end[line] if timed else setting.listed_end
    remove_surplus(layout, budget, first, end, order[:moved], made[:again], tier, chosen)
    settle(layout, trial)


@inner
def dearest_first(places, dear, count):  # type: ignore[no-untyped-def]
    """Sorts the first `count` of two arrays in place (a heap sort: numba's own takes a second to compile)."""
    for filled in range(1, 2 * count):
        # First the heap grows, its cheapest on top; then the top goes to the end, and the heap shrinks.
        if filled < count:
            i = filled
            while i > 0 and dear[(i - 1) >> 1] > dear[i]:
                above = (i - 1) >> 1
                dear[i], dear[above] = dear[above], dear[i]
                places[i], places[above] = places[above], places[i]
                i = above
            continue
        last = 2 * count - 1 - filled
        dear[0], dear[last] = dear[last], dear[0]
        places[0], places[last] = places[last], places[0]
        i = 0
        while 2 * i + 1 < last:
            below = 2 * i + 1
            if below + 1 < last and dear[below + 1] < dear[below]:
                below += 1
            if dear[below] >= dear[i]:
                break
            dear[i], dear[below] = dear[below], dear[i]
            places[i], places[below] = places[below], places[i]
            i = below


@inner
def _charge(layout, unlimited_ns, trial, penalty):  # type: ignore[no-untyped-def]
    """Adds to the penalties a part of the time that the plan waits for each move."""
    times, copies, rows, n = trial.times, trial.copies, trial.figures[ROWS], layout.n
    tier, out, back = trial.moves[TIER], trial.moves[OUT], trial.moves[BACK]
    before, first_gap = layout.gaps[BEFORE], layout.storages[FIRST_GAP]
    last = 0
    for op in range(n):
        last = max(last, times[END, op])
        waited = times[WAIT_NS, op]
        if times[WAIT_KIND, op] == FOR_COPY_IN and waited > unlimited_ns * 1e-5:
            s = times[WAIT_FOR, op]
            for g in range(first_gap[s], first_gap[s + 1]):
                if tier[g] >= 0 and back[g] <= op <= before[g] + 1:
                    penalty[g] += LEARN * waited
        waited = times[MEMORY_NS, op]
        if waited > unlimited_ns * 1e-4:  # moves on whose copies out it waits share what they hold up
            until, ended = times[START, op], 0
            for i in range(rows):
                ended += copies[i, 3] == 1 and until - waited < copies[i, 6] <= until
            for i in range(rows):
                if copies[i, 3] == 1 and until - waited < copies[i, 6] <= until:
                    g = gap_of(first_gap, tier, out, back, copies[i, 0], copies[i, 1])
                    if g >= 0:
                        penalty[g] += LEARN * waited / ended
    for i in range(rows):
        if copies[i, 3] == 1 and copies[i, 6] > last:
            g = last_used(first_gap, tier, copies[i, 0])
            if g >= 0:
                penalty[g] += LEARN * (copies[i, 6] - max(copies[i, 5], last))
