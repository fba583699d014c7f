"""The device mesh: how devices are arranged, what the axes are called, and how fast the links between them are.

A declaration after HyperShard's (`mesh_shape`, `alias_name`, `rank_list`; arXiv 2603.03731), with the levels of the
network added::

    {"format": "hyperopt.mesh/1", "shape": [2, 8], "axes": ["dp", "tp"],
     "levels": [{"devices": 16, "bytes_per_s": 2e11, "latency_us": 2},       16 devices share the fastest links
                {"devices": 384, "bytes_per_s": 2.5e10, "latency_us": 8},    24 x 16 the next ones
                {"bytes_per_s": 1e10, "latency_us": 20}]}                    and all others what remains

Rank r belongs to block r // devices of each level. The devices along an axis talk at the level whose blocks hold them
all: it follows from the ranks, row by row unless `ranks` says otherwise.
"""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from hyperopt.documents import DocumentError, decode
from hyperopt.profile import Bytes, Index, Microseconds

FAMILY, MAJOR = "hyperopt.mesh", 1

MOST_DEVICES = 2**20
MOST_AXES = 6

Extent = Annotated[int, Meta(ge=1, le=MOST_DEVICES)]
AxisName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]
BytesPerSecond = Annotated[float, Meta(gt=0, le=1e18)]


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """Links within blocks of `devices` consecutive ranks (None: among all): `bytes_per_s` of one device in one
    direction, `latency_us` of one message."""

    bytes_per_s: BytesPerSecond
    latency_us: Microseconds = 0.0
    devices: Extent | None = None
    name: str = ""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """What one device reaches: arithmetic, memory traffic, and the time that any kernel takes. A kernel takes the
    longer of its arithmetic and its traffic, and `launch_us`; attention reaches `attention_share` of `flops_per_s`."""

    flops_per_s: BytesPerSecond
    hbm_bytes_per_s: BytesPerSecond
    launch_us: Microseconds = 0.0
    attention_share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    hbm_bytes: Bytes = 0
    name: str = ""

    def kernel_us(self, flops: float, traffic: float, *, attention: bool = False) -> float:
        reached = self.flops_per_s * (self.attention_share if attention else 1.0)
        return self.launch_us + max(flops / reached, traffic / self.hbm_bytes_per_s) * 1e6


ASCEND_910C_DIE = Rates(
    name="Ascend 910C, one die (stated figures; 60 % of the arithmetic and 75 % of the traffic reached: assumed)",
    flops_per_s=376e12 * 0.6,
    hbm_bytes_per_s=1.6e12 * 0.75,
    launch_us=3.0,
    attention_share=2 / 3,
    hbm_bytes=64 * 10**9,
)
"""What a mesh is taken to be made of unless it says so; the shares are those of `hyperopt.testing.accelerator`."""


class Mesh(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The document. `ranks`: the device at each place, the last axis fastest (empty: 0, 1, 2, ..)."""

    shape: Annotated[tuple[Extent, ...], Meta(min_length=1, max_length=MOST_AXES)]
    axes: tuple[AxisName, ...]
    levels: Annotated[tuple[Level, ...], Meta(min_length=1, max_length=16)]
    ranks: tuple[Index, ...] = ()
    device: Rates = ASCEND_910C_DIE
    format: str = f"{FAMILY}/{MAJOR}"

    @property
    def devices(self) -> int:
        return prod(self.shape)

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """Ranks in the shape of the mesh."""
        flat = np.array(self.ranks, np.int64) if self.ranks else np.arange(self.devices)
        return flat.reshape(self.shape)

    def axis(self, name: str) -> int:
        """Where an axis stands. Raises `DocumentError` for a name that the mesh does not have."""
        if name not in self.axes:
            raise DocumentError("$.axes", f"no axis {name!r}", f"the mesh has {', '.join(self.axes)}")
        return self.axes.index(name)

    def groups(self, axis: int) -> NDArray[np.int64]:
        """Ranks along the axis, one group a row."""
        return np.moveaxis(self.places, axis, -1).reshape(-1, self.shape[axis])

    @cached_property
    def spans(self) -> tuple[int, ...]:
        """For each axis the index of the level at which its devices talk."""
        return tuple(self._span(self.groups(axis)) for axis in range(len(self.shape)))

    def level(self, axis: int) -> Level:
        """The links along an axis."""
        return self.levels[self.spans[axis]]

    def _span(self, groups: NDArray[np.int64]) -> int:
        for i, level in enumerate(self.levels):
            if level.devices is None or bool((groups // level.devices == groups[:, :1] // level.devices).all()):
                return i
        raise AssertionError("the last level holds all ranks: `check` has seen to it")


def load(data: bytes) -> tuple[Mesh, list[str]]:
    """A checked mesh from document bytes (plain, gzip or zstd), and warnings. Raises `DocumentError`."""
    mesh, warnings = decode(data, Mesh, FAMILY, MAJOR, 1 << 24)
    check(mesh)
    return mesh, warnings


def check(mesh: Mesh) -> None:
    """Raises `DocumentError` at the first place where the mesh contradicts itself."""
    if len(mesh.axes) != len(mesh.shape):
        problem = f"{len(mesh.axes)} names for {len(mesh.shape)} dimensions"
        raise DocumentError("$.axes", problem, "name every dimension of the shape once")
    for i, name in enumerate(mesh.axes):
        if name in mesh.axes[:i]:
            raise DocumentError(f"$.axes[{i}]", f"{name!r} is given twice", "give every axis a name of its own")
    if mesh.devices > MOST_DEVICES:
        raise DocumentError("$.shape", f"{mesh.devices} devices", f"a mesh has at most {MOST_DEVICES}")
    if mesh.ranks and len(mesh.ranks) != mesh.devices:
        problem = f"{len(mesh.ranks)} ranks for {mesh.devices} devices"
        raise DocumentError("$.ranks", problem, "give every place of the mesh one rank, or leave ranks out")
    seen: dict[int, int] = {}
    for i, rank in enumerate(mesh.ranks):
        if rank in seen:
            raise DocumentError(f"$.ranks[{i}]", f"rank {rank} is also $.ranks[{seen[rank]}]", "give each rank once")
        seen[rank] = i
    last = len(mesh.levels) - 1
    before = 0
    for i, level in enumerate(mesh.levels):
        if level.devices is None:
            if i != last:
                problem = "only the last level may leave it out"
                raise DocumentError(f"$.levels[{i}].devices", problem, "say how many devices share these links")
            continue
        if level.devices <= before or (before and level.devices % before):
            problem = f"{level.devices} is no multiple of the {before} of the level before"
            raise DocumentError(f"$.levels[{i}].devices", problem, "order levels from the closest links outwards")
        before = level.devices
    blocks = mesh.places // before if mesh.levels[last].devices is not None else np.zeros(1)
    if (blocks != blocks.flat[0]).any():
        problem = f"nothing joins the blocks of {before} devices"
        raise DocumentError(f"$.levels[{last}].devices", problem, "leave it out of the last level")
