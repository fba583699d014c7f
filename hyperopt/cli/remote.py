"""Commands that speak to a server: upload, show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyperopt.cli.files import BAD_INPUT, AsJson, say
from hyperopt.cli.read import as_documents

if TYPE_CHECKING:
    from hyperopt.client import Client

UNAVAILABLE = 69
"""No answer from the server, or a fault of its own: trying again later may help."""

MIB = 2**20
ServerUrl = Annotated[str | None, typer.Option("--server", help="URL of the server [HYPEROPT_SERVER_URL]")]


def register(app: typer.Typer) -> None:
    app.command("upload")(upload)
    app.command("show")(show)


def upload(
    profiles: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="profiles, one file a rank, or what `hyperopt read` understands"),
    ],
    project: Annotated[str, typer.Option(help="project to store them in")] = "default",
    wait: Annotated[float, typer.Option(min=0, help="seconds to wait for a server that is just starting")] = 15.0,
    server: ServerUrl = None,
    as_json: AsJson = False,
) -> int:
    """Store profiles on a server; folders and archives of other profilers are read here first. Exit 64 if one is
    refused (the ones before it are stored)."""
    summaries: list[dict[str, Any]] = []
    with answers(server) as client:
        if wait and not client.await_server(0):
            say(f"no answer from {client.url} yet: waiting up to {wait:g} s")
            client.await_server(wait)
        for path in profiles:
            with as_documents(path) as documents:
                for name, file in documents:
                    summary = client.upload(file, project)
                    for warning in summary["warnings"]:
                        say(f"{Path(name).name}: {warning}")
                    if summary["run"] not in {one["run"] for one in summaries}:
                        _advise(client, summary)
                    summaries.append(summary)
                    if not as_json:
                        print(f"{name}: {_profile_line(summary)}")
    if as_json:
        print(json.dumps(summaries))
    return 0


def show(
    id: Annotated[str, typer.Argument(metavar="ID", help="profile-..., plan-... or job-...")],
    question: Annotated[
        str | None, typer.Option("--ask", help="of a profile: peak, idle or accesses")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="rows of an answer")] = 20,
    wait: Annotated[bool, typer.Option("--wait", help="for a job to finish, with its progress")] = False,
    server: ServerUrl = None,
    as_json: AsJson = False,
) -> int:
    """Show a profile, a plan or a job of a server."""
    kind = id.partition("-")[0]
    if kind not in ("profile", "plan", "job"):
        raise typer.BadParameter(f"{id!r} is not the id of a profile, a plan or a job", param_hint="ID")
    if question is not None and (kind != "profile" or question not in ("peak", "idle", "accesses")):
        raise typer.BadParameter("ask a profile for peak, idle or accesses", param_hint="--ask")
    with answers(server) as client:
        if kind == "plan":
            import msgspec

            plan = client.fetch_plan(id)
            if as_json:
                print(msgspec.json.encode(plan).decode())
            else:
                measured = [f"  {measured_line(one)}" for one in client.measurements(id)]
                print("\n".join([_plan_lines(msgspec.to_builtins(plan)), *measured]))
            return 0
        if kind == "job":
            found = client.wait(id, on_progress=None if as_json else _report) if wait else client.job(id)
            print(json.dumps(found) if as_json else _job_lines(found))
            return 0
        if question is None:
            found = client.profile(id)
            print(json.dumps(found) if as_json else _profile_lines(found))
            return 0
        answer = _ask(client, id, question, limit)
        print(json.dumps(answer) if as_json else _answer_lines(question, answer, limit))
    return 0


def _advise(client: Client, summary: dict[str, Any]) -> None:
    """Says it where a run's first rank lies outside the cost model in use: ranks are alike, and predicting takes time.
    Advice alone: no model, or an older server, is nothing to speak of."""
    from hyperopt.cli.cost_models import drift_line
    from hyperopt.client import ServiceError

    if not summary["is_measured"]:
        return
    try:
        found = client.drift(summary["id"])
    except ServiceError:
        return
    if found["drifted"]:
        say(f"{summary['id']}: {drift_line(found)}; train anew: hyperopt cost train --project {summary['project']}")


def _ask(client: Client, id: str, question: str, limit: int) -> Any:
    if question == "peak":
        return client.peak(id, limit)
    return client.idle(id, limit) if question == "idle" else client.accesses(id)


def _profile_line(summary: dict[str, Any]) -> str:
    size = f"{summary['operators']} operators, {summary['storages']} storages"
    if summary["timing_only"]:
        return f"{summary['id']}, {size} (timing only: it cannot be planned)"
    return f"{summary['id']}, {size}, peak {summary['peak_bytes'] / MIB:.2f} MiB (replayed)"


def _profile_lines(summary: dict[str, Any]) -> str:
    lines = [
        _profile_line(summary),
        f"  project {summary['project']}, run {summary['run_name'] or '(no name)'}, "
        f"model {summary['model'] or '-'}, rank {summary['rank']} of {summary['world_size']}, "
        f"from {summary['source'] or '-'}",
    ]
    if summary["step_us"] is not None:
        lines.append(f"  step {summary['step_us'] / 1000:.3f} ms (replayed)")
    measured = summary["measured"]
    if measured is not None:
        step, peak = measured["step_us"] / 1000, measured["peak_bytes"] / MIB
        lines.append(f"  measured: step {step:.3f} ms, peak {peak:.2f} MiB")
    lines += [f"  note: {note}" for note in summary["notes"]]
    lines += [f"  warning: {warning}" for warning in summary["warnings"]]
    return "\n".join(lines)


def _plan_lines(plan: dict[str, Any]) -> str:
    residency = plan["residency"]
    lines = [
        f"{plan['plan_id']}: {len(residency['actions'])} actions, {len(residency['initial'])} storages start "
        f"outside HBM, {len(residency['recompute'])} recomputes"
    ]
    if (predicted := plan["predicted"]) is not None:
        before, after = predicted["baseline_peak_bytes"] / MIB, predicted["peak_bytes"] / MIB
        lines.append(f"  peak {before:.2f} -> {after:.2f} MiB (simulated)")
        before, after = predicted["baseline_step_us"] / 1000, predicted["step_us"] / 1000
        stall = predicted["stall_us"] / 1000
        lines.append(f"  step {before:.3f} -> {after:.3f} ms, of which stall {stall:.3f} ms (simulated)")
    if (bound := plan["bound"]) is not None:
        lines.append(
            f"  {bound['status']}: at most {100 * bound['gap']:.2f} % above the bound; {bound['stop_reason']}"
        )
    return "\n".join(lines)


def measured_line(found: dict[str, Any]) -> str:
    """What a training that followed a plan took, beside what the plan predicted."""
    step = f"step {found['step_us'] / 1000:.3f} ms measured, {found['predicted_step_us'] / 1000:.3f} ms predicted"
    off = "" if found["step_off"] is None else f" ({found['step_off'] - 1:+.1%})"
    peak = "" if found["peak_off"] is None else f"; peak {found['peak_off'] - 1:+.1%} off the predicted one"
    return f"{step}{off}{peak}; {found['copies']} copies kept"


def _job_lines(job: dict[str, Any]) -> str:
    lines = [
        f"{job['id']}: {job['state']}" + (f" (attempt {job['attempts']})" if job["attempts"] > 1 else "")
    ]
    result = job["result"]
    if result is None and job["progress"] is not None:
        lines.append("  " + _told(job["progress"]))
    elif result is not None and result["status"] == "planned":
        lines.append(f"  plan: hyperopt show {result['plan_id']}")
    elif result is not None and result["status"] == "trained":
        lines += [
            f"  {one['device']}: {one['status']}, {one.get('model', 'no model')}: {one['why']}"
            for one in result["models"]
        ]
    elif result is not None and result["status"] == "infeasible":
        numbers = result["infeasible"]
        reachable = numbers["reachable_bytes"]
        lines.append(
            f"  infeasible: no plan exists below {numbers['lower_bound_bytes']} bytes (proven); smallest budget with "
            f"a plan in hand: {'unknown' if reachable is None else f'{reachable} bytes'}; "
            f"set by operator {operator_told(numbers['operator'])}"
        )
    elif result is not None:
        lines.append(f"  {result['reason']}")
    return "\n".join(lines)


def operator_told(operator: dict[str, Any]) -> str:
    told = f"{operator.get('index')} ({operator.get('name') or 'without a name'})"
    size = operator.get("working_set_bytes")
    return told if size is None else f"{told}, which works on {size} bytes"


def _answer_lines(question: str, answer: Any, limit: int) -> str:
    if question == "peak":
        head = (
            f"peak {_mib(answer['peak_bytes'])} MiB at operator {answer['peak_op']} ({answer['operator']}): "
            f"{answer['alive_count']} storages {_mib(answer['alive_bytes'])}, "
            f"workspace {_mib(answer['workspace_bytes'])}, base {_mib(answer['base_bytes'])}"
        )
        rows = [[_mib(s["bytes"]), s["kind"], s["layer"] or "-", _name(s)] for s in answer["storages"]]
        return "\n".join([head, *_columns(["MiB", "kind", "layer", "storage"], rows)])
    if question == "idle":
        rows = [
            [
                _mib(s["bytes"]),
                f"{s['idle_us'] / 1000:.3f}",
                f"{s['byte_seconds'] / MIB:.3f}",
                s["kind"],
                _name(s),
            ]
            for s in answer
        ]
        return "\n".join(_columns(["MiB", "idle ms", "MiB x s", "kind", "storage"], rows))
    rows = [
        [
            _mib(g["bytes"]),
            str(g["reads"]),
            str(g["writes"]),
            "-" if g["frequency"] is None else f"{100 * g['frequency']:.1f} %",
            g["kind"],
            g["layer"] or "-",
        ]
        for g in answer[:limit]
    ]
    return "\n".join(_columns(["MiB", "reads", "writes", "of steps", "kind", "layer"], rows))


def _mib(size: int) -> str:
    return f"{size / MIB:.2f}"


def _name(storage: dict[str, Any]) -> str:
    return str(storage["name"] or storage["storage"])


def _columns(head: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in [head, *rows]
    ]


def _report(report: dict[str, Any]) -> None:
    say(_told(report))


def _told(report: dict[str, Any]) -> str:
    if "step_us" not in report:
        return str(report.get("stage", "at work"))
    step, bound = report["step_us"] / 1000, report["bound_us"] / 1000
    return f"{report['stage']}: step {step:.3f} ms, bound {bound:.3f} ms"


@contextmanager
def answers(server: str | None) -> Iterator[Client]:
    """A client whose problems, and the settings', become one line and an exit code."""
    from hyperopt.client import Client, ServiceError
    from hyperopt.settings import SettingError

    try:
        with Client(server) as client:
            yield client
    except SettingError as error:
        say(str(error))
        raise typer.Exit(BAD_INPUT) from error
    except ServiceError as error:
        say(str(error))
        raise typer.Exit(BAD_INPUT if 400 <= error.status < 500 else UNAVAILABLE) from error
