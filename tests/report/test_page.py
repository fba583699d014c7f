from __future__ import annotations

import re
from html.parser import HTMLParser

import msgspec
import pytest

from hyperopt.plan import Recompute, Residency
from hyperopt.profile import Profile
from hyperopt.replay import replay
from hyperopt.report import Case, Measurement, page
from tests.samples import MIB, worked_example
from tests.test_occupancy import OUT_AND_BACK

VOID = {"meta", "line", "polygon", "polyline", "br", "wbr"}


class Balanced(HTMLParser):
    """Fails on a tag that is closed in the wrong place; collects the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def text_of(html: str) -> str:
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    return re.sub(r"\s+", " ", " ".join(parser.text))


def measurement(peak: int, step_us: float, *losses: float) -> Measurement:
    return Measurement(peak, 2 * peak, step_us, 1000.0, losses)


@pytest.fixture
def case() -> Case:
    copies = [
        {"storage": 1, "used_us": 1.0, "ahead": True},
        {"storage": 1, "used_us": 1.0, "ahead": False},
        {"storage": 1, "used_us": None, "ahead": False},
    ]
    execution = {"summary": {"copies_back": 2, "issued_ahead": 1}, "copies_back": copies}
    return Case(
        "worked example",
        worked_example(),
        OUT_AND_BACK,
        measurement(770 * MIB, 101_000.0, 3.0, 2.0),
        measurement(639 * MIB, 103_000.0, 3.0, 2.0),
        execution,
    )


def test_the_page_has_the_figures_before_predicted_and_measured(case: Case) -> None:
    text = text_of(page("A title", "a lead", [case], [("a claim", True)]))
    for figure in ("770.00 MiB", "768.00 MiB", "640.00 MiB", "639.00 MiB", "101 ms", "103 ms", "bit-identical"):
        assert figure in text
    assert "1 of 2 copies back issued ahead of their consumer" in text
    assert "measured" in text and "simulated" in text and "a claim" in text


def test_the_page_fetches_nothing_and_runs_nothing(case: Case) -> None:
    html = page("t", "l", [case])
    assert not re.search(r"<script|<link|src=|url\(|@import|https?://", html)


def test_names_are_escaped(case: Case) -> None:
    storages = (msgspec.structs.replace(worked_example().storages[1], name="<b>&"),)
    profile = msgspec.structs.replace(
        worked_example(), storages=(worked_example().storages[0], *storages, worked_example().storages[2])
    )
    html = page("<i>", "l", [Case("<u>", profile, OUT_AND_BACK)])
    assert "&lt;b&gt;&amp;" in html and "<u>" not in html and "<i>" not in html
    text_of(html)


def test_a_plan_that_was_not_applied_has_simulated_figures_only(case: Case) -> None:
    text = text_of(page("t", "l", [Case("planned", case.profile, case.plan)]))
    assert "83.3 % of the peak before simulated" in text and "bit-identical" not in text


def test_slack_is_what_the_copy_had_to_spare(case: Case) -> None:
    (copy,) = case.copies_back
    end = next(c.end for c in replay(case.profile, case.plan).copies if not c.out)
    assert copy.slack_us == pytest.approx((70_000_000 - end) / 1000)
    assert (copy.left_after, copy.back_before, copy.consumer) == ("2 op2", "6 op6", "7 op7")
    assert copy.issued_ahead == (1, 2)


def test_a_copy_that_is_awaited_has_negative_slack(case: Case) -> None:
    late = msgspec.structs.replace(OUT_AND_BACK.residency.actions[2], op=7)
    residency = Residency(actions=(*OUT_AND_BACK.residency.actions[:2], late))
    plan = msgspec.structs.replace(OUT_AND_BACK, residency=residency)
    (copy,) = Case("late", case.profile, plan).copies_back
    assert copy.slack_us == pytest.approx(-7812.5)


def test_different_losses_are_said_so(case: Case) -> None:
    other = measurement(639 * MIB, 103_000.0, 3.0, 2.0000001)
    found = Case("t", case.profile, case.plan, case.before, other)
    assert found.losses_equal is False and "different losses" in text_of(page("t", "l", [found]))


def test_recomputes_are_listed() -> None:
    profile: Profile = worked_example()
    release = msgspec.structs.replace(OUT_AND_BACK.residency.actions[1], op=3)
    residency = Residency(actions=(release,), recompute=(Recompute(storage=1, before_op=7, ops=(2,)),))
    plan = msgspec.structs.replace(OUT_AND_BACK, residency=residency)
    text = text_of(page("t", "l", [Case("again", profile, plan)]))
    assert "Recomputed" in text and "7 op7" in text and "10.0 ms" in text
