"""What an endpoint works with: the database, the job engine and the settings of this server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from anyio import CapacityLimiter
from fastapi import Depends, Request

from api.engine import JobEngine
from hyperopt.settings import Settings
from hyperopt.store import Database


@dataclass(frozen=True)
class Service:
    """`heavy` limits how many uploads are unpacked and checked at once: each holds its whole document."""

    settings: Settings
    database: Database
    engine: JobEngine
    heavy: CapacityLimiter

    def close(self) -> None:
        """Interrupts running jobs, which the next worker of this name goes on with."""
        self.engine.close()
        self.database.close()


def _service(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


Here = Annotated[Service, Depends(_service)]
