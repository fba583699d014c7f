"""A running MindSpore training step -> ``hyperopt.profile/1``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from hyperopt.profile import Profile


def capture(step: Any, *args: Any, net: Any, mode: Literal["graph", "pynative"] = "graph", **options: Any) -> Profile:
    """Profile ``step(*args)`` on the cells of ``net`` in the given mode.

    ``options`` are those of ``profiler.capture.graph.capture_graph`` or
    ``profiler.capture.pynative.capture_pynative``. Raises ValueError for any other mode.
    """
    if mode == "graph":
        from profiler.capture.graph import capture_graph

        return capture_graph(step, *args, net=net, **options)
    if mode == "pynative":
        from profiler.capture.pynative import capture_pynative

        return capture_pynative(step, *args, net=net, **options)
    raise ValueError(f"mode {mode!r} is neither 'graph' nor 'pynative'")
