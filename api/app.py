"""The application: the service behind it, its endpoints, its errors."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from anyio import CapacityLimiter
from fastapi import APIRouter, Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from api import archives, baselines, checks, cost_models, history, jobs, plans, predictions, problems, profiles
from api.engine import DbosEngine
from api.service import Here, Service, known_query
from api.training import Train, Trainer
from api.work import Solve, Worker
from hyperopt.cost.child import train_in_child
from hyperopt.settings import Settings
from hyperopt.store import Database, schema
from hyperopt.store.profiles import count_profiles
from solver.child import solve_in_child

HEAVY = 2
"""Uploads unpacked and checked at once: each holds its document, and Python does one at a time anyway."""

health = APIRouter(tags=["health"])


class Health(BaseModel):
    status: str
    version: str
    schema_revision: str
    profiles: int
    worker: bool


@health.get("/v1/healthz", responses=problems.documented())
def healthz(here: Here) -> Health:
    """Whether the service and its database answer."""
    with here.database.read() as session:
        count = count_profiles(session)
    revision = schema.current(here.database) or ""
    return Health(
        status="ok",
        version=product_version(),
        schema_revision=revision,
        profiles=count,
        worker=here.engine.works_here,
    )


def open_service(settings: Settings, solve: Solve = solve_in_child, train: Train = train_in_child) -> Service:
    """The database, up to date, and the job engine on it, at work if the settings say so; to be closed.

    `solve` and `train` are how a worker works: in a child process. Raises `schema.SchemaError` or
    `engine.NameTaken`. Not for an event loop: DBOS refuses to be started on one.
    """
    database = Database(settings.store_url)
    try:
        schema.make_current(database)
        trainer = Trainer(database, train, settings.operators, settings.solve_memory_bytes)
        worker = Worker(database, solve, trainer, settings.solve_memory_bytes)
        engine = DbosEngine(database, settings, worker.run if settings.worker else None)
    except BaseException:
        database.close()
        raise
    return Service(settings, database, engine, CapacityLimiter(HEAVY))


def create_app(service: Service | None) -> FastAPI:
    """The application over an open service, which it does not close. None: only for its OpenAPI document."""
    app = FastAPI(
        title="hyperopt",
        version=product_version(),
        summary="Memory and placement plans from measured profiles",
        # FastAPI's pages load their scripts from a public network, which a cluster often cannot reach.
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    problems.install(app)
    for room in (profiles, archives, plans, jobs, checks, history, baselines, cost_models, predictions):
        app.include_router(room.router, dependencies=[Depends(known_query)])
    app.include_router(health)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with the one schema that only error responses use."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas["Problem"] = problems.Problem.model_json_schema()
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        app.openapi_schema = document
    return app.openapi_schema


def product_version() -> str:
    try:
        return version("hyperopt-supernode")
    except PackageNotFoundError:  # run from a source tree
        return "0"
