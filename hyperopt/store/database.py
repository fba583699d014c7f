"""The engine, and the two kinds of transaction.

SQLite is set up for a service: write-ahead log, so that readers never wait for a writer; foreign keys on; and
a writer takes the write lock at its beginning, because a read transaction that turns into a write fails at
once with "database is locked" when somebody else has written meanwhile.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

_BUSY_MS = 60_000
"""How long a writer waits for another: storing a profile of 10^6 operators takes some twenty seconds."""


class CannotConnect(Exception):
    """There is no such database, or it does not let us in."""


class Database:
    """A database by SQLAlchemy URL. `Database("sqlite:////var/lib/hyperopt/hyperopt.sqlite")` creates the
    file (and its folder) at the first transaction, but no tables: see `schema.upgrade`. Raises
    `CannotConnect`.
    """

    def __init__(self, url: str) -> None:
        try:
            self.url = make_url(url)
            if self.url.drivername == "postgresql":  # SQLAlchemy would take psycopg2, which is not installed
                self.url = self.url.set(drivername="postgresql+psycopg")
            self.engine: Engine = create_engine(self.url)
        except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
            raise CannotConnect(f"not a database URL: {error} (HYPEROPT_DATABASE_URL)") from error
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if self.is_sqlite and self.url.database:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
        if self.is_sqlite:
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        self.writing: Engine = self.engine.execution_options(hyperopt_writes=True)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A consistent view; nothing is kept."""
        with Session(self.engine) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """One transaction: all of it is kept when the block ends, nothing when it raises."""
        with Session(self.writing, expire_on_commit=False) as session, session.begin():
            yield session

    def check(self) -> None:
        """Raises `CannotConnect` when the database cannot be opened."""
        try:
            self.engine.connect().close()
        except DatabaseError as error:
            shown = self.url.render_as_string(hide_password=True)
            reason = str(error.orig).strip().partition("\n")[0]
            raise CannotConnect(f"cannot open the database {shown}: {reason} (HYPEROPT_DATABASE_URL)") from error

    def close(self) -> None:
        self.engine.dispose()


def _prepare_sqlite(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    assert isinstance(connection, sqlite3.Connection)
    connection.isolation_level = None  # BEGIN is ours to send, in _begin_sqlite
    connection.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
    _use_wal(connection)
    for pragma in ("foreign_keys=ON", "synchronous=FULL"):
        connection.execute(f"PRAGMA {pragma}")


def _use_wal(connection: sqlite3.Connection) -> None:
    """Sets write-ahead logging. SQLite does not wait for its lock here: two programs that open a new file at once
    (a server and its worker) would meet "database is locked", so the waiting is ours."""
    deadline = time.monotonic() + _BUSY_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("hyperopt_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
