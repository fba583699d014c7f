"""Collectives: the published formulas, and hierarchies. That bytes are those really sent: tests/solver/placement."""

from __future__ import annotations

import pytest

from hyperopt.cost.collectives import Kind, along, over
from hyperopt.mesh import Level, Mesh

LINK = Level(bytes_per_s=1e9, latency_us=3)
MESH = Mesh(
    shape=(4, 8),
    axes=("dp", "tp"),
    levels=(Level(devices=8, bytes_per_s=2e11, latency_us=2), Level(bytes_per_s=2.5e10, latency_us=8)),
)
SIZE = 64 << 20


@pytest.mark.parametrize(
    ("kind", "us", "sent"),
    [
        ("all_gather", 3 * (3 + 1000), 3000_000),
        ("reduce_scatter", 3 * (3 + 1000), 3000_000),
        ("all_reduce", 6 * (3 + 1000), 6000_000),
        ("all_to_all", 3 * (3 + 1000), 3000_000),
        ("broadcast", 3 * 3 + 4000, 3000_000),
        ("permute", 3 + 4000, 4000_000),
    ],
)
def test_the_ring_takes_what_the_papers_say(kind: Kind, us: float, sent: float) -> None:
    cost = along(kind, 4, 4_000_000, LINK)
    assert cost.us == pytest.approx(us)
    assert cost.sent_bytes == sent


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "permute"])
def test_one_device_sends_nothing(kind: Kind) -> None:
    assert along(kind, 1, SIZE, LINK).us == 0
    assert along(kind, 1, SIZE, LINK).total_bytes == 0


def test_a_hierarchy_spares_the_slow_links() -> None:
    both = over(MESH, "all_reduce", (0, 1), SIZE)
    one_ring = along("all_reduce", 32, SIZE, MESH.levels[1])
    apart = along("all_reduce", 8, SIZE, MESH.levels[0]).us + along("all_reduce", 4, SIZE, MESH.levels[1]).us
    assert both.us < min(one_ring.us, apart)
    # Reduce-scatter of all of it on fast links, all-reduce of an eighth on slow ones, all-gather back.
    fast, slow = along("reduce_scatter", 8, SIZE, MESH.levels[0]), along("all_reduce", 4, SIZE // 8, MESH.levels[1])
    assert both.us == pytest.approx(2 * fast.us + slow.us)
    # No way of summing up sends less than 2 (n - 1) / n of the tensor a device.
    assert both.total_bytes == 2 * 31 * SIZE


def test_gathering_and_scattering_over_axes_send_what_one_ring_would() -> None:
    for kind, axes in (("all_gather", (1, 0)), ("reduce_scatter", (0, 1)), ("all_gather", (0, 1))):
        assert over(MESH, kind, axes, SIZE).total_bytes == 31 * SIZE  # type: ignore[arg-type]


def test_what_cannot_be_cut_is_reduced_axis_by_axis() -> None:
    scalar = over(MESH, "all_reduce", (0, 1), 4, item=4)
    assert scalar.total_bytes == 2 * 3 * 4 * 8 + 2 * 7 * 4 * 4
