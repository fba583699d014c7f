"""A plan -> a running MindSpore model that follows it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hyperopt.plan import Plan
    from hyperopt.profile import Profile
    from profiler.apply.log import ExecutionLog


def apply(
    net: Any, profile: Profile, plan: Plan, step: Any = None, args: tuple[Any, ...] = ()
) -> AbstractContextManager[ExecutionLog]:
    """A context inside which the training steps of ``net`` follow ``plan``, which was made for ``profile``.

    It applies in the mode in which the profile was captured, and yields the execution log. Graph mode
    compiles ``step(*args)`` on entry and needs both; PyNative mode looks for the optimizer in ``step`` if it is
    given. Raises ``PlanRefused`` with all reasons, every broken rule of legality among them, and ValueError for a
    profile that no adapter here can apply.
    """
    mode = profile.adapter.mode
    if mode == "pynative":
        from profiler.apply.pynative import apply_pynative

        return apply_pynative(net, profile, plan, step)
    if mode == "graph":
        from profiler.apply.graph import apply_graph

        if step is None:
            raise ValueError("graph mode compiles the step: pass step and args")
        return apply_graph(net, profile, plan, step, args)
    raise ValueError(f"a profile for mode {mode!r} cannot be applied here: only graph and pynative can")
