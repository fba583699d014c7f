from __future__ import annotations

import json
from pathlib import Path

from api import openapi
from api.problems import MEDIA_TYPE

COMMITTED = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"


def test_the_committed_document_is_what_the_service_says() -> None:
    assert COMMITTED.read_text() == openapi.text(), f"run: python -m api.openapi {COMMITTED.name} in its folder"


def test_every_endpoint_documents_its_errors_as_problems() -> None:
    document = json.loads(openapi.text())
    problem = document["components"]["schemas"]["Problem"]
    assert set(problem["properties"]) == {"type", "title", "status", "detail", "field", "remedy"}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            errors = {status: a for status, a in operation["responses"].items() if int(status) >= 400}
            assert "500" in errors, f"{method} {path}"
            for status, answer in errors.items():
                assert list(answer["content"]) == [MEDIA_TYPE], f"{method} {path} {status}"
                assert answer["content"][MEDIA_TYPE]["schema"] == {"$ref": "#/components/schemas/Problem"}


def test_every_reference_leads_somewhere() -> None:
    text = openapi.text()
    schemas = json.loads(text)["components"]["schemas"]
    named = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert named <= set(schemas)


def test_every_endpoint_is_in_the_reference() -> None:
    reference = (COMMITTED.parent / "http.md").read_text()
    for path, methods in json.loads(openapi.text())["paths"].items():
        for method in methods:
            assert f"`{method.upper()} {path}`" in reference
