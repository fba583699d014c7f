"""A profile with other tensors in its operators and storages: bytes of storages, and workspaces.

A storage has its tensor's bytes and the padding that it had; where all blocks of a step are of whole units, its pool
has rounded them up, and does so again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from msgspec import structs

from hyperopt.cost.followed import FIXED, PADDING, UNIT, Followed, Seen, bytes_of, is_rounded
from hyperopt.documents import DocumentError
from hyperopt.profile import Operator, Profile, Storage


@dataclass
class Told:
    """What has to be said beside the answer: notes, how many blocks were split by length, how many workspaces are taken
    to grow with the tensors, and which inputs no operator reads (their shapes are not known)."""

    notes: list[str] = field(default_factory=list)
    assumed: int = 0
    workspaces: int = 0
    unread: dict[int, str] = field(default_factory=dict)


MOST_BYTES = 2**53
"""The largest size that a profile may have (`hyperopt.profile`)."""

Tensor = tuple[tuple[int, ...], str]


def rewritten(
    profile: Profile,
    followed: Followed,
    storages: dict[int, Tensor],
    operators: list[list[Tensor]],
    told: Told,
) -> Profile:
    """The profile with these tensors in its storages and operators; durations as they were."""
    rounded = is_rounded(profile)
    sizes: dict[int, int] = {}
    for storage in profile.storages:
        if storage.id not in storages:
            _check_unseen(profile, storage, told)
            sizes[storage.id] = storage.bytes
            continue
        seen = followed.storages[storage.id]
        was, now = bytes_of(seen.shape, seen.dtype), bytes_of(*storages[storage.id])
        if now > MOST_BYTES:
            problem = f"storage {storage.id} would be a tensor {list(storages[storage.id][0])} of {now} bytes"
            raise DocumentError(f"$.storages[{len(sizes)}].bytes", problem, f"keep every size below {MOST_BYTES} bytes")
        if now == was:
            sizes[storage.id] = storage.bytes
        elif rounded and not storage.resident_at_start:
            sizes[storage.id] = ceil(now / UNIT) * UNIT
        else:
            sizes[storage.id] = now + storage.bytes - was
    found = []
    for operator, seen_by, now_by in zip(profile.operators, followed.operators, operators, strict=True):
        if not seen_by:
            now_by = [_of_storage(operator, i, followed, storages) for i in range(len(operator.shapes))]
        if not operator.shapes or (
            now_by == list(zip(operator.shapes, operator.dtypes, strict=False)) and not operator.workspace_bytes
        ):
            found.append(operator)
            continue
        workspace = _workspace(operator, seen_by, now_by, told)
        most = max((bytes_of(*tensor) for tensor in now_by), default=0)
        if max(most, workspace) > MOST_BYTES:
            problem = f"{operator.type} would work on {max(most, workspace)} bytes at once"
            remedy = f"keep every size below {MOST_BYTES} bytes"
            raise DocumentError(f"$.operators[{len(found)}].shapes", problem, remedy)
        shapes, dtypes = tuple(t[0] for t in now_by), tuple(t[1] for t in now_by)
        found.append(structs.replace(operator, shapes=shapes, dtypes=dtypes, workspace_bytes=workspace))
    changed = tuple(structs.replace(s, bytes=sizes[s.id]) if s.bytes != sizes[s.id] else s for s in profile.storages)
    return structs.replace(profile, operators=tuple(found), storages=changed)


def _of_storage(operator: Operator, place: int, followed: Followed, storages: dict[int, Tensor]) -> Tensor:
    """Of an operator that does not say what goes in: what it shows of a storage that it writes."""
    shape, dtype = operator.shapes[place], operator.dtypes[place] if place < len(operator.dtypes) else ""
    for id in operator.writes:
        if id in storages and followed.storages[id].shape == shape:
            return storages[id]
    return shape, dtype


def _check_unseen(profile: Profile, storage: Storage, told: Told) -> None:
    """A storage that no operator names by shape: small ones and weights stay, of others nobody knows."""
    if storage.kind in FIXED or (storage.bytes <= PADDING and storage.kind != "input"):
        return
    user = next((i for i, o in enumerate(profile.operators) if storage.id in o.accesses), None)
    if user is None:
        if storage.kind == "input":
            told.unread[storage.id] = f"{storage.name or f'storage {storage.id}'} ({storage.bytes} bytes)"
        return
    if storage.bytes <= PADDING:
        return
    what = f"{profile.operators[user].type} uses storage {storage.id} ({storage.kind}, {storage.bytes} bytes)"
    raise DocumentError(
        f"$.operators[{user}].shapes", f"{what} in no shape that fits it", "capture with a version that records inputs"
    )


def _workspace(operator: Operator, before: Sequence[Seen], after: Sequence[Tensor], told: Told) -> int:
    """Results that nobody reads, which count as workspace, by their shapes; what is left grows with the tensors where
    it is more than a few numbers."""
    if not operator.workspace_bytes or not before:
        return operator.workspace_bytes
    count = operator.inputs or 0
    results = range(count, len(before))

    def size(places: Sequence[int], tensors: Sequence[Tensor]) -> int:
        return sum(bytes_of(*tensors[i]) for i in places)

    shown = [(t.shape, t.dtype) for t in before]
    unread = [i for i in results if before[i].storage is None or before[i].storage in operator.reads]
    if size(unread, shown) > operator.workspace_bytes:
        unread = [i for i in results if before[i].storage is None]
    if size(unread, shown) > operator.workspace_bytes:
        unread = []
    was, now = size(unread, shown), size(unread, after)
    rest = operator.workspace_bytes - was
    all_was, all_now = size(range(len(before)), shown), size(range(len(after)), after)
    if rest > PADDING and all_was != all_now and all_was:
        told.workspaces += 1
        rest = ceil(rest * all_now / all_was)
    return now + rest
