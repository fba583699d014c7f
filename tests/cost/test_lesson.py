"""All that was measured of a device, and when that makes a model to be used."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from hyperopt.cost.feedback import Copy
from hyperopt.cost.lesson import Learned, Lesson, When, better_links
from hyperopt.cost.model import CostModel
from hyperopt.cost.training import FEWEST_SHAPES, TooFew
from hyperopt.cost.work import Table
from hyperopt.profile import Profile
from tests.cost.synthetic import device

TABLE = Table.load()
TOY = "toy made up 1"
SIZES = [1 << n for n in range(10, 26)]


def copies(bandwidth: float, seed: int, times: int = 3) -> list[Copy]:
    """Bytes per microsecond, 10 us of latency, a little noise."""
    chance = np.random.default_rng(seed)
    return [Copy(size, (10 + size / bandwidth) * float(np.exp(chance.normal(0, 0.05)))) for size in SIZES * times]


def learned(profiles: list[Profile], moved: list[Copy], current: CostModel | None = None) -> Learned:
    lesson = Lesson(TOY, TABLE)
    for profile in profiles:
        lesson.add(profile)
    lesson.add_copies(moved)
    return lesson.learn(current)


def test_one_lesson_of_two_profiles_is_that_of_both() -> None:
    lesson = Lesson(TOY, TABLE)
    assert [lesson.add(device(seed, 60)) for seed in (1, 2)] == [60, 60]
    found = lesson.learn(None)
    assert found.promoted and found.model.device == TOY and found.model.signatures > 60
    assert found.groups >= FEWEST_SHAPES and found.drift is None


def test_what_was_predicted_teaches_nothing() -> None:
    profile = device(1, 60)
    half = tuple(structs.replace(o, predicted="roofline") if i % 2 else o for i, o in enumerate(profile.operators))
    assert Lesson(TOY, TABLE).add(structs.replace(profile, operators=half)) == 30
    made_up = structs.replace(profile, run=structs.replace(profile.run, measured=False))
    assert Lesson(TOY, TABLE).add(made_up) == 0


@pytest.mark.parametrize("count", [0, 12])
def test_too_few_shapes_make_no_model_and_that_is_said(count: int) -> None:
    with pytest.raises(TooFew, match=rf"{count} groups of shapes .* {FEWEST_SHAPES} are needed"):
        learned([device(1, count)] if count else [], [])


def test_copies_of_few_sizes_are_not_learned_from() -> None:
    assert "CopyIn" not in learned([device(1, 60)], [Copy(4096, 7.0)] * 50).model.links


def test_copies_measured_under_plans_fit_a_link() -> None:
    link = learned([device(1, 60)], copies(5000.0, 1)).model.links["CopyIn"]
    assert float(link.us(np.array([1e8]), np.array([1.0]))[0]) == pytest.approx(1e8 / 5000, rel=0.15)


def test_new_copies_alone_mend_the_link_and_leave_the_operators() -> None:
    current = learned([device(1, 60)], copies(5000.0, 1)).model
    found = learned([device(1, 60)], copies(5000.0, 1) + copies(1000.0, 2, times=9), current)
    assert found.promoted and "lower" in found.why and found.model.data_digest == current.data_digest
    assert structs.replace(found.model, links=current.links) == current
    assert found.model.links["CopyIn"].alone < 2000 < current.links["CopyIn"].alone


def test_copies_that_say_the_same_leave_the_link() -> None:
    current = learned([device(1, 60)], copies(5000.0, 1, times=9)).model
    found = learned([device(1, 60)], copies(5000.0, 1, times=9) + copies(5000.0, 2, times=1), current)
    assert found.model == current and "standard error" in found.why


def test_the_first_copies_make_a_link() -> None:
    current = learned([device(1, 60)], []).model
    found = learned([device(1, 60)], copies(5000.0, 1), current)
    assert found.promoted and "CopyIn is new" in found.why and set(found.model.links) == {"CopyIn"}


def test_few_sizes_are_too_few_to_say_who_is_better() -> None:
    lesson = Lesson(TOY, TABLE)
    lesson.add_copies(copies(5000.0, 1))
    current = better_links(lesson.copies[0], {})[0]
    few = Lesson(TOY, TABLE)
    few.add_copies([copy for copy in copies(500.0, 2) if copy.bytes in SIZES[:5]])
    links, why = better_links(few.copies[0], current)
    assert links == current and "too few" in why


def again(seed: int, factor: float = 1.0, count: int = 60) -> Profile:
    """The same shapes as ever, measured once more: a little off each time, `factor` times as slow."""
    chance = np.random.default_rng(seed)
    profile = device(1, count)
    operators = tuple(
        structs.replace(o, duration_us=o.duration_us * factor * float(np.exp(chance.normal(0, 0.05))))
        for o in profile.operators
    )
    return structs.replace(profile, operators=operators)


def told(*profiles: tuple[Profile, When], current: CostModel | None = None) -> Learned:
    lesson = Lesson(TOY, TABLE)
    for profile, when in profiles:
        lesson.add(profile, when)
    return lesson.learn(current)


BEFORE = [again(seed) for seed in range(8)]


def ratio(model: CostModel, other: CostModel) -> float:
    """Median over what both have seen."""
    return float(np.median([model.seen[key][0] / us for key, (us, _, _) in other.seen.items() if key in model.seen]))


def test_a_changed_device_is_seen_among_much_that_was_measured_before() -> None:
    first = told(*((profile, "new") for profile in [*BEFORE, device(2, 30)])).model
    known: list[tuple[Profile, When]] = [(profile, "known") for profile in [*BEFORE, device(2, 30)]]
    changed = told(*known, (again(20, 3.0), "new"), current=first)
    assert changed.promoted and changed.changed and "measured again" in changed.why
    assert changed.drift is not None and changed.drift.drifted
    assert set(changed.model.seen) == set(first.seen), "what was not measured again is still known"
    slow = {key for key, (us, _, _) in changed.model.seen.items() if us > 2 * first.seen[key][0]}
    assert slow >= {key for key, (_, times, _) in first.seen.items() if times == 8}
    calm = told(*known, (again(21), "new"), current=first)
    assert calm.drift is not None and not calm.changed


def test_what_is_superseded_stays_so() -> None:
    first = told(*((profile, "new") for profile in BEFORE)).model
    slow = [again(seed, 3.0) for seed in range(20, 28)]
    known: list[tuple[Profile, When]] = [(profile, "known") for profile in BEFORE]
    changed = told(*known, *((profile, "new") for profile in slow[:4]), current=first).model
    old: list[tuple[Profile, When]] = [(profile, "superseded") for profile in BEFORE]
    later = told(*old, *((p, "known") for p in slow[:4]), *((p, "new") for p in slow[4:]), current=changed)
    assert later.drift is not None and not later.changed
    assert ratio(changed, first) == pytest.approx(3.0, rel=0.1)
    assert ratio(later.model, first) == pytest.approx(3.0, rel=0.1)


def test_what_was_measured_between_two_trainings_and_before_the_change_is_superseded_too() -> None:
    """The model in use knows the first profile; the second, of the same old device, has shapes of its own as well; the
    third has both, twice as slow. Mixed, their difference would pass for what runs differ by."""
    one, both = again(1), device(1, 60).operators + device(2, 60).operators
    between = structs.replace(one, operators=device(2, 60).operators)
    slow = structs.replace(one, operators=tuple(structs.replace(o, duration_us=2 * o.duration_us) for o in both * 5))
    current = told(*((again(seed), "new") for seed in range(4))).model
    known: list[tuple[Profile, When]] = [(again(seed), "known") for seed in range(4)]
    found = told(*known, (between, "new"), (slow, "new"), current=current)
    assert found.promoted and found.changed and found.superseded == (0, 1, 2, 3, 4)
    assert "2.00 times as long later, on 60 shared signatures" in found.why
    assert any(note.startswith("5 of 6 profiles are from before") for note in found.model.notes)
    assert found.model.repeats is not None and found.model.repeats.drift < 0.1
    expected = {key: us for key, (us, _, _) in told((slow, "new")).model.seen.items()}
    assert {key: us for key, (us, _, _) in found.model.seen.items()} == expected


def test_the_first_model_is_of_the_device_as_it_is_now() -> None:
    found = told((again(1), "new"), (again(2), "new"), (again(3, 2.0), "new"))
    assert found.promoted and found.superseded == (0, 1) and not found.changed
    assert found.model.repeats is None or found.model.repeats.drift < 0.1
    assert ratio(found.model, told((again(1), "new")).model) == pytest.approx(2.0, rel=0.1)


def test_gaps_are_filled_from_the_latest_of_several_changes() -> None:
    old, later = again(1, count=60), again(2, 2.0, count=60)
    now = structs.replace(again(3, 4.0), operators=again(3, 4.0).operators[:30])
    found = told((old, "new"), (later, "new"), (now, "new"))
    before = told((old, "new")).model.seen
    ratios = [us / before[key][0] for key, (us, _, _) in found.model.seen.items()]
    assert found.superseded == (0, 1) and np.sum(np.array(ratios) > 3) >= 28
    assert np.min(ratios) > 1.5, "nothing is of the oldest"
