"""Training steps: published sizes, gradients and optimizer in the right order, schedules, what memory holds."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import groupby
from math import prod

import pytest

from hyperopt.profile import COMPUTE, IDLE, Operator, Storage
from hyperopt.testing.accelerator import ASCEND_910C_DIE
from hyperopt.testing.blocks import Parallel
from hyperopt.testing.shapes import DEEPSEEK_V3, LLAMA3_8B, QWEN3_0_6B, QWEN3_30B_A3B, ModelShape
from hyperopt.testing.tape import ITEM, Tape
from hyperopt.testing.training import Training


def built(recipe: Training, layers: int, micro_batches: int) -> tuple[tuple[Operator, ...], tuple[Storage, ...]]:
    return recipe.build(ASCEND_910C_DIE, layers, micro_batches, "test").finish()


@pytest.mark.parametrize(
    ("shape", "billions"), [(LLAMA3_8B, 8.03), (QWEN3_0_6B, 0.596), (QWEN3_30B_A3B, 30.5), (DEEPSEEK_V3, 671)]
)
def test_a_whole_model_has_its_published_number_of_parameters(shape: ModelShape, billions: float) -> None:
    _, storages = built(Training(shape, layers=shape.layers), shape.layers, 1)
    size = sum(s.bytes for s in storages if s.kind == "parameter")
    assert size / ITEM["bfloat16"] / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("shape", [QWEN3_0_6B, QWEN3_30B_A3B])
def test_every_parameter_is_updated_once_after_its_last_gradient(shape: ModelShape, ranks: int) -> None:
    operators, storages = built(Training(shape, layers=4, parallel=Parallel(data=ranks)), 3, 2)
    writers: dict[int, list[int]] = defaultdict(list)
    for i, operator in enumerate(operators):
        for written in operator.writes:
            writers[written].append(i)
    for s in storages:
        if s.kind in ("parameter", "optimizer_state"):
            (update,) = writers[s.id]
            assert operators[update].type == ("AllGather" if ranks > 1 and s.kind == "parameter" else "AdamW")
    updates = [o for o in operators if o.type == "AdamW"]
    assert all(set(o.writes[:3]) <= set(o.reads) for o in updates)  # in place
    last_gradient = max(i for s in storages if s.kind == "gradient" for i in writers[s.id])
    assert last_gradient < min(i for i, o in enumerate(operators) if o.type == "AdamW")


def test_gradients_are_added_up_over_micro_batches() -> None:
    operators, storages = built(Training(LLAMA3_8B, layers=2), 2, 3)
    gradients = {s.id for s in storages if s.kind == "gradient"}
    added = defaultdict(list)
    for operator in operators:
        for s in gradients & set(operator.writes):
            added[s].append((operator.micro_batch, s in operator.reads))
    chunks = {s.id: 4 if s.name == "head.head.grad" else 1 for s in storages}
    for s, found in added.items():
        assert len(found) == 3 * chunks[s]
        assert [again for _, again in found] == [False] + [True] * (len(found) - 1)


def _order(recipe: Training, micro_batches: int) -> list[str]:
    operators, _ = built(recipe, 2, micro_batches)
    marks = [
        f"{o.phase[0].upper()}{o.micro_batch}"
        for o in operators
        if o.stream == COMPUTE and o.type != IDLE and o.phase in ("forward", "backward")
    ]
    return [mark for mark, _ in groupby(marks)]


def test_the_first_stage_runs_ahead_and_the_last_does_not() -> None:
    first, last = (Training(LLAMA3_8B, layers=8, parallel=Parallel(stages=4, stage=stage, data=8)) for stage in (0, 3))
    assert _order(first, 6) == ["F0", "F1", "F2", "F3", "B0", "F4", "B1", "F5", "B2", "B3", "B4", "B5"]
    assert _order(last, 3) == ["F0", "B0", "F1", "B1", "F2", "B2"]


def _peak(operators: tuple[Operator, ...], storages: tuple[Storage, ...], micro_batches: bool = False) -> int:
    """Most bytes of activations (or most micro-batches that have some) alive at once, in listed order."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i, operator in enumerate(operators):
        for s in operator.accesses:
            first.setdefault(s, i)
            last[s] = i
    most = 0
    held = [s for s in storages if s.kind == "activation" and s.name.endswith(tuple("0123456789"))]
    for i in range(len(operators)):
        alive = [s for s in held if s.id in first and first[s.id] <= i <= last[s.id]]
        most = max(
            most, len({s.name.partition("@")[2] for s in alive}) if micro_batches else sum(s.bytes for s in alive)
        )
    return most


@pytest.mark.parametrize(("stage", "in_flight"), [(0, 4), (1, 3), (3, 1)])
def test_a_stage_holds_the_activations_of_the_micro_batches_in_flight(stage: int, in_flight: int) -> None:
    recipe = Training(LLAMA3_8B, layers=8, parallel=Parallel(stages=4, stage=stage, data=8))
    operators, storages = built(recipe, 1, 6)
    kept = [s for s in storages if ".gate_up@" in s.name]
    alive = _peak(operators, tuple(kept), micro_batches=True)
    assert alive == in_flight


def test_without_a_pipeline_micro_batches_need_no_more_memory() -> None:
    recipe = Training(LLAMA3_8B, layers=2)
    assert _peak(*built(recipe, 2, 2)) == _peak(*built(recipe, 2, 4))


def test_nothing_but_parameters_and_states_outlives_the_step() -> None:
    _, storages = built(Training(QWEN3_30B_A3B, layers=2), 2, 2)
    assert {s.kind for s in storages if s.resident_at_end} == {"parameter", "optimizer_state"}
    assert {s.kind for s in storages if s.resident_at_start} == {"parameter", "optimizer_state", "input"}


def test_cold_experts_are_not_touched_and_said_to_be_rare() -> None:
    operators, storages = built(Training(QWEN3_30B_A3B, layers=2, parallel=Parallel(experts=16), cold=2), 2, 2)
    touched = set[int]().union(*(o.accesses for o in operators))
    experts = [s for s in storages if "expert" in s.name and s.kind == "parameter" and s.steps_observed]
    cold = [s for s in experts if s.id not in touched]
    assert len(experts) == 2 * 8 * 2 and len(cold) == 2 * 2 * 2
    assert max(s.steps_accessed for s in cold) < min(s.steps_accessed for s in experts if s not in cold)
    assert all(s.steps_accessed <= s.steps_observed for s in experts)
    assert len({s.steps_accessed for s in experts}) > 3


def test_pieces_add_up_to_the_whole() -> None:
    whole, pieces = (built(Training(LLAMA3_8B, layers=2, pieces=n), 2, 1)[1] for n in (1, 8))
    parts = [s for s in pieces if s.part_of is not None]
    assert parts and sum(s.bytes for s in pieces if s.kind == "optimizer_state") == sum(
        s.bytes for s in whole if s.kind == "optimizer_state"
    )
    of = Counter(s.part_of for s in parts)
    assert set(of.values()) == {8}
    assert all(s.bytes == 0 for s in pieces if s.id in of)  # the whole stands for no memory of its own
    operators, _ = built(Training(LLAMA3_8B, layers=2, pieces=8), 2, 1)
    some = {p.id for p in parts}
    updates = [o for o in operators if o.type == "AdamW" and some & set(o.writes)]
    assert updates and all(set(o.writes) <= set(o.reads) for o in updates)  # a part is written, the rest stays


def test_tensor_parallel_splits_the_residual_stream_and_may_gather_again() -> None:
    operators, _ = built(Training(LLAMA3_8B, layers=2, tokens=8192, parallel=Parallel(tensor=8)), 1, 1)
    adds = [o for o in operators if o.type == "Add" and o.phase == "forward"]
    assert {o.shapes[0] for o in adds} == {(1024, 4096)}
    gathers = [o for o in operators if o.type == "AllGather" and o.phase == "forward"]
    assert len(gathers) == 3 and all(o.recomputable for o in gathers)
    assert not any(o.recomputable for o in operators if o.type == "ReduceScatter")


def test_skewed_lengths_differ_and_the_others_do_not() -> None:
    rows = []
    for skewed in (False, True):
        operators, _ = built(Training(LLAMA3_8B, layers=1, tokens=8192, skewed_lengths=skewed), 1, 8)
        rows.append({o.shapes[0][0] for o in operators if o.type == "FlashAttention"})
    assert rows[0] == {8192} and len(rows[1]) > 3 and max(rows[1]) <= 8192 and min(rows[1]) >= 2048


def test_unfused_steps_are_the_same_arithmetic_in_more_kernels() -> None:
    fused, steps = (built(Training(QWEN3_0_6B, layers=2, fused=f), 2, 1) for f in (True, False))
    assert len(steps[0]) > 1.4 * len(fused[0])
    assert sum(s.bytes for s in fused[1] if s.kind == "parameter") == sum(
        s.bytes for s in steps[1] if s.kind == "parameter"
    )


def test_a_collective_that_waits_stands_behind_what_overtakes_it() -> None:
    tape = Tape(ASCEND_910C_DIE, "test")
    slow, small, out, other = (tape.tensor(name, (size,)) for name, size in zip("abcd", (10**9, 8, 8, 8), strict=True))
    tape.run("Fill", [], [slow])
    tape.collect("AllReduce", [slow], [out])
    tape.collect("AllReduce", [], [small])
    tape.run("Fill", [], [other])
    operators, _ = tape.finish()
    assert [o.writes[0] for o in operators] == [slow.id, out.id, other.id, small.id]
    assert prod(out.shape) == 8
