"""The published rules, as plans to beat: judged by the same replay, callable by name.

::

    places, links, remat, blocks ─▶ simple · capuchin · two_level · knapsack · checkmate ─▶ registry

Each is our own code of a published rule, as strong as its idea permits, within the adapter's limits and the tiers'
budgets. `docs/why/rivals.md` says what was taken from where, and what we added in the rule's favour.
"""
