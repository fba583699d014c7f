"""Runs in a process of its own (``launch_blocking`` counts only before the first operator) and writes what
happened as JSON: ``python -m tests.profiler.pynative_run FOLDER``."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import msgspec
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from hyperopt.plan import Action, Plan
from hyperopt.profile import Operator, Profile, Storage
from profiler.apply import apply
from profiler.apply.capability import PlanRefused
from profiler.apply.copies import Link, address_of
from profiler.apply.log import ExecutionLog
from profiler.apply.schedule import schedule
from profiler.apply.swap import Swapper
from profiler.capture import capture
from profiler.capture.pynative import ADAPTER
from profiler.capture.recording import record_steps
from profiler.demo.model import Config, build
from profiler.demo.text import batches
from tests.profiler.pynative_plans import movable, moves, plan_of, recompute_plan

CONFIG = Config(layers=3, width=64, heads=2, sequence=96, batch=16)
STEPS = 5


def data(config: Config) -> tuple[Tensor, Tensor]:
    ids, targets = next(batches(config.batch, config.sequence))
    return Tensor(ids), Tensor(targets)


def train(profile: Profile | None, plan: Plan | None) -> dict[str, Any]:
    """Losses (exact), peak and log of `STEPS` steps of a fresh model."""
    net, step = build(CONFIG)
    args = data(CONFIG)
    losses: list[str] = []

    def one() -> None:
        losses.append(float(step(*args).asnumpy()).hex())

    if profile is None or plan is None:
        records = record_steps(one, STEPS)
        peak = max(record.peak_bytes for record in records[1:])
        return {"losses": losses, "peak": peak, "before": records[1].used_before}
    with apply(net, profile, plan) as log:
        records = record_steps(one, STEPS)
    peak = max(record.peak_bytes for record in records[1:])
    return {"losses": losses, "peak": peak, "before": records[1].used_before, "log": log.document()}


def undone(profile: Profile, plan: Plan) -> dict[str, Any]:
    """Two steps with the plan, three without, and what is left on the network."""
    net, step = build(CONFIG)
    args = data(CONFIG)
    before = state(net)
    losses = []
    with apply(net, profile, plan):
        losses += [float(step(*args).asnumpy()).hex() for _ in range(2)]
        inside = state(net)
    losses += [float(step(*args).asnumpy()).hex() for _ in range(STEPS - 2)]
    return {"losses": losses, "as_before": state(net) == before, "changed_inside": inside != before}


def state(net: Any) -> list[Any]:
    return [
        (name, cell._recompute_cell is None, cell._has_config_recompute, cell._scope, len(cell._forward_pre_hook))
        for name, cell in net.cells_and_names()
    ]


def refused(profile: Profile, plan: Plan, config: Config) -> dict[str, Any]:
    """A step of a model that is not the profiled one."""
    net, step = build(config)
    weight = next(iter(net.get_parameters())).asnumpy().copy()
    try:
        with apply(net, profile, plan) as log:
            step(*data(config))
    except PlanRefused as error:
        moved = log.bytes_out if "log" in dir() else 0
        same = np.array_equal(weight, next(iter(net.get_parameters())).asnumpy())
        return {"reasons": error.reasons, "moved": moved, "weights_same": bool(same)}
    return {"reasons": []}


class Noisy(nn.Cell):  # type: ignore[misc, unused-ignore]
    """Saves one storage several times; with dropout, so that one pass too many would show in the numbers."""

    def __init__(self) -> None:
        super().__init__()
        start = np.linspace(0.5, 1.5, 1 << 16, dtype=np.float32).reshape(256, 256)
        self.weight = Parameter(Tensor(start), name="w")
        self.drop = nn.Dropout(p=0.5)

    def construct(self, x: Tensor) -> Tensor:
        y = x * self.weight
        flat = ops.reshape(y, (-1,))
        squares = ops.reshape(flat * flat, (256, 256)) + y * y
        for _ in range(12):
            squares = squares * 1.0009765625
        return self.drop(squares).sum()


def noisy() -> dict[str, Any]:
    x = Tensor(np.linspace(-1, 1, 1 << 16, dtype=np.float32).reshape(256, 256))

    def fresh() -> tuple[Any, Callable[[Any], Any]]:
        ms.set_seed(7)
        ms.manual_seed(7)
        net = Noisy().set_train()
        gradient = ms.value_and_grad(net, None, [net.weight])

        def step(x: Any) -> Any:
            loss, (slope,) = gradient(x)
            ops.assign(net.weight, net.weight - 0.01 * slope)
            return loss

        return net, step

    net, step = fresh()
    profile = capture(step, x, net=net, mode="pynative")
    ms.manual_seed(11)
    net, step = fresh()
    plain = [float(step(x).asnumpy()).hex() for _ in range(3)]
    shared = [
        storage.id
        for storage in profile.storages
        if storage.window and sum(operator.saves.count(storage.id) for operator in profile.operators) >= 2
    ]
    net, step = fresh()
    with apply(net, profile, plan_of(profile, moves(profile, shared, lead=4))) as log:
        moved = [float(step(x).asnumpy()).hex() for _ in range(3)]
    return {"plain": plain, "moved": moved, "shared": len(shared), "log": log.document()}


def shared() -> dict[str, Any]:
    """Case C13: a tensor and two views of it, saved; the hooks driven by hand."""
    base = Tensor(np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)) + 0.0
    tensors = [base, ops.transpose(base, (1, 0)), ops.reshape(base, (-1,))[5000:9000]]
    values = [tensor.asnumpy().copy() for tensor in tensors]
    operators = [
        Operator(name="make", type="Add", phase="forward", writes=(0,), duration_us=1, saves=(0, 0, 0)),
        Operator(name="more", type="Mul", phase="forward", writes=(1,), duration_us=1, saves=(1,)),
        Operator(name="back", type="Mul", phase="backward", reads=(1,), duration_us=1, loads=(1,)),
        Operator(name="use", type="Mul", phase="backward", reads=(0,), duration_us=1, loads=(0, 0, 0)),
    ]
    storages = [
        Storage(id=0, bytes=4 << 20, kind="activation", window=(0, 3)),
        Storage(id=1, bytes=512, kind="activation", offloadable=False),
    ]
    profile = Profile(operators=tuple(operators), storages=tuple(storages), adapter=ADAPTER)
    plan = plan_of(
        profile,
        [
            Action(op=0, when="after", kind="copy_out", storage=0),
            Action(op=0, when="after", kind="release", storage=0),
            Action(op=2, when="before", kind="copy_in", storage=0),
            Action(op=3, when="after", kind="release_host", storage=0),
        ],
    )
    log = ExecutionLog("", "")
    with Link("out") as out, Link("back") as back:
        swapper = Swapper(schedule(profile, plan), log, out, back)
        kept = [swapper.save(tensor) for tensor in tensors]
        moved = address_of(base)
        later = swapper.save(Tensor(np.ones(4, np.float32)))
        swapper.load(later)
        restored = [swapper.load(handle) for handle in kept]
        same = [bool(np.array_equal(a.asnumpy(), b)) for a, b in zip(restored, values, strict=True)]
        one = len({address_of(tensor) for tensor in restored})
        swapper.finish_step()
    return {"same": same, "storages": one, "elsewhere": address_of(restored[0]) != moved, "log": log.document()}


class Broken(RuntimeError):
    pass


def broken_off(profile: Profile, plan: Plan) -> dict[str, Any]:
    """A step that fails between forward and backward; the next run must not notice."""
    net, step = build(CONFIG)
    args = data(CONFIG)
    try:
        with apply(net, profile, plan), ms.saved_tensors_hooks(lambda tensor: tensor, _break):
            step(*args)
    except Exception as error:
        return {"error": str(error), "after": train(profile, plan)["losses"]}
    return {"error": "", "after": []}


def _break(_kept: Any) -> Any:
    raise Broken("broken off")


def main(folder: Path) -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.runtime.launch_blocking()
    net, step = build(CONFIG)
    profile = capture(step, *data(CONFIG), net=net, mode="pynative", name="small")
    del net, step
    (folder / "profile.json").write_bytes(msgspec.json.encode(profile))
    everything = plan_of(profile, moves(profile, movable(profile)))
    half = plan_of(profile, moves(profile, movable(profile)[::2]))
    mixed = recompute_plan(profile, ["blocks.1"], move_the_rest=True)
    result = {
        "plain": train(None, None),
        "all": train(profile, everything),
        "half": train(profile, half),
        "recompute": train(profile, recompute_plan(profile, ["blocks.0", "blocks.1", "blocks.2"])),
        "mixed": train(profile, mixed),
        "undone": undone(profile, mixed),
        "deeper": refused(profile, everything, dataclasses.replace(CONFIG, layers=4)),
        "wider": refused(profile, everything, dataclasses.replace(CONFIG, width=96)),
        "broken_off": broken_off(profile, everything),
        "noisy": noisy(),
        "shared": shared(),
    }
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
