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
from api.problems import ProblemError
from hyperopt.documents import GZIP_MAGIC, ZSTD_MAGIC, decompress
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


MAGIC = {"gzip": GZIP_MAGIC, "x-gzip": GZIP_MAGIC, "zstd": ZSTD_MAGIC}

MAX_REQUEST_BYTES = 1 << 20
"""Of requests that are not documents; FastAPI holds these in memory."""


class SmallBody(APIRoute):
    """An endpoint whose request body is JSON of at most MAX_REQUEST_BYTES, plain, gzip or zstd."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def limited(request: Request) -> Response:
            if request.method in ("GET", "HEAD"):
                return await handle(request)
            body = bytearray()
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_REQUEST_BYTES:
                    raise HTTPException(413, f"the body is larger than {MAX_REQUEST_BYTES} bytes")
            plain = _json(request, bytes(body))

            async def receive() -> Message:
                return {"type": "http.request", "body": plain, "more_body": False}

            return await handle(Request(request.scope, receive))

        return limited


def _json(request: Request, body: bytes) -> bytes:
    """The body, unpacked. Raises `ProblemError` or `DocumentError`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind != "application/json" and not kind.endswith("+json"):
        raise ProblemError(
            415,
            "media-type",
            "Unsupported media type",
            f"Content-Type {kind!r} is not JSON" if kind else "the request does not say what its body is",
            field="header.content-type",
            remedy="send a JSON object with Content-Type: application/json",
        )
    check_encoding(request.headers.get("content-encoding"), body)
    return decompress(body, MAX_REQUEST_BYTES)


def check_encoding(encoding: str | None, raw: bytes) -> None:
    """Magic bytes decide; a Content-Encoding that says otherwise is refused, not guessed about."""
    named = (encoding or "identity").strip().lower()
    if named == "identity":
        return
    if named not in MAGIC:
        raise ProblemError(
            415,
            "encoding",
            "Unknown content encoding",
            f"Content-Encoding {named!r} is not understood",
            field="header.content-encoding",
            remedy="send the document plain, or as gzip or zstd",
            headers={"Accept-Encoding": "gzip, zstd"},
        )
    if not raw.startswith(MAGIC[named]):
        raise ProblemError(
            400,
            "encoding-mismatch",
            "Body is not what Content-Encoding says",
            f"Content-Encoding is {named}, but the body does not start like it",
            field="$",
            remedy="compress the body, or leave the header out",
        )


def known_query(request: Request) -> None:
    """Refuses a parameter that the endpoint does not have: misspelt, it would be taken as left out."""
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    known = [field.alias for field in route.dependant.query_params]
    for name in request.query_params:
        if name not in known:
            detail = f"there is no parameter {name[:100]!r} here; there is {', '.join(known) or 'none'}"
            remedy = "leave it out, or correct its name"
            raise ProblemError(422, "bad-request", "Bad request", detail, field=f"query.{name[:100]}", remedy=remedy)


def _service(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


Here = Annotated[Service, Depends(_service)]
