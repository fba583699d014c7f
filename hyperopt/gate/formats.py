"""A check as other tools read it.

    junit      what CI servers show as tests: a regression fails, inconclusive is skipped with its reason (the schema
               of Ant's JUnit task, as published by Windy Road, which Jenkins' own takes too)
    markdown   a comment on a pull request: one table, the biggest differences first
    bencher    Bencher Metric Format (bencher.dev, "Bencher Metric Format")
    action     the lists that github-action-benchmark takes as customSmallerIsBetter and customBiggerIsBetter (its
               README)

The last two record the candidate, for charts; their own alarms are not the gate's.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from hyperopt.gate.fit import Fit
from hyperopt.gate.memory import Group, Memory, Status
from hyperopt.gate.samples import Better
from hyperopt.gate.throughput import Finding
from hyperopt.gate.verdict import Check

PEAK = "replayed peak"
FIT = "must fit"
MOST_ROWS = 12
MOST_NOTES = 20
MARKER = "<!-- hyperopt check -->"
"""First line of a comment, by which whoever posts it finds the one to replace."""

MARKS = {"pass": "✅ pass", "regression": "❌ regression", "inconclusive": "❔ inconclusive"}

# XML 1.0 has no way to write these, and names of operators come from outside.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(found: Check, at: datetime, host: str) -> str:
    """JUnit XML: a case for each judge, and one for the verdict where profiles must not be compared. `at` and `host`:
    when and where it was judged, which the schema asks for; a case's time is 0, for nothing is timed by judging it."""
    suite = ElementTree.Element("testsuite", name="hyperopt check", package="hyperopt", id="0", time="0")
    suite.set("timestamp", at.strftime("%Y-%m-%dT%H:%M:%S"))
    suite.set("hostname", _xml(host) or "localhost")
    ElementTree.SubElement(suite, "properties")
    counts = dict.fromkeys(("pass", "regression", "inconclusive", "not judged"), 0)
    passed = []
    for name, status, reason in _cases(found):
        counts[status] += 1
        case = ElementTree.SubElement(suite, "testcase", classname="hyperopt.check", name=_xml(name), time="0")
        told = {"message": _xml(reason)}
        if status == "regression":
            ElementTree.SubElement(case, "failure", told, type="regression").text = _xml(reason)
        elif status != "pass":
            ElementTree.SubElement(case, "skipped", told)
        else:
            passed.append(_xml(f"{name}: {reason}"))
    passed += [_xml(f"note: {note}") for note in _notes(found)]
    ElementTree.SubElement(suite, "system-out").text = "\n".join(passed)
    ElementTree.SubElement(suite, "system-err")
    figures = {"tests": sum(counts.values()), "failures": counts["regression"], "errors": 0}
    figures["skipped"] = counts["inconclusive"] + counts["not judged"]
    for name, value in figures.items():
        suite.set(name, str(value))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _cases(found: Check) -> list[tuple[str, Status, str]]:
    fit: list[tuple[str, Status, str]] = [(FIT, found.fit.status, found.fit.reason)] if found.fit else []
    if found.apart:
        return [*fit, ("comparable", "inconclusive", "; ".join(found.reasons))]
    if found.fit and not found.metrics and not _profiles(found):
        return fit
    cases: list[tuple[str, Status, str]] = [(one.name, one.status, one.reason) for one in found.metrics]
    cases += [(name, "inconclusive", why) for name, why in found.unjudged.items()]
    if not cases:
        cases = [("step time", found.throughput.status, found.throughput.reason)]
    if _profiles(found):
        cases.insert(0, (PEAK, found.memory.status, found.memory.reason))
    return [*fit, *cases]


def _notes(found: Check) -> list[str]:
    """What is told beside the verdict, but for reasons that stand in a row or a case of their own."""
    judges = (found.memory, found.throughput, *found.metrics, *((found.fit,) if found.fit else ()))
    told = {judge.reason for judge in judges} | set(found.unjudged.values())
    return [note for note in found.notes if note not in told]


def _profiles(found: Check) -> bool:
    """Whether profiles of both sides were given."""
    return "base_bytes" in found.shown["candidate"]


def _xml(text: str) -> str:
    return _NOT_XML.sub("?", text)


def markdown(found: Check, link: str = "") -> str:
    """A comment: the verdict, one table with the biggest differences first, and a link to more."""
    lines = [MARKER, f"### hyperopt check: {MARKS[found.verdict]}", ""]
    if found.apart:
        lines += [f"- {_cell(reason)}" for reason in found.reasons] + [""]
    lines += ["| what | baseline | candidate | change | allowed | n | verdict |", "|---|---:|---:|---:|---:|---:|---|"]
    rows = [_fit_row(found.fit)] if found.fit else []
    rows += _memory_rows(found.memory)
    metrics = sorted(found.metrics, key=lambda one: -_beyond(one))
    rows += [[name, "", "", "", "", "", MARKS["inconclusive"]] for name in [*found.unjudged][:MOST_ROWS]]
    rows += [_metric_row(one) for one in metrics[:MOST_ROWS]]
    if not metrics and found.throughput.baseline_us:
        rows.append(_step_row(found))
    if found.apart:
        rows = [row if row[0] == FIT or not row[-1] else [*row[:-1], "not judged"] for row in rows]
    rows = rows or [["nothing", "", "", "", "", "", "not judged"]]
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    if len(metrics) > MOST_ROWS:
        lines += ["", f"{len(metrics) - MOST_ROWS} more metrics with smaller differences."]
    lines += ["", *(f"- {_cell(reason)}" for reason in found.reasons if not found.apart)]
    notes = _notes(found) + [why for why in found.unjudged.values() if why not in found.reasons]
    lines += [f"- note: {_cell(note)}" for note in notes[:MOST_NOTES]]
    lines += [f"- and {len(notes) - MOST_NOTES} more notes"] if len(notes) > MOST_NOTES else []
    if link:
        lines += ["", f"[Details]({_address(link)})"]
    return "\n".join(lines) + "\n"


def _fit_row(fit: Fit) -> list[str]:
    """How it fits stands where others have their change: it is what a reader must not miss."""
    how: str = fit.how
    if fit.slowdown_percent is not None and fit.plan_peak_bytes is not None:
        how += f": {size(fit.plan_peak_bytes)}, step {fit.slowdown_percent:+.2f} %"
        if fit.host_peak_bytes is not None:
            how += f", {size(fit.host_peak_bytes)} at most in other tiers"
    allowed = f"{size(fit.hbm_bytes)}, +{fit.max_slowdown_percent:g} %"
    return [FIT, "", size(fit.peak_bytes), how, allowed, "simulated", MARKS[fit.status]]


def _memory_rows(memory: Memory) -> list[list[str]]:
    if memory.status == "not judged":
        return []
    before, after = memory.baseline_peak_bytes, memory.candidate_peak_bytes
    share = f" ({100 * memory.difference_bytes / before:+.2f} %)" if before else ""
    peak = [PEAK, size(before), size(after), f"{_signed(memory.difference_bytes)}{share}"]
    rows = [[*peak, f"+{size(memory.allowed_bytes)}", "exact", MARKS.get(memory.status, memory.status)]]
    return rows + [_group_row(group) for group in memory.groups[:5]]


def _group_row(group: Group) -> list[str]:
    of = f"{group.kind} of {group.layer}" if group.layer else group.kind
    named = "".join(f", {held.name}" for held in group.storages[:1])
    figures = [size(group.baseline_bytes), size(group.candidate_bytes), _signed(group.difference_bytes)]
    return [f"- {of}{named}", *figures, "", "", ""]


def _metric_row(one: Finding) -> list[str]:
    change = f"{one.change(one.effect_percent):+.2f} %"
    if one.interval is not None:
        change += " ({:+.2f} to {:+.2f})".format(*one.interval)
    elif one.high_percent is not None:
        change += f" (at worst {one.change(one.high_percent):+.2f})"
    allowed = f"+{one.tolerance_percent:g} %"
    if one.better == "higher":
        allowed = f"{one.change(one.tolerance_percent):+.2f} %, more is better"
    counted = f"{one.n} {'jobs, weaker' if one.weak else 'pairs'}"
    figures = [f"{value:.6g} {one.unit}".strip() for value in (one.baseline, one.candidate)]
    return [one.name, *figures, change, allowed, counted, MARKS.get(one.status, one.status)]


def _step_row(found: Check) -> list[str]:
    one = found.throughput
    figures = [f"{value / 1000:.3f} ms" for value in (one.baseline_us, one.candidate_us)]
    allowed = f"+{100 * one.allowed_us / one.baseline_us:g} %"
    change, mark = f"{one.difference_percent:+.2f} %", MARKS.get(one.status, one.status)
    return ["step time", *figures, change, allowed, "1 run each", mark]


def _beyond(one: Finding) -> float:
    return abs(one.effect_percent)


def _cell(text: str) -> str:
    """What would end a cell or start markup is written out; nobody is called by a name that stands after an @."""
    plain = re.sub(r"[\x00-\x1f\x7f\u2028\u2029]+", " ", text)
    return re.sub(r"([\\|<>`*\[\]_~])", r"\\\1", plain).replace("@", "@\u200b")


def _address(link: str) -> str:
    """Without what would end it in Markdown. Raises ValueError for one that is not of the web."""
    if not link.startswith(("https://", "http://")):
        raise ValueError(f"{link!r} is no address that begins with https:// or http://")
    return quote(link, safe="/:?#@!$&'*+,;=%-._~")


def size(count: int) -> str:
    """``1.50 GiB``; below a KiB ``7 bytes``."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(count) >= 1 << power:
            return f"{count / (1 << power):.2f} {unit}"
    return f"{count} bytes"


def _signed(count: int) -> str:
    return f"{'-' if count < 0 else '+'}{size(abs(count))}"


def bencher(found: Check, benchmark: str) -> dict[str, Any]:
    """{benchmark: {measure: {value, lower_value, upper_value}}} of the candidate; measures are Bencher's slugs."""
    measures: dict[str, dict[str, float]] = {}
    if found.memory.status != "not judged":
        measures["peak-memory"] = {"value": found.memory.candidate_peak_bytes}
    for one in found.metrics:
        bounds = dict(zip(("lower_value", "upper_value"), _bounds(one), strict=False))
        measures[_slug(one.name)] = {"value": one.candidate, **bounds}
    if not found.metrics and found.throughput.candidate_us:
        measures["step-time"] = {"value": found.throughput.candidate_us}
    return {benchmark or "hyperopt": measures}


def _slug(name: str) -> str:
    """By the name alone, or a metric more would rename the series of another. What a slug cannot hold of it is told
    apart by a hash; the slugs that are ours are not a metric's."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:48].strip("-") or "metric"
    if plain == name and plain not in ("peak-memory", "step-time"):
        return plain
    return f"{plain}-{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:8]}"


def action(found: Check, better: Better = "lower") -> list[dict[str, Any]]:
    """[{name, unit, value, range, extra}] of the candidate: what should be small (with memory), or what should be
    large (`better` higher): the tool takes one kind a file, and no empty list."""
    entries: list[dict[str, Any]] = []
    if found.memory.status != "not judged" and better == "lower":
        peak = found.memory.candidate_peak_bytes
        entries.append({"name": PEAK, "unit": "bytes", "value": peak, "extra": found.memory.reason})
    for one in found.metrics:
        if one.better == better:
            entry = {"name": one.name, "unit": one.unit or "1", "value": one.candidate, "extra": one.reason}
            if bounds := _bounds(one):
                entry["range"] = f"± {(bounds[1] - bounds[0]) / 2:.4g}"
            entries.append(entry)
    if not found.metrics and found.throughput.candidate_us and better == "lower":
        once = found.throughput
        entries.append({"name": "step time", "unit": "us", "value": once.candidate_us, "extra": once.reason})
    return entries


def _bounds(one: Finding) -> tuple[float, ...]:
    """Of the candidate, in its unit: the baseline changed by either bound of the effect."""
    if one.low_percent is None or one.high_percent is None:
        return ()
    factors = [1 + percent / 100 for percent in (one.low_percent, one.high_percent)]
    ends = [one.baseline * f if one.better == "lower" else one.baseline / f for f in factors]
    return min(ends), max(ends)
