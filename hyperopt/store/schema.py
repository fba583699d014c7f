"""Bringing the database's tables up to date, or back.

The migrations are a package of their own, found where it is installed, so that no configuration file and no
working folder matter. A whole upgrade is one transaction, and on SQLite it holds the write lock from the
start: of two servers that start at once, the second finds the work done.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from hyperopt.store.database import Database
from hyperopt.store.tables import Base


class SchemaError(Exception):
    """The database's tables do not fit this program; the message says what to do."""


def upgrade(database: Database, revision: str = "head") -> None:
    """Migrates to `revision`, creating everything in an empty database. Raises `SchemaError`."""
    _run(database, "upgrade", revision)


def downgrade(database: Database, revision: str) -> None:
    """Migrates back to `revision` (``base``: nothing is left). Data of dropped tables is lost."""
    _run(database, "downgrade", revision)


def current(database: Database) -> str | None:
    """The revision that the database is at; None when it is empty. Raises `database.CannotConnect`."""
    database.check()
    with database.engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def newest() -> str:
    """The revision that this program works with."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    return head


def make_current(database: Database) -> None:
    """What a server does at its start: SQLite is upgraded, any other database only when it is empty.

    Raises `SchemaError`: on a server database that others use, an upgrade is somebody's decision; and a
    database newer than the program is never touched.
    """
    at = current(database)
    if at == newest():
        return
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if at is not None and at not in known:
        raise SchemaError(f"the database is at revision {at}, newer than this program: install the newer hyperopt")
    if at is not None and not database.is_sqlite:
        raise SchemaError(
            f"the database is at revision {at}, this program needs {newest()}: stop the other servers, "
            "then run `hyperopt db upgrade`"
        )
    upgrade(database)


def differences(database: Database) -> list[Any]:
    """What Alembic would have to change for the tables to be as `tables.py` says; empty when they are."""
    with database.engine.connect() as connection:
        return list(compare_metadata(MigrationContext.configure(connection), Base.metadata))


def _run(database: Database, direction: str, revision: str) -> None:
    config = _config()
    database.check()
    try:
        with database.writing.begin() as connection:
            config.attributes["connection"] = connection
            getattr(command, direction)(config, revision)
    except CommandError as error:
        raise SchemaError(f"{error}; known revisions: `hyperopt db current`") from error


def _config() -> Config:
    spec = find_spec("migrations")
    if spec is None or not spec.submodule_search_locations:
        raise SchemaError("the package `migrations` is not installed: reinstall hyperopt-supernode")
    config = Config()
    # Alembic reads % in options as interpolation.
    config.set_main_option("script_location", spec.submodule_search_locations[0].replace("%", "%%"))
    return config
