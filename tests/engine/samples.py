"""A training step of any size with a plan that moves many of its activations: for tests and measurements."""

from __future__ import annotations

from hyperopt.plan import Action, Plan, Recompute, Residency
from hyperopt.profile import COMPUTE, Device, Links, Operator, Profile, Storage, Tier

LINK = 64 * 1024**3
TIERS = (
    Tier(name="host", bytes=2**50, d2h_bytes_per_s=LINK, h2d_bytes_per_s=LINK, latency_us=0.5),
    Tier(name="pool", bytes=2**50, d2h_bytes_per_s=LINK / 3, h2d_bytes_per_s=LINK / 2, latency_us=1, duplex=False),
)
LEAD = 40
"""Operators by which a copy back is ahead of its use."""


def training_step(operators: int) -> Profile:
    """As many storages as operators. The first half, forward, reads two earlier results each; the second, backward,
    reads the results in reverse, and every fifth operator of it runs beside the compute stream."""
    half = operators // 2
    forward = [
        Operator(
            duration_us=1.0 + i % 7,
            reads=tuple(range(max(0, i - 2), i)),
            writes=(i,),
            workspace_bytes=(i % 3) * 4096,
        )
        for i in range(half)
    ]
    backward = [
        Operator(
            duration_us=1.0 + j % 7,
            reads=(half - 1 - j, half + j - 1) if j else (half - 1,),
            writes=(half + j,),
            workspace_bytes=(j % 3) * 4096,
            stream="comm" if j % 5 == 4 else COMPUTE,
        )
        for j in range(half)
    ]
    return Profile(
        operators=(*forward, *backward),
        storages=tuple(Storage(id=i, bytes=1024 + i % 512 * 64) for i in range(2 * half)),
        device=Device(base_bytes=10**6, links=Links(tiers=TIERS)),
    )


def moving_plan(profile: Profile, moved: int) -> Plan:
    """`moved` activations leave after their last use forward, by turns to one tier and the other, and are back
    `LEAD` operators before their use backward; every tenth is dropped and made again instead."""
    half = len(profile.operators) // 2
    step = (half - 2 * LEAD) // moved
    assert step >= 3, "what is made again reads its two predecessors"
    actions: list[Action] = []
    recompute: list[Recompute] = []
    for m in range(moved):
        s = m * step + 2
        use = 2 * half - 1 - s
        actions.append(Action(op=s + 2, when="after", kind="release", storage=s))
        if m % 10 == 9:
            back = use - (profile.operators[use].stream != COMPUTE)
            recompute.append(Recompute(storage=s, before_op=back, ops=(s,)))
            continue
        tier = TIERS[m % 2].name
        back = use - LEAD - (profile.operators[use - LEAD].stream != COMPUTE)
        actions.insert(-1, Action(op=s + 2, when="after", kind="copy_out", storage=s, tier=tier))
        actions.append(Action(op=back, when="before", kind="copy_in", storage=s))
    actions.sort(key=lambda a: a.op)
    return Plan(residency=Residency(actions=tuple(actions), recompute=tuple(recompute)))
