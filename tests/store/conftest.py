from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hyperopt.profile import Profile
from hyperopt.replay import replay
from hyperopt.store import Database, schema
from hyperopt.store.profiles import add_profile
from tests.samples import encoded

Keep = Callable[..., tuple[str, bool]]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path}/store.sqlite")
    schema.upgrade(database)
    yield database
    database.close()


@pytest.fixture
def keep(database: Database) -> Keep:
    """Stores a profile in a transaction of its own."""

    def keep(profile: Profile, project: str = "default", raw: bytes | None = None) -> tuple[str, bool]:
        with database.write() as session:
            return add_profile(session, project, profile, [], raw or encoded(profile), replay(profile))

    return keep
