"""MindIR exports as graphs: against MindSpore's own reading of the file, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from hyperopt.documents import DocumentError
from hyperopt.graph import Graph
from hyperopt.mesh import Level, Mesh
from profiler.read.mindspore import mindir
from solver.placement import shard
from solver.placement.choice import Frame

EXPORT = """
import sys
import numpy as np, mindspore as ms
from mindspore import nn, ops, Tensor
ms.set_context(mode=ms.GRAPH_MODE)
class Block(nn.Cell):
    def __init__(self, d, h, f):
        super().__init__()
        self.h, self.norm = h, nn.LayerNorm((d,))
        self.q, self.k, self.v, self.o = (nn.Dense(d, d, has_bias=False) for _ in range(4))
        self.up, self.down = nn.Dense(d, f), nn.Dense(f, d, has_bias=False)
    def construct(self, x):
        b, t, d = x.shape
        y = self.norm(x)
        split = lambda z: ops.transpose(ops.reshape(z, (b, t, self.h, d // self.h)), (0, 2, 1, 3))
        q, k, v = split(self.q(y)), split(self.k(y)), split(self.v(y))
        a = ops.softmax(ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) * 0.125, -1)
        x = x + self.o(ops.reshape(ops.transpose(ops.matmul(a, v), (0, 2, 1, 3)), (b, t, d)))
        return x + self.down(ops.relu(self.up(x)))
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.e, self.blocks = nn.Embedding(96, 32), nn.CellList([Block(32, 4, 64) for _ in range(2)])
        self.head = nn.Dense(32, 96, has_bias=False)
    def construct(self, ids, labels):
        x = self.e(ids)
        for block in self.blocks:
            x = block(x)
        return ops.cross_entropy(self.head(x).reshape(-1, 96), labels.reshape(-1))
class Step(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net, self.opt = net, nn.AdamWeightDecay(net.trainable_params(), 1e-3)
        self.grad = ms.value_and_grad(net, None, weights=self.opt.parameters)
    def construct(self, ids, labels):
        loss, grads = self.grad(ids, labels)
        return ops.depend(loss, self.opt(grads))
ids, labels = (Tensor(np.zeros((4, 8)), ms.int32), Tensor(np.ones((4, 8)), ms.int32))
ms.export(Step(Net()), ids, labels, file_name=sys.argv[1], file_format="MINDIR")
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mindir") / "step.mindir"
    script = path.with_name("export.py")
    script.write_text(EXPORT)
    subprocess.run([sys.executable, str(script), str(path)], check=True, capture_output=True, env=os.environ)
    return path


@pytest.fixture(scope="module")
def graph(exported: Path) -> Graph:
    return mindir.read(exported.read_bytes(), "step")


def test_it_reads_what_mindspore_wrote(exported: Path, graph: Graph) -> None:
    from mindspore.train import mind_ir_pb2

    model = mind_ir_pb2.ModelProto()
    model.ParseFromString(exported.read_bytes())
    types = {p.name: p.op_type for p in model.primitives}
    passing = {"Load", "Depend", "UpdateState", "MakeTuple", "TupleGetItem"}
    expected = Counter(types[n.op_type[5:]] for n in model.graph.node if n.op_type.startswith("REF::"))
    found = Counter(o.type for o in graph.operators)
    assert found == Counter({k: n for k, n in expected.items() if k not in passing})
    by_name = {t.name: t for t in graph.tensors}
    for parameter in model.graph.parameter:
        tensor = by_name[parameter.name.partition(":")[2] or parameter.name]
        assert tensor.shape == tuple(parameter.dims)
        assert tensor.kind in ("parameter", "optimizer_state")
    assert sum(t.kind == "input" and t.shape == (4, 8) for t in graph.tensors) == 2


def test_it_knows_what_is_trained(graph: Graph) -> None:
    updates = [o for o in graph.operators if o.type == "AdamWeightDecay"]
    trained = [graph.tensors[o.outputs[0]] for o in updates]
    assert all(t.kind == "parameter" for t in trained)
    assert sum(t.kind == "gradient" for t in graph.tensors) == len(updates)
    assert sum(t.kind == "optimizer_state" for t in graph.tensors) == 2 * len(updates)
    for operator in updates:
        assert len({graph.tensors[t].shape for t in operator.outputs}) == 1
        assert operator.phase == "optimizer"
    assert {o.phase for o in graph.operators} == {"forward", "backward", "optimizer"}
    assert any(o.layer.endswith("1-Block") for o in graph.operators)


def test_what_is_no_tensor_becomes_an_attribute(graph: Graph) -> None:
    dense = next(o for o in graph.operators if o.type == "MatMul" and o.phase == "forward")
    assert (dense.attributes["transpose_a"], dense.attributes["transpose_b"]) == (False, True)
    assert len(dense.inputs) == 2
    transpose = next(o for o in graph.operators if o.type == "Transpose")
    assert transpose.attributes["perm"] == (0, 2, 1, 3)


def test_a_whole_step_is_understood_and_sharded(graph: Graph) -> None:
    mesh = Mesh(shape=(2, 2), axes=("dp", "tp"), levels=(Level(bytes_per_s=2e11, latency_us=0.01),))
    assert Frame(graph, mesh).warnings == ()
    found = shard(graph, mesh, time_limit_s=20)
    assert found.gap is not None
    assert found.gap < 1e-4
    assert found.step.us <= shard(graph, Mesh(shape=(1,), axes=("x",), levels=mesh.levels)).step.us


@pytest.mark.parametrize("data", [b"no protobuf", b"", b"\x3a\x05abc", bytes(range(200)) * 9])
def test_what_is_no_mindir_is_refused(data: bytes) -> None:
    with pytest.raises(DocumentError) as refusal:
        mindir.read(data)
    assert "mindspore.export" in refusal.value.remedy


def test_a_call_of_another_graph_is_refused(exported: Path) -> None:
    """As control flow leaves it: a node that names what is no primitive."""
    data = exported.read_bytes().replace(b"REF::ReLU:", b"REF::ReLV:")
    with pytest.raises(DocumentError, match="ReLV") as refusal:
        mindir.read(data)
    assert refusal.value.field.startswith("graph.node[")
