"""The table of sources, and that the reference names every kind."""

from __future__ import annotations

from pathlib import Path

from profiler.read import layers
from profiler.read.sources import MODULES, all_sources

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "readers"


def test_every_source_can_be_imported_and_has_a_kind_of_its_own() -> None:
    kinds = [source.kind for source in all_sources()]
    assert len(set(kinds)) == len(MODULES) and "" not in kinds


def test_general_kinds_come_last() -> None:
    assert MODULES[-1] == "torch.chrome_trace"


def test_every_kind_is_in_the_reference() -> None:
    text = (REFERENCE / "index.md").read_text()
    for kind in [*(source.kind for source in all_sources()), layers.KIND, "mixed", "unknown"]:
        assert f"`{kind}`" in text


def test_every_page_is_reached_from_the_index() -> None:
    text = (REFERENCE / "index.md").read_text()
    for page in REFERENCE.glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in text
