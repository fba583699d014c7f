"""Hand-written plans for a PyNative profile, and the figures to judge them by."""

from __future__ import annotations

from collections.abc import Iterable

from hyperopt.plan import Action, Plan, Recompute, Residency
from hyperopt.profile import Profile
from profiler.apply.capability import dropped_by_recompute, forward_operators, layer_input

SHORT = 12
"""Windows of fewer operators are left alone: no hook call lies in between."""


def plan_of(profile: Profile, actions: Iterable[Action] = (), again: Iterable[Recompute] = ()) -> Plan:
    residency = Residency(actions=tuple(actions), recompute=tuple(again))
    return Plan(profile_digest=profile.digest, program_digest=profile.program_digest, residency=residency)


def movable(profile: Profile, besides: Iterable[int] = ()) -> list[int]:
    left = set(besides)
    return [
        storage.id
        for storage in profile.storages
        if storage.window and storage.offloadable and storage.id not in left
        if storage.window[1] - storage.window[0] > SHORT and storage.bytes > 4096
    ]


def moves(profile: Profile, ids: Iterable[int], lead: int = 25, needed: dict[int, int] | None = None) -> list[Action]:
    """Out after the last forward access, back `lead` operators before the first backward one (or `needed`)."""
    actions = []
    for id in ids:
        window = profile.by_id[id].window
        assert window is not None
        first, last = window
        back = max(min(last, (needed or {}).get(id, last)) - lead, first + 1)
        actions += [
            Action(op=first, when="after", kind="copy_out", storage=id),
            Action(op=first, when="after", kind="release", storage=id),
            Action(op=back, when="before", kind="copy_in", storage=id),
            Action(op=last, when="after", kind="release_host", storage=id),
        ]
    return actions


def recompute(profile: Profile, layer: str) -> tuple[Recompute, list[Action], set[int]]:
    """One layer: the entry, the releases of what it drops, and what it drops."""
    inside = dropped_by_recompute(profile, layer)
    forward = sorted(forward_operators(profile, layer))
    releases = []
    for id in sorted(inside):
        touched = (n for n in forward if id in profile.operators[n].accesses or id in profile.operators[n].saves)
        releases.append(Action(op=max(touched), when="after", kind="release", storage=id))
    start = min(
        number
        for number, operator in enumerate(profile.operators)
        if operator.phase == "backward" and inside & {*operator.accesses, *operator.loads}
    )
    saved = next(id for id in sorted(inside) if profile.by_id[id].window)
    return Recompute(storage=saved, before_op=start, ops=tuple(forward)), releases, inside


def recompute_plan(profile: Profile, layers: Iterable[str], *, move_the_rest: bool = False) -> Plan:
    again, actions, inside, needed = [], [], set(), {}
    for layer in layers:
        entry, releases, dropped = recompute(profile, layer)
        again.append(entry)
        actions += releases
        inside |= dropped
        source = layer_input(profile, layer)
        if source is not None:
            needed[source] = entry.before_op
    if move_the_rest:
        actions += moves(profile, movable(profile, inside), needed=needed)
    return plan_of(profile, actions, again)
