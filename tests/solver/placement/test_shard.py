"""`shard`: the same price as its program, the least of all choices, what people would have written, rivals beaten."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from hyperopt.graph import Graph, Operator, Tensor
from hyperopt.mesh import Level, Mesh, Rates
from hyperopt.profile import check as check_profile
from hyperopt.replay import replay
from hyperopt.testing.graphs import Model, training
from solver.placement import Choice, DoesNotFit, Frame, Sharding, peak_bytes, per_device_profile, shard
from solver.placement.compare import compare
from solver.placement.formulate import Formulation
from solver.placement.priced import Priced
from solver.placement.program import write
from solver.placement.rivals import rivals as every_rival
from solver.sharding import evaluate

FAST = (Level(devices=8, bytes_per_s=2e11, latency_us=2), Level(bytes_per_s=2.5e10, latency_us=8))
EIGHT = Mesh(shape=(8,), axes=("x",), levels=FAST)
TWO_BY_FOUR = Mesh(shape=(2, 4), axes=("dp", "tp"), levels=FAST)
SMALL = Mesh(shape=(2, 2), axes=("a", "b"), levels=(Level(bytes_per_s=1e8, latency_us=1),))
SLOW = Rates(flops_per_s=1e9, hbm_bytes_per_s=1e9, launch_us=1)


def llama(**changes: int | bool) -> Model:
    """A Llama-like block."""
    given = {"batch": 1, "sequence": 2048, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 14336}
    return Model(**{**given, **changes})  # type: ignore[arg-type]


# -- the problem is the program's ------------------------------------------------------------------------------


@pytest.mark.parametrize("mesh", [EIGHT, TWO_BY_FOUR, SMALL], ids=lambda m: "x".join(map(str, m.shape)))
@pytest.mark.parametrize("seed", range(3))
def test_the_problem_costs_what_the_program_takes(mesh: Mesh, seed: int) -> None:
    model = Model(
        batch=8, sequence=16, hidden=16, heads=8, kv_heads=8, head_dim=4, ffn=32, layers=3, vocab=32, micro_batches=2
    )
    frame = Frame(training(model), mesh)
    formulation = Formulation(frame, mesh.device)
    problem = formulation.problem(10**12)
    random = np.random.default_rng(seed)
    # Members of a class are tied to it: they take its strategy.
    free = len(formulation.operators) + len(formulation.tensors)
    solution = random.integers(0, problem.strategies)
    for a, b in problem.edges:
        if b >= free:
            solution[b] = solution[a]
    program = write(frame, mesh.device, formulation.choice(solution))
    lean = formulation.lean(solution)
    for a, b in problem.edges:
        if b >= free:
            lean[b] = lean[a]
    judged = evaluate(problem, lean)
    assert judged.cost == program.step_ns <= evaluate(problem, solution).cost
    peak = peak_bytes(program)
    assert judged.peak <= peak
    priced = Priced(formulation, 0, formulation.problem(None))
    assert all(priced.used(lean[:free], m) <= peak for m in range(3 * len(frame.graph.operators)))
    profile = per_device_profile(program)
    check_profile(profile)
    assert replay(profile).step_us <= program.step_ns / 1000 + 1e-6


def four_weights() -> Graph:
    """Each of four weights is read by an operator that nobody can cut, and makes a number."""
    weights = [Tensor(i, f"w{i}", (8, 8), "float32", "parameter", resident=True) for i in range(4)]
    numbers = [Tensor(4 + i, f"y{i}", (1,)) for i in range(4)]
    return Graph((*weights, *numbers), tuple(Operator("Unheard", (i,), (4 + i,)) for i in range(4)))


def small_product() -> Graph:
    """y = x w, and the sum of its rows."""
    x, w = Tensor(0, "x", (8, 4), kind="input", resident=True), Tensor(1, "w", (4, 8), kind="parameter", resident=True)
    y, g = Tensor(2, "y", (8, 8)), Tensor(3, "g", (8,), kind="gradient")
    product_ = Operator("MatMul", (0, 1), (2,), attributes={"equation": "mk,kn->mn"})
    return Graph((x, w, y, g), (product_, Operator("ReduceSum", (2,), (3,), attributes={"axis": 0})))


@pytest.mark.parametrize("graph", [four_weights(), small_product()], ids=["four weights", "product"])
def test_nothing_is_cheaper_than_the_answer(graph: Graph) -> None:
    """All choices, one by one: without a limit, and in the memory that rules out what is best without."""
    mesh = Mesh(shape=(2,), axes=("x",), levels=(Level(bytes_per_s=1e7, latency_us=0.5),))
    frame = Frame(graph, mesh)
    tried: list[tuple[int, int]] = []
    for strategies in product(*[frame.strategies(i) for i in range(len(graph.operators))]):
        for keeps in product(*[frame.keeps(t) for t in range(len(graph.tensors))]):
            program = write(frame, SLOW, Choice(strategies, keeps))
            tried.append((program.step_ns, peak_bytes(program)))
    least = min(tried)[0]
    free = shard(graph, mesh, SLOW, time_limit_s=10)
    assert round(free.step.us * 1000) == least
    assert free.status == "optimal"
    limit = min(peak for cost, peak in tried if cost == least) - 1
    within = [cost for cost, peak in tried if peak <= limit]
    if not within:
        with pytest.raises(DoesNotFit):
            shard(graph, mesh, SLOW, memory_bytes=limit, time_limit_s=10)
        return
    found = shard(graph, mesh, SLOW, memory_bytes=limit, time_limit_s=10)
    assert found.peak_bytes <= limit
    assert found.bound_us <= min(within) / 1000
    assert round(found.step.us * 1000) == min(within)


# -- what it has to find ---------------------------------------------------------------------------------------


def split(found: Sharding, name: str) -> tuple[int, ...]:
    tensor = next(t for t in found.graph.tensors if t.name == f"layer0.{name}")
    return found.layouts[tensor.id]


def never_worse(
    graph: Graph, mesh: Mesh, memory: int | None = None, seconds: float = 20.0
) -> tuple[Sharding, dict[str, Sharding | None]]:
    """Ours without a look at the rivals, and them."""
    rivals = compare(graph, mesh, memory_bytes=memory, time_limit_s=seconds / 40)
    found = shard(graph, mesh, memory_bytes=memory, time_limit_s=seconds)
    for name, rival in rivals.items():
        assert rival is None or found.step.us <= rival.step.us * (1 + 1e-9), name
        assert rival is None or found.bound_us <= rival.step.us * (1 + 1e-9), name
    return found, rivals


@pytest.mark.parametrize(
    "model",
    [llama(sequence=512), llama(), llama(hidden=2048, heads=16, ffn=5632), llama(kv_heads=32, ffn=11008)],
    ids=["512 tokens", "2,048 tokens", "2,048 wide", "as many keys as queries"],
)
def test_the_block_is_split_by_columns_and_rows(model: Model) -> None:
    """Megatron's feed-forward block, and its attention block or something that the same judge finds cheaper."""
    found, rivals = never_worse(training(model), EIGHT)
    assert split(found, "gate") == split(found, "up") == (1,)
    assert split(found, "down") == (0,)
    assert found.status == "optimal"
    megatron = [rivals["tensor parallel"], rivals["tensor and sequence parallel"]]
    attention = [split(found, name) for name in ("q", "k", "v", "out")]
    if attention != [(1,), (1,), (1,), (0,)]:
        assert all(rival is None or found.step.us < rival.step.us for rival in megatron)


def test_forward_alone_is_megatron_to_the_letter() -> None:
    """One sequence, no training: weights by columns and rows, two all-reduces or their halves, nothing else."""
    whole = training(llama(sequence=128, kv_heads=32, states=False))
    operators = tuple(o for o in whole.operators if o.phase == "forward")
    graph = Graph(whole.tensors, operators)
    found = shard(graph, EIGHT, time_limit_s=20)
    assert [split(found, name) for name in ("q", "k", "v", "out")] == [(1,), (1,), (1,), (0,)]
    assert [split(found, name) for name in ("gate", "up", "down")] == [(1,), (1,), (0,)]
    assert set(found.step.sent_bytes) <= {"all_reduce", "reduce_scatter", "all_gather"}


@pytest.mark.parametrize(("batch", "hidden"), [(64, 512), (256, 256), (32, 768)])
def test_a_small_model_on_a_large_batch_is_data_parallel(batch: int, hidden: int) -> None:
    model = llama(
        batch=batch, sequence=512, hidden=hidden, heads=hidden // 64, kv_heads=hidden // 64, head_dim=64,
        ffn=2 * hidden, layers=2,
    )  # fmt: skip
    graph = training(model)
    found, rivals = never_worse(graph, EIGHT)
    assert rivals["data parallel, ZeRO-1"] is not None
    for tensor in graph.tensors:
        if tensor.kind == "parameter":
            assert found.layouts[tensor.id] == (-1,), tensor.name
        elif tensor.kind == "activation" and tensor.shape[0] == batch and len(tensor.shape) > 1:
            assert found.layouts[tensor.id] == (0,), tensor.name


@pytest.mark.parametrize("mesh", [EIGHT, TWO_BY_FOUR], ids=["8", "2x4"])
def test_little_memory_shards_what_is_trained(mesh: Mesh) -> None:
    """Between what data parallelism needs and what is impossible: parameters and states are cut, at a price."""
    graph = training(llama(batch=8, sequence=256, hidden=1024, heads=8, kv_heads=8, ffn=4096, layers=2))
    free = shard(graph, mesh, time_limit_s=20)
    zero = compare(graph, mesh, which=[r for r in every_rival(mesh) if r.name == "ZeRO-3"])["ZeRO-3"]
    assert zero is not None
    assert zero.peak_bytes < free.peak_bytes
    steps = [free.step.us]
    for share in (0.5, 0.0):
        memory = round(zero.peak_bytes + share * (free.peak_bytes - zero.peak_bytes))
        found, _ = never_worse(graph, mesh, memory, seconds=8)
        assert found.peak_bytes <= memory
        assert found.step.us >= free.bound_us
        states = [t for t in graph.tensors if t.kind == "optimizer_state" and len(t.shape) > 1]
        assert all(any(place >= 0 for place in found.layouts[t.id]) for t in states)
        steps.append(found.step.us)
    assert steps == sorted(steps)
    held = sum(size for t, size in found.bytes_per_device.items() if graph.tensors[t].kind == "parameter")
    assert held < sum(t.bytes for t in graph.tensors if t.kind == "parameter") / 2


def test_what_cannot_fit_is_said_with_bytes() -> None:
    graph = training(llama(batch=8, sequence=256, hidden=1024, heads=8, kv_heads=8, ffn=4096))
    with pytest.raises(DoesNotFit) as refusal:
        shard(graph, EIGHT, memory_bytes=10**7, time_limit_s=10)
    assert refusal.value.proven
    assert refusal.value.shortfall > 0
    trained = sum(t.bytes for t in graph.tensors if t.kind in ("parameter", "optimizer_state"))
    assert trained / 8 > 10**7


@pytest.mark.parametrize(("experts", "top_k"), [(64, 8), (32, 2), (128, 4)])
def test_many_experts_are_spread_over_devices(experts: int, top_k: int) -> None:
    model = Model(
        batch=8, sequence=2048, hidden=2048, heads=16, kv_heads=8, head_dim=128, ffn=768, experts=experts, top_k=top_k
    )
    found, _ = never_worse(training(model), EIGHT)
    assert split(found, "gate") == split(found, "up") == split(found, "down") == (0,)
    assert found.step.sent_bytes["all_to_all"] > 0


def test_what_a_device_holds_before_the_model_counts() -> None:
    graph = training(llama(batch=8, sequence=256, hidden=256, heads=4, kv_heads=4, ffn=1024))
    free = shard(graph, EIGHT, time_limit_s=10)
    based = replace(graph, base_bytes=10**9)
    found = shard(based, EIGHT, memory_bytes=free.peak_bytes + 10**9, time_limit_s=10)
    assert found.peak_bytes == replay(found.per_device_profile()).peak_bytes <= free.peak_bytes + 10**9
    with pytest.raises(DoesNotFit):
        shard(based, EIGHT, memory_bytes=free.peak_bytes, time_limit_s=10)
