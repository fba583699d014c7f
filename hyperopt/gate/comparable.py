"""What stands beside the figures: settings under which two profiles must not be judged, and changes to be told."""

from __future__ import annotations

from hyperopt.profile import IDLE, Operator, Profile


def obstacles(baseline: Profile, candidate: Profile) -> list[str]:
    """Why the two profiles must not be judged against each other; empty if they may.

    A setting that only one of the two gives is one too: it may differ. What neither gives is not.
    """
    settings = (
        ("framework", baseline.run.framework, candidate.run.framework),
        ("framework version", baseline.run.framework_version, candidate.run.framework_version),
        ("model", baseline.run.model, candidate.run.model),
        ("device", baseline.device.name, candidate.device.name),
        ("mode", baseline.adapter.mode, candidate.adapter.mode),
    )
    found = [
        f"different {name}: baseline {_given(before)}, candidate {_given(after)}"
        for name, before, after in settings
        if before != after
    ]
    ranks = [f"rank {p.run.rank} of {p.run.world_size}" for p in (baseline, candidate)]
    if ranks[0] != ranks[1]:
        found.append(f"different ranks: baseline {ranks[0]}, candidate {ranks[1]}")
    return found


def _given(setting: str) -> str:
    return repr(setting) if setting else "gives none"


def changes(baseline: Profile, candidate: Profile) -> list[str]:
    """What is different and may be judged all the same: usually the change under test."""
    if baseline.digest == candidate.digest:
        return ["baseline and candidate are the same profile"]
    if baseline.structure_digest == candidate.structure_digest:
        return ["same program: only times and settings can differ"]
    old, late = ([o for o in p.operators if o.type != IDLE] for p in (baseline, candidate))
    told = f"{len(old)} and {len(late)} operators"
    told += f", {len(baseline.storages)} and {len(candidate.storages)} storages"
    if [_launch(o) for o in old] == [_launch(o) for o in late]:
        reads = sum(one.reads != other.reads for one, other in zip(old, late, strict=True))
        if reads:
            return [f"same operators in the same order; {reads} of them read other storages ({told})"]
    before, after = _types(baseline), _types(candidate)
    new = [f"+{after[name] - before.get(name, 0)} {name}" for name in after if after[name] > before.get(name, 0)]
    gone = [f"-{before[name] - after.get(name, 0)} {name}" for name in before if before[name] > after.get(name, 0)]
    return [f"different programs: {told}" + (f" ({', '.join([*new, *gone][:8])})" if new or gone else "")]


def _launch(o: Operator) -> tuple[object, ...]:
    return o.name, o.type, o.stream, o.writes, o.shapes, o.dtypes


def _types(profile: Profile) -> dict[str, int]:
    count: dict[str, int] = {}
    for operator in profile.operators:
        if operator.type == IDLE:
            continue
        count[operator.type] = count.get(operator.type, 0) + 1
    return count
