"""PyPI's `hyperopt` (hyper-parameter search) and this project (`hyperopt-supernode`) both install `hyperopt/`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

OURS, THEIRS = "hyperopt-supernode", "hyperopt"


def clash() -> str:
    """What to say when both distributions are installed; "" when all is well."""
    try:
        found = version(THEIRS)
    except PackageNotFoundError:
        return ""
    return (
        f"the distributions {OURS} and {THEIRS} {found} are both installed and write into the same folder; "
        f"run: pip uninstall -y {THEIRS} && pip install --force-reinstall --no-deps {OURS}"
    )
