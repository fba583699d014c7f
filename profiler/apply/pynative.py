"""Makes a training step in PyNative mode do what a plan says, no more and no less, and undoes it.

::

    with apply_pynative(net, profile, plan) as log:
        for batch in data:
            step(batch)
    print(log.json())

Before the first operator of the first step the plan is judged (`profiler.apply.capability`) and the network
compared with the profile (`profiler.apply.fingerprint`); only then is anything changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from msgspec import structs

from hyperopt.legality import IllegalPlan, OutOfMemory
from hyperopt.plan import Plan
from hyperopt.profile import Profile
from hyperopt.replay import replay
from profiler.apply.capability import PlanRefused, refusals, violations
from profiler.apply.copies import Link
from profiler.apply.fingerprint import (
    differences,
    forward_marks,
    recorded_forward,
    update_differences,
    update_states,
    updates_while_forward,
)
from profiler.apply.log import ExecutionLog
from profiler.apply.schedule import Schedule, as_issued, schedule
from profiler.apply.swap import Swapper


@contextlib.contextmanager
def apply_pynative(net: Any, profile: Profile, plan: Plan, step: Any = None) -> Iterator[ExecutionLog]:
    """Training steps of ``net`` inside the context follow ``plan``, which was made for ``profile``.

    Yields the execution log, which fills as steps run. On exit copies have ended and the network is as
    before. With ``step`` the optimizer's states, where it reaches any, are compared with the profile's; what the
    update computes is not checked. Call ``mindspore.runtime.launch_blocking()`` before the process's first
    operator, as for the capture.

    Raises `PlanRefused`, on entry with every broken rule and everything that the adapter cannot do, or from
    the first step with every difference between the network and the profile.
    """
    import mindspore as ms

    if ms.get_context("mode") != ms.PYNATIVE_MODE:
        raise PlanRefused(["the mode is not PyNative: call mindspore.set_context(mode=mindspore.PYNATIVE_MODE)"])
    reasons = violations(profile, plan) + refusals(profile, plan, {name for name, _ in net.cells_and_names()})
    states = None if step is None else update_states(net, step)
    if states is not None:
        reasons += update_differences(profile, states)
    if reasons:
        raise PlanRefused(reasons)
    log = ExecutionLog(plan_id=plan.plan_id or plan.content_id, profile_digest=profile.digest)
    orders = schedule(profile, plan)
    log.notes += _budget_note(profile, plan)
    log.notes.append(
        "the update is not compared with the profile's: no optimizer was found in the step"
        if states is None
        else "of the update only the optimizer's states are compared (names and sizes), not what it computes"
    )
    with contextlib.ExitStack() as undo:
        out = undo.enter_context(Link("out"))
        back = undo.enter_context(Link("back"))
        swapper = Swapper(orders, log, out, back)
        undo.callback(swapper.finish_step)
        undo.enter_context(_checked_and_recomputed(net, profile, orders, swapper, log))
        undo.enter_context(ms.saved_tensors_hooks(swapper.save, swapper.load))
        yield log


def _budget_note(profile: Profile, plan: Plan) -> list[str]:
    """Says so where the plan, its copies back moved to the nearest hook calls, takes more than its budget."""
    budget = plan.budget.hbm_bytes
    if budget is None or not plan.residency.actions:
        return []
    unlimited = structs.replace(plan.budget, hbm_bytes=None)
    try:
        peak = replay(profile, structs.replace(as_issued(profile, plan), budget=unlimited)).peak_bytes
    except (IllegalPlan, OutOfMemory) as problem:
        return [f"copies back start only at hook calls; what that means for the peak is not known: {problem}"]
    if peak <= budget:
        return []
    return [f"copies back start only at hook calls: expect a peak of {peak} bytes, {peak - budget} over the budget"]


@contextlib.contextmanager
def _checked_and_recomputed(
    net: Any, profile: Profile, orders: Schedule, swapper: Swapper, log: ExecutionLog
) -> Iterator[None]:
    """At the network's first call: compare it with the profile, then switch its layers to recompute."""
    undo = contextlib.ExitStack()
    checked = False

    def first_call(_cell: Any, inputs: Any) -> None:
        nonlocal checked
        if checked:
            return
        checked = True
        fixed = updates_while_forward(profile)
        if fixed:
            log.notes.append(f"no dry pass, the network updates itself while running forward: {fixed}")
        else:
            reasons = differences(recorded_forward(profile), forward_marks(net, tuple(inputs)))
            if reasons:
                raise PlanRefused(reasons)
        cells = dict(net.cells_and_names())
        for layer in orders.recomputed:
            undo.enter_context(_recomputed(cells[layer], layer, swapper))
            log.recomputed.append(layer)

    hook = net.register_forward_pre_hook(first_call)
    try:
        with undo:
            yield
    finally:
        hook.remove()


@contextlib.contextmanager
def _recomputed(cell: Any, layer: str, swapper: Swapper) -> Iterator[None]:
    """`Cell.recompute` while the context lasts.

    The form that is not re-entrant, because it saves the cell's input through the hooks (the other one keeps
    it in a Python list, out of a plan's reach) and saves nothing more in backward.
    """
    flags = [(inner, inner._has_config_recompute, inner.get_scope()) for _, inner in cell.cells_and_names()]
    before, marks = cell._recompute_cell, dict(cell.get_flags())

    def enter(_cell: Any, inputs: Any) -> None:
        from profiler.capture.observation import tensors_in

        swapper.enter_layer(layer, list(tensors_in(inputs)))

    def leave(_cell: Any, _inputs: Any, _output: Any) -> None:
        swapper.leave_layer(layer)

    cell.recompute(use_reentrant=False)
    hooks = [cell.register_forward_pre_hook(enter), cell.register_forward_hook(leave)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        cell._recompute_cell = before
        for inner, configured, scope in flags:
            inner._has_config_recompute = configured
            inner._scope = scope
        cell._func_graph_flags = marks
