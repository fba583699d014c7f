"""Peaks that can be compared: MindSpore's memory record leaves out what lies outside its pool."""

from __future__ import annotations

from hyperopt.profile import Profile


def excluded_bytes(profile: Profile) -> int:
    """Bytes that the measured peak leaves out: storages of its `excludes` kinds that are there at the start. To be
    added before a measured peak is compared with a replayed one or with a budget."""
    kinds = profile.measured.excludes if profile.measured else ()
    return sum(s.bytes for s in profile.storages if s.kind in kinds and s.resident_at_start)
