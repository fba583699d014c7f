"""Placement of tensors on a device mesh: from a graph to the sharding problem and back."""

from solver.placement.choice import Choice, Frame, Keep
from solver.placement.program import Program, per_device_profile
from solver.placement.shard import DoesNotFit, Sharding, apply, peak_bytes, shard

__all__ = [
    "Choice",
    "DoesNotFit",
    "Frame",
    "Keep",
    "Program",
    "Sharding",
    "apply",
    "peak_bytes",
    "per_device_profile",
    "shard",
]
