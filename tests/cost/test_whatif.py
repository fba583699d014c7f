"""What-if: sizes exactly those of a step written down at the other size, durations by ratio, and refusals by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UnsetType, structs

from hyperopt import profile as profiles
from hyperopt.cost import residual
from hyperopt.cost.features import rows_of
from hyperopt.cost.messages import Messages
from hyperopt.cost.model import CostModel, fit
from hyperopt.cost.whatif import Growth, what_if
from hyperopt.cost.work import Table
from hyperopt.documents import DocumentError, canonical
from hyperopt.mesh import Level, Mesh
from hyperopt.profile import Device, Operator, Profile, Storage
from hyperopt.replay import replay
from tests.cost.steps import step
from tests.cost.synthetic import device

TABLE = Table.load()


@pytest.fixture(scope="module")
def model() -> Iterator[CostModel]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(residual, "OPTIONS", {**residual.OPTIONS, "max_iter": 40, "learning_rate": 0.2})
        yield fit(rows_of(device(1, 240), TABLE))


def same_sizes(made: Profile, real: Profile) -> None:
    for mine, theirs in zip(made.operators, real.operators, strict=True):
        assert (mine.name, mine.shapes, mine.dtypes) == (theirs.name, theirs.shapes, theirs.dtypes)
        assert mine.workspace_bytes == theirs.workspace_bytes, mine.name
    assert [(s.id, s.bytes) for s in made.storages] == [(s.id, s.bytes) for s in real.storages]


@given(*(st.integers(2, 40) for _ in range(4)))
@settings(max_examples=60, deadline=None)
def test_sizes_are_those_of_the_step_at_the_other_size(
    model: CostModel, batch: int, length: int, more: int, longer: int
) -> None:
    """Whatever the sizes: exact, or refused; never anything else."""
    try:
        made = what_if(step(batch, length), model, TABLE, [Growth("batch", more), Growth("sequence", longer)]).profile
    except DocumentError as refused:
        assert refused.field.startswith("$.operators[") and "OLD=NEW" in refused.remedy
        return
    same_sizes(made, step(more, longer))
    assert replay(made).peak_bytes == replay(step(more, longer)).peak_bytes


@given(
    size=st.integers(2, 40),
    new=st.integers(1, 80),
    words=st.integers(2, 40),
    axis=st.sampled_from(["batch", "sequence"]),
)
@settings(max_examples=60, deadline=None)
def test_as_many_sequences_as_they_are_long_are_not_taken_for_each_other(
    model: CostModel, size: int, new: int, words: int, axis: str
) -> None:
    """Exact, or refused: nothing says which dimension of [n, n] ids is which."""
    before = step(size, size, words=words)
    real = step(new, size, words=words) if axis == "batch" else step(size, new, words=words)
    try:
        made = what_if(before, model, TABLE, [Growth(axis, new, size)]).profile
    except DocumentError as refused:
        assert refused.field.startswith("$.operators[") and refused.remedy
        return
    same_sizes(made, real)


def test_a_mask_of_positions_by_positions_grows_in_both(model: CostModel) -> None:
    """An input (S, S) is told by what it is added to, if the batch has another length."""

    def masked(batch: int, length: int) -> Profile:
        plain = step(batch, length)
        place = next(i for i, o in enumerate(plain.operators) if o.type == "Add")
        mask = Storage(id=900, bytes=4 * length * length, kind="input", name="mask", resident_at_start=True)
        reads = (*plain.operators[place].reads, 900)
        operators = list(plain.operators)
        operators[place] = structs.replace(operators[place], reads=reads)
        return structs.replace(plain, operators=tuple(operators), storages=(*plain.storages, mask))

    same_sizes(what_if(masked(16, 70), model, TABLE, [Growth("sequence", 35, 70)]).profile, masked(16, 35))
    same_sizes(what_if(masked(16, 70), model, TABLE, [Growth("batch", 8, 16)]).profile, masked(8, 70))
    with pytest.raises(DocumentError, match=r"of an input \[16, 16\] nothing tells"):
        what_if(masked(16, 16), model, TABLE, [Growth("sequence", 35, 16)])


def test_inputs_that_no_operator_reads_are_told(model: CostModel) -> None:
    before = step(16, 70)
    targets = Storage(id=900, bytes=4 * 16 * 70, kind="input", name="targets", resident_at_start=True)
    before = structs.replace(before, storages=(*before.storages, targets))
    for made in (
        what_if(before, model, TABLE, [Growth("batch", 32)]),
        what_if(before, model, TABLE, dtypes={"float32": "bfloat16"}),
    ):
        assert any("no operator reads" in note and "targets (4480 bytes)" in note for note in made.notes)
        assert made.profile.storages[-1].bytes == targets.bytes
    assert not any("targets" in note for note in what_if(before, model, TABLE, [Growth("batch", 16)]).notes)


@pytest.mark.parametrize("axis", ["batch", "sequence"])
@given(new=st.integers(2**20, 2**60))
@settings(max_examples=30, deadline=None)
def test_what_is_written_can_be_read_again(model: CostModel, axis: str, new: int) -> None:
    """Sizes that no profile may have are refused before."""
    try:
        made = what_if(step(16, 70), model, TABLE, [Growth(axis, new)]).profile
    except DocumentError as refused:
        assert "bytes" in refused.problem and "keep every size below" in refused.remedy
        return
    profiles.load(canonical(made))


@pytest.mark.parametrize("growth", [Growth("batch", 32), Growth("batch", 4), Growth("sequence", 35)])
def test_sizes_that_no_other_dimension_has_are_not_refused(model: CostModel, growth: Growth) -> None:
    made = what_if(step(16, 70), model, TABLE, [growth]).profile
    same_sizes(
        made, step(growth.new if growth.axis == "batch" else 16, growth.new if growth.axis == "sequence" else 70)
    )


def test_the_same_size_changes_nothing(model: CostModel) -> None:
    before = step(16, 70)
    again = what_if(before, model, TABLE, [Growth("batch", 16), Growth("sequence", 70)], {"float32": "float32"})
    assert again.profile == before and again.profile.digest == before.digest and not again.sources


def test_a_duration_is_what_was_measured_by_the_ratio_of_predictions(model: CostModel) -> None:
    """Twice as slow a machine as the model's stays twice as slow; and what does not change is not touched."""
    before = step(16, 70)
    slow = structs.replace(
        before, operators=tuple(structs.replace(o, duration_us=2 * o.duration_us) for o in before.operators)
    )
    one, two = (what_if(p, model, TABLE, [Growth("batch", 32)]).profile for p in (before, slow))
    for old, a, b in zip(before.operators, one.operators, two.operators, strict=True):
        assert b.duration_us == pytest.approx(2 * a.duration_us, abs=0.01)
        if old.shapes == a.shapes:
            assert (a.duration_us, a.predicted) == (old.duration_us, "")
        else:
            assert a.predicted in ("seen", "learned", "roofline", "shared") and a.duration_us > old.duration_us
            assert isinstance(a.interval_us, UnsetType) or a.interval_us[0] <= a.duration_us <= a.interval_us[1]
    assert not one.run.measured and one.measured is None


def test_the_document_with_intervals_is_read_again_and_old_ones_keep_their_digest(model: CostModel) -> None:
    made = what_if(step(16, 70), model, TABLE, [Growth("batch", 32)]).profile
    assert any(not isinstance(o.interval_us, UnsetType) for o in made.operators)
    again, warnings = profiles.load(canonical(made))
    assert again == made and not warnings
    assert b"interval_us" not in canonical(step(16, 70))
    wrong = structs.replace(made.operators[0], interval_us=(2.0, 1.0))
    with pytest.raises(DocumentError, match=r"operators\[0\].interval_us"):
        profiles.check(structs.replace(made, operators=(wrong, *made.operators[1:])))


def test_an_operator_of_unknown_type_is_refused_by_name_only_where_it_matters(model: CostModel) -> None:
    before = step(16, 70)

    def with_type(place: int) -> Profile:
        odd = structs.replace(before.operators[place], type="Riddle")
        return structs.replace(before, operators=(*before.operators[:place], odd, *before.operators[place + 1 :]))

    product = next(i for i, o in enumerate(before.operators) if o.type == "BatchMatMul")
    with pytest.raises(DocumentError, match=rf"operators\[{product}\].*Riddle.*--operators"):
        what_if(with_type(product), model, TABLE, [Growth("batch", 32)])
    update = len(before.operators) - 1
    made = what_if(with_type(update), model, TABLE, [Growth("batch", 32)])
    assert made.profile.operators[update].duration_us == before.operators[update].duration_us
    add = next(i for i, o in enumerate(before.operators) if o.type == "Sub")
    found = what_if(with_type(add), model, TABLE, [Growth("batch", 32)])
    assert found.profile.operators[add].predicted == "scaled" and found.sources["scaled"] == 1


def test_a_batch_that_the_step_does_not_have_is_refused(model: CostModel) -> None:
    with pytest.raises(DocumentError, match="no input has a batch of 11"):
        what_if(step(16, 70), model, TABLE, [Growth("batch", 32, 11)])
    without = tuple(structs.replace(s, kind="other") if s.kind == "input" else s for s in step(16, 70).storages)
    with pytest.raises(DocumentError, match="no storage is an input"):
        what_if(structs.replace(step(16, 70), storages=without), model, TABLE, [Growth("batch", 32, 16)])


def test_a_weight_that_would_have_to_grow_is_a_contradiction(model: CostModel) -> None:
    """A learned table of positions is as long as the sequence: it cannot follow."""
    before = step(16, 70)
    mask = next(i for i, o in enumerate(before.operators) if o.type == "Mul")
    table = structs.replace(before.storages[1], id=900, bytes=70 * 12 * 4, name="positions")
    reads = structs.replace(before.operators[mask], reads=(*before.operators[mask].reads, 900))
    odd = structs.replace(
        before,
        operators=(*before.operators[:mask], reads, *before.operators[mask + 1 :]),
        storages=(*before.storages, table),
    )
    what_if(odd, model, TABLE, [Growth("batch", 32)])
    with pytest.raises(DocumentError, match="grow with the sequence"):
        what_if(odd, model, TABLE, [Growth("sequence", 140)])


def test_an_element_type_never_measured_goes_by_the_roofline_and_is_told(model: CostModel) -> None:
    """What was learned of the old type is no part of the new one's time."""
    before = step(16, 70)
    made = what_if(before, model, TABLE, dtypes={"float32": "bfloat16"})
    changed = [(o, n) for o, n in zip(before.operators, made.profile.operators, strict=True) if o.dtypes != n.dtypes]
    assert made.sources["learned"] == made.sources["seen"] == 0
    assert any("element types never measured" in note and "of bfloat16" in note for note in made.notes)
    for old, new in changed:
        if old.type == "MatMul":
            assert 0.4 < new.duration_us / old.duration_us <= 1
    same = what_if(before, structs.replace(model, element_types={}), TABLE, dtypes={"float32": "bfloat16"})
    assert not any("element types never" in note for note in same.notes)


def test_another_element_type_halves_all_but_optimizer_states_and_indices(model: CostModel) -> None:
    before = step(16, 70)
    made = what_if(before, model, TABLE, dtypes={"float32": "bfloat16"}).profile
    for old, new in zip(before.storages, made.storages, strict=True):
        kept = old.kind in ("optimizer_state", "input") or old.bytes == 4 or old.name == "Reshape:0"
        assert new.bytes == (old.bytes if kept else old.bytes // 2), old.name
    with pytest.raises(DocumentError, match="element type 'float31' is unknown"):
        what_if(before, model, TABLE, dtypes={"float32": "float31"})


@pytest.mark.parametrize(
    ("dtypes", "why"),
    [
        ({"float64": "float32"}, "no tensor of the step is of type float64"),
        ({"float32": "int8"}, "float32 is a float, int8 is an integer"),
        ({"int32": "float16"}, "int32 is an integer, float16 is a float"),
        ({"int32": "bool"}, "bool is of truth values"),
    ],
)
def test_a_type_that_is_not_there_or_of_another_sort_is_refused(
    model: CostModel, dtypes: dict[str, str], why: str
) -> None:
    with pytest.raises(DocumentError, match=why) as refused:
        what_if(step(16, 70), model, TABLE, dtypes=dtypes)
    assert refused.value.field == "--dtype" and refused.value.remedy


def test_another_device_is_predicted_outright_and_its_memory_is_taken(model: CostModel) -> None:
    here = structs.replace(step(16, 70), device=Device(name="elsewhere", hbm_bytes=1 << 20))
    with pytest.raises(DocumentError, match="give --device"):
        what_if(here, model, TABLE, [Growth("batch", 32)])
    slow = structs.replace(
        here, operators=tuple(structs.replace(o, duration_us=9 * o.duration_us) for o in here.operators)
    )
    one, two = (what_if(p, model, TABLE, device=step(16, 70)).profile for p in (here, slow))
    counted = [i for i, o in enumerate(one.operators) if o.predicted]
    assert counted and all(one.operators[i].duration_us == two.operators[i].duration_us for i in counted)
    assert one.device == step(16, 70).device
    with pytest.raises(DocumentError, match="profile of the device"):
        what_if(here, model, TABLE, device=here)


def test_a_sharded_batch_is_smaller_and_its_gradients_are_added_up(model: CostModel) -> None:
    mesh = Mesh(shape=(4,), axes=("dp",), levels=(Level(bytes_per_s=1e9, latency_us=10.0),))
    before = step(16, 70)
    made = what_if(before, model, TABLE, shards=4, mesh=mesh).profile
    profiles.check(made)
    sums = [o for o in made.operators if o.type == "AllReduce"]
    size = 24 * 24 * 4
    assert len(sums) == 1 and sums[0].stream == "communication" and made.run.world_size == 4
    assert sums[0].duration_us == pytest.approx(2 * 3 * (10 + size / 4 / 1e3), abs=0.01)
    assert {s.id: s.bytes for s in made.storages} == {s.id: s.bytes for s in step(4, 70).storages}
    both = what_if(before, model, TABLE, [Growth("batch", 64)], shards=4, mesh=mesh).profile
    assert {s.id: s.bytes for s in both.storages} == {s.id: s.bytes for s in before.storages}
    with pytest.raises(DocumentError, match="not cut into 3"):
        what_if(before, model, TABLE, shards=3, mesh=mesh)
    with pytest.raises(DocumentError, match="4 devices for a batch over 2"):
        what_if(before, model, TABLE, shards=2, mesh=mesh)


def test_collectives_in_the_step_go_by_rings_where_the_model_has_messages(model: CostModel) -> None:
    before = step(16, 70)
    rows = next(o for o in before.operators if o.type == "Gather").writes[0]
    shape = (16 * 70, 24)
    ring = Operator(
        type="AllReduce", duration_us=100.0, shapes=(shape, shape), dtypes=("float32",) * 2, inputs=1, reads=(rows,),
        writes=(rows,), stream="communication",
    )  # fmt: skip
    ranks = structs.replace(
        before,
        run=structs.replace(before.run, world_size=4),
        operators=(*before.operators[:2], ring, *before.operators[2:]),
    )
    known = structs.replace(model, messages={"HCCS": Messages(latency_us=1e4, bytes_per_s=1e10, sizes=9, error=0.02)})
    by_ring, by_model = (what_if(ranks, m, TABLE, [Growth("batch", 32)]).profile.operators[2] for m in (known, model))
    assert by_ring.duration_us == pytest.approx(100.0, rel=0.01)  # latency alone, twice the bytes cost nothing
    assert by_model.duration_us > 150


def as_pynative(profile: Profile) -> Profile:
    """Blocks rounded up as its pool does; and one kernel that is shown by its result alone."""
    rounded = tuple(
        s if s.resident_at_start else structs.replace(s, bytes=-(-s.bytes // 512) * 512) for s in profile.storages
    )
    operators = tuple(
        structs.replace(o, inputs=None, shapes=o.shapes[-1:], dtypes=o.dtypes[-1:]) if o.type == "Sub" else o
        for o in profile.operators
    )
    return structs.replace(profile, storages=rounded, operators=operators)


def test_pynative_rounds_blocks_and_shows_some_kernels_by_results_alone(model: CostModel) -> None:
    before = as_pynative(step(16, 70))
    found = what_if(before, model, TABLE, [Growth("batch", 48), Growth("sequence", 35)])
    same_sizes(found.profile, as_pynative(step(48, 35)))
    assert found.sources["scaled"] == 1
    named = structs.replace(before, device=Device(name="Toy (a pool of memory)"))
    same_sizes(what_if(named, model, TABLE, [Growth("batch", 48)]).profile, as_pynative(step(48, 70)))


def test_what_nothing_tells_is_not_taken_to_stay(model: CostModel) -> None:
    """A constant repeated along the batch, which nobody who knows of the batch reads."""
    before = step(16, 70)
    repeated = Operator(
        type="Tile", duration_us=1.0, shapes=((1, 1), (16 * 70, 1)), dtypes=("float32",) * 2, inputs=1, writes=(900,)
    )
    storage = structs.replace(before.storages[-1], id=900, bytes=16 * 70 * 4, name="repeated")
    odd = structs.replace(before, operators=(repeated, *before.operators), storages=(*before.storages, storage))
    with pytest.raises(DocumentError, match="nothing tells whether it grows"):
        what_if(odd, model, TABLE, [Growth("batch", 32)])
    made_up = structs.replace(odd, operators=(structs.replace(repeated, inputs=None, shapes=repeated.shapes[1:],
                                                              dtypes=("float32",)), *before.operators))  # fmt: skip
    with pytest.raises(DocumentError, match="does not say which tensors go in"):
        what_if(made_up, model, TABLE, [Growth("batch", 32)])


def test_a_batch_of_one_is_refused(model: CostModel) -> None:
    with pytest.raises(DocumentError, match="batch of 2 or more"):
        what_if(step(1, 70), model, TABLE, [Growth("batch", 4)])
