"""Writes the OpenAPI document: `python -m api.openapi docs/reference/openapi.json` (or `make openapi`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from api.app import create_app


def text() -> str:
    """The document as committed. The version is left out: it would change the file at every release."""
    document = create_app(None).openapi()
    document["info"]["version"] = "1"
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    if len(sys.argv) == 2:
        Path(sys.argv[1]).write_text(text(), encoding="utf-8")
    else:
        sys.stdout.write(text())
