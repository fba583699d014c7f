"""Our solver beside its rivals: 24 made-up steps and the real ones at hand, on four budgets, judged by replay.

    python -m bench.solver [--sizes small,medium,large,real] [--only NAME,...] [--budgets 90,70,50,30] [--markdown PATH]

Each contender runs in a process of its own, one after another: on every case ours and then the rivals, each once
(they are deterministic; so are the steps). What has been measured with the same sources and limits is on record in
build/bench/solver.jsonl and is not measured again: stopped, the run goes on where it was. Results go to
build/bench/solver.json too. docs/bench.md says what is counted, and how.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from bench.cases import BUDGETS, SIZES, STEPS, Step, real_steps
from bench.contender import OURS
from bench.table import RIVALS, Case, rows, summary, told
from bench.trial import Bench, Outcome

FOLDER = Path("build/bench")
REAL = Path("../shared/data/step_graphs")
LIMITS = {"small": 10.0, "medium": 60.0, "large": 180.0}
RIVAL_S = 60.0


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, prog="python -m bench.solver", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words, numbers = (lambda text: text.split(",")), (lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--sizes", type=words, default=[*SIZES, "real"], help="of small, medium, large, real")
    parser.add_argument("--only", type=words, default=None, metavar="NAME,...", help="these traces")
    parser.add_argument("--budgets", type=numbers, default=list(BUDGETS), help="per cent of the unplanned peak")
    parser.add_argument("--rivals", type=words, default=list(RIVALS), help="these; an empty text: none")
    parser.add_argument("--seed", type=int, default=0, help="of our search")
    for size, seconds in LIMITS.items():
        parser.add_argument(f"--{size}-s", type=float, default=seconds, help=f"our time limit for {size} steps")
    parser.add_argument("--rival-s", type=float, default=RIVAL_S, help="after which a rival is stopped")
    parser.add_argument("--real", type=Path, default=REAL, metavar="FOLDER", help="with *.profile.json[.gz|.zst]")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the record and the results")
    parser.add_argument("--code", help="go on with the sources of an earlier run, by the version it printed")
    parser.add_argument("--fresh", action="store_true", help="forget what is on record")
    parser.add_argument("--keep-rivals", action="store_true", help="take rivals' outcomes of other code versions too")
    parser.add_argument("--report", action="store_true", help="measure nothing: the table of what is on record")
    parser.add_argument("--markdown", type=Path, metavar="PATH", help="write the table there too")
    given = parser.parse_args(argv)
    given.rivals = [name for name in given.rivals if name]
    for what, allowed in (("sizes", {*SIZES, "real"}), ("rivals", set(RIVALS))):
        if unknown := set(getattr(given, what)) - allowed:
            parser.error(f"--{what}: there is no {', '.join(sorted(unknown))}")
    if not all(0 < percent <= 100 for percent in given.budgets):
        parser.error("--budgets: per cent, from 1 to 100")
    given.limits = {size: getattr(given, f"{size}_s") for size in SIZES}
    return given


def chosen(given: argparse.Namespace) -> list[Step]:
    """The steps asked for: small ones first, so that what is there of a table is whole cases."""
    found = [step for step in STEPS if step.size in given.sizes]
    if "real" in given.sizes:
        real = list(real_steps(given.real))
        if not real:
            print(f"real steps are skipped: no *.profile.json* in {given.real}", flush=True)
        found += real
    if given.only is not None:
        names = {step.name for step in found}
        if unknown := [name for name in given.only if name not in names]:
            raise SystemExit(f"--only: no {', '.join(unknown)} among {', '.join(sorted(names))}")
        found = [step for step in found if step.name in given.only]
    return found


def wanted(given: argparse.Namespace, step: Step, contender: str) -> tuple[float, int]:
    """Time limit and seed: part of what an outcome is on record under."""
    return (given.limits[step.size], given.seed) if contender == OURS else (given.rival_s, 0)


def measure(bench: Bench, given: argparse.Namespace, steps: Sequence[Step]) -> None:
    """All that is not on record yet, case by case."""
    places = [(s, p, c) for s in steps for p in given.budgets for c in (OURS, *given.rivals)]
    to_do = []
    for step, percent, contender in places:
        older = given.keep_rivals and contender != OURS
        if bench.known(step, percent, contender, *wanted(given, step, contender), older=older) is None:
            to_do.append((step, percent, contender))
    print(f"code version {bench.code}: {len(places) - len(to_do)} of {len(places)} outcomes are on record", flush=True)
    for i, (step, percent, contender) in enumerate(to_do, 1):
        found = bench.measure(step, percent, contender, *wanted(given, step, contender))
        ending = f"{found.step_us / found.unlimited_us:.4f} of unlimited" if found.step_us is not None else found.status
        seconds = "" if found.seconds is None else f", {found.seconds:.1f} s"
        why = f" ({found.detail})" if found.step_us is None and found.detail else ""
        what = f"{step.name} {found.count} at {percent} %: {contender}"
        print(f"{i}/{len(to_do)} {what} {ending}{seconds}, {found.rss_bytes / 2**20:.0f} MiB{why}", flush=True)


def cases_of(bench: Bench, given: argparse.Namespace, steps: Sequence[Step]) -> list[Case]:
    """The cases on record in which ours and every rival asked for has run."""
    found = []
    for step in steps:
        for percent in given.budgets:
            ours = bench.known(step, percent, OURS, *wanted(given, step, OURS))
            rivals: dict[str, Outcome] = {}
            for name in given.rivals:
                outcome = bench.known(step, percent, name, *wanted(given, step, name), older=given.keep_rivals)
                if outcome is not None:
                    rivals[name] = outcome
            if ours is not None and len(rivals) == len(given.rivals):
                found.append(Case(ours, rivals, step.size))
    return found


def report(bench: Bench, given: argparse.Namespace, steps: Sequence[Step]) -> list[str]:
    """The tables as Markdown; figures and table go to solver.json."""
    cases = cases_of(bench, given, steps)
    lines = [f"Code version {bench.code}, {datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}."]
    lines.append(f"Limits: ours {', '.join(f'{limit:g} s {size}' for size, limit in given.limits.items())}; ")
    lines[-1] += f"a rival {given.rival_s:g} s. Seed {given.seed}. Step times are simulated."
    if cases:
        loads = [case.ours.load for case in cases]
        lines[-1] += f" Load of the machine when ours ended: median {median(loads):.1f}, most {max(loads):.1f}, on "
        lines[-1] += f"{os.cpu_count()} cores."
    if missing := len(steps) * len(given.budgets) - len(cases):
        lines.append(f"**Not finished**: {missing} of {missing + len(cases)} cases are missing.")
    if any(o.code != bench.code for case in cases for o in case.rivals.values()):
        lines.append("**Not one run**: some of the rivals' outcomes are of other code versions.")
    results: dict[str, Any] = {"code": bench.code, "limits_s": given.limits, "rival_s": given.rival_s}
    results |= {"seed": given.seed, "missing": missing, "groups": {}}
    for title, real in (("Made-up steps", False), ("Real steps", True)):
        of_group = [case for case in cases if (case.ours.group == "real") == real]
        if not of_group:
            continue
        seen = summary(of_group)
        lines += ["", f"## {title}", "", *rows(of_group, given.rivals), "", *told(seen)]
        results["groups"]["real" if real else "made up"] = {
            "summary": [asdict(line) for line in seen],
            "cases": [_figures(case) for case in of_group],
        }
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / "solver.json").write_text(json.dumps(results, indent=1) + "\n")
    return lines


def _figures(case: Case) -> dict[str, Any]:
    ours, best = case.ours, case.best
    every = {OURS: ours, **case.rivals}
    return {
        "trace": ours.trace,
        "operators": ours.count,
        "percent": ours.percent,
        "budget_bytes": ours.budget_bytes,
        "unlimited_us": ours.unlimited_us,
        "bound_us": ours.bound_us,
        "best_rival": None if best is None else best.contender,
        "overhead_share": case.share,
        "first_s": case.first_s,
        "near_s": case.near_s,
        "seconds": ours.seconds,
        "processor_s": ours.processor_s,
        "load": ours.load,
        "rss_bytes": ours.rss_bytes,
        "proven_out_of_reach": ours.proven,
        "status": {name: o.status for name, o in every.items()},
        "step_us": {name: o.step_us for name, o in every.items()},
        "rival_seconds": {name: o.seconds for name, o in case.rivals.items()},
    }


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(argv)
    steps = chosen(given)
    bench = Bench(given.folder, "solver.jsonl", given.code, given.fresh)
    stopped = False
    if not given.report:
        try:
            measure(bench, given, steps)
        except KeyboardInterrupt:
            stopped = True
    lines = report(bench, given, steps)
    if given.markdown is not None:
        given.markdown.parent.mkdir(parents=True, exist_ok=True)
        given.markdown.write_text("# Solver and rivals\n\n" + "\n".join(lines) + "\n")
    print("\n".join(lines))
    return 130 if stopped else 0


if __name__ == "__main__":
    sys.exit(main())
