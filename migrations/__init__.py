"""Alembic migrations of the database, run by `hyperopt db upgrade` (`hyperopt.store.schema`)."""
