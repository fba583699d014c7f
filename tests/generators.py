"""Hypothesis strategies for small profiles, and plans that are often, but not always, legal."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from hyperopt.plan import Action, Budget, Plan, Recompute, Residency
from hyperopt.profile import Adapter, Device, Links, Operator, Profile, Storage, Tier, check

HOST_AND_POOL = (
    Tier(name="host", bytes=12, d2h_bytes_per_s=10**6, h2d_bytes_per_s=2 * 10**6, latency_us=0.5),
    Tier(name="pool", bytes=40, d2h_bytes_per_s=10**6, h2d_bytes_per_s=10**6, latency_us=2, duplex=False),
)


@st.composite
def profiles(draw: Any, max_operators: int = 6, max_storages: int = 4, streams: bool = True) -> Profile:
    """A consistent profile: sizes of 0 to 9 bytes, durations of 0 to 9 us, one or two streams and tiers."""
    count = draw(st.integers(1, max_storages))
    resident = [draw(st.booleans()) for _ in range(count)]
    exists = {i for i in range(count) if resident[i]}
    operators = []
    for _ in range(draw(st.integers(1, max_operators))):
        reads = draw(st.lists(st.sampled_from(sorted(exists)), unique=True, max_size=3)) if exists else []
        writes = draw(st.lists(st.integers(0, count - 1), unique=True, max_size=2))
        exists.update(writes)
        operators.append(
            Operator(
                reads=tuple(reads),
                writes=tuple(writes),
                duration_us=draw(st.integers(0, 9)),
                workspace_bytes=draw(st.integers(0, 3)),
                stream=draw(st.sampled_from(["compute", "compute", "comm"])) if streams else "compute",
                recomputable=draw(st.booleans()),
            )
        )
    storages = tuple(
        Storage(
            id=i,
            bytes=draw(st.integers(0, 9)),
            resident_at_start=resident[i],
            resident_at_end=i in exists and draw(st.booleans()),
            offloadable=draw(st.sampled_from([True, True, True, False])),
        )
        for i in range(count)
    )
    device = Device(base_bytes=draw(st.integers(0, 3)), links=Links(tiers=HOST_AND_POOL))
    profile = Profile(operators=tuple(operators), storages=storages, device=device, adapter=Adapter())
    check(profile)
    return profile


@st.composite
def plans(draw: Any, profile: Profile) -> Plan:
    """A plan made of whole round trips and recomputes, some of them damaged by a stray action."""
    n, ids = len(profile.operators), [s.id for s in profile.storages]
    actions: list[Action] = []
    for id in draw(st.lists(st.sampled_from(ids), unique=True)):
        a, b, c, d = sorted(draw(st.lists(st.integers(0, n - 1), min_size=4, max_size=4)))
        actions += [
            Action(op=a, when="after", kind="copy_out", storage=id, tier=draw(st.sampled_from(["host", "pool", None]))),
            Action(op=b, when="after", kind="release", storage=id),
            Action(op=c, when="before", kind="copy_in", storage=id),
        ]
        if draw(st.booleans()):
            actions.append(Action(op=d, when="after", kind="release_host", storage=id))
    for _ in range(draw(st.integers(0, 1))):
        kind = draw(st.sampled_from(["copy_out", "release", "copy_in", "release_host"]))
        when = "before" if kind == "copy_in" else "after"
        actions.append(Action(op=draw(st.integers(0, n)), when=when, kind=kind, storage=draw(st.sampled_from(ids))))
    recompute = []
    for _ in range(draw(st.integers(0, 2))):
        ops = tuple(draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=3)))
        target = draw(st.sampled_from(ids))
        recompute.append(Recompute(storage=target, before_op=draw(st.integers(0, n - 1)), ops=ops))
        if draw(st.booleans()):
            actions.append(Action(op=draw(st.integers(0, n - 1)), when="after", kind="release", storage=target))
    resident = [s.id for s in profile.storages if s.resident_at_start]
    initial = {id: "host" for id in draw(st.lists(st.sampled_from(resident), unique=True))} if resident else {}
    if draw(st.booleans()):
        initial = {}
    residency = Residency(initial=initial, actions=tuple(draw(st.permutations(actions))), recompute=tuple(recompute))
    return Plan(budget=Budget(hbm_bytes=draw(st.integers(0, 40))), residency=residency)
