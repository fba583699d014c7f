"""Which storages leave HBM, when they leave and return, and what is recomputed instead.

problem ─▶ candidates ─▶ baselines ─▶ selection ─▶ timetable ─▶ polish ─▶ plan
                             └─ bound, infeasible ─┘    small: exact
"""
