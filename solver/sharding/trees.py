"""Neighbourhoods that are forests of the graph, solved exactly by dynamic programming, compiled.

A set S of nodes whose edges among themselves form a forest is chosen at random, often thousands of nodes; the others
stay. With memory priced, the best choice for all of S at once is found from the leaves to the roots::

    h_i(x)     what i costs with x: own cost, edges to nodes that stay, price_i * usage_i(x)
    up_i(y)    = min over x of h_i(x) + up of the children + edge(x, y of the parent)

If that overfills a column, the column gets a surcharge and the forest is solved again. What is accepted lessens the
overflow, or the cost at equal overflow: overflow is the sum over columns of the bytes beyond their room.
"""

from __future__ import annotations

import numpy as np

from hyperopt.engine.compiled import compiled


@compiled(nogil=True)
def condition(first, cost, at, to, matrix, table, x, cond):  # type: ignore[no-untyped-def]
    """`cond`: what each strategy costs with all other nodes as in `x`."""
    for s in range(len(cost)):
        cond[s] = cost[s]
    for j in range(len(at) - 1):
        for a in range(at[j], at[j + 1]):
            i = to[a]
            k = first[i + 1] - first[i]
            row = matrix[a] + x[j] * k
            for s in range(k):
                cond[first[i] + s] += table[row + s]


@compiled(nogil=True)
def total_cost(first, cost, at, to, matrix, table, x):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(len(at) - 1):
        total += cost[first[i] + x[i]]
        for a in range(at[i], at[i + 1]):
            j = to[a]
            if j > i:
                total += table[matrix[a] + x[i] * (first[j + 1] - first[j]) + x[j]]
    return total


@compiled(nogil=True)
def fill(piece_at, lo, hi, usage_at, usage, x, use):  # type: ignore[no-untyped-def]
    """Bytes in use in every column."""
    change = np.zeros(len(use) + 1)
    for i in range(len(x)):
        for p in range(piece_at[i], piece_at[i + 1]):
            change[lo[p]] += usage[usage_at[p] + x[i]]
            change[hi[p]] -= usage[usage_at[p] + x[i]]
    run = 0.0
    for c in range(len(use)):
        run += change[c]
        use[c] = run


@compiled(nogil=True)
def grow(at, to, seeds, target, shy, inside, touching, stamp, order, entry, frontier):  # type: ignore[no-untyped-def]
    """A random induced forest from `seeds` on; returns how many nodes `order` then holds, parents first.

    `target` counts nodes with more than one neighbour: the others always come with theirs. Nodes of more than `shy`
    neighbours join with probability shy / neighbours. `entry`, by position in
    `order`, leads from the parent to the node; -1 for roots. `frontier` holds entries from nodes inside to others.
    """
    count, waiting, real = 0, 0, 0
    next_seed = 0
    while real < target:
        arriving, above = -1, -1
        while waiting > 0 and arriving < 0:
            pick = np.random.randint(waiting)
            a = frontier[pick]
            waiting -= 1
            frontier[pick] = frontier[waiting]
            v = to[a]
            if inside[v] != stamp and touching[2 * v] == stamp and touching[2 * v + 1] == 1:
                degree = at[v + 1] - at[v]
                if degree <= shy or np.random.random() * degree < shy:
                    arriving, above = v, a
        if arriving < 0:
            if next_seed >= len(seeds):
                break
            v = seeds[next_seed]
            next_seed += 1
            if inside[v] == stamp or touching[2 * v] == stamp:
                continue
            arriving = v
        v = arriving
        inside[v] = stamp
        order[count] = v
        entry[count] = above
        count += 1
        real += 1
        for a in range(at[v], at[v + 1]):
            w = to[a]
            if inside[w] == stamp:
                continue
            if at[w + 1] - at[w] == 1:
                inside[w] = stamp
                order[count] = w
                entry[count] = a
                count += 1
                continue
            if touching[2 * w] != stamp:
                touching[2 * w], touching[2 * w + 1] = stamp, 0
            touching[2 * w + 1] += 1
            if touching[2 * w + 1] == 1:
                frontier[waiting] = a
                waiting += 1
    return count


@compiled(nogil=True)
def best_forest(  # type: ignore[no-untyped-def]
    first, piece_at, lo, hi, usage_at, usage, back, owner, matrix, table, x, cond, sums, order, entry, count, heat, h, y
):  # fmt: skip
    """`y[i]`: the best strategy of each node i of the forest at the prices whose prefix sums are `sums`.

    With `heat` every strategy's cost gets noise of that scale (Gumbel's law: the choice is then near a random draw
    with weights exp(-cost / heat), exact where the forest is a single node).

    `entry[p]` leads from the parent to the node, -1 for roots; `owner[a]` is the node whose entry a is. Returns what
    the cost (without prices) changes by.
    """
    now, then = 0.0, 0.0
    for p in range(count):
        i = order[p]
        f = first[i]
        for s in range(first[i + 1] - f):
            h[f + s] = cond[f + s]
        for q in range(piece_at[i], piece_at[i + 1]):
            price = sums[hi[q]] - sums[lo[q]]
            if price > 0:
                u = usage_at[q]
                for s in range(first[i + 1] - f):
                    h[f + s] += price * usage[u + s]
        if heat > 0:
            for s in range(first[i + 1] - f):
                h[f + s] += heat * np.log(-np.log(1.0 - np.random.random()) + 1e-300)
        now += cond[f + x[i]]
    for p in range(count - 1, -1, -1):
        a = entry[p]
        if a < 0:
            continue
        i, j = order[p], owner[a]
        f, g = first[i], first[j]
        k, kj = first[i + 1] - f, first[j + 1] - g
        row = matrix[a] + x[j] * k
        now -= table[row + x[i]]  # the edge stands in both nodes' cond
        for s in range(k):
            h[f + s] -= table[row + s]
        up = matrix[back[a]]
        for t in range(kj):
            h[g + t] -= table[up + x[i] * kj + t]
        if k == 1:
            s0 = h[f]
            for t in range(kj):
                h[g + t] += s0 + table[up + t]
            continue
        low = np.empty(kj)
        s0 = h[f]
        part = table[up : up + kj]
        for t in range(kj):
            low[t] = s0 + part[t]
        for s in range(1, k):
            s0 = h[f + s]
            part = table[up + s * kj : up + s * kj + kj]
            for t in range(kj):
                v = s0 + part[t]
                low[t] = v if v < low[t] else low[t]
        for t in range(kj):
            h[g + t] += low[t]
    for p in range(count):
        i = order[p]
        f = first[i]
        k = first[i + 1] - f
        a = entry[p]
        best, least = x[i], 0.0
        if a < 0:
            least = h[f + best]
            for s in range(k):
                if h[f + s] < least:
                    best, least = s, h[f + s]
        else:
            row = matrix[a] + y[owner[a]] * k
            least = h[f + best] + table[row + best]
            for s in range(k):
                if h[f + s] + table[row + s] < least:
                    best, least = s, h[f + s] + table[row + s]
        y[i] = best
    # The change of cost: cond with the edges inside the forest corrected.
    for p in range(count):
        i = order[p]
        then += cond[first[i] + y[i]]
        a = entry[p]
        if a < 0:
            continue
        j = owner[a]
        k, kj = first[i + 1] - first[i], first[j + 1] - first[j]
        m = matrix[a]
        then += table[m + y[j] * k + y[i]] - table[m + x[j] * k + y[i]] - table[m + y[j] * k + x[i]]
    return then - now


@compiled(nogil=True)
def overflow_change(piece_at, lo, hi, usage_at, usage, room, x, y, order, count, use, change, new):  # type: ignore[no-untyped-def]
    """(overflow after less overflow before, first column touched, last + 1); `new` is the usage in between."""
    left, right = len(room), 0
    for p in range(count):
        i = order[p]
        if y[i] == x[i]:
            continue
        for q in range(piece_at[i], piece_at[i + 1]):
            d = usage[usage_at[q] + y[i]] - usage[usage_at[q] + x[i]]
            if d != 0:
                change[lo[q]] += d
                change[hi[q]] -= d
                left, right = min(left, lo[q]), max(right, hi[q])
    run, difference = 0.0, 0.0
    for c in range(left, right):
        run += change[c]
        change[c] = 0.0
        new[c] = use[c] + run
        difference += max(0.0, new[c] - room[c]) - max(0.0, use[c] - room[c])
    if right > 0:
        change[right] = 0.0
    return difference, left, right


@compiled(nogil=True)
def adopt(first, at, to, matrix, table, order, count, x, y, cond):  # type: ignore[no-untyped-def]
    """x takes over y on the forest; `cond` follows."""
    for p in range(count):
        j = order[p]
        if y[j] == x[j]:
            continue
        for a in range(at[j], at[j + 1]):
            i = to[a]
            k = first[i + 1] - first[i]
            before, after = matrix[a] + x[j] * k, matrix[a] + y[j] * k
            f = first[i]
            for s in range(k):
                cond[f + s] += table[after + s] - table[before + s]
        x[j] = y[j]


@compiled(nogil=True)
def improve(  # type: ignore[no-untyped-def]
    seed, effort, target, spread, shy, factor_low, factor_high, attempts, scale, heat,
    first, piece_at, lo, hi, usage_at, usage, room, at, to, back, owner, matrix, table, roots,
    lam, weight, x, cond, use, overflow,
    inside, touching, order, entry, frontier, h, y, change, new, stamps,
):  # fmt: skip
    """Forests of about `target` nodes grown from `spread` seeds, until the `weight` of the nodes solved is `effort`.

    Prices are `lam` times a random factor, plus surcharges in units of `scale`. Returns (change of cost, overflow).
    """
    np.random.seed(seed)
    columns = len(room)
    sums = np.zeros(columns + 1)
    extra = np.zeros(columns)
    gained, work = 0.0, 0.0
    seeds = np.empty(spread, np.int64)
    while work < effort:
        stamps[0] += 1
        for s in range(spread):
            seeds[s] = roots[np.random.randint(len(roots))]
        count = grow(at, to, seeds, target, shy, inside, touching, stamps[0], order, entry, frontier)
        load = 1.0
        for p in range(count):
            load += weight[order[p]]
        factor = factor_low + (factor_high - factor_low) * np.random.random()
        extra[:] = 0.0
        step = scale * 0.25 * np.random.random()
        if overflow > 0:
            for c in range(columns):
                if use[c] > room[c]:
                    extra[c] = step
        for _ in range(attempts):
            work += load
            run = 0.0
            for c in range(columns):
                run += factor * lam[c] + extra[c]
                sums[c + 1] = run
            delta = best_forest(
                first, piece_at, lo, hi, usage_at, usage, back, owner, matrix, table, x, cond, sums,
                order, entry, count, heat, h, y,
            )  # fmt: skip
            worse, left, right = overflow_change(
                piece_at, lo, hi, usage_at, usage, room, x, y, order, count, use, change, new
            )
            if worse < 0 or (worse == 0 and (delta < 0 or (heat > 0 and overflow == 0))):
                adopt(first, at, to, matrix, table, order, count, x, y, cond)
                for c in range(left, right):
                    use[c] = new[c]
                gained += delta
                overflow += worse
                break
            if delta >= 0 and overflow == 0 and heat == 0:
                break
            step *= 2
            for c in range(left, right):
                if new[c] > room[c]:
                    extra[c] += step
    return gained, overflow
