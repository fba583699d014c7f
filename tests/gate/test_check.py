from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperopt.gate import Metric, Policy, Samples, Threshold, check
from hyperopt.occupancy import occupancy
from hyperopt.profile import Adapter, Device, Measured, Operator, Profile, Storage
from tests.generators import profiles
from tests.samples import MIB, random_profile, worked_example


def timed(step_us: float, spread_us: float = 0.0, **run: Any) -> Profile:
    """The worked example with a measured step."""
    profile = worked_example(framework="mindspore", framework_version="2.9.0", **run)
    return msgspec.structs.replace(profile, measured=Measured(step_us=step_us, step_us_spread=spread_us))


def grown(profile: Profile, storage: int, by: int) -> Profile:
    """The same program with one larger storage."""
    storages = tuple(msgspec.structs.replace(s, bytes=s.bytes + by) if s.id == storage else s for s in profile.storages)
    return msgspec.structs.replace(profile, storages=storages)


def test_a_profile_passes_against_itself_whatever_its_noise() -> None:
    found = check(timed(100.0, 80.0), timed(100.0, 80.0))
    assert found.verdict == "pass"
    assert found.notes == ("baseline and candidate are the same profile",)


def test_one_byte_more_at_the_peak_is_a_regression_and_is_named() -> None:
    found = check(worked_example(), grown(worked_example(), 2, 1))
    assert found.verdict == "regression"
    assert found.memory.difference_bytes == 1
    (group,) = found.memory.groups
    assert (group.layer, group.kind, group.difference_bytes) == ("layers.0", "activation", 1)
    assert [(held.name, held.bytes, held.at) for held in group.storages] == [
        ("C", 128 * MIB + 1, "candidate"),
        ("C", 128 * MIB, "baseline"),
    ]
    assert "activation of layers.0 +1" in found.reasons[0]


def test_bytes_that_are_not_at_the_peak_do_not_count() -> None:
    late = Storage(id=9, name="late", bytes=MIB, kind="activation")
    profile = worked_example()
    writes = msgspec.structs.replace(profile.operators[8], writes=(9,))
    candidate = msgspec.structs.replace(
        profile, storages=(*profile.storages, late), operators=(*profile.operators[:8], writes, profile.operators[9])
    )
    found = check(profile, candidate)
    assert found.verdict == "pass" and found.memory.difference_bytes == 0
    assert found.notes[0] == "different programs: 10 and 10 operators, 3 and 4 storages"


@pytest.mark.parametrize(
    ("threshold", "verdict"),
    [
        (Threshold(bytes=MIB), "pass"),
        (Threshold(bytes=MIB - 1), "regression"),
        (Threshold(percent=100 / 768), "pass"),
        (Threshold(percent=0.13), "regression"),
    ],
)
def test_the_threshold_is_the_last_byte_that_passes(threshold: Threshold, verdict: str) -> None:
    candidate = grown(worked_example(), 0, MIB)
    assert check(worked_example(), candidate, Policy(threshold)).verdict == verdict


def test_a_smaller_peak_passes() -> None:
    found = check(worked_example(), grown(worked_example(), 0, -MIB))
    assert found.verdict == "pass" and found.memory.difference_bytes == -MIB


def test_base_and_workspace_are_named_too() -> None:
    def one(base: int, workspace: int) -> Profile:
        operator = Operator(name="only", duration_us=1.0, workspace_bytes=workspace, writes=(0,), layer="head")
        return Profile(operators=(operator,), storages=(Storage(id=0, bytes=5),), device=Device(base_bytes=base))

    found = check(one(10, 100), one(30, 107))
    assert [(g.layer, g.kind, g.difference_bytes) for g in found.memory.groups] == [
        ("", "base", 20),
        ("head", "workspace", 7),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_the_groups_add_up_to_the_difference(seed: int) -> None:
    memory = check(random_profile(seed), random_profile(seed + 1000)).memory
    assert sum(group.difference_bytes for group in memory.groups) == memory.difference_bytes


@pytest.mark.parametrize(
    ("candidate_us", "spread_us", "verdict"),
    [
        (101.0, 0.0, "inconclusive"),  # a spread that is not given is not none
        (50.0, 0.0, "inconclusive"),
        (104.8, 0.1, "pass"),
        (104.9, 0.1, "inconclusive"),  # exactly the tolerance is not within it
        (131.0, 4.0, "inconclusive"),
        (1000.0, 0.0, "inconclusive"),  # a single number never fails a build
        (102.0, 2.0, "pass"),  # at most 4 %
        (102.0, 4.0, "inconclusive"),  # up to 6 %
        (100.0, 20.0, "inconclusive"),
        (50.0, 20.0, "pass"),
    ],
)
def test_a_pair_of_runs_is_judged_as_far_as_its_spread_allows(
    candidate_us: float, spread_us: float, verdict: str
) -> None:
    least = min(spread_us, 0.01)
    assert check(timed(100.0, least), timed(candidate_us, spread_us)).verdict == verdict
    assert check(timed(100.0, spread_us), timed(candidate_us, least)).verdict == verdict
    assert check(timed(100.0, 0.0), timed(candidate_us, spread_us)).verdict == "inconclusive"


def test_one_run_each_of_the_same_code_never_fails() -> None:
    """1969 and 3544 ms were measured of the same code on a machine that others used."""
    assert check(timed(1969.0, 332.0), timed(3544.0, 873.0)).verdict == "inconclusive"
    assert check(timed(1000.0, 30.0), timed(1015.0, 30.0)).verdict == "pass"
    assert check(timed(1000.0, 30.0), timed(1025.0, 30.0)).verdict == "inconclusive"
    found = check(timed(100.0, 0.1), timed(139.0, 0.1), Policy(tolerance_percent=40))
    assert found.verdict == "pass" and "interleaved" in check(timed(100.0), timed(141.0)).reasons[0]


def test_samples_are_judged_instead_of_one_run_each() -> None:
    def samples(slower: float) -> Samples:
        before = tuple((100.0 + i,) for i in range(8))
        after = tuple((slower * (100.0 + i) + 0.01 * i,) for i in range(8))
        metric = Metric(name="step_us", unit="us", baseline=before, candidate=after)
        return Samples(design="interleaved", warmup_steps=0, metrics=(metric,))

    slow, same = (
        check(timed(100.0), timed(100.0), samples=samples(1.2)),
        check(timed(1.0), timed(9.0), samples=samples(1)),
    )
    assert slow.verdict == "regression" and slow.metrics[0].name == "step_us"
    assert same.verdict == "pass" and same.throughput.status == "not judged"
    assert same.throughput.reason in same.notes
    assert check(timed(100.0), grown(timed(100.0), 0, 1), samples=samples(1.2)).reasons[1].startswith("step_us")
    document = slow.document()
    assert document["metrics"][0]["n"] == 8 and msgspec.json.encode(document)


def captured(profile: Profile, base: int, mode: str = "pynative") -> Profile:
    return msgspec.structs.replace(
        profile,
        run=msgspec.structs.replace(profile.run, source="capture"),
        device=msgspec.structs.replace(profile.device, base_bytes=base),
        adapter=Adapter(mode=mode),
    )


@pytest.mark.parametrize(
    ("base", "grown_by", "judged"),
    [
        (1008, 0, 0),  # base differs by some bytes between captures of the same code
        (1000, 1, 1),
        (0, 1024, 24),  # a block told apart as a storage in one capture, and not in the other
        (5000, 1024, 1024),
        (2000, 0, 0),
    ],
)
def test_base_bytes_of_captures_are_shown_and_not_judged(base: int, grown_by: int, judged: int) -> None:
    before = captured(worked_example(), 1000)
    after = captured(grown(worked_example(), 0, grown_by), base)
    found = check(before, after, Policy(Threshold()))
    assert found.memory.judged_bytes == judged
    assert found.verdict == ("regression" if judged else "pass")
    assert found.memory.difference_bytes == grown_by + base - 1000
    assert found.shown["candidate"]["base_bytes"] == base


def test_the_default_between_pynative_captures_is_stated() -> None:
    limit = 768 * MIB // 1000
    before = captured(worked_example(), 0)
    for by, verdict in ((limit, "pass"), (limit + 1, "regression")):
        found = check(before, captured(grown(worked_example(), 0, by), 0))
        assert found.verdict == verdict and "0.1 % between PyNative captures" in found.memory.reason
    exact = check(captured(worked_example(), 0, "graph"), captured(grown(worked_example(), 0, 1), 0, "graph"))
    assert exact.verdict == "regression" and exact.memory.allowed_bytes == 0


def test_idle_time_makes_no_other_program() -> None:
    before = worked_example()
    idle = Operator(name="idle", type="idle", duration_us=5.0)
    windows = tuple(msgspec.structs.replace(s, window=(1, 9)) for s in before.storages)
    after = msgspec.structs.replace(before, operators=(idle, *before.operators), storages=windows)
    assert before.structure_digest == after.structure_digest
    assert before.program_digest != after.program_digest  # a plan's positions would not fit
    assert check(before, after).notes[0] == "same program: only times and settings can differ"
    read = msgspec.structs.replace(before.operators[3], reads=(0,))
    held = msgspec.structs.replace(before, operators=(*before.operators[:3], read, *before.operators[4:]))
    assert check(before, held).notes[0].startswith("same operators in the same order; 1 of them read")


def test_times_that_were_not_measured_are_not_judged() -> None:
    for silent in (worked_example(framework="mindspore", framework_version="2.9.0"), timed(500.0, measured=False)):
        found = check(timed(100.0), silent)
        assert found.throughput.status == "not judged" and found.verdict == "pass"
        assert "step time not measured in candidate" in found.notes


def test_a_memory_regression_outweighs_an_inconclusive_time() -> None:
    found = check(timed(100.0, 90.0), grown(timed(103.0, 90.0), 0, 1))
    assert found.verdict == "regression" and found.throughput.status == "inconclusive"


@pytest.mark.parametrize(
    "other",
    [{"framework_version": "2.10.0"}, {"framework": "torch"}, {"model": "another"}, {"rank": 1, "world_size": 2}],
)
def test_what_must_not_be_compared_is_inconclusive_and_named(other: dict[str, Any]) -> None:
    changed = msgspec.structs.replace(timed(100.0).run, **other)
    found = check(timed(100.0), msgspec.structs.replace(timed(300.0), run=changed))
    assert found.verdict == "inconclusive" and found.reasons[0].startswith("different ")


@pytest.mark.parametrize("setting", ["framework", "framework_version", "model"])
def test_what_only_one_side_gives_may_differ(setting: str) -> None:
    known = msgspec.structs.replace(timed(100.0), run=msgspec.structs.replace(timed(100.0).run, **{setting: "a"}))
    silent = msgspec.structs.replace(known, run=msgspec.structs.replace(known.run, **{setting: ""}))
    for one, other in ((known, silent), (silent, known)):
        found = check(one, grown(other, 0, MIB))
        assert found.verdict == "inconclusive" and found.apart and "gives none" in found.reasons[0]
    assert check(silent, silent).verdict == "pass"
    device = msgspec.structs.replace(silent, device=msgspec.structs.replace(silent.device, name="another"))
    nameless = msgspec.structs.replace(silent, device=msgspec.structs.replace(silent.device, name=""))
    assert check(device, nameless).verdict == "inconclusive"


def overlapping(allreduce_us: float, extra: int = 0, more: int = 0) -> Profile:
    """An allreduce beside two operators: if it ends before the third begins, what it read is free by then."""

    def block(id: int, size: int = 64 * MIB) -> Storage:
        return Storage(id=id, name=f"s{id}", bytes=size, kind="activation")

    operators = [
        Operator(name="a", duration_us=100.0, writes=(0,)),
        Operator(name="allreduce", stream="comm", duration_us=allreduce_us, reads=(0,)),
        Operator(name="b", duration_us=100.0, writes=(1,)),
        Operator(name="b2", duration_us=100.0, reads=(1,)),
        Operator(name="c", duration_us=100.0, reads=(1,), writes=(2,)),
        Operator(name="d", duration_us=100.0, reads=(1, 2)),
    ]
    storages = [block(0, 64 * MIB + more), block(1, 64 * MIB + more), block(2, 64 * MIB + more)]
    for _ in range(extra):
        operators.insert(3, Operator(name="cheap", duration_us=1.0, reads=(1,)))
    return Profile(operators=tuple(operators), storages=tuple(storages))


def test_the_same_program_has_the_same_peak_whatever_its_times() -> None:
    """199 or 201 us of an allreduce decide whether its input is free at the next allocation: noise, not a program."""
    peaks = {occupancy(overlapping(us)).peak_bytes for us in (199.0, 201.0)}
    assert len(peaks) == 2
    for one, other in ((199.0, 201.0), (201.0, 199.0), (1.0, 9999.0)):
        found = check(overlapping(one), overlapping(other))
        assert found.verdict == "pass" and found.memory.difference_bytes == 0
        assert found.notes[0] == "same program: only times and settings can differ"


def test_other_programs_are_compared_at_the_same_times() -> None:
    """A cheap operator more, and the allreduce a little longer: the peak of neither kind of memory has grown."""
    found = check(overlapping(199.0), overlapping(201.0, extra=1))
    assert found.verdict == "pass" and "at the baseline's times" in found.memory.reason
    assert check(overlapping(201.0), overlapping(199.0, more=MIB)).verdict == "regression"
    assert check(overlapping(199.0), overlapping(201.0, more=MIB)).verdict == "regression"


def test_a_peak_that_hangs_on_the_overlap_alone_is_inconclusive() -> None:
    """Moved to another stream: its input is held longer, but only as long as the other stream takes."""
    after = overlapping(400.0)
    before = msgspec.structs.replace(
        after, operators=tuple(msgspec.structs.replace(o, stream="compute") for o in after.operators)
    )
    found = check(before, after)
    assert found.verdict == "inconclusive" and "how the streams overlap" in found.reasons[0]
    assert check(after, before).verdict == "pass"


def test_a_side_that_says_nothing_of_memory_is_no_pass() -> None:
    bare = tuple(msgspec.structs.replace(o, reads=(), writes=()) for o in timed(100.0).operators)
    silent = msgspec.structs.replace(timed(100.0), operators=bare, storages=())
    nothing = msgspec.structs.replace(timed(100.0), operators=(), storages=())
    for one, other in ((timed(100.0), silent), (timed(100.0), nothing), (silent, timed(100.0))):
        found = check(one, other)
        assert found.verdict == "inconclusive" and found.memory.status == "inconclusive"
    assert check(silent, silent).memory.status == check(nothing, nothing).memory.status == "not judged"


def test_memory_only_does_not_look_at_times() -> None:
    """Two captures of the same code: equal to the byte, and one run each cannot tell about time."""
    both = timed(1969.0, 332.0), timed(3544.0, 873.0)
    assert check(*both).verdict == "inconclusive"
    found = check(*both, Policy(memory_only=True))
    assert found.verdict == "pass" and found.throughput.status == "not judged"
    assert any("only memory was asked for" in note for note in found.notes)
    assert check(timed(1.0), grown(timed(9.0), 0, 1), Policy(memory_only=True)).verdict == "regression"


def test_every_rank_is_judged_for_memory_and_the_worst_is_named() -> None:
    def rank(which: int, by: int = 0) -> Profile:
        return grown(timed(100.0, rank=which, world_size=3), 0, by)

    others = [(rank(1), rank(1, 64 * MIB)), (rank(2), rank(2, MIB))]
    found = check(rank(0), rank(0), others=others)
    assert found.verdict == "regression" and found.reasons[0].startswith("rank 1: replayed peak")
    assert found.memory.difference_bytes == 64 * MIB
    assert "memory of 3 ranks is judged, the worst is rank 1" in found.notes
    assert "regression: rank 1, 2" in found.notes and "pass: rank 0" in found.notes
    assert check(rank(0), rank(0), others=[(rank(1), rank(1))]).verdict == "pass"
    apart = check(rank(0), rank(0), others=[(rank(1), rank(2))])
    assert apart.verdict == "inconclusive" and apart.reasons[0].startswith("rank 2: different ranks")


def test_a_renamed_layer_does_not_hide_what_grew() -> None:
    def named(profile: Profile, prefix: str) -> Profile:
        operators = tuple(
            msgspec.structs.replace(o, layer=f"{prefix}.{o.layer}" if o.layer else "") for o in profile.operators
        )
        return msgspec.structs.replace(profile, operators=operators)

    found = check(worked_example(), named(grown(worked_example(), 2, 3 * MIB), "decoder"))
    assert found.verdict == "regression"
    (group,) = found.memory.groups
    assert group.difference_bytes == 3 * MIB and group.layer.startswith("decoder.")
    for seed in range(5):
        memory = check(random_profile(seed), named(random_profile(seed), "x")).memory
        assert memory.groups == () and memory.difference_bytes == 0


def test_base_that_grows_between_captures_is_told() -> None:
    found = check(captured(worked_example(), 0), captured(worked_example(), 1 << 30))
    assert found.verdict == "pass" and "base_bytes +1073741824 is not judged between captures" in found.memory.reason
    more = msgspec.structs.replace(worked_example().device, base_bytes=worked_example().device.base_bytes + 1)
    assert check(worked_example(), msgspec.structs.replace(worked_example(), device=more)).verdict == "regression"


def test_times_without_storages_cannot_show_memory() -> None:
    operators = worked_example().operators
    bare = tuple(msgspec.structs.replace(o, reads=(), writes=()) for o in operators)
    timing = Profile(operators=bare, storages=())
    found = check(timing, timing)
    assert found.verdict == "inconclusive" and found.memory.status == "not judged"


def test_the_document_is_plain_and_complete() -> None:
    document = check(timed(100.0), grown(timed(100.0), 0, 7)).document()
    assert isinstance(document["notes"], (list, tuple)) and msgspec.json.encode(document)
    assert document["memory"]["difference_bytes"] == document["memory"]["groups"][0]["difference_bytes"] == 7
    assert document["throughput"]["difference_percent"] == 0.0
    assert document["shown"]["candidate"]["largest_storage_bytes"] == 512 * MIB + 7


def test_reserved_and_process_memory_are_shown_and_never_judged() -> None:
    def measured(reserved: int, external: int) -> Profile:
        seen = Measured(peak_bytes=700 * MIB, reserved_bytes=reserved, external_bytes=external)
        return msgspec.structs.replace(worked_example(), measured=seen)

    found = check(measured(800 * MIB, 1), measured(3000 * MIB, 900 * MIB))
    assert found.verdict == "pass"
    assert found.shown["candidate"]["reserved_bytes"] == 3000 * MIB
    assert found.shown["candidate"]["external_bytes"] == 900 * MIB
    fragmentation = [found.shown[side]["fragmentation_bytes"] for side in ("baseline", "candidate")]
    assert fragmentation == [100 * MIB, 2300 * MIB]
    assert "fragmentation_bytes" not in check(measured(0, 0), measured(0, 0)).shown["baseline"]


@given(data=st.data(), profile=profiles())
def test_no_times_make_another_peak_of_the_same_program(data: st.DataObject, profile: Profile) -> None:
    times = st.floats(0, 1000, allow_subnormal=False)
    late = tuple(msgspec.structs.replace(o, duration_us=data.draw(times)) for o in profile.operators)
    memory = check(profile, msgspec.structs.replace(profile, operators=late)).memory
    assert memory.status in ("pass", "not judged") and memory.difference_bytes == 0 and memory.groups == ()
