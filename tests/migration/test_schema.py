from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import inspect, text

from hyperopt.store import Database, schema


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(f"sqlite:///{tmp_path}/schema.sqlite")


def test_upgrade_from_empty_gives_the_schema_of_the_models(database: Database) -> None:
    assert schema.current(database) is None
    schema.upgrade(database)
    assert schema.current(database) == schema.newest()
    assert schema.differences(database) == []


def test_downgrade_takes_everything_away_and_upgrade_brings_it_back(database: Database) -> None:
    schema.upgrade(database)
    schema.downgrade(database, "base")
    assert schema.current(database) is None
    assert set(inspect(database.engine).get_table_names()) <= {"alembic_version"}
    schema.upgrade(database)
    assert schema.differences(database) == []


def test_a_difference_would_be_seen(database: Database) -> None:
    schema.upgrade(database)
    with database.writing.begin() as connection:
        connection.execute(text("DROP INDEX ix_jobs_created_at"))
        connection.execute(text("ALTER TABLE plans DROP COLUMN etag"))
    assert len(schema.differences(database)) == 2


def test_a_server_brings_an_empty_sqlite_file_up_to_date(database: Database) -> None:
    schema.make_current(database)
    schema.make_current(database)
    assert schema.current(database) == schema.newest()


def test_a_database_newer_than_the_program_is_refused(database: Database) -> None:
    schema.upgrade(database)
    with database.writing.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(schema.SchemaError, match="newer than this program"):
        schema.make_current(database)


def test_an_older_server_database_is_left_to_its_administrator(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema.upgrade(database)
    database.is_sqlite = False  # stands for Postgres: only the decision is tested here
    monkeypatch.setattr(schema, "newest", lambda: "one to come")
    with pytest.raises(schema.SchemaError, match="hyperopt db upgrade"):
        schema.make_current(database)


def test_an_unknown_revision_is_one_clear_error(database: Database) -> None:
    with pytest.raises(schema.SchemaError, match="nonsense"):
        schema.upgrade(database, "nonsense")
    assert schema.current(database) is None


def test_two_programs_that_upgrade_at_once_both_succeed(tmp_path: Path) -> None:
    code = (
        "import sys; from hyperopt.store import Database, schema; database = Database(sys.argv[1]); "
        "schema.make_current(database); assert schema.differences(database) == []"
    )
    command = [sys.executable, "-c", code, f"sqlite:///{tmp_path}/both.sqlite"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    both = [subprocess.Popen(command, env=environment, cwd=tmp_path) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]


def test_old_checks_are_their_branch_s_own_and_old_acceptances_without_a_flag(database: Database) -> None:
    schema.upgrade(database, "0003")
    rows = (
        "INSERT INTO projects (id, name, created_at) VALUES (1, 'p', '2026-01-01')",
        "INSERT INTO checks VALUES ('c', 1, 'main', '1f', 'a', 'b', '{}', NULL, 'pass', '{}', '2026-01-01')",
        "INSERT INTO baselines VALUES ('b', 1, 'main', 'm', 'd', 'f', '1', '', 0, 1, 1, 0)",
        "INSERT INTO acceptances VALUES ('b', 1, 'accepted', 'a', 'c', 'ada', 'first', '2026-01-01')",
    )
    with sqlite3.connect(str(database.engine.url.database)) as file:  # which asks for no profiles behind them
        for row in rows:
            file.execute(row)
    for _ in range(2):
        schema.upgrade(database)
        assert schema.differences(database) == []
        with database.engine.connect() as connection:
            assert connection.execute(text('SELECT head, "commit" FROM checks')).all() == [("", "1f")]
            asked = "SELECT accept_regression, accept_inconclusive, check_id FROM acceptances"
            assert connection.execute(text(asked)).all() == [(0, 0, "c")]
        schema.downgrade(database, "0003")


def test_cost_models_come_and_go_without_touching_what_was_there(database: Database) -> None:
    schema.upgrade(database, "0002")
    before = set(inspect(database.engine).get_table_names())
    with database.writing.begin() as connection:
        connection.execute(text("INSERT INTO projects (name, created_at) VALUES ('kept', '2026-01-01')"))
    schema.upgrade(database, "0003")
    added = set(inspect(database.engine).get_table_names()) - before
    assert added == {"cost_models", "cost_model_uses", "measurements"}
    schema.downgrade(database, "0002")
    assert set(inspect(database.engine).get_table_names()) == before
    schema.upgrade(database)
    with database.engine.connect() as connection:
        assert connection.execute(text("SELECT name FROM projects")).scalars().all() == ["kept"]
