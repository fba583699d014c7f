"""The cost model on a made-up device."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from msgspec import structs

from hyperopt.cost import model as models
from hyperopt.cost.analytic import Rooflines
from hyperopt.cost.features import Samples, Signatures, joined, rows_of, samples_of
from hyperopt.cost.folds import folds
from hyperopt.cost.model import LEARNED, ROOFLINE, SEEN, CostModel
from hyperopt.cost.predicted import predicted
from hyperopt.cost.work import Table
from hyperopt.documents import DocumentError
from hyperopt.profile import Operator, Profile
from tests.cost.synthetic import device, operator

TABLE = Table.load()


@pytest.fixture(scope="module")
def model() -> CostModel:
    return models.fit(rows_of(device(1), TABLE))


def fresh(seed: int = 2) -> Samples:
    return samples_of(rows_of(device(seed, 300), TABLE))


def test_what_a_roofline_cannot_know_is_learned(model: CostModel) -> None:
    samples = fresh()
    found = model.predict(samples.signatures, samples.context)
    off = np.abs(found.us / samples.us - 1)
    alone = np.abs(Rooflines(model.families, model.shared, model.counts).us(samples.signatures) / samples.us - 1)
    sums = samples.signatures.families == "elementwise"
    assert model.scores["elementwise"].used == LEARNED
    assert np.mean(off[sums]) < 0.5 * np.mean(alone[sums])


def test_a_prediction_does_not_depend_on_what_else_is_asked_for(model: CostModel) -> None:
    """Trees are cut between last bits: a logarithm of another library for the few gave other leaves."""
    profile = device(5, 240)
    every = rows_of(profile, TABLE)
    together = structs.replace(model, seen={}).predict_rows(every)
    for place, row in zip(every.place.tolist()[::3], range(0, len(every.us), 3), strict=True):
        alone = rows_of(structs.replace(profile, operators=(profile.operators[place],)), TABLE)
        assert np.array_equal(alone.signatures.numbers[0], every.signatures.numbers[every.signature[row]])
        found = structs.replace(model, seen={}).predict_rows(alone)
        assert (found.us[0], found.low[0], found.high[0]) == (together.us[row], together.low[row], together.high[row])


def of_type(profile: Profile, dtype: str) -> Profile:
    return structs.replace(
        profile, operators=tuple(structs.replace(o, dtypes=(dtype,) * len(o.dtypes)) for o in profile.operators)
    )


def test_element_types_that_were_never_measured_go_by_the_roofline_with_wider_intervals(model: CostModel) -> None:
    profile = device(5, 240)
    known, strange = (rows_of(of_type(profile, dtype), TABLE) for dtype in ("float", "float16"))
    bare = structs.replace(model, seen={}, ranges={})
    assert not model.strangers(known)
    assert model.strangers(strange) == {"elementwise of float16": 160, "matmul of float16": 80}
    found = bare.predict_rows(strange)
    base = Rooflines(model.families, model.shared, model.counts).us(strange.signatures)[strange.signature]
    assert set(found.source) == {ROOFLINE} and np.allclose(found.us, base) and (found.away >= 1).all()
    usual = bare.predict_rows(known)
    sums = known.families == "elementwise"
    within = sums & (usual.away == 0)
    assert LEARNED in set(usual.source[sums])
    width, wider = (np.log(each.high / each.low)[within] for each in (usual, found))
    assert np.allclose(wider, 2 * width)
    met = models.fit(joined([rows_of(device(1, 120), TABLE), rows_of(of_type(device(1, 120), "float16"), TABLE)]))
    assert not met.strangers(strange) and met.strangers(rows_of(of_type(profile, "bfloat16"), TABLE))
    assert not structs.replace(model, element_types={}).strangers(strange)  # as of a document that does not say


def test_a_profile_says_how_many_durations_are_of_element_types_never_measured(model: CostModel) -> None:
    made = predicted(of_type(device(5, 30), "float16"), model, TABLE)
    assert made.strangers.total() == 30
    assert any("30 operators are of element types never measured" in note for note in made.profile.run.notes)
    assert not any("element types" in note for note in predicted(device(5, 30), model, TABLE).profile.run.notes)


def test_intervals_cover_what_was_not_seen(model: CostModel) -> None:
    samples = fresh()
    new = np.array([key not in model.seen for key in samples.signatures.keys])
    found = model.predict(samples.signatures, samples.context)
    inside = (found.low <= samples.us) & (samples.us <= found.high)
    assert 0.8 <= inside[new].mean() <= 0.98


def test_a_correction_that_does_not_help_is_not_used() -> None:
    """Products of this device follow the roofline but for noise: trees can only add to it."""
    found = models.fit(rows_of(device(3, 300, noise=0.3, slow=1.0), TABLE))
    used = {family: scores.used for family, scores in found.scores.items()}
    assert ROOFLINE in used.values()
    for scores in found.scores.values():
        assert scores.why and (scores.used == ROOFLINE or scores.learned is not None)


def test_few_samples_are_not_learned_from_and_that_is_said() -> None:
    found = models.fit(rows_of(device(4, 18), TABLE))
    assert not found.learned
    assert all("too few" in scores.why for scores in found.scores.values())
    samples = fresh()
    ahead = found.predict(samples.signatures, samples.context)
    unseen = np.array([key not in found.seen for key in samples.signatures.keys])
    assert np.isnan(ahead.low[unseen]).all() and np.isfinite(ahead.us).all()


def test_outside_the_training_data_the_roofline_takes_over_and_the_interval_widens(model: CostModel) -> None:
    inside = operator("Add", [(512, 512), (512, 512)], [(512, 512)], 1.0)
    outside = operator("Add", [(1 << 20, 512), (1 << 20, 512)], [(1 << 20, 512)], 1.0)
    rows = rows_of(Profile(operators=(inside, outside), storages=()), TABLE)
    found = model.predict(rows.signatures, rows.context)
    base = Rooflines(model.families, model.shared, model.counts).us(rows.signatures)
    assert found.source.tolist() == [LEARNED, ROOFLINE]
    assert found.us[1] == base[1] and found.away[1] > 1
    assert found.high[1] / found.low[1] > (found.high[0] / found.low[0]) ** 1.5


def test_families_that_go_by_the_roofline_are_less_sure_outside_the_training_data_too() -> None:
    found = models.fit(rows_of(device(3, 300, noise=0.3, slow=1.0), TABLE))
    family = next(name for name, scores in found.scores.items() if scores.used == ROOFLINE)
    kind = "MatMul" if family == "matmul" else "Exp"
    sizes = [(n, 256) for n in (256, 1 << 14, 1 << 20)]
    outer = [operator(kind, [s, (256, 256)] if kind == "MatMul" else [s], [s], 1.0) for s in sizes]
    rows = rows_of(Profile(operators=tuple(outer), storages=()), TABLE)
    ahead = found.predict_rows(rows)
    assert ahead.away[0] == 0 and (np.diff(ahead.away) > 0).all()
    assert (np.diff(np.log(ahead.high / ahead.low)) > 0).all()


def test_a_family_that_was_never_measured_goes_by_the_range_of_all(model: CostModel) -> None:
    norms = [operator("Softmax", [(n, 64)], [(n, 64)], 1.0) for n in (64, 1 << 20)]
    ahead = model.predict_rows(rows_of(Profile(operators=tuple(norms), storages=()), TABLE))
    assert set(ahead.source) == {"shared"} and ahead.away[0] == 0 < ahead.away[1]


def test_intervals_of_wider_levels_hold_those_of_narrower_ones() -> None:
    """Of what is remembered and of what is new, also where repeats are too few for the wider level."""
    once, again = device(1, 150), device(1, 12)
    profile = structs.replace(once, operators=(*once.operators, *again.operators * 5))
    found, samples = models.fit(rows_of(profile, TABLE)), fresh()
    known = samples_of(rows_of(profile, TABLE))
    for asked in (samples, known):
        ends = [found.predict(asked.signatures, asked.context, level) for level in (0.5, 0.8, 0.9, 0.93, 0.95, 0.98)]
        for inner, outer in itertools.pairwise(ends):
            both = ~np.isnan(inner.low) & ~np.isnan(outer.low)
            assert both.any()
            assert (outer.low <= inner.low * 1.000001)[both].all() and (outer.high >= inner.high * 0.999999)[both].all()


def test_more_work_never_takes_less_time(model: CostModel) -> None:
    """Of one shape with more arithmetic and traffic: by roofline and correction, within the training range."""
    rows = rows_of(Profile(operators=(operator("Add", [(64, 64), (64, 64)], [(64, 64)], 1.0),), storages=()), TABLE)
    one = rows.signatures
    more = np.linspace(1.0, 20.0, 40)
    numbers = np.repeat(one.numbers, 40, axis=0)
    for column, work in enumerate((one.flops, one.read, one.written)):
        numbers[:, column] = np.log1p(work * more)
    many = Signatures(
        keys=tuple(f"x{i}" for i in range(40)), groups=("x",) * 40, names=np.repeat(one.names, 40),
        families=np.repeat(one.families, 40), dtypes=np.repeat(one.dtypes, 40), flops=one.flops * more,
        read=one.read * more, written=one.written * more, numbers=numbers,
    )  # fmt: skip
    found = model.predict(many, np.zeros((40, 2)))
    assert set(found.source) == {LEARNED}
    assert (np.diff(found.us) >= -1e-9 * found.us[1:]).all()


def test_what_was_measured_is_remembered(model: CostModel) -> None:
    samples = samples_of(rows_of(device(1), TABLE))
    found = model.predict(samples.signatures, samples.context)
    assert set(found.source) == {SEEN}
    unseen = models.fit(rows_of(device(9), TABLE)).predict(samples.signatures, samples.context)
    assert np.median(np.abs(found.us / samples.us - 1)) < np.median(np.abs(unseen.us / samples.us - 1))


def test_a_higher_level_is_a_longer_time(model: CostModel) -> None:
    samples = fresh()
    safe = model.quantile(samples.signatures, samples.context, 0.95)
    usual = model.predict(samples.signatures, samples.context).us
    assert (safe >= usual * 0.999).mean() > 0.95


def test_the_document_keeps_the_model(model: CostModel) -> None:
    again = models.load(msgspec.json.encode(model))
    samples = fresh()
    mine, theirs = (m.predict(samples.signatures, samples.context) for m in (model, again))
    assert np.allclose(mine.us, theirs.us) and np.allclose(mine.high, theirs.high)
    with pytest.raises(DocumentError):
        models.load(b'{"format": "hyperopt.cost/9"}')


def test_nothing_to_learn_from_is_said() -> None:
    with pytest.raises(ValueError, match="no operator with a duration"):
        models.fit(rows_of(Profile(operators=(), storages=()), TABLE))


def test_a_group_is_in_one_fold_and_every_sample_in_one() -> None:
    groups = [f"g{i % 7}" for i in range(50)]
    held = np.array(list(folds(groups, 5)))
    assert (held.sum(axis=0) == 1).all()
    for name in set(groups):
        mine = np.array(groups) == name
        assert sum(fold[mine].any() for fold in held) == 1
    assert len(list(folds(["a", "a", "b"], 5))) == 2


def test_links_are_fitted_from_copies_and_not_learned_with_kernels() -> None:
    def copy(size: int, start: float) -> Operator:
        return operator("CopyOut", [(size,)], [(size,)], 10 + size / 10_000, stream="copies0", start_us=start)

    base = device(5, 60)
    copies = tuple(copy(1 << n, 1e6 * n) for n in range(12, 24))
    rows = rows_of(Profile(operators=(*base.operators, *copies), storages=(), device=base.device), TABLE)
    found = models.fit(rows)
    assert set(found.links) == {"CopyOut"} and "link" not in found.scores
    ahead = found.predict(rows.signatures, np.zeros((len(rows.signatures.keys), 2)))
    mine = rows.signatures.families == "link"
    assert np.abs(ahead.us[mine] / (10 + rows.signatures.written[mine] / 4 / 10_000) - 1).max() < 0.1
