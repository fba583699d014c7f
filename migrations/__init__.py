"""Alembic migrations of the database (`hyperopt db upgrade`). Run by `hyperopt.store.schema`, never by hand."""
