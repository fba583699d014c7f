"""Latency and bandwidth of messages, from Ascend's communication.json to a mesh's levels."""

from __future__ import annotations

import json

import pytest

from hyperopt.cost.messages import Messages, fit, level_of, on_mesh, read
from hyperopt.documents import DocumentError
from hyperopt.mesh import Level, Mesh


def document(latency_us: float, bytes_per_s: float, sizes_mb: tuple[float, ...]) -> bytes:
    """Three messages of each size; times in ms, together."""
    spread = {str(size): [3, 3 * (latency_us + size * 1e12 / bytes_per_s) / 1e3] for size in sizes_mb}
    links = {"HCCS": {"Size Distribution": spread}, "SDMA": {"Size Distribution": {}}}
    return json.dumps({"step1": {"collective": {"allReduce": {"Communication Bandwidth Info": links}}}}).encode()


def test_constants_are_found_again() -> None:
    found, notes = fit([read(document(1.5, 2e10, (0.01, 0.1, 1.0, 8.0, 32.0)))])
    assert not notes and found["HCCS"].latency_us == pytest.approx(1.5, rel=0.1)
    assert found["HCCS"].bytes_per_s == pytest.approx(2e10, rel=0.05) and found["HCCS"].error < 0.02


def test_no_bandwidth_is_found_that_nothing_came_near() -> None:
    """Messages so short that latency is all that was seen."""
    sizes = (0.0001, 0.0002, 0.0004)
    found, _ = fit([read(document(50.0, 1e15, sizes))])
    assert found["HCCS"].bytes_per_s <= 1.6 * max(sizes) * 1e6 / 50e-6


def test_too_few_sizes_are_not_fitted_and_said_so() -> None:
    found, notes = fit([read(document(1.5, 2e10, (0.01, 1.0)))])
    assert not found and "HCCS in 2 sizes are too few" in notes[0]


def test_another_document_is_refused() -> None:
    for text in (b"[]", b"nonsense", b'{"a": 3}'):
        with pytest.raises(DocumentError, match=r"communication\.json"):
            read(text)


def test_a_mesh_takes_what_was_measured_of_the_links_that_it_names() -> None:
    mesh = Mesh(
        shape=(2, 4), axes=("dp", "tp"),
        levels=(Level(name="HCCS", devices=4, bytes_per_s=1e9, latency_us=9.0), Level(name="pod", bytes_per_s=1e8)),
    )  # fmt: skip
    known = {"HCCS": Messages(latency_us=1.0, bytes_per_s=2e10, sizes=12, error=0.02)}
    after, told = on_mesh(mesh, known)
    assert after.levels[0] == Level(name="HCCS", devices=4, bytes_per_s=2e10, latency_us=1.0)
    assert after.levels[1] == mesh.levels[1] and len(told) == 1
    assert on_mesh(mesh, {}) == (mesh, [])
    assert level_of({}) is None and level_of(known) == Level(name="HCCS", bytes_per_s=2e10, latency_us=1.0)
