"""What the PyNative adapter cannot do, said before a run starts: a sentence for each thing asked in vain.

It can: move what autograd saved, once a step, inside the storage's window, to host memory; and recompute
whole layers. It cannot: move parameters, gradients or optimizer states; start a step with something on the
host; drop a storage that no recomputed layer brings back; run single operators again; shard or place.
"""

from __future__ import annotations

from collections import defaultdict

from hyperopt.plan import HOST, Action, Plan
from hyperopt.profile import IDLE, Profile
from hyperopt.validate import validate

MODE = "pynative"


class PlanRefused(ValueError):
    """The plan cannot be applied. ``reasons``: everything that stands against it, not only the first."""

    def __init__(self, reasons: list[str]) -> None:
        self.reasons = reasons
        super().__init__("the plan is refused:\n" + "\n".join(f"- {reason}" for reason in reasons))


class PlanIgnored(RuntimeError):
    """MindSpore accepted what the plan asks for and compiled a graph without it."""


def violations(profile: Profile, plan: Plan) -> list[str]:
    """Every rule of legality that the plan breaks, memory within its own budget included, with its code.

    Not judged for a plan of another program: adapters refuse it, and its numbers mean nothing here.
    """
    known = plan.program_digest or plan.profile_digest
    if known != (profile.program_digest if plan.program_digest else profile.digest):
        return []
    return [f"{found.code}: {found.message}" for found in validate(profile, plan)]


def refusals(profile: Profile, plan: Plan, cells: set[str]) -> list[str]:
    """Reasons why `plan` cannot be applied in PyNative mode; empty if it can. `cells`: the network's cell
    names."""
    reasons = _wrong_profile(profile, plan)
    if reasons:
        return reasons  # everything else would be judged by the wrong numbers
    if plan.sharding is not None:
        reasons.append("sharding: an eager run on one device cannot shard")
    if plan.stages is not None:
        reasons.append("stages: an eager run on one device has no pipeline")
    for id, tier in sorted(plan.residency.initial.items()):
        reasons.append(f"initial: storage {_name(profile, id)} would start in {tier}; only saved activations move")
    recomputed = recomputed_layers(profile, plan)
    reasons += _recompute_refusals(profile, plan, cells)
    reasons += _move_refusals(profile, plan, recomputed)
    return reasons


def recomputed_layers(profile: Profile, plan: Plan) -> list[str]:
    """Layers of the plan's recompute entries, in forward order."""
    layers = {
        profile.operators[op].layer
        for entry in plan.residency.recompute
        for op in entry.ops
        if op < len(profile.operators)
    }
    return [layer for layer in dict.fromkeys(o.layer for o in profile.operators) if layer in layers]


def forward_operators(profile: Profile, layer: str) -> set[int]:
    """The operators that recomputing the layer runs again."""
    return {
        number
        for number, operator in enumerate(profile.operators)
        if operator.layer == layer and operator.phase == "forward" and operator.type != IDLE
    }


def _wrong_profile(profile: Profile, plan: Plan) -> list[str]:
    if profile.adapter.mode != MODE:
        return [f"the profile was captured for mode {profile.adapter.mode!r}, this adapter applies {MODE!r}"]
    if plan.program_digest and plan.program_digest != profile.program_digest:
        return [f"the plan was made for program {plan.program_digest}, the profile is of {profile.program_digest}"]
    if not plan.program_digest and plan.profile_digest != profile.digest:
        return [f"the plan was made for profile {plan.profile_digest!r}, this one is {profile.digest!r}"]
    return []


def _recompute_refusals(profile: Profile, plan: Plan, cells: set[str]) -> list[str]:
    reasons = []
    for entry in plan.residency.recompute:
        if any(op >= len(profile.operators) for op in entry.ops):
            reasons.append(f"recompute of storage {_name(profile, entry.storage)}: no operators {list(entry.ops)}")
            continue
        layers = sorted({profile.operators[op].layer for op in entry.ops})
        where = f"recompute before operator {entry.before_op}"
        if len(layers) != 1 or layers[0] not in cells or not layers[0]:
            reasons.append(f"{where}: operators of {layers}; whole cells only")
            continue
        whole = forward_operators(profile, layers[0])
        if set(entry.ops) != whole:
            missing, extra = sorted(whole - set(entry.ops)), sorted(set(entry.ops) - whole)
            reasons.append(
                f"{where}: only all forward operators of {layers[0]} together; missing {missing}, extra {extra}"
            )
        fixed = [profile.operators[op].name for op in sorted(whole) if not profile.operators[op].recomputable]
        if fixed:
            reasons.append(f"{where}: {layers[0]} cannot run twice because of {fixed}")
    return reasons


def _move_refusals(profile: Profile, plan: Plan, recomputed: list[str]) -> list[str]:
    reasons = []
    by_storage: dict[int, list[Action]] = defaultdict(list)
    for action in plan.residency.actions:
        by_storage[action.storage].append(action)
    inside = {id for layer in recomputed for id in dropped_by_recompute(profile, layer)}
    for id, actions in sorted(by_storage.items()):
        if id not in profile.by_id:
            reasons.append(f"storage {id} does not exist")
            continue
        kinds = [action.kind for action in actions]
        if kinds == ["release"] and id in inside:
            continue  # what Cell.recompute does by itself
        reasons += [f"storage {_name(profile, id)}: {why}" for why in _one_move(profile, actions, id in inside)]
        reasons += [
            f"storage {_name(profile, id)}: {layer}, which is recomputed, has several inputs that autograd saves"
            for layer in recomputed
            if id in saved_inputs(profile, layer) and layer_input(profile, layer) is None
        ]
    return reasons


def _one_move(profile: Profile, actions: list[Action], inside: bool) -> list[str]:
    storage = profile.by_id[actions[0].storage]
    by_kind: dict[str, list[Action]] = defaultdict(list)
    for action in actions:
        by_kind[action.kind].append(action)
    if inside:
        return ["its layer is recomputed, and it is moved too"]
    if not by_kind["copy_out"]:
        return [f"{sorted(by_kind)} without a copy_out, and no recomputed layer makes it again"]
    if not storage.offloadable or storage.window is None:
        return [f"kind {storage.kind}: only what autograd saves for backward moves"]
    why = [
        f"{len(by_kind[kind])} x {kind}: exactly one a step"
        for kind in ("copy_out", "release", "copy_in")
        if len(by_kind[kind]) != 1
    ]
    why += [f"tier {a.tier!r}: only {HOST!r}" for a in by_kind["copy_out"] if (a.tier or HOST) != HOST]
    first, last = storage.window
    why += [
        f"{a.kind} after operator {a.op}: it is in use until operator {first}"
        for k in ("copy_out", "release")
        for a in by_kind[k]
        if a.op < first
    ]
    why += [
        f"{a.kind} after operator {a.op}: it is needed at operator {last}"
        for k in ("copy_out", "release")
        for a in by_kind[k]
        if a.op >= last
    ]
    why += [f"copy_in before operator {a.op}: operator {last} needs it" for a in by_kind["copy_in"] if a.op > last]
    return why


def dropped_by_recompute(profile: Profile, layer: str) -> set[int]:
    """Storages that recomputing the layer drops and makes again: made in it, and read forward by it alone."""
    inner = forward_operators(profile, layer)
    made = {id for op in inner for id in profile.operators[op].writes}
    for number, operator in enumerate(profile.operators):
        if operator.phase == "forward" and number not in inner:
            made -= operator.accesses | set(operator.saves)
    return made


def saved_inputs(profile: Profile, layer: str) -> set[int]:
    """What the layer saves for backward but did not make, constants and parameters apart: its inputs."""
    inner = forward_operators(profile, layer)
    made = {id for op in inner for id in profile.operators[op].writes}
    saved = {id for op in inner for id in profile.operators[op].saves}
    return {id for id in saved - made if not profile.by_id[id].resident_at_start}


def layer_input(profile: Profile, layer: str) -> int | None:
    """The storage that recomputing the layer starts from; None if that is not a single one of the step."""
    inputs = saved_inputs(profile, layer)
    return inputs.pop() if len(inputs) == 1 else None


def _name(profile: Profile, id: int) -> str:
    storage = profile.by_id.get(id)
    return f"{id} ({storage.name})" if storage is not None and storage.name else str(id)
