"""Acceptance case C12: host memory of a node, and links that its ranks share."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from hyperopt import node as nodes
from hyperopt.documents import DocumentError
from hyperopt.node import Node
from hyperopt.plan import Budget, Plan
from hyperopt.profile import Device, Links, Operator, Profile, Storage, Tier
from hyperopt.replay import replay
from hyperopt.validate import validate
from solver import Infeasible, Request, pareto, solve
from tests.samples import MIB, worked_example
from tests.solver.test_residency import training_step

GIB = 1 << 30
C12 = Node(memory_bytes=32 * GIB, cgroup_limit_bytes=24 * GIB, in_use_bytes=4 * GIB, pinned_overhead=1.9)


def test_c12_what_is_asked_for_is_refused_and_the_largest_safe_ask_named() -> None:
    with pytest.raises(DocumentError) as refused:
        C12.check(12 * GIB, "--tier-bytes host")
    assert refused.value.field == "--tier-bytes host"
    for figure in ("12.0 GiB", "22.8 GiB", "1.9 times", "24.0 GiB", "4.0 GiB"):
        assert figure in refused.value.problem
    assert "10.5 GiB" in refused.value.remedy
    # 20 GiB / 1.9, rounded down to a byte: one byte more would cost more than there is.
    largest = 20 * GIB * 10 // 19
    assert C12.largest_bytes == C12.largest_rank_bytes == largest and largest * 10 // GIB == 105
    C12.check(largest, "")
    C12.check(round(10.5 * GIB), "")
    with pytest.raises(DocumentError):
        C12.check(largest + 1, "")


@pytest.mark.parametrize("ranks", [1, 2, 8, 16])
def test_c12_budgets_of_all_ranks_add_up(ranks: int) -> None:
    node = msgspec.structs.replace(C12, ranks=ranks)
    assert node.largest_rank_bytes == C12.largest_bytes // ranks
    node.check(C12.largest_bytes // ranks, "")
    with pytest.raises(DocumentError, match="a rank" if ranks > 1 else None):
        node.check(C12.largest_bytes // ranks + 1, "")
    beside = msgspec.structs.replace(C12, promised_bytes=(ranks - 1) * GIB // 2)  # ranks of other budgets
    assert beside.largest_rank_bytes == C12.largest_bytes - (ranks - 1) * GIB // 2


def test_more_ranks_that_copy_than_there_are_is_refused() -> None:
    with pytest.raises(DocumentError, match="3 copy at once, of 2 ranks") as refused:
        nodes.load(msgspec.json.encode(Node(memory_bytes=GIB, ranks=2, copying_ranks=3)))
    assert refused.value.field == "$.copying_ranks" and refused.value.remedy
    nodes.load(msgspec.json.encode(Node(memory_bytes=GIB, ranks=2, copying_ranks=2)))


@pytest.mark.parametrize(("limit", "named"), [(None, "memory_bytes"), (5 * GIB, "cgroup_limit_bytes")])
def test_more_in_use_than_there_is_is_refused(limit: int | None, named: str) -> None:
    node = Node(memory_bytes=8 * GIB, cgroup_limit_bytes=limit, in_use_bytes=9 * GIB)
    with pytest.raises(DocumentError, match=f"more than {named}") as refused:
        nodes.load(msgspec.json.encode(node))
    assert refused.value.field == "$.in_use_bytes" and refused.value.remedy


def test_without_a_cgroup_the_machine_is_the_limit_and_nothing_is_below_zero() -> None:
    assert Node(memory_bytes=32 * GIB, in_use_bytes=4 * GIB).largest_bytes == 28 * GIB
    assert Node(memory_bytes=8 * GIB, cgroup_limit_bytes=24 * GIB).largest_bytes == 8 * GIB
    full = Node(memory_bytes=8 * GIB, in_use_bytes=9 * GIB, promised_bytes=GIB)
    assert full.largest_bytes == full.largest_rank_bytes == 0
    with pytest.raises(DocumentError, match="at most 0 bytes"):
        full.check(1, "")


def test_the_document_is_decoded_strictly() -> None:
    node, warnings = nodes.load(json.dumps({"format": "hyperopt.node/1", "memory_bytes": 5, "more": 1}).encode())
    assert node == Node(memory_bytes=5) and "more" in warnings[0]
    for spoilt, field in (({"ranks": 0}, "$.ranks"), ({"pinned_overhead": 0.5}, "$.pinned_overhead"), ({}, "$")):
        document: dict[str, Any] = {"format": "hyperopt.node/1", **spoilt}
        if spoilt:
            document["memory_bytes"] = 5
        with pytest.raises(DocumentError) as refused:
            nodes.load(json.dumps(document).encode())
        assert refused.value.field == field


SHARED = Node(
    memory_bytes=1024 * GIB, ranks=16, copying_ranks=16, d2h_bytes_per_s=144 * 10**9, h2d_bytes_per_s=592 * 10**9
)
"""A node of 16 dies: with all of them copying, each gets 9 GB/s out and 37 GB/s in."""


@pytest.mark.parametrize("flat", [True, False])
def test_bandwidth_falls_when_all_copy(flat: bool) -> None:
    host = Tier(name="host", bytes=100 * GIB, d2h_bytes_per_s=20e9, h2d_bytes_per_s=55e9, latency_us=7, duplex=False)
    pool = Tier(name="pool", bytes=GIB, d2h_bytes_per_s=1e9, h2d_bytes_per_s=1e9)
    listed = Device(links=Links(tiers=(pool, host)))
    plain = Device(
        host_bytes=host.bytes,
        links=Links(d2h_bytes_per_s=20e9, h2d_bytes_per_s=55e9, latency_us=7, duplex=False, tiers=(pool,)),
    )
    profile = Profile(
        operators=(Operator(duration_us=1),), storages=(Storage(id=0, bytes=1),), device=plain if flat else listed
    )
    here = SHARED.profile(profile).device.tiers
    assert (here["host"].d2h_bytes_per_s, here["host"].h2d_bytes_per_s) == (9 * 10**9, 37 * 10**9)
    assert here["host"].bytes == 64 * GIB and here["host"].latency_us == 7 and not here["host"].duplex
    assert here["pool"] == pool
    alone = msgspec.structs.replace(SHARED, copying_ranks=1).profile(profile).device.tiers["host"]
    assert (alone.d2h_bytes_per_s, alone.h2d_bytes_per_s) == (20e9, 55e9)  # no faster than its own link


def test_the_plan_is_made_for_the_profile_as_it_is_on_the_node() -> None:
    """On links of its own 640 MiB cost nothing; on a 64th of them they do, and the plan says what it reckons with."""
    profile = worked_example()
    link = 16 * GIB
    node = Node(memory_bytes=64 * GIB, ranks=64, d2h_bytes_per_s=link, h2d_bytes_per_s=link)
    plan = solve(profile, Request(Budget(hbm_bytes=640 * MIB), node=node))
    assert isinstance(plan, Plan) and plan.predicted is not None and plan.bound is not None
    here = node.profile(profile)
    assert plan.profile_digest == here.digest != profile.digest
    assert plan.program_digest == here.program_digest == profile.program_digest
    assert plan.plan_id == plan.content_id
    assert plan.budget.tiers == {"host": GIB}
    assert replay(here, plan).step_us == plan.predicted.step_us > 100_000
    told = plan.provenance["node"]
    assert told["profile_digest"] == profile.digest and told["ranks"] == 64
    assert told["rank"] == {"bytes": GIB, "d2h_bytes_per_s": link // 64, "h2d_bytes_per_s": link // 64}
    assert told["in_profile"]["bytes"] == 4 * GIB and told["in_profile"]["h2d_bytes_per_s"] == link
    timeline = replay(profile, plan)
    assert told["predicted_in_profile"] == {"step_us": timeline.step_us, "peak_bytes": timeline.peak_bytes}
    assert validate(profile, plan) == [] and timeline.peak_bytes <= 640 * MIB


def test_a_host_budget_that_is_not_safe_is_refused_by_the_solver_too() -> None:
    node = Node(memory_bytes=GIB, pinned_overhead=2)
    request = Request(Budget(hbm_bytes=640 * MIB, tiers={"host": GIB}), node=node)
    for ask in (solve, pareto):
        with pytest.raises(DocumentError) as refused:
            ask(worked_example(), request)
        assert refused.value.field == "$.budget.tiers.host"


@pytest.mark.parametrize("seed", range(12))
def test_plans_for_a_node_run_on_the_profile_within_the_same_budgets(seed: int) -> None:
    profile, dice = training_step(seed), random.Random(seed)
    node = Node(
        memory_bytes=dice.randint(20, 400),
        pinned_overhead=dice.choice([1.0, 1.3, 1.9]),
        ranks=dice.randint(1, 4),
        d2h_bytes_per_s=dice.randint(1, 8) * 10**6,
        h2d_bytes_per_s=dice.randint(1, 8) * 10**6,
    )
    peak = replay(profile).peak_bytes
    request = Request(Budget(hbm_bytes=peak * 8 // 10), time_limit_s=None, work_limit=60, node=node)
    plan = solve(profile, request)
    if isinstance(plan, Infeasible):
        return
    assert plan.predicted is not None
    here, there = replay(node.profile(profile), plan), replay(profile, plan)
    assert here.step_us == plan.predicted.step_us >= there.step_us
    assert there.peak_bytes <= peak * 8 // 10 and validate(profile, plan) == []
    assert there.tier_peak_bytes == here.tier_peak_bytes
    assert there.tier_peak_bytes["host"] * node.ranks * node.pinned_overhead <= node.memory_bytes


def test_every_plan_of_a_front_is_for_the_node() -> None:
    node = Node(memory_bytes=512 * MIB)
    front = pareto(worked_example(), Request(Budget(), "pareto", time_limit_s=None, work_limit=50, points=3, node=node))
    digest = node.profile(worked_example()).digest
    assert [point.plan.profile_digest for point in front.points] == [digest] * 3
    assert all(point.plan.provenance["node"]["largest_bytes"] == 512 * MIB for point in front.points)
