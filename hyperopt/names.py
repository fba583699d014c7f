"""PyPI's `hyperopt` (hyper-parameter search) and this project (`hyperopt-supernode`) both install `hyperopt/`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

OURS, THEIRS = "hyperopt-supernode", "hyperopt"

EXTRA_OF = {
    "alembic": "server",
    "anyio": "server",
    "dbos": "server",
    "fastapi": "server",
    "mindspore": "mindspore",
    "ortools": "server",
    "psycopg": "server",
    "pydantic": "server",
    "ruptures": "server",
    "sklearn": "server",
    "sqlalchemy": "server",
    "threadpoolctl": "server",
    "uvicorn": "server",
}
"""Import name -> the extra that installs it."""


def remedy(extra: str) -> str:
    """What to do where a package of an extra is missing."""
    return f"pip install '{OURS}[{extra}]' (from a checkout: pip install '.[{extra}]')"


def our_version() -> str:
    try:
        return version(OURS)
    except PackageNotFoundError:
        return "of a checkout that is not installed"


def clash() -> str:
    """What to say when both distributions are installed; "" when all is well."""
    try:
        found = version(THEIRS)
    except PackageNotFoundError:
        return ""
    return (
        f"the distributions {OURS} and {THEIRS} {found} are both installed and write into the same folder; "
        f"run: pip uninstall -y {THEIRS} && pip install --force-reinstall --no-deps {OURS} "
        "(from a checkout: the same with '.' as the last word)"
    )
