"""Which storages leave HBM, when they leave and return, and what is recomputed instead.

::

    problem ─▶ candidates ─▶ rivals, small: exact
            ─▶ axis, gaps, journeys ─▶ fluid ◀─▶ columns, master: the bound, prices, guides
                                   └─▶ search: draft ─▶ filling ─▶ clockwork ─▶ engine ─▶ incumbent ─▶ plan
                                                 ▲──────── what it waits for ───────┘   explain, infeasible, front
"""
