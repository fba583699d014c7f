"""The database: profiles as uploaded, programs, timings, plans and jobs. The only room that knows SQLAlchemy.

    database.py   Database: the engine, read and write transactions
    tables.py     what is kept
    schema.py     migrations: upgrade, downgrade, current revision
    profiles.py   storing a profile, once; finding it again
    queries.py    what people ask: alive at the peak, idle longest, touched how often
    plans.py      plans and their entity tags
    checks.py     verdicts of the gate
    baselines.py  what a branch is compared with, and who said so
    measurements.py  what trainings that followed a plan took
    models.py     cost models, what they were made of, and which is in use
    jobs.py       requests, progress and results of jobs

Functions take an open `Session`, so that the caller decides what is one transaction.
"""

from hyperopt.store.database import Database

__all__ = ["Database"]
