"""Local search over splits: simulated annealing, judged by the clock, compiled.

A move takes one layer from one group and gives one to another, shifting all between by a layer, or changes the level
of one layer. What a move leaves over the limits is repaired by cheaper levels drawn at random, then as many layers as
fit go back to faster ones. Values are compared with a temperature that falls from a hundredth to a hundred-thousandth
of the best. The same seed gives the same walk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyperopt.engine.compiled import compiled
from solver.stages.problem import Objective, Problem
from solver.stages.schedule import graph_of
from solver.stages.simulate import Clock, clock, tell

I64 = NDArray[np.int64]

MAKESPAN, SLOWEST = 0, 1
HOT, COLD = 1e-2, 1e-5
NO_VALUE = 2**61


@dataclass(frozen=True, eq=False)
class Search:
    """Walks over the splits of one problem under one objective."""

    problem: Problem
    objective: Objective

    def walk(self, split: I64, steps: int, seed: int, hot: float = HOT) -> tuple[int, I64]:
        """The best value (ticks) and split found in so many moves from a split, which is repaired first. The value is
        `NO_VALUE` where none was found that fits."""
        p = self.problem
        made: Clock = clock(p, "makespan" if self.objective == "slowest" else self.objective)
        g, held = made.graph, graph_of(p)
        both = ((p.device, held.alive), (p.late, held.late))[: p.parts - 1]
        device, alive = (np.stack(each) for each in zip(*both, strict=True))
        best = split.copy()
        value = anneal(
            SLOWEST if self.objective == "slowest" else MAKESPAN,
            p.stages, p.chunks, p.layer_types, p.type_of, p.forward, p.backward, p.weight, p.copy_out, p.copy_in,
            device, p.host, p.parameter, p.extra, fixed(p), p.limit, p.host_limit, p.min_layers, alive,
            g.duration, g.before, g.needs, made.lag, made.anchors, made.folded_blocks,
            np.ascontiguousarray(split), steps, seed, hot, COLD, best,
        )  # fmt: skip
        return int(value), best


def fixed(p: Problem) -> I64:
    """[stage, prefix]: grains that are there whatever the split is."""
    made = graph_of(p)
    alive, late = (p.beside[:, i].reshape(p.chunks, p.stages).T[:, None, :] for i in (0, 1))
    return np.asarray(p.static[:, None] + (made.alive * alive + made.late * late).sum(2), np.int64)


@compiled()
def over(stage, stages, chunks, split, type_of, device, host, parameter, always, limit, host_limit, alive, room):  # type: ignore[no-untyped-def]
    """Grains by which a stage is over its limits, device and host together. `device` and `alive` have a second layer
    where backward is in halves: what is between them. `room`: [2, chunk], for what this counts."""
    held, columns = 0, split.shape[1]
    act, out = room[0], room[1]
    for c in range(chunks):
        act[c] = out[c] = 0
        for k in range(columns):
            n = split[c * stages + stage, k]
            if n:
                held += n * parameter[stage, type_of[k]]
                act[c] += n * device[0, stage, k]
                out[c] += n * host[stage, k]
    half = 0  # what stays between the halves of backward: one chunk has them
    if len(alive) == 2:
        for k in range(columns):
            half += split[stage, k] * device[1, stage, k]
    most_act, most_out = 0, 0
    for j in range(alive.shape[2]):
        a, b = always[stage, j], 0
        if len(alive) == 2:
            a += alive[1, stage, j, 0] * half
        for c in range(chunks):
            a += alive[0, stage, j, c] * act[c]
            b += alive[0, stage, j, c] * out[c]
        most_act = max(most_act, a)
        most_out = max(most_out, b)
    return max(0, held + most_act - limit[stage]) + max(0, most_out - host_limit[stage])


@compiled()
def anneal(  # type: ignore[no-untyped-def]
    objective, stages, chunks, layer_types, type_of, forward, backward, weight, copy_out, copy_in,
    device, host, parameter, extra, always, limit, host_limit, min_layers, alive,
    index, before, needs, lag, anchors, folded, start, steps, seed, hot, cold, best,
):  # fmt: skip
    np.random.seed(seed)
    groups, columns, layers, parts = stages * chunks, start.shape[1], len(layer_types), extra.shape[1]
    split = start.copy()
    trial = start.copy()
    durations = np.zeros(parts * groups, np.int64)
    bounds = np.zeros(groups + 1, np.int64)
    room = np.zeros((2, chunks), np.int64)
    for g in range(groups):
        bounds[g + 1] = bounds[g] + split[g].sum()
    now, best_value = 2 * NO_VALUE - 1, NO_VALUE
    moved = bounds.copy()
    for step in range(steps + 1):
        trial[:] = split
        moved[:] = bounds
        # -- a move (none in the first step, which repairs the start) --
        if step:
            first = np.random.randint(0, groups)
            if np.random.random() < 0.6 and groups > 1:
                reach = 1 if np.random.random() < 0.5 else np.random.randint(1, groups)
                last = min(groups - 1, first + reach)
                shift = 1 if np.random.random() < 0.5 else -1
                for g in range(first, last):
                    moved[g + 1] += shift
                wrong = first == last
                for g in range(groups):
                    wrong = wrong or moved[g + 1] - moved[g] < min_layers
                if wrong:
                    continue
            else:
                pick = _some(trial, first, columns)
                if pick < 0:
                    continue
                to = np.random.randint(0, columns)
                if to == pick or type_of[to] != type_of[pick]:
                    continue
                trial[first, pick] -= 1
                trial[first, to] += 1
        # -- each group has its layers' types again --
        for g in range(groups):
            if moved[g] != bounds[g] or moved[g + 1] != bounds[g + 1]:
                _retype(trial, g, moved, layer_types, type_of, columns)
        # -- limits --
        missing = 0
        for s in range(stages):
            short = over(
                s, stages, chunks, trial, type_of, device, host, parameter, always, limit, host_limit, alive, room
            )
            tries = 0
            while short > 0 and tries < 40 * chunks * columns + 4 * layers:
                tries += 1
                g = np.random.randint(0, chunks) * stages + s
                pick = _some(trial, g, columns)
                to = np.random.randint(0, columns)
                if pick < 0 or to == pick or type_of[to] != type_of[pick]:
                    continue
                trial[g, pick] -= 1
                trial[g, to] += 1
                left = over(
                    s, stages, chunks, trial, type_of, device, host, parameter, always, limit, host_limit, alive, room
                )
                if left < short:
                    short = left
                else:
                    trial[g, pick] += 1
                    trial[g, to] -= 1
            missing += short
            if short > 0:
                continue
            for _ in range(2 * chunks * columns):
                g = np.random.randint(0, chunks) * stages + s
                pick = _some(trial, g, columns)
                to = np.random.randint(0, columns)
                if pick < 0 or type_of[to] != type_of[pick]:
                    continue
                gain = forward[s, pick] + backward[s, pick] - forward[s, to] - backward[s, to]
                if gain <= 0:
                    continue
                trial[g, pick] -= 1
                trial[g, to] += 1
                if over(
                    s, stages, chunks, trial, type_of, device, host, parameter, always, limit, host_limit, alive, room
                ):
                    trial[g, pick] += 1
                    trial[g, to] -= 1
        if missing:
            # Until a first split fits, the walk goes down in what is missing.
            if now >= NO_VALUE and NO_VALUE + missing <= now:
                now = NO_VALUE + missing
                split[:] = trial
                bounds[:] = moved
            continue
        # -- value --
        for g in range(groups):
            s = g % stages
            f, b, o, i = extra[g, 0], extra[g, 1], 0, 0
            for k in range(columns):
                n = trial[g, k]
                f += n * forward[s, k]
                b += n * backward[s, k]
                o += n * copy_out[s, k]
                i += n * copy_in[s, k]
            durations[parts * g] = max(f, o)
            durations[parts * g + 1] = max(b, i)
            if parts == 3:
                w = extra[g, 2]
                for k in range(columns):
                    w += trial[g, k] * weight[s, k]
                durations[parts * g + 2] = w
        if objective == SLOWEST:
            value = 0
            for s in range(stages):
                work = 0
                for c in range(chunks):
                    for part in range(parts):
                        work += durations[parts * (c * stages + s) + part]
                value = max(value, work)
        else:
            value = tell(durations, parts, index, before, needs, lag, anchors, folded)
        heat = hot * (cold / hot) ** (step / max(1, steps))
        worse = 0.0 if now >= NO_VALUE else (value - now) / (heat * best_value + 1e-9)
        if worse <= 0 or np.random.random() < np.exp(-worse):
            now = value
            split[:] = trial
            bounds[:] = moved
            if value < best_value:
                best_value = value
                best[:] = trial
    return best_value


@compiled()
def _some(split, group, columns):  # type: ignore[no-untyped-def]
    """The column of a layer drawn from a group; -1 if it has none."""
    total = split[group].sum()
    if total == 0:
        return -1
    draw = np.random.randint(0, total)
    for k in range(columns):
        draw -= split[group, k]
        if draw < 0:
            return k
    return -1


@compiled()
def _retype(split, group, bounds, layer_types, type_of, columns):  # type: ignore[no-untyped-def]
    """Takes layers of each type off a group, or adds them at the first column of the type, as its bounds say."""
    wanted = np.zeros(type_of.max() + 1, np.int64)
    for layer in range(bounds[group], bounds[group + 1]):
        wanted[layer_types[layer]] += 1
    for k in range(columns):
        wanted[type_of[k]] -= split[group, k]
    for k in range(columns):
        t = type_of[k]
        if wanted[t] > 0:
            split[group, k] += wanted[t]
            wanted[t] = 0
    for k in range(columns):
        t = type_of[k]
        if wanted[t] < 0:
            gone = min(split[group, k], -wanted[t])
            split[group, k] -= gone
            wanted[t] += gone
