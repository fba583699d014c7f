"""Is this still the model that was profiled? A dry forward pass, compared operator by operator.

The pass runs the network once under dispatch and without gradients: nothing is saved, little memory is used,
no weight changes (random states are put back). Names, shapes and types of what the dispatcher shows must be
those of the profile's forward operators of the network.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hyperopt.profile import IDLE, Profile
from profiler.capture.observation import tensors_in
from profiler.capture.program import UNSEEN

Mark = tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]
"""Name, output shapes, output types of one operator."""

CONTIGUOUS = "Contiguous"
"""A copy that has no kernel."""

SHOWN = 8
"""Differences named in a refusal; the rest is counted."""


def recorded_forward(profile: Profile) -> list[Mark]:
    """The network's forward operators as the dispatcher showed them."""
    return [
        (operator.type, operator.shapes[operator.inputs or 0 :], operator.dtypes[operator.inputs or 0 :])
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


def update_states(net: Any, step: Any) -> dict[str, int] | None:
    """Bytes by name of the parameters that ``step`` reaches besides those of ``net``: the optimizer's states. None
    where no Cell but the network is found in the step: itself, its closure, or the globals that it names."""
    from mindspore import nn

    own = {id(cell) for _, cell in net.cells_and_names()}
    cells = [cell for cell in _reached(step, 3) if isinstance(cell, nn.Cell) and id(cell) not in own]
    if not cells:
        return None
    weights = {id(parameter) for parameter in net.get_parameters()}
    found = (parameter for cell in cells for parameter in cell.get_parameters())
    return {parameter.name: int(parameter.nbytes) for parameter in found if id(parameter) not in weights}


def _reached(value: Any, depth: int) -> Iterator[Any]:
    yield value
    code = getattr(value, "__code__", None)
    if code is None or not depth:
        return
    named = [value.__globals__.get(name) for name in code.co_names]
    named += [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
    named.append(getattr(value, "__self__", None))
    for inner in named:
        yield from _reached(inner, depth - 1)


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a closure's variable that was never assigned
        return False


def update_differences(profile: Profile, states: Mapping[str, int]) -> list[str]:
    """Optimizer states that the profiled step used and that are gone or of another size. What is new is not looked
    for: an optimizer may hold what no step uses."""
    recorded = {s.name: s.bytes for s in profile.storages if s.kind == "optimizer_state" and s.name}
    changed = [
        f"{name}: was {size} bytes, is {states[name]}" if name in states else f"{name} is gone"
        for name, size in sorted(recorded.items())
        if states.get(name) != size
    ]
    found = [f"the optimizer has changed: state {line}" for line in changed[:SHOWN]]
    return found + ([f"and {len(changed) - SHOWN} more of its states"] if len(changed) > SHOWN else [])


def missing_kernels(profile: Profile, ran: Iterable[str]) -> list[str]:
    """Kernels that the profiled step launched behind the dispatcher (MindSpore's own optimizers are such) and that a
    step which launched kernels of the types ``ran`` did not."""
    hidden = Counter(o.type for o in profile.operators if o.name.startswith(UNSEEN) and o.type != CONTIGUOUS)
    missing = hidden - Counter(ran)
    return [f"{count} of {hidden[type]} kernels {type} did not run" for type, count in sorted(missing.items())]


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
