"""A node: the host memory and the host links that its ranks share, and what is left of both for one rank.

Pinned memory costs more than what is asked for (allocators round up and keep what they had), a container is allowed
less than the machine has, and the budgets of all ranks on a node add up::

    memory of the machine   ├──────────────────────────────────────────────────────────────┤
    allowed (cgroup)        ├──────────────────────────────────────────────┤
    in use                  ├───────┤
    for pinned memory               ├──────────────────────────────────────┤
                                     = pinned_overhead x (budgets of all ranks)

Links: while `copying_ranks` copy at once each gets its share of what the node's host memory can deliver; alone, a rank
is no faster than its own link. (Measured on a node of 16 dies, Ascend A3: 9 to 37 GB/s a die with all copying; the
hyper-parallel documents on `ep_host_swap`.)
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hyperopt.documents import MAX_DOCUMENT_BYTES, DocumentError, decode
from hyperopt.plan import HOST
from hyperopt.profile import Bytes, BytesPerSecond, Profile, Tier

FAMILY, MAJOR = "hyperopt.node", 1

Ranks = Annotated[int, Meta(ge=1, le=2**20)]


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """`memory_bytes` of the machine, `cgroup_limit_bytes` that our processes may use of it (None: all),
    `in_use_bytes` of that before any pinned memory.

    `pinned_overhead`: bytes that pinned memory costs for each byte asked for. `ranks` on the node have the budget that
    is asked for, each; `promised_bytes` are the budgets of others on it, together. `d2h_bytes_per_s`,
    `h2d_bytes_per_s`: what the node's host memory takes and delivers in all (None: more than all its ranks copy), in
    equal shares to `copying_ranks` (None: all `ranks`).
    """

    format: str = f"{FAMILY}/{MAJOR}"
    memory_bytes: Bytes
    cgroup_limit_bytes: Bytes | None = None
    in_use_bytes: Bytes = 0
    pinned_overhead: Annotated[float, Meta(ge=1, le=1000)] = 1.0
    ranks: Ranks = 1
    promised_bytes: Bytes = 0
    copying_ranks: Ranks | None = None
    d2h_bytes_per_s: BytesPerSecond | None = None
    h2d_bytes_per_s: BytesPerSecond | None = None

    @property
    def allowed_bytes(self) -> int:
        """What our processes on the node may use, pinned or not."""
        limit = self.cgroup_limit_bytes
        return self.memory_bytes if limit is None else min(limit, self.memory_bytes)

    @property
    def largest_bytes(self) -> int:
        """The largest safe sum of budgets of pinned memory on the node."""
        room = max(0, self.allowed_bytes - self.in_use_bytes)
        return int(room / Fraction(repr(self.pinned_overhead)))

    @property
    def largest_rank_bytes(self) -> int:
        """The largest safe budget of one of the `ranks`, where each has the same."""
        return max(0, self.largest_bytes - self.promised_bytes) // self.ranks

    def check(self, asked_bytes: int, field: str) -> None:
        """Raises `DocumentError` at `field` where `asked_bytes` of pinned memory for each rank are not safe."""
        if asked_bytes <= self.largest_rank_bytes:
            return
        total = self.ranks * asked_bytes + self.promised_bytes
        cost = int(total * Fraction(repr(self.pinned_overhead)))
        each = f" for each of {self.ranks} ranks" if self.ranks > 1 else ""
        others = f" beside {_gib(self.promised_bytes)} promised to others" if self.promised_bytes else ""
        problem = (
            f"{_gib(asked_bytes)} of pinned host memory{each}{others} cost {_gib(cost)} "
            f"({self.pinned_overhead:g} times what is asked); the node allows {_gib(self.allowed_bytes)} of which "
            f"{_gib(self.in_use_bytes)} are in use"
        )
        largest = self.largest_rank_bytes
        told = f"{largest * 10 // 2**30 / 10:.1f} GiB"  # rounded down, so that what is said to be safe is
        remedy = f"ask for at most {largest} bytes ({told}){' a rank' if self.ranks > 1 else ''}"
        raise DocumentError(field, problem, remedy)

    def tier(self, host: Tier) -> Tier:
        """The tier `host` of one rank as it is on this node: no larger than is safe, no faster than its share."""
        return msgspec.structs.replace(
            host,
            bytes=min(host.bytes, self.largest_rank_bytes),
            d2h_bytes_per_s=self._share(host.d2h_bytes_per_s, self.d2h_bytes_per_s),
            h2d_bytes_per_s=self._share(host.h2d_bytes_per_s, self.h2d_bytes_per_s),
        )

    def _share(self, own: float, of_node: float | None) -> float:
        """Bytes per second of one rank: whole where the node's share is the smaller."""
        if of_node is None:
            return own
        return min(own, int(Fraction(of_node) / (self.copying_ranks or self.ranks)))

    def profile(self, profile: Profile) -> Profile:
        """The profile of a rank as it is on this node: another document, with a digest of its own, of the same program.

        A plan for it runs on `profile` too, within the same budgets, and is no slower there: what may be done, and
        what memory that takes, depends on the listed order alone, and its links are at least as fast.
        """
        device = profile.device
        host = self.tier(device.tiers[HOST])
        links = device.links
        if any(tier.name == HOST for tier in links.tiers):
            tiers = tuple(host if tier.name == HOST else tier for tier in links.tiers)
            links = msgspec.structs.replace(links, tiers=tiers)
            device = msgspec.structs.replace(device, host_bytes=min(device.host_bytes, host.bytes), links=links)
        else:
            links = msgspec.structs.replace(
                links, d2h_bytes_per_s=host.d2h_bytes_per_s, h2d_bytes_per_s=host.h2d_bytes_per_s
            )
            device = msgspec.structs.replace(device, host_bytes=host.bytes, links=links)
        return msgspec.structs.replace(profile, device=device)

    def told(self, profile: Profile) -> dict[str, Any]:
        """What a plan's provenance says of the node: its figures, and what a rank of `profile` has there.

        `profile_digest` is of the profile that was given; the plan's own is of `self.profile(profile)`.
        """
        given = profile.device.tiers[HOST]
        here = self.tier(given)
        return {
            **{name: value for name, value in msgspec.to_builtins(self).items() if name != "format"},
            "profile_digest": profile.digest,
            "largest_bytes": self.largest_bytes,
            "rank": {name: getattr(here, name) for name in ("bytes", "d2h_bytes_per_s", "h2d_bytes_per_s")},
            "in_profile": {name: getattr(given, name) for name in ("bytes", "d2h_bytes_per_s", "h2d_bytes_per_s")},
        }


def load(data: bytes, limit: int = MAX_DOCUMENT_BYTES) -> tuple[Node, list[str]]:
    """A node from document bytes (`hyperopt.node/1`), and warnings. Raises `DocumentError`."""
    node, warnings = decode(data, Node, FAMILY, MAJOR, limit)
    check(node)
    return node, warnings


def check(node: Node, at: str = "$") -> None:
    """Raises `DocumentError` where a node's figures, at `at` in their document, contradict each other."""
    if node.in_use_bytes > node.allowed_bytes:
        limit_of = "cgroup_limit_bytes" if node.allowed_bytes < node.memory_bytes else "memory_bytes"
        problem = f"{node.in_use_bytes} bytes are more than {limit_of}, {node.allowed_bytes}"
        raise DocumentError(f"{at}.in_use_bytes", problem, "give what is in use of what is allowed, both in bytes")
    if node.copying_ranks is not None and node.copying_ranks > node.ranks:
        problem = f"{node.copying_ranks} copy at once, of {node.ranks} ranks"
        raise DocumentError(f"{at}.copying_ranks", problem, "give at most `ranks`, or leave it out where all copy")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
