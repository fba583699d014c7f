"""A small demo model in graph mode, for tests that run MindSpore."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mindspore as ms

from hyperopt.plan import Action, Plan, Recompute, Residency
from hyperopt.profile import Profile
from profiler.demo.model import Config, build
from profiler.demo.text import batches

SMALL = Config(layers=2, width=16, heads=2, sequence=32, batch=4)


@contextmanager
def graph_mode() -> Iterator[None]:
    """Graph mode while it lasts; then the mode that was set before."""
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        yield
    finally:
        ms.set_context(mode=before)


def model(config: Config = SMALL) -> tuple[Any, Any, tuple[Any, Any]]:
    """A fresh network, its step, and one batch."""
    net, step = build(config)
    ids, targets = next(batches(config.batch, config.sequence))
    return net, step, (ms.Tensor(ids), ms.Tensor(targets))


def losses(step: Any, config: Config = SMALL, count: int = 5) -> list[float]:
    data = batches(config.batch, config.sequence, seed=3)
    found = []
    for _ in range(count):
        ids, targets = next(data)
        found.append(float(step(ms.Tensor(ids), ms.Tensor(targets)).asnumpy()))
    return found


def recompute_plan(profile: Profile, *layers: str) -> Plan:
    """The plan that recomputes whole layers: all that their forward leaves for their backward is dropped."""
    actions: list[Action] = []
    recomputes: list[Recompute] = []
    for layer in layers:
        release, recompute = _whole_layer(profile, layer)
        actions += release
        recomputes.append(recompute)
    actions.sort(key=lambda action: action.op)
    recomputes.sort(key=lambda entry: entry.before_op)
    return Plan(
        profile_digest=profile.digest,
        program_digest=profile.program_digest,
        residency=Residency(actions=tuple(actions), recompute=tuple(recomputes)),
    )


def _whole_layer(profile: Profile, layer: str) -> tuple[list[Action], Recompute]:
    operators = profile.operators
    mine = [i for i, o in enumerate(operators) if o.layer == layer and o.phase == "forward"]
    start = min(i for i, o in enumerate(operators) if o.layer == layer and o.phase == "backward")
    uses: dict[int, list[int]] = {}
    for i, operator in enumerate(operators):
        for id in operator.accesses:
            uses.setdefault(id, []).append(i)
    written = {id for i in mine for id in operators[i].writes}
    dropped = {id for id in written if max(uses[id]) >= start and all(i in mine or i >= start for i in uses[id])}
    needed: list[int] = []
    wanted = set(dropped)
    for i in reversed(mine):
        if wanted & set(operators[i].writes):
            needed.insert(0, i)
            wanted |= set(operators[i].reads)
    rewritten = sorted({id for i in needed for id in operators[i].writes})
    release = [
        Action(op=max(i for i in uses[id] if i < start), when="after", kind="release", storage=id) for id in rewritten
    ]
    return release, Recompute(storage=min(dropped), before_op=start, ops=tuple(needed))
