"""Commands that run the service: serve, worker, db upgrade | downgrade | current."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from hyperopt import names
from hyperopt.cli.files import BAD_INPUT, AsJson, say
from hyperopt.settings import SettingError, Settings, from_environment

if TYPE_CHECKING:
    from hyperopt.store import Database

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="folder of the SQLite files [HYPEROPT_DATA_DIR]")]
DatabaseUrl = Annotated[str | None, typer.Option("--database-url", help="SQLAlchemy URL [HYPEROPT_DATABASE_URL]")]

db = typer.Typer(help="The database's tables: upgrade, downgrade, current.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)
    app.command("worker")(worker)
    app.add_typer(db, name="db")


def serve(
    host: Annotated[str | None, typer.Option(help="address to listen on [HYPEROPT_HOST]")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="0: any free one [HYPEROPT_PORT]")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    worker: Annotated[
        bool | None, typer.Option("--worker/--no-worker", help="solve in this process too [HYPEROPT_WORKER]")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Run the HTTP service until it is told to stop. Says its address once it answers."""
    with _clear_errors():
        import uvicorn

        from api.app import create_app, open_service

        settings = from_environment(host=host, port=port, data_dir=data_dir, database_url=database_url, worker=worker)
        # Bound here, so that the address is known before anybody is told of it, and a port in use is said so.
        listening = socket.create_server((settings.host, settings.port))
        service = open_service(settings)
    try:
        url = "http://{}:{}".format(*listening.getsockname()[:2])
        where = {"url": url, "database": _shown(service.database), "worker": settings.worker}
        print(
            json.dumps(where) if as_json else f"hyperopt serves {url} (database {where['database']})",
            flush=True,
        )
        # uvicorn stops at these signals, and raises them again when it has: ours then do nothing, so that the
        # service is closed in good order.
        _told_to_stop()
        server = uvicorn.Server(uvicorn.Config(create_app(service), log_level="warning"))
        server.run(sockets=[listening])
    finally:
        service.close()
        listening.close()
    return 0


def worker(
    name: Annotated[str | None, typer.Option(help="name of this worker [HYPEROPT_WORKER_NAME]")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> int:
    """Solve queued jobs until told to stop, beside `hyperopt serve --no-worker` on the same database."""
    with _clear_errors():
        from api.app import open_service

        settings = from_environment(data_dir=data_dir, database_url=database_url, worker_name=name, worker=True)
        service = open_service(settings)
    try:
        told = _told_to_stop()
        where = {"worker": settings.worker_name, "database": _shown(service.database)}
        line = f"hyperopt works as {settings.worker_name} (database {where['database']})"
        print(json.dumps(where) if as_json else line, flush=True)
        told.wait()
    finally:
        service.close()
    return 0


def _told_to_stop() -> threading.Event:
    """Set once SIGINT or SIGTERM has come."""
    told = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        told.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return told


@db.command("upgrade")
def upgrade(
    revision: Annotated[str, typer.Argument(help="where to")] = "head",
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> int:
    """Bring the tables up to date, creating them in an empty database."""
    with _clear_errors():
        from hyperopt.store import schema

        database = _database(data_dir, database_url)
        schema.upgrade(database, revision)
        return _report(database, as_json)


@db.command("downgrade")
def downgrade(
    revision: Annotated[str, typer.Argument(help="where to; `base`: nothing is left")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> int:
    """Take the tables back to an earlier revision. What only later tables hold is lost."""
    with _clear_errors():
        from hyperopt.store import schema

        database = _database(data_dir, database_url)
        schema.downgrade(database, revision)
        return _report(database, as_json)


@db.command("current")
def current(data_dir: DataDir = None, database_url: DatabaseUrl = None, as_json: AsJson = False) -> int:
    """Say at which revision the tables are, and which this program needs."""
    with _clear_errors():
        return _report(_database(data_dir, database_url), as_json)


def _database(data_dir: Path | None, database_url: str | None) -> Database:
    from hyperopt.store import Database

    settings: Settings = from_environment(data_dir=data_dir, database_url=database_url)
    return Database(settings.store_url)


def _report(database: Database, as_json: bool) -> int:
    from hyperopt.store import schema

    at, newest = schema.current(database), schema.newest()
    told = {"database": _shown(database), "revision": at, "newest": newest}
    line = f"{told['database']}: {'empty' if at is None else f'revision {at}'}, this program needs {newest}"
    print(json.dumps(told) if as_json else line)
    database.close()
    return 0


def _shown(database: Database) -> str:
    return database.url.render_as_string(hide_password=True)


@contextmanager
def _clear_errors() -> Iterator[None]:
    """What can be wrong with settings, database or names, in one line and exit 64."""
    try:
        from hyperopt.store.database import CannotConnect
        from hyperopt.store.schema import SchemaError

        yield
    except ImportError as error:
        say(f"the service is not installed here ({error.name} is missing): {names.remedy('server')}")
        raise typer.Exit(BAD_INPUT) from error
    except (SettingError, SchemaError, CannotConnect) as error:
        say(str(error))
        raise typer.Exit(BAD_INPUT) from error
