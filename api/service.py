"""What an endpoint works with: the database, the job engine and the settings of this server."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from anyio import CapacityLimiter
from fastapi import Depends, HTTPException, Request, Response
from fastapi.routing import APIRoute
from starlette.types import Message

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


MAX_REQUEST_BYTES = 1 << 20
"""Of requests that are not documents; FastAPI holds these in memory."""


class SmallBody(APIRoute):
    """An endpoint whose request body is at most MAX_REQUEST_BYTES."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def limited(request: Request) -> Response:
            size = 0

            async def receive() -> Message:
                nonlocal size
                message = await request.receive()
                size += len(message.get("body", b""))
                if size > MAX_REQUEST_BYTES:
                    raise HTTPException(413, f"the body is larger than {MAX_REQUEST_BYTES} bytes")
                return message

            return await handle(Request(request.scope, receive))

        return limited


def _service(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


Here = Annotated[Service, Depends(_service)]
