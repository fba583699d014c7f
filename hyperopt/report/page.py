"""The page: plain HTML with its style inside, nothing fetched, readable on paper and without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from hyperopt.profile import Profile
from hyperopt.report.chart import chart
from hyperopt.report.figures import Case, CopyBack, Measurement

MIB = 2**20
NONE = "&ndash;"
SHOWN = 12
"""Rows of a long table that are open; the others are behind a fold."""

MEASURED = '<abbr class="measured" title="read from a real run">measured</abbr>'
SIMULATED = '<abbr class="simulated" title="replay of the profile by the execution model">simulated</abbr>'
ESTIMATED = '<abbr class="estimated" title="inferred, or derived from figures of the profile">estimated</abbr>'

STYLE = """
:root { color-scheme: light; --ink:#1d2733; --soft:#5b6875; --line:#dde3ea; --before:#c9d3e0; --after:#1f6f5c;
  --budget:#b4452c; --paper:#fff; --ground:#f4f6f9 }
* { box-sizing:border-box }
body { margin:0; background:var(--ground); color:var(--ink); font:15px/1.5 system-ui,-apple-system,"Segoe UI",
  "Helvetica Neue",Arial,sans-serif }
main { max-width:1040px; margin:0 auto; padding:32px 20px 64px }
h1 { font-size:26px; margin:0 0 4px } h2 { font-size:20px; margin:0 0 2px } h3 { font-size:15px; margin:24px 0 6px }
p { margin:4px 0 12px } .soft,figcaption,td small { color:var(--soft) } small { font-size:13px }
section { background:var(--paper); border:1px solid var(--line); border-radius:10px; padding:22px 24px;
  margin:22px 0 }
.tiles { display:flex; gap:12px; flex-wrap:wrap; margin:14px 0 4px }
.tile { flex:1 1 150px; border:1px solid var(--line); border-radius:8px; padding:10px 14px }
.tile b { display:block; font-size:22px; font-variant-numeric:tabular-nums } .tile span { color:var(--soft);
  font-size:13px }
table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums }
th { text-align:left; font-weight:600; font-size:13px; color:var(--soft); vertical-align:bottom }
th,td { padding:5px 10px 5px 0; border-bottom:1px solid var(--line) } td { vertical-align:top }
.n { text-align:right; white-space:nowrap } .dense td { font-size:13px; line-height:1.35; overflow-wrap:anywhere }
.dense .n { overflow-wrap:normal } td.good::before { content:"\\2713\\00a0" } td.bad::before { content:"\\2717\\00a0" }
.wide { overflow-x:auto } details>summary { cursor:pointer; color:var(--soft); padding:6px 0 }
abbr { text-decoration:none; font-size:11px; font-weight:600; border-radius:4px; padding:1px 5px; cursor:help }
.measured { background:#e0efe9; color:#1a5a4b } .simulated { background:#e5ebf5; color:#30508a }
.estimated { background:#f6ecd9; color:#7a5410 }
.good { color:#1a6a55 } .bad { color:var(--budget); font-weight:600 }
figure { margin:14px 0 6px } svg { width:100%; height:auto; display:block }
svg text { font-size:11px; fill:var(--soft) } .grid { stroke:var(--line); stroke-width:1 }
.before { fill:var(--before) } .after { fill:none; stroke:var(--after); stroke-width:1.6; stroke-linejoin:round }
line.budget { stroke:var(--budget); stroke-width:1.2; stroke-dasharray:5 4 } text.budget { fill:var(--budget) }
.key { display:inline-block; width:14px; height:10px; border-radius:2px; margin:0 5px 0 12px }
@media print { body { background:#fff } section { break-inside:avoid-page; border:0; padding:0 } }
"""


def page(title: str, lead: str, cases: Sequence[Case], claims: Sequence[tuple[str, bool]] = ()) -> str:
    """The report as one HTML document. `lead`: what was run where; `claims`: what should be so, and whether it is."""
    sections = "\n".join(_case(case) for case in cases)
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}</style></head>
<body><main>
<h1>{escape(title)}</h1>
<p class="soft">{escape(lead)}</p>
{sections}
{_claims(claims)}
<p class="soft"><small>{MEASURED} read from a real run &ensp; {SIMULATED} replay of the measured profile by the
execution model &ensp; {ESTIMATED} inferred, not seen</small></p>
</main></body></html>
"""


def _claims(claims: Sequence[tuple[str, bool]]) -> str:
    if not claims:
        return ""
    held = sum(holds for _, holds in claims)
    rows = "".join(f'<tr><td class="{"good" if holds else "bad"}">{escape(text)}</td></tr>' for text, holds in claims)
    return f'<section class="dense"><h2>Claims: {held} of {len(claims)} hold</h2><table>{rows}</table></section>'


def _case(case: Case) -> str:
    before, after = case.occupancies
    steps = _baseline_ns(case), case.timeline.step_ns
    budget = case.plan.budget.hbm_bytes
    counted = len(case.moved), len(case.plan.residency.recompute)
    return f"""<section>
<h2>{escape(case.title)}</h2>
<p class="soft">plan {escape(case.plan.plan_id or case.plan.content_id)}: {counted[0]} storages moved, {counted[1]}
recomputes{_bound(case)}</p>
{_tiles(case)}
<figure>{chart(before, after, budget, steps)}
<figcaption><small><span class="key" style="background:var(--before)"></span>without a plan
<span class="key" style="background:var(--after)"></span>under the plan
<span class="key" style="background:var(--budget)"></span>budget
&ensp; HBM in use over one step {SIMULATED}, from measured operator times</small></figcaption></figure>
{_figures(case)}
{_recomputes(case)}
{_copies(case)}
{_rivals(case)}
{_profile(case.profile)}
</section>"""


def _baseline_ns(case: Case) -> int:
    """The simulated step without a plan."""
    return case.timeline.step_ns - case.timeline.stall_ns - case.timeline.recompute_ns


def _bound(case: Case) -> str:
    bound = case.plan.bound
    if bound is None:
        return ""
    return f"; {bound.status}, at most {100 * bound.gap:.1f} % above the proven bound of step time"


def _tiles(case: Case) -> str:
    tiles = []
    if case.before is not None and case.after is not None:
        share = 100 * case.after.peak_bytes / case.before.peak_bytes
        tiles.append((f"{share:.1f} %", f"of the peak before {MEASURED}"))
        word = "bit-identical" if case.losses_equal else "different"
        steps = min(len(case.before.losses), len(case.after.losses))
        tiles.append((word, f"losses of {steps} steps {MEASURED}"))
        off = 100 * (case.after.peak_bytes / case.timeline.peak_bytes - 1)
        tiles.append((f"{off:+.1f} %", f"peak, {MEASURED} against {SIMULATED}"))
    elif case.timeline.peak_bytes:
        share = 100 * case.timeline.peak_bytes / case.occupancies[0].peak_bytes
        tiles.append((f"{share:.1f} %", f"of the peak before {SIMULATED}"))
    ahead = ahead_of_consumer(case)
    if ahead is not None:
        tiles.append((f"{ahead[0]} of {ahead[1]}", f"copies back issued ahead of their consumer {MEASURED}"))
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{b}</b><span>{s}</span></div>' for b, s in tiles)
        + "</div>"
    )


def ahead_of_consumer(case: Case) -> tuple[int, int] | None:
    """Copies back issued before their consumer asked, of all that a consumer took, over the steps observed."""
    if case.execution is None or not case.execution["summary"]["copies_back"]:
        return None
    summary = case.execution["summary"]
    return summary["issued_ahead"], summary["copies_back"]


def _figures(case: Case) -> str:
    plain, planned = case.occupancies[0].peak_bytes, case.timeline.peak_bytes
    steps = _baseline_ns(case) / 1000, case.timeline.step_us
    rows = [
        ("peak of HBM", _mib(case.before, "peak_bytes"), _size(plain), _size(planned), _mib(case.after, "peak_bytes")),
        ("step time", _time(case.before), _ms(steps[0]), _ms(steps[1]), _time(case.after)),
        (
            "process, resident",
            _mib(case.before, "resident_peak_bytes"),
            NONE,
            NONE,
            _mib(case.after, "resident_peak_bytes"),
        ),
    ]
    for tier, peak in ((name, peak) for name, peak in case.timeline.tier_peak_bytes.items() if peak):
        rows.append((f"peak of tier {escape(tier)}", NONE, NONE, _size(peak), NONE))
    head = ("", f"before {MEASURED}", f"before {SIMULATED}", f"with the plan {SIMULATED}", f"with the plan {MEASURED}")
    note = ""
    if case.after is not None and case.moved:
        note = (
            '<p class="soft"><small>On a CPU the host tier is memory of the same process: what '
            "leaves MindSpore's pool stays in the resident size.</small></p>"
        )
    return _table(head, rows) + note


def _mib(of: Measurement | None, field: str) -> str:
    return NONE if of is None else _size(getattr(of, field))


def _time(of: Measurement | None) -> str:
    if of is None:
        return NONE
    spread = f"± {of.step_us_spread / 2000:.0f}" if of.step_us_spread else "one step"
    return f"{_ms(of.step_us)} <small>{spread}</small>"


def _recomputes(case: Case) -> str:
    operators = case.profile.operators
    rows = []
    for entry in case.plan.residency.recompute:
        layers = dict.fromkeys(operators[op].layer or operators[op].name for op in entry.ops)
        cost = sum(operators[op].duration_us for op in entry.ops)
        before = f"{entry.before_op} {operators[entry.before_op].name}"
        rows.append((escape(", ".join(layers)), str(len(entry.ops)), _ms(cost), escape(before)))
    if not rows:
        return ""
    head = ("layer", "operators", f"time {SIMULATED}", "again before")
    return f"<h3>Recomputed</h3>{_folded(head, rows, names=(0, 3))}"


def _copies(case: Case) -> str:
    if not case.copies_back:
        return ""
    late = sum(copy.slack_us < 0 for copy in case.copies_back)
    bytes_ = sum(copy.bytes for copy in case.copies_back)
    head = (
        "storage",
        "kind, layer",
        "MiB",
        "leaves after",
        "called back before",
        "used by",
        f"slack, ms {SIMULATED}",
        f"ahead {MEASURED}",
    )
    rows = [_copy_row(copy) for copy in sorted(case.copies_back, key=lambda copy: -copy.bytes)]
    return (
        f"<h3>Moved and called back</h3><p class='soft'>{len(case.copies_back)} copies back, {bytes_ / MIB:.1f} MiB a "
        f"step; {late} end after their consumer could have started {SIMULATED}. Largest first.</p>"
        + _folded(head, rows, names=(0, 1, 3, 4, 5))
    )


def _copy_row(copy: CopyBack) -> tuple[str, ...]:
    slack = f"{copy.slack_us / 1000:.2f}"
    ahead = NONE if copy.issued_ahead is None else f"{copy.issued_ahead[0]} of {copy.issued_ahead[1]}"
    return (
        _name(copy.name),
        escape(f"{copy.kind}, {copy.layer}" if copy.layer else copy.kind),
        f"{copy.bytes / MIB:.2f}",
        _name(copy.left_after),
        _name(copy.back_before),
        _name(copy.consumer),
        slack if copy.slack_us >= 0 else f'<span class="bad">{slack}</span>',
        ahead,
    )


def _rivals(case: Case) -> str:
    rivals = case.plan.provenance.get("rivals_step_us", {})
    if not isinstance(rivals, dict) or not rivals:
        return ""
    rows = [
        (escape(str(name)), _ms(float(step)) if isinstance(step, (int, float)) else escape(str(step)))
        for name, step in rivals.items()
    ]
    table = _table(("rule or stage of the solver", f"step {SIMULATED}"), rows)
    return f"<details><summary>What other rules give at this budget</summary>{table}</details>"


def _profile(profile: Profile) -> str:
    device, links = profile.device, profile.device.links
    unseen = [s for s in profile.storages if s.certainty not in (None, "measured")]
    facts = [
        f"{profile.run.framework} {profile.run.framework_version}, {profile.run.model}, "
        f"mode {profile.adapter.mode or 'not given'}; {len(profile.operators)} operators, "
        f"{len(profile.storages)} storages",
        f"device {device.name}; base {device.base_bytes / MIB:.2f} MiB; "
        f"link out {links.d2h_bytes_per_s / 1e9:.2f} GB/s, back {links.h2d_bytes_per_s / 1e9:.2f} GB/s, "
        f"latency {links.latency_us:.1f} µs",
        *profile.run.notes,
    ]
    items = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    if unseen:
        size = sum(storage.bytes for storage in unseen) / MIB
        items += f"<li>{len(unseen)} storages ({size:.2f} MiB) {ESTIMATED}: seen only by their effects</li>"
    return f"<details><summary>The profile, and what the capture could not see</summary><ul>{items}</ul></details>"


def _folded(head: Sequence[str], rows: Sequence[Sequence[str]], names: Iterable[int]) -> str:
    table = _table(head, rows[:SHOWN], names)
    if len(rows) > SHOWN:
        table += f"<details><summary>{len(rows) - SHOWN} more</summary>{_table(head, rows[SHOWN:], names)}</details>"
    return f'<div class="dense">{table}</div>'


def _name(text: str) -> str:
    """A name that may break where it is put together."""
    return escape(text).replace("/", "/<wbr>").replace(".", ".<wbr>")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], names: Iterable[int] = (0,)) -> str:
    """`head` and cells are HTML; columns whose index is not among `names` are set to the right."""
    wordy = set(names) | {0}
    kinds = ["name" if i in wordy else "n" for i in range(len(head))]
    top = "".join(f'<th class="{kind}">{cell}</th>' for kind, cell in zip(kinds, head, strict=True))
    body = "".join(
        "<tr>" + "".join(f'<td class="{kind}">{cell}</td>' for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _size(size: int) -> str:
    return f"{size / MIB:.2f} MiB"


def _ms(us: float) -> str:
    return f"{us / 1000:.1f} ms" if us < 1e5 else f"{us / 1000:.0f} ms"
