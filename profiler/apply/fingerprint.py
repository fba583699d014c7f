"""Is this still the model that was profiled? A dry forward pass, compared operator by operator.

The pass runs the network once under dispatch and without gradients: nothing is saved, little memory is used,
no weight changes (random states are put back). Names, shapes and types of what the dispatcher shows must be
those of the profile's forward operators of the network.
"""

from __future__ import annotations

import difflib
from typing import Any

from hyperopt.profile import IDLE, Profile
from profiler.capture.observation import tensors_in
from profiler.capture.program import UNSEEN

Mark = tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]
"""Name, output shapes, output types of one operator."""

SHOWN = 8
"""Differences named in a refusal; the rest is counted."""


def recorded_forward(profile: Profile) -> list[Mark]:
    """The network's forward operators as the dispatcher showed them."""
    return [
        (operator.type, operator.shapes, operator.dtypes)
        for operator in profile.operators
        if operator.phase == "forward"
        and operator.type != IDLE
        and not operator.name.startswith((UNSEEN, "outside/", "backward/"))
    ]


def updates_while_forward(profile: Profile) -> list[str]:
    """Forward operators that write what outlives the step (running means): a dry pass would write it
    twice."""
    kept = {storage.id for storage in profile.storages if storage.resident_at_start}
    return [o.name for o in profile.operators if o.phase == "forward" and kept.intersection(o.writes)]


def forward_marks(net: Any, inputs: tuple[Any, ...]) -> list[Mark]:
    """One forward pass of ``net.construct(*inputs)``, without gradients, as marks."""
    import mindspore as ms

    marks: list[Mark] = []

    class Dispatch(ms.MsDispatchMode):  # type: ignore[misc, name-defined, unused-ignore]
        def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
            given = {
                int(tensor.untyped_storage().data_ptr()) for tensor in tensors_in([*args, *(kwargs or {}).values()])
            }
            result = func(*args, **(kwargs or {}))
            outputs = list(tensors_in(result))
            if any(int(tensor.untyped_storage().data_ptr()) not in given for tensor in outputs):
                marks.append(
                    (
                        str(func.name),
                        tuple(tuple(tensor.shape) for tensor in outputs),
                        tuple(str(tensor.dtype).lower() for tensor in outputs),
                    )
                )
            return result

    random = ms.get_rng_state()
    try:
        with _no_grad()(), Dispatch():
            net.construct(*inputs)
    finally:
        ms.set_rng_state(random)
    return marks


def differences(recorded: list[Mark], now: list[Mark]) -> list[str]:
    """What has changed, in words; empty if nothing has."""
    if recorded == now:
        return []
    found = []
    if len(recorded) != len(now):
        found.append(f"the model has changed: {len(recorded)} forward operators were recorded, now {len(now)}")
    matcher = difflib.SequenceMatcher(a=recorded, b=now, autojunk=False)
    changes = [change for change in matcher.get_opcodes() if change[0] != "equal"]
    for _, a, b, c, d in changes[:SHOWN]:
        found.append(f"changed at forward operator {a}: recorded {_words(recorded[a:b])}, now {_words(now[c:d])}")
    if len(changes) > SHOWN:
        found.append(f"changed in {len(changes) - SHOWN} more places")
    return found


def _words(marks: list[Mark]) -> str:
    if not marks:
        return "nothing"
    name, shapes, types = marks[0]
    first = f"{name} -> {', '.join(f'{list(shape)} {type}' for shape, type in zip(shapes, types, strict=False))}"
    return first if len(marks) == 1 else f"{first} and {len(marks) - 1} more"


def _no_grad() -> Any:
    """MindSpore's context without gradients; it has no public name and moved between versions."""
    try:
        from mindspore.graph.api import _no_grad as context
    except ImportError:
        from mindspore.common.api import _no_grad as context
    return context
