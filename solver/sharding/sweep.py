"""Message passing on the priced problem, compiled: sequential tree-reweighted (TRW-S, Kolmogorov 2006).

With a price lambda_c a byte in each column, memory joins the node costs, and what is left are pairwise costs alone::

    theta_i(x) = cost_i(x) + price_i * usage_i(x),      price_i = sum of lambda_c over i's columns
    theta'_i   = theta_i + messages to i                theta'_ij = theta_ij - both messages

A sweep visits the nodes in order and sends to the later (or earlier) neighbours what a share of the node's costs says.
Any messages give a bound: sum of min theta'_i + sum of min theta'_ij - sum of lambda_c * room_c. That of a sweep is
the same for messages to which `settle` adds, edge by edge, the shares that the sweep only lends.
"""

from __future__ import annotations

import numpy as np

from hyperopt.engine.compiled import compiled

MASK = 2**32 - 1


@compiled(nogil=True)
def sweep(first, priced, at, to, back, matrix, message, table, messages, forward):  # type: ignore[no-untyped-def]
    """One pass over the nodes in (reverse) order; `messages` are updated in place.

    Returns the bound's part: exact on the last of two passes in opposite directions, up to rounding.
    """
    n = len(at) - 1
    widest = 0
    for i in range(n):
        widest = max(widest, first[i + 1] - first[i])
    total = np.empty(widest)
    share = np.empty(widest)
    bound = 0.0
    for step in range(n):
        i = step if forward else n - 1 - step
        k = first[i + 1] - first[i]
        for x in range(k):
            total[x] = priced[first[i] + x]
        later = 0
        for a in range(at[i], at[i + 1]):
            m = message[a]
            for x in range(k):
                total[x] += messages[m + x]
            if to[a] > i:
                later += 1
        earlier = at[i + 1] - at[i] - later
        low = total[0]
        for x in range(1, k):
            low = min(low, total[x])
        for x in range(k):
            total[x] -= low
        bound += low
        gamma = 1.0 / max(1, later, earlier)
        for a in range(at[i], at[i + 1]):
            j = to[a]
            if (j > i) != forward:
                continue
            kj = first[j + 1] - first[j]
            m, out, base = message[a], message[back[a]], matrix[a]
            for x in range(k):
                share[x] = gamma * total[x] - messages[m + x]
            new = messages[out : out + kj]
            row = table[base : base + kj]
            s = share[0]
            for y in range(kj):
                new[y] = s + row[y]
            for x in range(1, k):
                row = table[base + x * kj : base + x * kj + kj]
                s = share[x]
                for y in range(kj):
                    v = s + row[y]
                    new[y] = v if v < new[y] else new[y]
            low = new[0]
            for y in range(1, kj):
                low = min(low, new[y])
            for y in range(kj):
                new[y] -= low
            bound += low
    return bound


@compiled(nogil=True)
def decode(first, priced, at, to, matrix, message, table, messages, choice):  # type: ignore[no-untyped-def]
    """Nodes in order choose what is best given those before, and what the messages say of those after."""
    n = len(at) - 1
    for i in range(n):
        best, least = 0, np.inf
        k = first[i + 1] - first[i]
        total = priced[first[i] : first[i] + k].copy()
        for a in range(at[i], at[i + 1]):
            j = to[a]
            kj = first[j + 1] - first[j]
            if j < i:
                y = choice[j]
                base = matrix[a]
                for x in range(k):
                    total[x] += table[base + x * kj + y]
            else:
                m = message[a]
                for x in range(k):
                    total[x] += messages[m + x]
        for x in range(k):
            if total[x] < least:
                best, least = x, total[x]
        choice[i] = best


@compiled(nogil=True)
def price_nodes(first, cost, piece_at, lo, hi, usage_at, usage, lam, priced):  # type: ignore[no-untyped-def]
    """`priced` is cost + price * usage."""
    sums = np.zeros(len(lam) + 1)
    for c in range(len(lam)):
        sums[c + 1] = sums[c] + lam[c]
    for i in range(len(first) - 1):
        f = first[i]
        k = first[i + 1] - f
        for x in range(k):
            priced[f + x] = cost[f + x]
        for p in range(piece_at[i], piece_at[i + 1]):
            price = sums[hi[p]] - sums[lo[p]]
            if price > 0:
                u = usage_at[p]
                for x in range(k):
                    priced[f + x] += price * usage[u + x]


@compiled(nogil=True)
def rents(first, piece_at, lo, hi, usage_at, usage, sums, rent):  # type: ignore[no-untyped-def]
    """What each strategy pays for its usage, added to `rent`; all in whole numbers, `sums` are sums of prices."""
    for i in range(len(first) - 1):
        for p in range(piece_at[i], piece_at[i + 1]):
            price = sums[hi[p]] - sums[lo[p]]
            if price > 0:
                for x in range(first[i + 1] - first[i]):
                    rent[first[i] + x] += price * np.int64(usage[usage_at[p] + x])


@compiled(nogil=True)
def soft_usage(  # type: ignore[no-untyped-def]
    first, priced, piece_at, lo, hi, usage_at, usage, at, message, messages, warmth, level
):
    """Expected usage in every column when strategies are weighted by exp(-excess / warmth); into `level`."""
    change = np.zeros(len(level) + 1)
    for i in range(len(at) - 1):
        if piece_at[i] == piece_at[i + 1]:
            continue
        k = first[i + 1] - first[i]
        total = priced[first[i] : first[i] + k].copy()
        for a in range(at[i], at[i + 1]):
            m = message[a]
            for x in range(k):
                total[x] += messages[m + x]
        low = total.min()
        mass = 0.0
        for x in range(k):
            d = (total[x] - low) / warmth
            total[x] = np.exp(-d) if d < 30.0 else 0.0
            mass += total[x]
        for p in range(piece_at[i], piece_at[i + 1]):
            used = 0.0
            for x in range(k):
                used += total[x] * usage[usage_at[p] + x]
            used /= mass
            change[lo[p]] += used
            change[hi[p]] -= used
    run = 0.0
    for c in range(len(level)):
        run += change[c]
        level[c] = run


@compiled(nogil=True)
def settle(first, node, at, to, back, matrix, message, table, unit, whole, most):  # type: ignore[no-untyped-def]
    """A backward pass in whole numbers; returns sum of min theta'_i + sum of min theta'_ij, exactly.

    As (high, low), which stand for high * 2^32 + low: the sum of many large minima would not fit 64 bits. All in units
    of 1 / `unit`. `node` are the priced costs and `whole` the messages, whole numbers between -most and most, and they
    stay so: any messages give a bound, so that cutting them off there is no loss of truth.
    """
    n = len(at) - 1
    high, rest = np.int64(0), np.int64(0)
    for step in range(n):
        i = n - 1 - step
        k = first[i + 1] - first[i]
        total = node[first[i] : first[i + 1]].copy()
        later = 0
        for a in range(at[i], at[i + 1]):
            for x in range(k):
                total[x] += whole[message[a] + x]
            later += to[a] > i
        earlier = at[i + 1] - at[i] - later
        parts = max(1, later, earlier)
        for x in range(k):
            total[x] = total[x] // parts
        for a in range(at[i], at[i + 1]):
            j = to[a]
            if j > i:
                continue
            kj = first[j + 1] - first[j]
            m, out, base = message[a], message[back[a]], matrix[a]
            for x in range(k):  # the share moves from the node to the edge
                whole[m + x] = min(most, max(-most, whole[m + x] - total[x]))
            for y in range(kj):  # and what it makes of the edge at least, from there to the neighbour
                low = np.int64(2**62)
                for x in range(k):
                    low = min(low, np.int64(table[base + x * kj + y]) * unit - whole[m + x])
                whole[out + y] = min(most, max(-most, low))
    for i in range(n):
        k = first[i + 1] - first[i]
        total = node[first[i] : first[i + 1]].copy()
        for a in range(at[i], at[i + 1]):
            j = to[a]
            kj = first[j + 1] - first[j]
            m, out, base = message[a], message[back[a]], matrix[a]
            for x in range(k):
                total[x] += whole[m + x]
            if j < i:
                continue
            low = np.int64(2**62)
            for x in range(k):
                for y in range(kj):
                    low = min(low, np.int64(table[base + x * kj + y]) * unit - whole[m + x] - whole[out + y])
            high += low >> 32
            rest += low & MASK
        low = total.min()
        high += low >> 32
        rest += low & MASK
    return high, rest
