"""The parts of the PyNative adapter that need no MindSpore: refusals, schedule, lifetimes, program, log."""

from __future__ import annotations

import json
from collections import Counter

import msgspec
import pytest

from hyperopt.mesh import Level, Mesh
from hyperopt.plan import Action, Plan, Recompute, Residency, Sharding
from hyperopt.profile import Adapter, Operator, Profile, Storage
from profiler.apply.capability import refusals
from profiler.apply.fingerprint import differences
from profiler.apply.log import ActionRecord, CopyBack, ExecutionLog
from profiler.apply.schedule import as_issued, schedule
from profiler.capture.lifetimes import hold_dead_blocks, lengthened
from profiler.capture.observation import Call, Load, Observation, Save, TensorRef
from profiler.capture.program import Block, Known, Program, assemble
from profiler.capture.pynative import outside_pool
from profiler.capture.recording import CaptureError, Kernel, StepRecord
from profiler.capture.timing import Times, same_kernels
from profiler.read.mindspore.cpu_profiler import MemoryRecord
from tests.profiler.pynative_plans import plan_of

HALVES = Sharding(mesh=Mesh(shape=(2,), axes=("x",), levels=(Level(bytes_per_s=1e9),)))
"""A sharding that says nothing but that there are two devices."""

ADAPTER = Adapter(name="mindspore-pynative", mode="pynative", moves="window", recompute="cell")


def profile_of_two_layers() -> Profile:
    """x(0) -> a: y(1), z(2) -> b: u(3), v(4); backward of b, then of a. w(5) is a parameter."""

    def op(layer: str, phase: str, **fields: object) -> Operator:
        raw = {"name": f"{layer}/op", "type": "Mul", "layer": layer, "phase": phase, "duration_us": 1.0, **fields}
        return msgspec.convert(raw, Operator)

    operators = (
        op("", "forward", writes=[0], recomputable=False),
        op("a", "forward", reads=[0, 5], writes=[1], saves=[0]),
        op("a", "forward", reads=[1], writes=[2], saves=[1]),
        op("b", "forward", reads=[2], writes=[3], saves=[2]),
        op("b", "forward", reads=[3], writes=[4], saves=[3]),
        op("b", "backward", reads=[4, 3], writes=[6], loads=[3]),
        op("b", "backward", reads=[6, 2], writes=[7], loads=[2]),
        op("a", "backward", reads=[7, 1], writes=[8], loads=[1]),
        op("a", "backward", reads=[8, 0], writes=[9], loads=[0]),
        op("", "optimizer", reads=[9, 5], writes=[5]),
    )
    windows = {0: (1, 8), 1: (2, 7), 2: (3, 6), 3: (4, 5)}
    storages = tuple(
        Storage(
            id=id,
            bytes=1024,
            kind="parameter" if id == 5 else "activation" if id < 5 else "gradient",
            resident_at_start=id == 5,
            resident_at_end=id == 5,
            offloadable=id in windows,
            window=windows.get(id),
        )
        for id in range(10)
    )
    return Profile(operators=operators, storages=storages, adapter=ADAPTER)


def move(storage: int, out: int, back: int, *, tier: str | None = None) -> list[Action]:
    return [
        Action(op=out, when="after", kind="copy_out", storage=storage, tier=tier),
        Action(op=out, when="after", kind="release", storage=storage),
        Action(op=back, when="before", kind="copy_in", storage=storage),
    ]


def why_not(*actions: Action, again: tuple[Recompute, ...] = ()) -> list[str]:
    profile = profile_of_two_layers()
    return refusals(profile, plan_of(profile, actions, again), {"", "a", "b"})


def test_a_plan_within_the_windows_is_accepted() -> None:
    assert why_not(*move(0, 1, 7), *move(1, 3, 6)) == []


@pytest.mark.parametrize(
    ("actions", "named"),
    [
        (move(5, 1, 9), "parameter"),
        (move(0, 0, 7), "in use until operator 1"),
        (move(0, 1, 9), "operator 8 needs it"),
        (move(0, 1, 7, tier="remote"), "'remote'"),
        (move(0, 1, 7)[1:], "without a copy_out"),
        (move(0, 1, 7)[:2], "0 x copy_in"),
        (move(99, 1, 7), "storage 99 does not exist"),
        ([*move(0, 1, 3), *move(0, 4, 7)], "2 x copy_out"),
    ],
)
def test_moves_that_the_adapter_cannot_do_are_refused_by_name(actions: list[Action], named: str) -> None:
    reasons = why_not(*actions)
    assert any(named in reason for reason in reasons), reasons


def test_all_refusals_come_at_once() -> None:
    profile = profile_of_two_layers()
    plan = msgspec.structs.replace(
        plan_of(profile, move(5, 1, 9)),
        sharding=HALVES,
        stages=(),
        residency=Residency(initial={5: "host"}, actions=tuple(move(5, 1, 9))),
    )
    text = " | ".join(refusals(profile, plan, set()))
    assert all(word in text for word in ("sharding", "stages", "initial", "parameter"))


def test_a_plan_for_another_mode_or_program_is_refused() -> None:
    profile = profile_of_two_layers()
    graph = msgspec.structs.replace(profile, adapter=Adapter(mode="graph"))
    assert "'graph'" in refusals(graph, plan_of(graph), set())[0]
    other = msgspec.structs.replace(plan_of(profile), program_digest="sha256:0")
    assert "sha256:0" in refusals(profile, other, set())[0]
    assert refusals(profile, Plan(profile_digest="sha256:1"), set()) != []


def test_recompute_takes_whole_cells_only() -> None:
    whole = Recompute(storage=1, before_op=7, ops=(1, 2))
    assert why_not(Action(op=2, when="after", kind="release", storage=1), again=(whole,)) == []
    assert "missing [2]" in why_not(again=(Recompute(storage=1, before_op=7, ops=(1,)),))[0]
    assert "whole cells only" in why_not(again=(Recompute(storage=1, before_op=7, ops=(2, 3)),))[0]
    assert "moved too" in " ".join(why_not(*move(1, 2, 6), again=(whole,)))
    dropped = Action(op=3, when="after", kind="release", storage=2)
    assert "no recomputed layer makes it again" in " ".join(why_not(dropped, again=(whole,)))


def test_the_schedule_knows_that_a_recomputed_layer_saves_only_its_input() -> None:
    profile = profile_of_two_layers()
    release = Action(op=2, when="after", kind="release", storage=1)
    plan = plan_of(profile, [release, *move(0, 1, 6)], [Recompute(storage=1, before_op=7, ops=(1, 2))])
    orders = schedule(profile, plan)
    assert orders.recomputed == ("a",)
    assert orders.inputs == {"a": 0}
    assert [save.layer for save in orders.saves] == ["a", "a", "", ""]
    assert orders.loads[0] == (7,)  # fetched when the layer starts again, not where backward reads it
    assert 1 not in orders.loads
    assert (orders.moves[0].saves, orders.moves[0].loads) == (1, 1)


def test_copies_back_snap_to_hook_calls_and_stay_ahead_of_their_consumer() -> None:
    profile = profile_of_two_layers()
    issued = as_issued(profile, plan_of(profile, [*move(0, 1, 8), *move(1, 2, 6)]))
    at = {a.storage: a.op for a in issued.residency.actions if a.kind == "copy_in"}
    assert at == {0: 7, 1: 6}  # the call at 8 is the consumer's own: one call earlier


def ref(address: int, size: int = 512, **fields: object) -> TensorRef:
    return TensorRef(address=address, storage_bytes=size, shape=(size // 4,), dtype="float32", **fields)  # type: ignore[arg-type]


def call(name: str, start: int, inputs: list[TensorRef], outputs: list[TensorRef], place: str = "forward") -> Call:
    return Call(name, start, start + 8, tuple(inputs), tuple(outputs), 0, "a", place)  # type: ignore[arg-type]


def test_assembly_joins_views_hidden_kernels_and_copies() -> None:
    events = Observation(
        [
            call("Mul", 10, [ref(1)], [ref(2)]),
            Save(19, 0, ref(2)),
            call("Reshape", 20, [ref(2)], [ref(2)]),
            call("MatMul", 30, [ref(3, copied_from=2), ref(1)], [ref(4)]),
            Load(39, 0),
            call("Tile", 40, [ref(4)], [ref(5)], "backward"),
            call("Add", 60, [ref(6)], [ref(7)], "backward"),
        ]
    )
    kernels = tuple(
        Kernel(start, start + 1, name)
        for start, name in ((11, "Mul"), (31, "MatMul"), (41, "Tile"), (50, "Default/SqrtGrad-op0"), (61, "Add"))
    )
    program = assemble(events, kernels, Known({1: "w"}, {}, {}))
    names = [step.type for step in program.steps]
    assert names == ["Mul", "Contiguous", "MatMul", "Tile", "SqrtGrad", "Add"]
    mul, copy, matmul, tile, hidden, add = program.steps
    assert [block.origin for block in program.blocks if block.id in mul.reads] == ["parameter"]
    assert copy.unseen and copy.reads == mul.writes and matmul.reads[0] == copy.writes[0]
    assert mul.saves == mul.writes and tile.loads == mul.writes
    assert hidden.unseen and hidden.reads == tile.writes and add.reads == hidden.writes
    assert program.blocks[hidden.writes[0]].inferred
    assert not program.unclaimed


def test_what_the_record_still_holds_becomes_a_longer_life() -> None:
    big = 1 << 20
    events = Observation(
        [
            call("Div", 10, [], [ref(2, big)]),
            call("Neg", 20, [ref(2, big)], [ref(3, big)]),
            call("Mul", 30, [ref(3, big)], [ref(4, big)]),
            call("Sum", 40, [ref(4, big)], [ref(5, big)]),
        ]
    )
    kernels = tuple(Kernel(start, start + 1, "k") for start in (11, 21, 31, 41))
    program = assemble(events, kernels, Known({}, {}, {}))
    memory = MemoryRecord((10, 20, 30, 40), (big, 2 * big, 3 * big, 2 * big))
    hold_dead_blocks(program, [StepRecord(0, 50, kernels, memory, 0)] * 3, 0)
    assert lengthened(program) == [[], [], program.steps[0].writes, []]


def record(*kernels: Kernel) -> StepRecord:
    return StepRecord(0, 100_000, kernels, MemoryRecord((), ()), 0)


def test_times_add_up_to_the_plain_step() -> None:
    times = Times.of([record(Kernel(10_000, 20_000, "a"), Kernel(40_000, 60_000, "b"))] * 3, 50.0)
    assert times.durations == [10.0, 20.0]
    assert sum(times.durations) + sum(times.gaps) + times.tail == pytest.approx(50.0)


def test_steps_that_launch_other_kernels_are_refused_at_the_first_difference() -> None:
    a, b = Kernel(0, 1, "Mul"), Kernel(2, 3, "Add")
    with pytest.raises(CaptureError, match="first difference at kernel 1"):
        same_kernels([record(a, b), record(a, a)])


def test_differences_name_the_operator_and_the_count() -> None:
    mul, add = ("Mul", ((2, 3),), ("float32",)), ("Add", ((2, 3),), ("float32",))
    assert differences([mul, add], [mul, add]) == []
    found = differences([mul], [mul, add])
    assert "1 forward operators were recorded, now 2" in found[0]
    assert "Add -> [2, 3] float32" in found[1]


def test_the_log_counts_what_was_done_and_goes_out_as_json() -> None:
    log = ExecutionLog("plan-1", "sha256:1")
    log.actions = [ActionRecord(0, "copy_out", 3, 7, 100, "done", 1.0), ActionRecord(0, "copy_in", 9, 7, 100)]
    log.copies_back = [CopyBack(0, 7, 100, 9, 12, 1.0, 9, 2.0, 3.0, 0.0, True)]
    document = json.loads(log.json())
    assert document["summary"]["actions_done"] == 1
    assert document["summary"]["issued_ahead"] == document["summary"]["copies_back"] == 1
    assert [a.kind for a in log.not_carried_out] == ["copy_in"]


def test_what_lies_in_the_heap_is_outside_the_pool_even_where_the_step_made_a_scalar_there() -> None:
    """As seen on Linux: the pool's arena at 7f.., parameters in the heap at 55.., and a Python scalar on each side of
    them. What the pool has in use when the step begins (here 1 MB, kept by the framework) does not show it."""
    made = [
        Block(0, 4, "made", "scalar", 0x55E0_0000_0000),
        Block(1, 4, "made", "scalar", 0x55E0_0800_0000),
        Block(2, 20 << 20, "made", "scores", 0x7F92_3ADF_F000),
        Block(3, 4 << 20, "made", "logits", 0x7F92_42D2_BC10),
    ]
    parameters = [Block(4, 400_000, "parameter", "weight", 0x55E0_0400_0000)]
    assert outside_pool(Program([], made + parameters, 0, Counter()), used_before=1_000_000) == ("parameter",)
    parameters[0].address = 0x7F92_4000_0000
    assert outside_pool(Program([], made + parameters, 0, Counter()), used_before=1_000_000) == ()
