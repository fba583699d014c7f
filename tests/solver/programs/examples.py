"""Three steps that are no chain, with made-up figures."""

from __future__ import annotations

from typing import Any


def after(*calls: str, mb: float = 0.0) -> list[dict[str, Any]]:
    return [{"call": call, "mb": mb} for call in calls]


def call(name: str, program: str, time: Any, *before: str, mb: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"name": name, "program": program, "time": time, "after": after(*before, mb=mb)} | more


POOL = [{"name": "die", "devices": 16, "speed": 1.0, "memory": 60_000}]

# Generation is bound by latency and gains little from more devices; training scales well. Eight micro-batches are
# generated, judged as they come, and trained on; then the new weights go to the copy that generates.
PPO: dict[str, Any] = {
    "name": "ppo",
    "micro_batches": 8,
    "programs": [
        {"name": "rollout", "memory": 120_000, "devices": [2, 4, 8, 16]},
        {"name": "actor", "memory": 280_000, "devices": [8, 16]},
        {"name": "critic", "memory": 160_000, "devices": [4, 8, 16]},
        {"name": "judges", "memory": 60_000, "devices": [2, 4, 8, 16], "read_only": True},
    ],
    "calls": [
        call("generate", "rollout", 120, serial_fraction=0.45),
        call("judge", "judges", 60, "generate", mb=20, serial_fraction=0.1),
        call("values", "critic", 60, "generate", mb=20, serial_fraction=0.1),
        call("update actor", "actor", 1900, "judge", "values", mb=20, serial_fraction=0.02, per="step"),
        call("update critic", "critic", 1300, "judge", "values", mb=20, serial_fraction=0.02, per="step"),
        call("new weights", "rollout", 0, "update actor", mb=28_000, per="step"),
    ],
    "pool": POOL,
    "link": {"mb_per_time": 200, "latency": 0.1},
    "swap": {"out_mb_per_time": 2000, "in_mb_per_time": 4000},
}

# Pictures go through an encoder, text does not; the language model waits for both. Backward goes back to the encoder.
VISION: dict[str, Any] = {
    "name": "vision and language",
    "micro_batches": 6,
    "programs": [
        {"name": "vision", "memory": 90_000, "devices": [2, 4, 8, 16]},
        {"name": "text", "memory": 8_000, "devices": [1, 2, 4, 8, 16]},
        {"name": "language", "memory": 320_000, "devices": [8, 12, 16]},
    ],
    "calls": [
        call("see", "vision", 100, serial_fraction=0.2, activation=20_000, until="see back"),
        call("read", "text", 10, serial_fraction=0.5),
        call("speak", "language", 560, "see", "read", mb=30, serial_fraction=0.03, activation=90_000,
             until="speak back"),
        call("speak back", "language", 1120, "speak", serial_fraction=0.03),
        call("see back", "vision", 200, "see", "speak back", mb=30, serial_fraction=0.2),
    ],
    "pool": POOL,
    "link": {"mb_per_time": 200, "latency": 0.1},
}  # fmt: skip

SIZES = [4, 8, 16, 32, 64]

# Larger models than fit together: 64 devices, the judges apart, updates by micro-batch.
LARGE: dict[str, Any] = {
    "name": "ppo, large",
    "micro_batches": 8,
    "programs": [
        {"name": "rollout", "memory": 140_000, "devices": SIZES},
        {"name": "actor", "memory": 1_120_000, "devices": [32, 64]},
        {"name": "critic", "memory": 560_000, "devices": [16, 32, 64]},
        {"name": "reference", "memory": 140_000, "devices": SIZES, "read_only": True},
        {"name": "reward", "memory": 70_000, "devices": SIZES, "read_only": True},
    ],
    "calls": [
        call("generate", "rollout", 600, serial_fraction=0.1),
        call("refer", "reference", 150, "generate", mb=20, serial_fraction=0.05),
        call("reward", "reward", 100, "generate", mb=20, serial_fraction=0.05),
        call("values", "critic", 120, "generate", mb=20, serial_fraction=0.05),
        call("update actor", "actor", 900, "refer", "reward", "values", mb=20, serial_fraction=0.01,
             activation=200_000),
        call("update critic", "critic", 700, "reward", "values", mb=20, serial_fraction=0.01, activation=150_000),
        call("step actor", "actor", 40, "update actor", per="step", serial_fraction=0.1),
        call("new weights", "rollout", 0, "step actor", mb=140_000, per="step"),
    ],
    "pool": [{"name": "die", "devices": 64, "speed": 1.0, "memory": 60_000}],
    "link": {"mb_per_time": 200, "latency": 0.1},
    "swap": {"out_mb_per_time": 2000, "in_mb_per_time": 4000},
}
