"""The gate's commands: check (one verdict) and interleave (what it is best given)."""

from __future__ import annotations

import math
import os
import platform
import re
import shlex
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from hyperopt.cli import sides
from hyperopt.cli.files import (
    MEMORY_TOO,
    STANDARD_OUTPUT,
    AsJson,
    TierBytes,
    answer,
    check_output,
    plain,
    say,
    tier_budgets,
)
from hyperopt.cli.remote import answers
from hyperopt.cli.sides import WHAT, Sides
from hyperopt.documents import DocumentError, write, write_bytes
from hyperopt.gate import (
    Check,
    Policy,
    Samples,
    Sensitivity,
    Threshold,
    check_samples,
    formats,
    nothing_to_compare,
    with_fit,
)
from hyperopt.gate import check as judge
from hyperopt.gate import samples as measured
from hyperopt.gate.samples import Better
from hyperopt.gate.throughput import DEFAULT_BEYOND_PERCENT, DEFAULT_LEVEL, DEFAULT_TOLERANCE_PERCENT
from hyperopt.profile import Profile

EXIT = {"pass": 0, "regression": 1, "inconclusive": 2}

MOST_PERCENT = 1e6
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

Benchmarks = Annotated[list[Path] | None, typer.Option(help="pytest-benchmark's JSON, a file a run; may be repeated")]


def register(app: typer.Typer) -> None:
    app.command("check")(check)
    app.command("interleave")(interleave)


def check(
    baseline: Annotated[str | None, typer.Option(help=WHAT)] = None,
    candidate: Annotated[str | None, typer.Option(help=WHAT)] = None,
    samples: Annotated[Path | None, typer.Option(help="hyperopt.samples/1, as `interleave` writes it")] = None,
    baseline_benchmark: Benchmarks = None,
    candidate_benchmark: Benchmarks = None,
    interleaved: Annotated[
        bool, typer.Option("--interleaved", help="the benchmark files were run in turns, as pairs in the order given")
    ] = False,
    tolerance_percent: Annotated[
        float, typer.Option(min=0, help="how much slower a step may be, or worse another metric")
    ] = DEFAULT_TOLERANCE_PERCENT,
    level: Annotated[
        float, typer.Option(min=1e-6, max=0.5, help="chance of a false alarm at exactly the tolerance")
    ] = DEFAULT_LEVEL,
    memory_threshold: Annotated[
        str | None,
        typer.Option(
            metavar="N|N%",
            help="how much the replayed peak may grow: bytes (K, M, G, T) or percent; "
            "0 unless given, between PyNative captures 0.1%",
        ),
    ] = None,
    must_fit: Annotated[
        str | None,
        typer.Option(metavar="N", help="HBM that the candidate must fit in, by itself or with a plan: 60G"),
    ] = None,
    max_slowdown_percent: Annotated[
        float, typer.Option(min=0, help="for --must-fit: what a plan may cost, over the step without a limit")
    ] = 0.0,
    tier_bytes: TierBytes = None,
    time_limit: Annotated[float, typer.Option(min=0, help="for --must-fit: seconds of solving a profile")] = 60.0,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="put a regression into what is given: exit 1 if it is found, 2 if not")
    ] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="where to write the answer in JSON")] = None,
    junit: Annotated[Path | None, typer.Option(help="where to write JUnit XML")] = None,
    markdown: Annotated[Path | None, typer.Option(help="where to write a comment for a pull request")] = None,
    link: Annotated[str, typer.Option(help="to more, for the comment")] = "",
    bencher: Annotated[Path | None, typer.Option(help="where to write Bencher Metric Format")] = None,
    action_benchmark: Annotated[
        Path | None, typer.Option(help="where to write github-action-benchmark's customSmallerIsBetter")
    ] = None,
    action_benchmark_bigger: Annotated[
        Path | None, typer.Option(help="where to write its customBiggerIsBetter: metrics of which more is better")
    ] = None,
    memory_only: Annotated[
        bool, typer.Option("--memory-only", help="judge memory; times are shown and not judged")
    ] = False,
    branch: Annotated[
        str | None, typer.Option(help="judge a stored candidate on the server against what was accepted there; kept")
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="for --branch: what the candidate is a commit of, where not of it: pull/7")
    ] = None,
    commit: Annotated[str, typer.Option(help="of the candidate; kept in -o, and with --branch on the server")] = "",
    server: Annotated[str | None, typer.Option(help="where stored profiles are [HYPEROPT_SERVER_URL]")] = None,
    as_json: AsJson = False,
) -> int:
    """Judge a candidate against a baseline. Exit 0: pass; 1: regression; 2: inconclusive; 64: bad input."""
    charts: dict[Better, Path | None] = {"lower": action_benchmark, "higher": action_benchmark_bigger}
    read = [baseline, candidate, samples, *(baseline_benchmark or []), *(candidate_benchmark or [])]
    _check_outputs([output, junit, markdown, bencher, *charts.values()], [Path(path) for path in read if path])
    for percent, name in ((tolerance_percent, "--tolerance-percent"), (max_slowdown_percent, "--max-slowdown-percent")):
        if not percent <= MOST_PERCENT:  # infinity, and what is no number, too
            raise typer.BadParameter(f"{percent:g} is not between 0 and {MOST_PERCENT:g}", param_hint=name)
    if link and not re.fullmatch(r"https?://[^\s<>\x00-\x1f]+", link):
        raise typer.BadParameter(f"{link!r} is no address that begins with https:// or http://", param_hint="--link")
    allowed = None if memory_threshold is None else threshold(memory_threshold)
    policy = Policy(allowed, tolerance_percent, Sensitivity(level=level), memory_only)
    if head is not None and branch is None:
        raise typer.BadParameter("is of a check on the server: give --branch too", param_hint="--head")
    if branch is not None:
        if candidate is None or baseline is not None or self_test:
            problem = "takes --candidate and what it is judged by, and no --baseline or --self-test"
            raise typer.BadParameter(problem, param_hint="--branch")
        series = _samples(samples, baseline_benchmark or [], candidate_benchmark or [], interleaved)
        fit = {} if must_fit is None else _fit_asked(must_fit, max_slowdown_percent, tier_bytes, time_limit)
        found, of = _on_branch(candidate, branch, head, commit, policy, series, server, fit)
        return _emit(found, of, "", link, as_json, output, junit, markdown, bencher, charts)
    both = _both(baseline, candidate, server, must_fit is not None)
    series = _samples(samples, baseline_benchmark or [], candidate_benchmark or [], interleaved)
    alone = sides.alone(candidate, server) if both is None and candidate is not None else None
    if both is None and series is None and (alone is None or self_test):
        problem = "nothing to judge: give --baseline and --candidate, or --samples, or both"
        raise typer.BadParameter(problem, param_hint="--baseline")
    limit = None if must_fit is None else _limit(must_fit)
    if self_test:
        found = _self_test(both, series, policy)
    else:
        judged = None if both is None and series is None else _judged(both, series, policy)
        if limit is not None:
            required = (limit, max_slowdown_percent, tier_bytes, time_limit)
            judged = _fitted(judged, both.pair if both else None, alone, *required)
            if both is not None and both.others:
                only = f"must fit was asked of rank {both.pair[1].run.rank} alone"
                judged = replace(judged, notes=(*judged.notes, only))
        assert judged is not None
        found = judged
    one = both.pair[1] if both else alone
    model = one.run.model if one else ""
    of = {"commit": commit, "at": datetime.now(UTC).isoformat(timespec="seconds")} if commit else {}
    return _emit(found, of, model, link, as_json, output, junit, markdown, bencher, charts)


def _check_outputs(written: list[Path | None], read: list[Path]) -> None:
    """That each can be written, is written once, and is none of what is read."""
    seen = {path.resolve() for path in read if path.exists()}
    for path in written:
        check_output(path)
        if path is None or path in STANDARD_OUTPUT or path == Path(os.devnull):
            continue
        if path.resolve() in seen:
            problem = f"{path} is read, or written, by this check already: name another file"
            raise typer.BadParameter(problem, param_hint="-o")
        seen.add(path.resolve())


def _emit(
    found: Check,
    of: dict[str, str],
    model: str,
    link: str,
    as_json: bool,
    output: Path | None,
    junit: Path | None,
    markdown: Path | None,
    bencher: Path | None,
    charts: dict[Better, Path | None],
) -> int:
    """Writes what was asked for, prints the verdict, and returns its exit code. `of`: commit, branch and time."""
    document = msgspec.json.encode(found.document() | of)
    written: list[tuple[Path | None, bytes]] = [(output, document)]
    written.append((junit, formats.junit(found, datetime.now(UTC), platform.node()).encode()))
    written.append((markdown, formats.markdown(found, link).encode()))
    written.append((bencher, msgspec.json.encode(formats.bencher(found, model))))
    for better, where in charts.items():
        entries = formats.action(found, better)
        if entries:
            written.append((where, msgspec.json.encode(entries)))
        elif where is not None:
            say(f"{where}: not written, nothing was measured of which {better} is better")
    if charts["lower"] is not None and charts["higher"] is None:
        larger = [one.name for one in found.metrics if one.better == "higher"]
        if larger:
            say(f"not in {charts['lower']}: {', '.join(larger)} (more is better: give --action-benchmark-bigger too)")
    for where, data in written:
        if where is not None:
            write_bytes(data, where)
    answer(document.replace(b"##", b"#\\u0023").decode() if as_json else _told(found))
    return EXIT[found.verdict]


def _on_branch(
    candidate: str,
    branch: str,
    head: str | None,
    commit: str,
    policy: Policy,
    series: Samples | None,
    server: str | None,
    fit: dict[str, Any],
) -> tuple[Check, dict[str, str]]:
    """The server's verdict, which it keeps, and what it is of. `fit`: of the policy, what is to be solved."""
    from hyperopt.client import ServiceError

    asked: dict[str, Any] = {"tolerance_percent": policy.tolerance_percent, "level": policy.sensitivity.level}
    if policy.memory_only:
        asked["memory_only"] = True
    if policy.memory is not None:
        asked |= {"memory_bytes": policy.memory.bytes, "memory_percent": policy.memory.percent}
    asked |= fit
    with answers(server) as service:
        told = None if series is None else msgspec.to_builtins(series)
        try:
            kept = service.check(candidate, branch=branch, head=head, commit=commit, policy=asked, samples=told)
        except ServiceError as refused:
            if not refused.type.endswith("no-baseline"):  # a new branch, or a new version of the framework
                raise
            return nothing_to_compare(str(refused)), {}
    say(f"{kept['id']}: {candidate} against {kept['baseline']}, which {branch} is compared with")
    of = {"check": kept["id"], "branch": branch, "commit": commit, "at": kept["created_at"]}
    return msgspec.convert(kept["result"], Check), of


def _fit_asked(must_fit: str, slowdown: float, tier_bytes: list[str] | None, time_limit: float) -> dict[str, Any]:
    """The limit as a server's policy says it."""
    tiers = {}
    for text in tier_bytes or ():
        name, _, size = text.partition("=")
        if not size.isdecimal():
            raise typer.BadParameter(f"{text!r} is not NAME=BYTES", param_hint="--tier-bytes")
        tiers[name] = int(size)
    limit: dict[str, Any] = {"must_fit_bytes": _limit(must_fit), "max_slowdown_percent": slowdown}
    return limit | {"tiers": tiers, "time_limit_s": time_limit}


def _both(baseline: str | None, candidate: str | None, server: str | None, alone: bool) -> Sides | None:
    """Both, or none; `alone`: a candidate by itself is enough."""
    if baseline is None and (candidate is None or alone):
        return None
    if baseline is None or candidate is None:
        missing = "--baseline" if baseline is None else "--candidate"
        raise typer.BadParameter("a profile is compared with another: give both", param_hint=missing)
    return sides.both(baseline, candidate, server)


def _judged(both: Sides | None, series: Samples | None, policy: Policy) -> Check:
    if both is not None:
        found = judge(*both.pair, policy, series, both.others)
        return replace(found, notes=(*found.notes, *both.notes))
    if policy.memory_only:
        raise typer.BadParameter("samples have no memory: give --baseline and --candidate", param_hint="--memory-only")
    assert series is not None
    return check_samples(series, policy)


def _limit(text: str) -> int:
    if not (size := re.fullmatch(r"(\d+)([KMGT]?)(?:iB|B)?", text)):
        raise typer.BadParameter(f"{text!r} is no size in bytes (4096, 60G)", param_hint="--must-fit")
    return int(size[1]) * UNITS[size[2]]


def _fitted(
    judged: Check | None,
    both: tuple[Profile, Profile] | None,
    alone: Profile | None,
    hbm_bytes: int,
    max_slowdown_percent: float,
    tier_bytes: list[str] | None,
    time_limit: float,
) -> Check:
    """The check with the candidate's fit, and the baseline's told beside it."""
    from hyperopt.gate.fit import Requirement
    from solver import NotPlannable
    from solver.fit import fit

    candidate = both[1] if both else alone
    if candidate is None:
        raise typer.BadParameter("it is the --candidate that must fit: give one", param_hint="--must-fit")
    required = Requirement(hbm_bytes, max_slowdown_percent, tier_budgets(candidate, tier_bytes))
    try:
        found = fit(candidate, required, time_limit)
        before = fit(both[0], required, time_limit) if both else None
    except NotPlannable as refused:
        raise DocumentError("$.storages", str(refused), MEMORY_TOO) from refused
    return with_fit(judged, found, before)


def _self_test(both: Sides | None, series: Samples | None, policy: Policy) -> Check:
    """The check of what was given with a regression put in; inconclusive if any judge does not see it, or could not see
    one in what was given."""
    from hyperopt.gate import selftest

    blind = selftest.blind(_judged(both, series, policy))
    if both is not None:
        both = Sides((both.pair[0], selftest.grown(both.pair[0], policy.memory)))
    if series is not None:
        series = selftest.slowed(series, policy.tolerance_percent)
    found = _judged(both, series, policy)
    missed = blind + selftest.missed(found)
    for reason in missed:
        say(f"self-test: a regression was put in and not found: {reason}")
    if missed or found.verdict != "regression":
        return replace(found, verdict="inconclusive", reasons=tuple(missed) or found.reasons)
    say("self-test: a regression was put in, and found")
    return found


def interleave(
    baseline: Annotated[str, typer.Option(metavar="COMMAND", help="runs the baseline once")],
    candidate: Annotated[str, typer.Option(metavar="COMMAND", help="runs the candidate once")],
    output: Annotated[Path, typer.Option("-o", "--output", help="where to write hyperopt.samples/1")],
    pairs: Annotated[
        int | None,
        typer.Option(min=1, max=2000, help="runs of each that count; unless given, what --noise-percent needs"),
    ] = None,
    noise_percent: Annotated[float, typer.Option(min=0, help="from run to run, as a guess for --pairs")] = 1.0,
    tolerance_percent: Annotated[
        float, typer.Option(min=0, help="of the check to come, for --pairs")
    ] = DEFAULT_TOLERANCE_PERCENT,
    warmup_runs: Annotated[int, typer.Option(min=0, max=100, help="runs of each that do not count")] = 1,
    warmup_steps: Annotated[int, typer.Option(min=0, help="of each run, values that do not count")] = 0,
    timeout: Annotated[float | None, typer.Option(min=0, help="seconds for a run")] = None,
) -> int:
    """Run baseline and candidate in turns, A B B A, and keep what each prints as its last line (JSON), or its seconds.

    Exit 0: measured; 64: a command failed.
    """
    from hyperopt.gate.interleave import interleave as measure

    check_output(output)
    count = pairs or _needed(noise_percent, tolerance_percent)
    found = measure(
        _words(baseline, "--baseline"),
        _words(candidate, "--candidate"),
        count,
        warmup_runs=warmup_runs,
        warmup_steps=warmup_steps,
        timeout_s=timeout,
        say=say,
    )
    write(found, output)
    answer(plain(f"{output}: {count} pairs of {', '.join(metric.name for metric in found.metrics)}"))
    return 0


def _words(command: str, option: str) -> list[str]:
    try:
        found = shlex.split(command)
    except ValueError as error:
        problem = f"{command!r} is no command: {str(error).lower()}"
        raise typer.BadParameter(problem, param_hint=option) from error
    if not found:
        raise typer.BadParameter("an empty command", param_hint=option)
    return found


def _needed(noise_percent: float, tolerance_percent: float) -> int:
    """Pairs that find the tolerance + 3 % with that noise from run to run."""
    from hyperopt.gate.power import pairs_needed

    asked = Sensitivity()
    beyond = math.log1p(DEFAULT_BEYOND_PERCENT / (100 + tolerance_percent))
    found = pairs_needed(math.sqrt(2) * noise_percent / 100, beyond, asked.level, asked.power)
    if found is None:
        problem = f"{noise_percent:g} % needs more pairs than can be asked for: measure longer runs"
        raise typer.BadParameter(problem, param_hint="--noise-percent")
    return found


def _samples(given: Path | None, before: list[Path], after: list[Path], interleaved: bool) -> Samples | None:
    if given is not None and (before or after):
        raise typer.BadParameter("samples come from one place: --samples or benchmark files", param_hint="--samples")
    if given is not None:
        found, warnings = measured.load(given.read_bytes())
    elif before or after:
        from hyperopt.gate import pytest_benchmark

        old, new = ([(path.name, path.read_bytes()) for path in side] for side in (before, after))
        if not old or not new:
            problem = "benchmark files of both sides are needed"
            raise typer.BadParameter(problem, param_hint="--baseline-benchmark")
        found, warnings = pytest_benchmark.read(old, new, "interleaved" if interleaved else "separate")
    else:
        return None
    for warning in warnings:
        say(warning)
    return found


def threshold(text: str) -> Threshold:
    """``4096``, ``64M`` or ``1.5%``."""
    if percent := re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text):
        return Threshold(percent=float(percent[1]))
    if size := re.fullmatch(r"(\d+)([KMGT]?)(?:iB|B)?", text):
        return Threshold(bytes=int(size[1]) * UNITS[size[2]])
    raise typer.BadParameter(
        f"{text!r} is neither bytes (4096, 64M) nor percent (1.5%)", param_hint="--memory-threshold"
    )


def _told(found: Check) -> str:
    lines = [f"{found.verdict}: {found.reasons[0]}", *(f"  {reason}" for reason in found.reasons[1:])]
    for group in found.memory.groups[:10] if found.memory.difference_bytes else ():
        of = f"{group.kind} of {group.layer}" if group.layer else group.kind
        lines.append(f"  {group.difference_bytes:+15d} bytes  {of}")
        lines += [
            f"    {held.bytes:13d} bytes  {held.name} (only at the {held.at}'s peak)" for held in group.storages[:3]
        ]
    lines += [f"  note: {note}" for note in found.notes]
    return "\n".join(map(plain, lines))
