"""What other tools read: held against their formats as documented."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest

from hyperopt.gate import Check, Metric, Samples, check, check_samples
from hyperopt.gate.formats import MARKER, action, bencher, junit, markdown, size
from hyperopt.gate.samples import Better
from hyperopt.profile import Profile
from tests.gate.test_check import grown, timed
from tests.samples import MIB, worked_example

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


def series(name: str, slower: float, better: Better = "lower") -> Metric:
    drawn = np.exp(np.random.default_rng(len(name)).normal(0, 0.005, (2, 10)))
    before, after = (tuple((100 * float(value),) for value in side) for side in (drawn[0], slower * drawn[1]))
    return Metric(name=name, unit="ms", better=better, baseline=before, candidate=after)


def found() -> Check:
    metrics = (series("step | time", 1.02), series("load", 1.3), series("tokens per s", 1.1, "higher"))
    samples = Samples(design="interleaved", warmup_steps=0, metrics=metrics)
    return check(worked_example(), grown(worked_example(), 2, 92 * MIB), samples=samples)


def test_junit_fails_for_a_regression_and_skips_what_is_not_known() -> None:
    (suite,) = ElementTree.fromstring(junit(found(), NOON, "builder"))
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped", "errors")} == {
        "tests": "4",
        "failures": "2",
        "skipped": "0",
        "errors": "0",
    }
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["replayed peak", "load"]
    message = suite[1][0].get("message") or ""
    assert "activation of layers.0" in message
    assert suite.findtext("system-out", "").startswith("step | time: ")
    apart = check(timed(1.0, model="a"), timed(1.0, model="b"))
    only = ElementTree.fromstring(junit(apart, NOON, ""))[0].findall("testcase")[0]
    assert only.get("name") == "comparable" and only.find("skipped") is not None


def test_junit_has_what_the_schema_of_ants_task_requires() -> None:
    root = ElementTree.fromstring(junit(found(), NOON, ""))
    assert root.tag == "testsuites" and not root.attrib
    (suite,) = root
    required = {"name", "timestamp", "hostname", "tests", "failures", "errors", "time", "package", "id"}
    assert set(suite.attrib) == required | {"skipped"}
    assert suite.get("timestamp") == "2026-11-30T12:00:00" and suite.get("hostname") == "localhost"
    cases = ["testcase"] * int(suite.get("tests", ""))
    assert [part.tag for part in suite] == ["properties", *cases, "system-out", "system-err"]
    for case in suite.findall("testcase"):
        assert set(case.attrib) == {"name", "classname", "time"} and len(case) <= 1
        assert all(part.tag in ("skipped", "failure") for part in case)


def test_names_that_xml_cannot_hold_are_replaced() -> None:
    def named(profile: Profile) -> Profile:
        storages = tuple(msgspec.structs.replace(s, name="\x00]]><&\ud7ff") for s in profile.storages)
        operators = tuple(msgspec.structs.replace(o, layer="\x1b[0m|x") for o in profile.operators)
        return msgspec.structs.replace(profile, storages=storages, operators=operators)

    told = check(named(worked_example()), named(grown(worked_example(), 2, 1)))
    assert ElementTree.fromstring(junit(told, NOON, "\x00")) is not None
    assert markdown(told).count("\\|x") >= 1


def test_markdown_is_one_table_with_the_biggest_differences_first_and_a_link() -> None:
    text = markdown(found(), "https://ci.example/1")
    lines = text.splitlines()
    table = [line for line in lines if line.startswith("|")]
    first = lines.index(table[0])
    assert lines[first : first + len(table)] == table  # one table
    assert {line.replace("\\|", "").count("|") for line in table} == {8}
    assert lines[0] == MARKER and lines[1].endswith("regression") and lines[-1] == "[Details](https://ci.example/1)"
    names = [line.split(" | ")[0].removeprefix("| ") for line in table[2:]]
    assert names[0] == "replayed peak" and names[1].startswith("- activation of layers.0")
    assert names[2:] == ["load", "tokens per s", "step \\| time"]
    assert "+92.00 MiB (+11.98 %)" in text


def test_a_comment_does_not_grow_with_the_metrics() -> None:
    many = Samples(design="interleaved", warmup_steps=0, metrics=tuple(series(f"m{i}", 1.0) for i in range(40)))
    text = markdown(check_samples(many))
    assert "28 more metrics" in text


def test_bencher_is_benchmark_measure_value() -> None:
    """https://bencher.dev/docs/reference/bencher-metric-format: numbers only, `value` required, bounds optional."""
    document = bencher(found(), "demo")
    assert list(document) == ["demo"]
    for metric in document["demo"].values():
        assert {"value"} <= metric.keys() <= {"value", "lower_value", "upper_value"}
        assert all(isinstance(value, (int, float)) for value in metric.values())
        assert metric.get("lower_value", 0) < metric.get("upper_value", 1)
    assert document["demo"]["peak-memory"]["value"] == 860 * MIB
    assert {name.rpartition("-")[0] or name for name in document["demo"]} == {
        "peak",
        "step-time",
        "load",
        "tokens-per-s",
    }
    assert "step-time" in bencher(check(timed(1.0), timed(1.0)), "")["hyperopt"]


def test_a_slug_hangs_on_the_name_alone() -> None:
    """A metric more must not rename another's series."""

    def slugs(*names: str) -> set[str]:
        metrics = tuple(series(name, 1.0) for name in names)
        return set(bencher(check_samples(Samples(design="interleaved", warmup_steps=0, metrics=metrics)), "x")["x"])

    names = ["step us", "step_us", "STEP US", "шаг", "peak-memory", "load"]
    together = slugs(*names)
    assert together == slugs(*reversed(names)) == set().union(*(slugs(name) for name in names))
    assert len(together) == len(names) and "load" in together and "peak-memory" not in together


def test_equal_slugs_are_told_apart() -> None:
    same = Samples(design="interleaved", warmup_steps=0, metrics=(series("a b", 1.0), series("a-b", 1.0)))
    assert len(bencher(check_samples(same), "x")["x"]) == 2


def test_github_action_benchmark_is_a_list_of_what_should_be_small() -> None:
    entries = action(found())
    assert [entry["name"] for entry in entries] == ["replayed peak", "step | time", "load"]
    assert all({"name", "unit", "value"} <= entry.keys() and entry["unit"] for entry in entries)
    assert entries[1]["range"].startswith("± ")
    assert [entry["name"] for entry in action(found(), "higher")] == ["tokens per s"]


def test_notes_stand_in_every_format() -> None:
    told = replace(found(), notes=(*found().notes, "the baseline is frozen, by ada: release"))
    assert "- note: the baseline is frozen, by ada: release" in markdown(told).splitlines()
    (suite,) = ElementTree.fromstring(junit(told, NOON, ""))
    assert "note: the baseline is frozen" in suite.findtext("system-out", "")
    many = replace(told, notes=tuple(f"note {i}" for i in range(50)))
    assert "- and 30 more notes" in markdown(many)


def test_what_is_gone_is_inconclusive_in_every_format() -> None:
    given = Samples(
        design="interleaved",
        warmup_steps=0,
        metrics=(series("a", 1.0),),
        lacking=("gone",),
        added=("new",),
    )
    for told in (check_samples(given), check(worked_example(), worked_example(), samples=given)):
        assert told.verdict == "inconclusive" and "gone" in told.reasons[0]
        assert "gone" in told.document()["unjudged"] and any("new is new" in note for note in told.notes)
        assert any(line.startswith("| gone |") and "inconclusive" in line for line in markdown(told).splitlines())
        assert "new is new" in markdown(told)
        (suite,) = ElementTree.fromstring(junit(told, NOON, ""))
        assert suite.get("skipped") == "1"
    worse = check_samples(msgspec.structs.replace(given, metrics=(series("a", 1.3),)))
    assert worse.verdict == "regression" and "gone" in markdown(worse)


def test_runs_that_are_never_compared_are_not_judged() -> None:
    given = Samples(design="separate", warmup_steps=0, metrics=(series("a", 1.5),), obstacles=("different CPU: x, y",))
    told = check_samples(given)
    assert told.verdict == "inconclusive" and "different CPU" in told.reasons[0]
    assert told.metrics[0].status == "not judged" and "regression" not in markdown(told)


def test_json_tells_the_change_of_the_value_beside_how_much_worse_it_is() -> None:
    given = Samples(design="interleaved", warmup_steps=0, metrics=(series("tokens", 1.5, "higher"),))
    told = check_samples(given)
    (plain,) = told.document()["metrics"]
    assert plain["effect_percent"] == pytest.approx(-33.3, abs=1) and plain["change_percent"] == pytest.approx(
        50, abs=2
    )
    low, high = plain["change_interval_percent"]
    assert low < plain["change_percent"] < high and f"{plain['change_percent']:+.2f} %" in told.reasons[0]


def test_sizes_are_read_by_people() -> None:
    assert [size(n) for n in (7, 2048, 3 * MIB, 5 << 30)] == ["7 bytes", "2.00 KiB", "3.00 MiB", "5.00 GiB"]


def test_more_is_better_is_told_as_the_value_changes() -> None:
    """tokens/s from 100 to 150 are + 50 %, and half of them - 50 %, whatever is worse."""

    def rate(factor: float) -> Check:
        before = tuple((100.0 + i,) for i in range(10))
        after = tuple((factor * (100.0 + i),) for i in range(10))
        metric = Metric(name="tokens", unit="1/s", better="higher", baseline=before, candidate=after)
        return check_samples(Samples(design="interleaved", warmup_steps=0, metrics=(metric,)))

    for factor, told, verdict in ((1.5, "+50.00 %", "pass"), (0.5, "-50.00 %", "regression")):
        found = rate(factor)
        assert found.verdict == verdict and found.reasons[0].startswith(f"tokens {told}")
        assert "tolerance -4.76 %" in found.reasons[0] and "more is better" in found.reasons[0]
        (row,) = [line for line in markdown(found).splitlines() if line.startswith("| tokens")]
        assert told in row and "-4.76 %, more is better" in row
    (one,) = rate(0.5).metrics
    assert one.interval is not None and one.interval[0] <= -50.0 <= one.interval[1] < 0
    assert one.effect_percent == pytest.approx(100.0)


def test_a_comment_of_what_is_not_compared_has_no_verdict_in_its_rows() -> None:
    text = markdown(check(timed(1.0, model="a"), grown(timed(1.0, model="b"), 2, MIB)))
    assert "inconclusive" in text.splitlines()[1] and "regression" not in text
    assert "| exact | not judged |" in text


def test_names_do_not_call_anybody_or_end_a_link() -> None:
    def named(profile: Profile) -> Profile:
        storages = tuple(msgspec.structs.replace(s, name="@org/team\n::error::x") for s in profile.storages)
        return msgspec.structs.replace(profile, storages=storages)

    told = check(named(worked_example()), named(grown(worked_example(), 2, 1)))
    text = markdown(told, "https://ci.example/a(1)_(b)?q= x")
    assert "@org" not in text and "@\u200borg" in text and "\n::error" not in text
    assert text.endswith("[Details](https://ci.example/a%281%29_%28b%29?q=%20x)\n")
    with pytest.raises(ValueError, match="no address"):
        markdown(told, "javascript:alert(1)")
