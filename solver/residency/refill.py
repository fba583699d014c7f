"""Rounds of ruin and refill, compiled: what `search` spends most of its time in.

::

    current ──▶ some moves near a wait taken out ──▶ refilled at other costs ──▶ timed ──▶ rehearsed ──▶ taken on?
        └─────▶ or some copies shifted ────────────────────────────────────────────┘

`play` runs so many rounds and can be called again to go on: all that it knows is in its arguments, so that how the
rounds are cut into calls does not change what they find. Numba's cache of it is as old as this file: after a change
in `ruin`, `filling`, `clockwork` or `rehearsal` alone, touch it.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from hyperopt.engine import Outcome
from hyperopt.engine.kernel import COPIES, FOR_COPY_IN, STEP
from solver.residency.clockwork import set_positions
from solver.residency.draft import Draft
from solver.residency.filling import add_until_fits, remove_surplus
from solver.residency.problem import Int64s
from solver.residency.rehearsal import FITS, Layout, record_for, rehearse
from solver.residency.ruin import (
    ON_LINKS,
    ROWS,
    STEP_NS,
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
    """What does not change: operators off HBM per gap, as in `filling.Spans`, by listed order and in time."""

    listed_first: Int64s
    listed_end: Int64s
    timed_first: Int64s
    timed_end: Int64s
    unlimited_ns: int
    bound_ns: float
    batch: int
    ways: Floats


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
    tiers = outcome.record.tier_bytes.shape[1]

    def known() -> Known:
        record = record_for(layout, tiers)
        _copy_record(outcome.record, record, len(outcome.copies))
        on_links = int((outcome.copies[:, 6] - outcome.copies[:, 5]).sum())
        figures = np.asarray([outcome.step_ns, on_links, len(outcome.copies)], dtype=np.int64)
        own = draft.copy()
        return Known(own.tier, own.out, own.back, own.chosen, record, figures)

    return Course(known(), known(), known(), np.zeros(len(draft.tier)), np.ones(1, dtype=np.int64))


@numba.njit(cache=True, nogil=True)
def play(most, dice, world, layout, stage, setting, prices, course):  # type: ignore[no-untyped-def]
    """Rounds until `most` plans have been judged (or refills failed), or one is better than the best; returns how many
    were judged."""
    current, best, trial = course.current, course.best, course.trial
    work = 0
    gaps = len(layout.storage)
    keep = np.zeros(gaps, np.bool_)
    while work < most:
        _copy(current, trial, False)
        arm = _pick(dice, prices.merit)
        fits = True
        way = _pick(dice, setting.ways)
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
            out, back, again = prices.out[arm].copy(), prices.back[arm].copy(), prices.reruns[arm].copy()
            for g in range(gaps):
                noise = np.exp(dice.normal(0.0, NOISE))
                for t in range(len(out)):
                    out[t, g] *= noise
                    back[t, g] = back[t, g] * noise + course.penalty[g]
            for r in range(len(again)):
                again[r] *= np.exp(dice.normal(0.0, NOISE))
            filled = _filled(world, layout, setting, trial, out, back, again, dice.random() < 0.7)
            fits = filled >= 0
            if fits:
                if forced_gap >= 0 or forced_rerun >= 0 or dice.random() < 0.3:
                    _prune(world, layout, setting, trial, out, back, again, filled == 1, forced_gap, forced_rerun)
                keep[:] = False
                if dice.random() < 0.7:
                    for g in range(gaps):
                        keep[g] = current.tier[g] >= 0 and trial.tier[g] == current.tier[g]
                lead = 1.0 if dice.random() < 0.6 else 1.0 + 0.5 * dice.random()
                _time(world, layout, trial, current.record, lead, keep)
        work += 1
        if not fits or not _judge(world, layout, stage, trial):
            continue
        if _before(trial, current):
            _retimed(world, layout, stage, trial, keep)
            work += 1
        better = _before(trial, current)
        course.penalty[:] *= FORGET
        _charge(layout, setting, trial, course.penalty)
        slack = best.figures[STEP_NS] - setting.bound_ns
        limit = current.figures[STEP_NS] - HEAT * slack * np.log(max(dice.random(), 1e-9))
        prices.merit[arm] = 0.98 * prices.merit[arm] + 0.02 * (0.1 + 5.0 * better)
        if trial.figures[STEP_NS] <= limit:
            _copy(trial, current, True)
        if _before(trial, best):
            _copy(trial, best, True)
            course.idle[0] = 0
            break
        course.idle[0] += 1
        if course.idle[0] % PATIENCE == 0:
            _copy(best, current, True)
    return work


@numba.njit(cache=True, nogil=True)
def _copy(source, target, judged):  # type: ignore[no-untyped-def]
    target.tier[:] = source.tier
    target.out[:] = source.out
    target.back[:] = source.back
    target.chosen[:] = source.chosen
    if judged:
        target.figures[:] = source.figures
        _copy_record(source.record, target.record, source.figures[ROWS])


@numba.njit(cache=True, nogil=True)
def _copy_record(source, target, rows):  # type: ignore[no-untyped-def]
    target.start[:] = source.start
    target.end[:] = source.end
    target.wait_ns[:] = source.wait_ns
    target.wait_for[:] = source.wait_for
    target.wait_kind[:] = source.wait_kind
    target.memory_ns[:] = source.memory_ns
    target.copies[:rows] = source.copies[:rows]


@numba.njit(cache=True, nogil=True, inline="always")
def _before(one, other):  # type: ignore[no-untyped-def]
    a, b = one.figures, other.figures
    return a[STEP_NS] < b[STEP_NS] or (a[STEP_NS] == b[STEP_NS] and a[ON_LINKS] < b[ON_LINKS])


@numba.njit(cache=True, nogil=True)
def _pick(dice, weights):  # type: ignore[no-untyped-def]
    """A place, as often as its weight says."""
    left = dice.random() * weights.sum()
    for i in range(len(weights)):
        left -= weights[i]
        if left < 0:
            return i
    return len(weights) - 1


@numba.njit(cache=True, nogil=True)
def _judge(world, layout, stage, trial):  # type: ignore[no-untyped-def]
    """Rehearses the trial; whether it fits, with its record and figures taken over."""
    expected = np.empty(len(layout.size), np.int64)
    if rehearse(world, layout, stage, expected, trial.tier, trial.out, trial.back, trial.chosen) != FITS:
        return False
    rows = stage.state.register[COPIES]
    _copy_record(stage.record, trial.record, rows)
    total = 0
    for i in range(rows):
        total += stage.record.copies[i, 6] - stage.record.copies[i, 5]
    trial.figures[STEP_NS], trial.figures[ON_LINKS] = stage.state.register[STEP], total
    trial.figures[ROWS] = rows
    return True


@numba.njit(cache=True, nogil=True)
def _retimed(world, layout, stage, trial, keep):  # type: ignore[no-untyped-def]
    """The trial timed by its own time line, if that is better."""
    out, back = trial.out.copy(), trial.back.copy()
    step, links = trial.figures[STEP_NS], trial.figures[ON_LINKS]
    keep[:] = False
    _time(world, layout, trial, trial.record, 1.25, keep)
    expected = np.empty(len(layout.size), np.int64)
    fits = rehearse(world, layout, stage, expected, trial.tier, trial.out, trial.back, trial.chosen) == FITS
    if fits:
        rows, total = stage.state.register[COPIES], 0
        for i in range(rows):
            total += stage.record.copies[i, 6] - stage.record.copies[i, 5]
        now = stage.state.register[STEP]
        if now < step or (now == step and total < links):
            _copy_record(stage.record, trial.record, rows)
            trial.figures[STEP_NS], trial.figures[ON_LINKS], trial.figures[ROWS] = now, total, rows
            return
    trial.out[:] = out
    trial.back[:] = back


@numba.njit(cache=True, nogil=True)
def _time(world, layout, trial, record, lead, keep):  # type: ignore[no-untyped-def]
    set_positions(
        layout.n, world.limit, layout.load, record.start, record.end, lead,
        layout.storage, layout.bytes, layout.before, layout.leave, layout.latest, layout.written, layout.wraps,
        layout.version, layout.first_gap, layout.next_departure, layout.last_departure, layout.next_arrival,
        layout.last_arrival, layout.roomy, layout.duplex, layout.out_ns, layout.in_ns, layout.by_leave,
        layout.by_latest, layout.size, layout.parts, layout.part_at, layout.extra, layout.rerun_before,
        trial.tier, trial.out, trial.back, trial.chosen, keep,
    )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _filled(world, layout, setting, trial, out, back, again, timed):  # type: ignore[no-untyped-def]
    """Fills the trial, in time if that goes, at least in listed order: 1, or 0; -1 where it cannot be."""
    shut = np.zeros(len(again), np.bool_)
    all_shut = False
    tier, chosen = trial.tier.copy(), trial.chosen.copy()
    for attempt in range(0 if timed else 1, 1 + RETREATS):
        trial.tier[:] = tier
        for r in range(len(shut)):
            trial.chosen[r] = chosen[r] and not shut[r]
            if shut[r]:
                again[r] = np.inf
        settle(layout, trial)
        first = setting.timed_first if attempt == 0 else setting.listed_first
        end = setting.timed_end if attempt == 0 else setting.listed_end
        stuck = add_until_fits(
            layout.n, world.limit, layout.load, layout.storage, layout.bytes, layout.after, layout.before,
            layout.leave, first, end, layout.wraps, layout.version, layout.kept, layout.first_gap, layout.roomy,
            layout.room, layout.size, layout.parts, layout.part_at, layout.extra, layout.rerun_before, layout.clash_at,
            layout.clash, out, back, again, setting.batch, trial.tier, trial.chosen,
        )  # fmt: skip
        if stuck < 0:
            return 1 if attempt == 0 else 0
        if attempt:
            if all_shut:
                break
            any_shut = False
            for r in range(len(shut)):
                if trial.chosen[r] and _takes_room(layout.parts, layout.part_at, layout.rerun_before, r, stuck):
                    shut[r], any_shut = True, True
            if not any_shut:
                shut[:] = True
            all_shut = bool(shut.all())
    return -1


@numba.njit(cache=True, nogil=True, inline="always")
def _takes_room(parts, part_at, rerun_before, r, op):  # type: ignore[no-untyped-def]
    """Whether a rerun runs before an operator, or keeps something past its last access until later."""
    if rerun_before[r] == op:
        return True
    for p in range(part_at[r], part_at[r + 1]):
        since, until = parts[p, 2], parts[p, 3]
        if parts[p, 4] & 1 and since < until and since <= op <= until:
            return True
    return False


@numba.njit(cache=True, nogil=True)
def _prune(world, layout, setting, trial, out, back, again, timed, forced_gap, forced_rerun):  # type: ignore[no-untyped-def]
    """Takes out, dearest first, what the trial fits without, but for what has been forced in."""
    settle(layout, trial)
    dear = np.empty(len(trial.tier))
    for g in range(len(dear)):
        t = trial.tier[g]
        dear[g] = (out[t, g] + back[t, g]) / max(layout.bytes[g], 1) if t >= 0 and g != forced_gap else -1.0
    made = np.flatnonzero(trial.chosen)
    made = made[made != forced_rerun]
    first = setting.timed_first if timed else setting.listed_first
    end = setting.timed_end if timed else setting.listed_end
    order = np.argsort(-dear)
    if forced_gap >= 0:
        order = order[order != forced_gap]
    remove_surplus(
        layout.n, world.limit, layout.load, layout.bytes, first, end, layout.wraps, layout.leave, layout.first_gap,
        layout.size, layout.parts, layout.part_at, layout.extra, layout.rerun_before, order,
        made[np.argsort(-again[made])], trial.tier, trial.chosen,
    )  # fmt: skip
    settle(layout, trial)


@numba.njit(cache=True, nogil=True)
def _charge(layout, setting, trial, penalty):  # type: ignore[no-untyped-def]
    """Adds to the penalties a part of the time that the plan waits for each move."""
    record, rows, n = trial.record, trial.figures[ROWS], layout.n
    copies = record.copies
    last = 0
    for op in range(n):
        last = max(last, record.end[op])
        waited = record.wait_ns[op]
        if record.wait_kind[op] == FOR_COPY_IN and waited > setting.unlimited_ns * 1e-5:
            s = record.wait_for[op]
            for g in range(layout.first_gap[s], layout.first_gap[s + 1]):
                if trial.tier[g] >= 0 and trial.back[g] <= op <= layout.before[g] + 1:
                    penalty[g] += LEARN * waited
        waited = record.memory_ns[op]
        if waited > setting.unlimited_ns * 1e-4:  # moves on whose copies out it waits share what they hold up
            until, ended = record.start[op], 0
            for i in range(rows):
                ended += copies[i, 3] == 1 and until - waited < copies[i, 6] <= until
            for i in range(rows):
                if copies[i, 3] == 1 and until - waited < copies[i, 6] <= until:
                    g = gap_of(layout.first_gap, trial.tier, trial.out, trial.back, copies[i, 0], copies[i, 1])
                    if g >= 0:
                        penalty[g] += LEARN * waited / ended
    for i in range(rows):
        if copies[i, 3] == 1 and copies[i, 6] > last:
            g = last_used(layout.first_gap, trial.tier, copies[i, 0])
            if g >= 0:
                penalty[g] += LEARN * (copies[i, 6] - max(copies[i, 5], last))
