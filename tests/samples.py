"""Small profiles for tests: the worked example, random legal ones, and a large one."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from hyperopt.profile import Device, Links, Operator, Profile, Run, Storage, check

MIB = 1024**2


def worked_example(**run: Any) -> Profile:
    """Ten operators of 10 ms; A 512 MiB 0 -> 9, B 128 MiB 2 -> 7, C 128 MiB 4 -> 5. Peak 768 MiB at operator
    4.
    """
    accesses = {0: ([], [0]), 2: ([], [1]), 4: ([], [2]), 5: ([2], []), 7: ([1], []), 9: ([0], [])}
    operators = []
    for i in range(10):
        reads, writes = accesses.get(i, ([], []))
        operators.append(
            Operator(
                name=f"op{i}",
                type="MatMul",
                duration_us=10_000.0,
                reads=tuple(reads),
                writes=tuple(writes),
                layer=f"layers.{i // 5}",
                phase="forward",
            )
        )
    sizes = {0: 512, 1: 128, 2: 128}
    storages = tuple(
        Storage(id=id, name="ABC"[id], bytes=size * MIB, kind="activation") for id, size in sizes.items()
    )
    link = 16 * 1024**3
    device = Device(
        name="example",
        hbm_bytes=1024 * MIB,
        host_bytes=4096 * MIB,
        links=Links(d2h_bytes_per_s=link, h2d_bytes_per_s=link),
    )
    return Profile(
        operators=tuple(operators), storages=storages, device=device, run=Run(**{"model": "example", **run})
    )


def random_profile(
    seed: int, operators: int = 12, storages: int = 8, streams: tuple[str, ...] = ("compute", "comm")
) -> Profile:
    """A profile that `hyperopt.profile.check` accepts: several streams, parameters, zero times and sizes."""
    rng = random.Random(seed)
    table = [
        Storage(
            id=i * 3,
            bytes=rng.choice([0, 1, rng.randrange(1, 10**9)]),
            kind=rng.choice(["parameter", "activation", "optimizer_state"]),
            resident_at_start=rng.random() < 0.4,
            steps_observed=4,
            steps_accessed=rng.randrange(5),
        )
        for i in range(storages)
    ]
    exists = {s.id for s in table if s.resident_at_start}
    steps = []
    for i in range(operators):
        reads = rng.sample(sorted(exists), rng.randint(0, min(3, len(exists))))
        writes = rng.sample([s.id for s in table], rng.randint(0, min(2, len(table))))
        exists |= set(writes)
        steps.append(
            Operator(
                name=f"op{i}",
                type=rng.choice(["Add", "MatMul"]),
                stream=rng.choice(streams),
                duration_us=rng.choice([0.0, 1.5, rng.random() * 1000]),
                workspace_bytes=rng.choice([0, rng.randrange(10**8)]),
                reads=tuple(reads),
                writes=tuple(writes),
                layer=rng.choice(["", "a", "b"]),
            )
        )
    table = [
        msgspec.structs.replace(
            s, resident_at_end=s.resident_at_start or (s.id in exists and rng.random() < 0.2)
        )
        for s in table
    ]
    profile = Profile(
        operators=tuple(steps), storages=tuple(table), device=Device(base_bytes=rng.randrange(10**6))
    )
    check(profile)
    return profile


def large_profile(operators: int) -> Profile:
    """A chain of as many operators and storages, each storage read by the next three operators."""
    steps = tuple(
        Operator(
            name=f"Default/network/layer{i // 100}/op{i}",
            type="MatMul",
            duration_us=1.0 + i % 7,
            reads=tuple(range(max(0, i - 3), i)),
            writes=(i,),
            layer=f"layer{i // 100}",
            shapes=((128, 256),),
            dtypes=("float16",),
        )
        for i in range(operators)
    )
    return Profile(
        operators=steps,
        storages=tuple(
            Storage(id=i, name=f"s{i}", bytes=1024 + i, kind="activation") for i in range(operators)
        ),
    )


def encoded(profile: Profile) -> bytes:
    return msgspec.json.encode(profile)
