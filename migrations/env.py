"""Runs migrations on the connection that `hyperopt.store.schema` hands over, inside its transaction."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from hyperopt.store.tables import Base


def run() -> None:
    connection = context.config.attributes.get("connection")
    if not isinstance(connection, Connection):
        raise SystemExit("migrations need a connection: run `hyperopt db upgrade`")
    # Batch mode: SQLite alters a table only by copying it.
    context.configure(
        connection=connection, target_metadata=Base.metadata, render_as_batch=True, transactional_ddl=True
    )
    with context.begin_transaction():
        context.run_migrations()


run()
