"""Profiles as graphs: what is inferred from shapes, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from hyperopt.documents import DocumentError
from hyperopt.graph import Graph, check
from hyperopt.profile import Operator, Profile, Storage
from hyperopt.profile_graph import graph_of
from hyperopt.testing import generate
from solver.placement.choice import Frame
from tests.test_mesh import read


@pytest.fixture(scope="module")
def dense() -> Graph:
    return graph_of(generate("llama3-8b-optimizer-states", 400))


def tensor(graph: Graph, name: str) -> tuple[int, ...]:
    return next(t.shape for t in graph.tensors if t.name == name)


def test_every_storage_of_a_step_has_a_shape_of_its_size(dense: Graph) -> None:
    check(dense)
    profile = generate("llama3-8b-optimizer-states", 400)
    assert [t.bytes for t in dense.tensors] == [s.bytes for s in profile.storages]
    assert tensor(dense, "layer0.qkv") == tensor(dense, "layer0.qkv.exp_avg") == (4096, 6144)
    assert tensor(dense, "tokens0") == (4096,)
    assert all("have no shape" not in w for w in dense.warnings)


def test_products_get_the_dimensions_that_fit(dense: Graph) -> None:
    names = [t.name for t in dense.tensors]
    found = {}
    for operator in dense.operators:
        if operator.type == "MatMul" and operator.layer in ("layer0", "head"):
            found[operator.phase, names[operator.inputs[1]]] = operator.attributes["equation"]
    assert found["forward", "layer0.down"] == "mk,kn->mn"
    assert found["backward", "layer0.down"] == "mk,nk->mn"
    assert found["forward", "head.head"] == "mk,nk->mn"
    assert found["backward", "head.head"] == "mk,kn->mn"
    # A square weight fits both ways: in backward it is the other one.
    assert tensor(dense, "layer0.out") == (4096, 4096)
    assert found["forward", "layer0.out"] == "mk,kn->mn"
    assert found["backward", "layer0.out"] == "mk,nk->mn"
    assert "km,kn->mn" in found.values()


def test_all_operators_of_a_dense_step_are_understood(dense: Graph) -> None:
    assert Frame(dense, read()).warnings == ()
    assert any("inferred" in w or "taken to" in w or "from shapes" in w for w in dense.warnings)


@pytest.mark.parametrize("name", ["llama3-8b-unfused", "qwen3-30b-a3b"])
def test_a_program_that_is_sharded_already_is_refused(name: str) -> None:
    with pytest.raises(DocumentError, match="sharded already") as refusal:
        graph_of(generate(name, 800))
    assert refusal.value.field.startswith("$.operators[")


def test_a_profile_without_storages_is_refused() -> None:
    with pytest.raises(DocumentError, match="storages"):
        graph_of(Profile(operators=(Operator(duration_us=1.0, type="MatMul"),), storages=()))


def test_what_goes_in_is_read_where_the_source_says_so() -> None:
    storages = (
        Storage(id=3, bytes=32, name="x", kind="input", resident_at_start=True),
        Storage(id=5, bytes=64, name="w", kind="parameter", resident_at_start=True),
        Storage(id=9, bytes=32, name="y"),
    )
    said = Operator(
        type="MatMul", duration_us=1.0, reads=(3, 5), writes=(9,), shapes=((2, 4), (4, 4), (2, 4)),
        dtypes=("float32",) * 3, inputs=2,
    )  # fmt: skip
    graph = graph_of(Profile(operators=(said,), storages=storages))
    assert [t.shape for t in graph.tensors] == [(2, 4), (4, 4), (2, 4)]
    untold = msgspec.structs.replace(said, shapes=(), dtypes=(), inputs=None)
    unknown = graph_of(Profile(operators=(untold,), storages=storages))
    assert [t.shape for t in unknown.tensors] == [(32,), (64,), (32,)]
    assert any("stay whole" in w for w in unknown.warnings)
    assert "MatMul" in Frame(unknown, read()).warnings[0]
