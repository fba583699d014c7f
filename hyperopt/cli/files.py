"""Commands on files alone, without a server: plan, replay, validate, baseline."""

from __future__ import annotations

import errno
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import msgspec
import typer

from hyperopt import node as nodes
from hyperopt import plan as plans
from hyperopt import profile as profiles
from hyperopt.cli import sizes
from hyperopt.documents import DocumentError, canonical, write
from hyperopt.legality import IllegalPlan, OutOfMemory, Violation
from hyperopt.node import Node
from hyperopt.plan import HOST, Budget, Plan, check_against
from hyperopt.profile import Profile

if TYPE_CHECKING:
    from hyperopt.cost.model import CostModel

INFEASIBLE = 3
VIOLATIONS = 1
BAD_INPUT = 64
MEMORY_TOO = "capture with memory profiling on"

ProfilePath = Annotated[Path, typer.Argument(metavar="PROFILE", help="hyperopt.profile/1, plain, .gz or .zst")]
PlanPath = Annotated[Path, typer.Argument(metavar="PLAN", help="hyperopt.plan/1, plain, .gz or .zst")]
# What documents may say (hyperopt.profile.Bytes): a plan with more could not be read again.
MOST_BYTES = 2**53
MOST_SEED = 2**31 - 1
MOST_RELIEFS = 3
RIVAL_NAMES = "keep-all, longest-gap, offload-all, recompute-all, capuchin, two-level, knapsack or checkmate"
HbmBytes = Annotated[int, typer.Option("--hbm-bytes", min=0, max=MOST_BYTES, help="budget of fast memory, in bytes")]
OtherBudget = Annotated[
    int | None, typer.Option("--hbm-bytes", min=0, max=MOST_BYTES, help="instead of the plan's budget")
]
TierBytes = Annotated[
    list[str] | None, typer.Option("--tier-bytes", metavar="NAME=N", help="budget of a tier; may be repeated")
]
NodePath = Annotated[
    Path | None,
    typer.Option("--node", metavar="NODE", help="hyperopt.node/1: host memory and links that ranks share"),
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="where to write the plan; .gz and .zst compress")]
AsJson = Annotated[bool, typer.Option("--json", help="answer in JSON on standard output")]


def register(app: typer.Typer) -> None:
    app.command("plan")(plan)
    app.command("replay")(replay)
    app.command("validate")(validate)
    app.command("baseline")(baseline)


def plan(
    profile: ProfilePath,
    hbm_bytes: HbmBytes,
    tier_bytes: TierBytes = None,
    objective: Annotated[str, typer.Option(help="min_step_time, min_peak or pareto")] = "min_step_time",
    time_limit: Annotated[float | None, typer.Option(min=0, help="seconds; 60 unless a work limit is given")] = None,
    work_limit: Annotated[
        int | None, typer.Option(min=1, help="replays and search steps; makes the plan reproducible")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="of the search")] = 0,
    max_slowdown: Annotated[
        float | None, typer.Option(min=0, help="for min_peak: over the unlimited step, 0.05 for 5 %")
    ] = None,
    node: NodePath = None,
    model: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="a cost model, with --quantile: how far durations may be off")
    ] = None,
    quantile: Annotated[
        float | None,
        typer.Option(help="0.95 for the plan whose step is shortest in the 95th of 100 steps that may turn out"),
    ] = None,
    operators: Annotated[
        Path | None, typer.Option("--operators", metavar="FILE", help="more operator types, with --model")
    ] = None,
    output: Output = None,
    as_json: AsJson = False,
) -> int:
    """Make a plan for a profile. Exit 0: a plan; 3: infeasible, with the numbers in JSON; 130: Ctrl-C, with the best
    plan so far if there is one."""
    from hyperopt.cli.interrupt import INTERRUPTED, interruptible

    with interruptible() as interrupt:  # from here on: one that comes while the profile is read ends the search too
        from hyperopt.cli.robust import robustly
        from solver import NotPlannable, Request, solve

        check_output(output)
        document = read_profile(profile)
        budget = Budget(hbm_bytes=hbm_bytes, tiers=tier_budgets(document, tier_bytes))
        if time_limit is None and work_limit is None:
            time_limit = 60.0
        if max_slowdown is not None and objective != "min_peak":
            raise typer.BadParameter("is for --objective min_peak", param_hint="--max-slowdown")
        request = Request(
            budget,
            _objective(objective),
            time_limit_s=time_limit,
            work_limit=work_limit,
            seed=seed,
            max_slowdown=max_slowdown,
            node=read_node(node, document, budget),
        )
        if (model is None) != (quantile is None):
            raise typer.BadParameter("--model and --quantile go together", param_hint="--quantile")
        try:
            if model is None or quantile is None:
                answer = solve(document, request, cancelled=interrupt)
            else:
                answer = robustly(document, request, model, quantile, operators, interrupt, say)
        except NotPlannable as refused:
            raise DocumentError("$.storages", str(refused), MEMORY_TOO) from refused
    if not isinstance(answer, Plan):
        print(msgspec.json.encode(answer).decode())
        reachable = "unknown" if answer.reachable_bytes is None else f"{answer.reachable_bytes}"
        lower = answer.lower_bound_bytes
        proven = (
            f"at least {lower} are needed (proven)" if lower > hbm_bytes else f"none found; proven only below {lower}"
        )
        say(f"no plan fits {hbm_bytes} bytes: {proven}; smallest budget with a plan in hand: {reachable}")
        for relief in answer.reliefs[:MOST_RELIEFS]:
            low = relief["lower_bound_bytes"]
            within = "within the budget" if relief["reaches_budget"] else "still too much"
            say(f"what would help: {relief['relief']}: at least {low} bytes then ({relief['basis']}), {within}")
        return INTERRUPTED if interrupt.asked and not answer.proven else INFEASIBLE
    emit_plan(answer, output, as_json)
    return INTERRUPTED if interrupt.asked else 0


def replay(
    profile: ProfilePath,
    plan: Annotated[Path | None, typer.Argument(metavar="[PLAN]", help="none: nothing planned")] = None,
    hbm_bytes: OtherBudget = None,
    node: NodePath = None,
    as_json: AsJson = False,
) -> int:
    """Step time and peak of a profile under a plan (simulated). Exit 3: out of memory; 64: the plan is illegal."""
    from hyperopt.replay import replay as run

    document, order = read_profile(profile), read_plan(plan) if plan else None
    if (shared := read_node(node, document, Budget())) is not None:
        document = shared.profile(document)
    try:
        timeline = run(document, order, hbm_bytes)
    except OutOfMemory as short:
        oom = {"op": short.op, "short_bytes": short.short_bytes, "tier": short.tier}
        return _not_run({"oom": oom}, str(short), as_json, INFEASIBLE)
    except IllegalPlan as illegal:
        from hyperopt.validate import validate as judge

        found = judge(document, order or plans.EMPTY, hbm_bytes) or [illegal.violation]
        line = f"the plan cannot run: {illegal}"
        if len(found) > 1:
            line += f", and {len(found) - 1} more (hyperopt validate lists all)"
        return _not_run({"violations": [_violation(v) for v in found]}, line, as_json, BAD_INPUT)
    figures = {
        "step_us": timeline.step_us,
        "peak_bytes": timeline.peak_bytes,
        "stall_us": timeline.stall_us,
        "tier_peak_bytes": timeline.tier_peak_bytes,
        "feasible": True,
    }
    _answer(
        figures,
        f"step {timeline.step_us / 1000:.3f} ms, stall {timeline.stall_us / 1000:.3f} ms, "
        f"peak {sizes.told(timeline.peak_bytes)} at operator {timeline.peak_op} (simulated)",
        as_json,
    )
    return 0


def validate(
    profile: ProfilePath,
    plan: PlanPath,
    hbm_bytes: OtherBudget = None,
    as_json: AsJson = False,
) -> int:
    """Name every violation of a plan. Exit 1 if there is any."""
    from hyperopt.validate import validate as judge

    document, order = read_profile(profile), read_plan(plan)
    if order.program_digest not in ("", document.program_digest):
        say("the plan was made for another program (program_digest differs)")
    if order.sharding is not None:
        check_against(order.sharding, document)
    found = judge(document, order, hbm_bytes)
    if as_json:
        print(msgspec.json.encode([_violation(v) for v in found]).decode())
    else:
        for v in found:
            print(f"{v.code}: {v.message}")
        print(f"{len(found)} violation{'s' if len(found) > 1 else ''}" if found else "valid")
    return VIOLATIONS if found else 0


def baseline(
    name: Annotated[str, typer.Argument(help=RIVAL_NAMES)],
    profile: ProfilePath,
    hbm_bytes: HbmBytes,
    tier_bytes: TierBytes = None,
    output: Output = None,
    as_json: AsJson = False,
) -> int:
    """The plan of a named published rule. Exit 3 if it runs out of memory, or gives up (checkmate)."""
    from solver.residency.rival import rival_plan
    from solver.residency.rivals.checkmate import DidNotSolve
    from solver.residency.rivals.registry import RIVALS

    check_output(output)
    document = read_profile(profile)
    if name not in RIVALS:
        raise typer.BadParameter(f"no baseline {name!r}; there are {', '.join(RIVALS)}", param_hint="NAME")
    if document.timing_only:
        raise DocumentError("$.storages", "the profile has times but no storages: it cannot be planned", MEMORY_TOO)
    budget = Budget(hbm_bytes=hbm_bytes, tiers=tier_budgets(document, tier_bytes))
    try:
        answer = rival_plan(document, name, budget)
    except OutOfMemory as short:
        oom = {"op": short.op, "short_bytes": short.short_bytes, "tier": short.tier}
        print(msgspec.json.encode({"baseline": name, "feasible": False, "oom": oom}).decode())
        say(f"{name}: {short}")
        return INFEASIBLE
    except DidNotSolve as gave_up:
        answer_none = {"baseline": name, "feasible": False, "oom": None, "reason": str(gave_up)}
        print(msgspec.json.encode(answer_none).decode())
        say(f"{name}: {gave_up}")
        return INFEASIBLE
    emit_plan(answer, output, as_json)
    return 0


# -- reading and answering ---------------------------------------------------------------------------------


# A summary printed there too would be written over the plan, or after it.
STANDARD_OUTPUT = (Path("/dev/stdout"), Path("/dev/fd/1"), Path("/proc/self/fd/1"))


def check_output(path: Path | None, option: str = "-o") -> None:
    """Before the work whose result goes there: that it can be written."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}: make it first", param_hint=option)
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder: name a file in it", param_hint=option)


def read_profile(path: Path) -> Profile:
    """A checked profile from a file; warnings go to standard error."""
    document, warnings = profiles.load(path.read_bytes())
    for warning in warnings:
        say(f"{path.name}: {warning}")
    return document


def read_model(path: Path) -> CostModel:
    """A checked cost model from a file; warnings go to standard error."""
    from hyperopt.cost.model import read

    model, warnings = read(path.read_bytes())
    for warning in warnings:
        say(f"{path.name}: {warning}")
    return model


def read_plan(path: Path) -> Plan:
    document, warnings = plans.load(path.read_bytes())
    for warning in warnings:
        say(f"{path.name}: {warning}")
    return document


def read_node(path: Path | None, profile: Profile, budget: Budget) -> Node | None:
    """A node from a file; refuses a host budget that is not safe there, and says what is cut to what is."""
    if path is None:
        return None
    node, warnings = nodes.load(path.read_bytes())
    for warning in warnings:
        say(f"{path.name}: {warning}")
    asked, given = budget.tiers.get(HOST), profile.device.tiers[HOST].bytes
    if asked is not None:
        node.check(asked, f"--tier-bytes {HOST}")
    elif given > node.largest_rank_bytes:
        say(f"{path.name}: the host budget is cut from {given} to {node.largest_rank_bytes} bytes a rank")
    return node


def tier_budgets(profile: Profile, given: list[str] | None) -> dict[str, int]:
    """`NAME=N` options as bytes per tier."""
    budgets = {}
    for text in given or ():
        name, _, size = text.partition("=")
        if not size.isdecimal() or int(size) > MOST_BYTES:
            raise typer.BadParameter(f"{text!r} is not NAME=BYTES, with at most 2^53 bytes", param_hint="--tier-bytes")
        if name not in profile.device.tiers:
            known = ", ".join(profile.device.tiers)
            raise typer.BadParameter(f"the profile has no tier {name!r}; it has {known}", param_hint="--tier-bytes")
        if name in budgets:
            raise typer.BadParameter(f"tier {name!r} is given twice: give it once", param_hint="--tier-bytes")
        budgets[name] = int(size)
    return budgets


def _objective(text: str) -> Any:
    try:
        return msgspec.convert(text, plans.Objective)
    except msgspec.ValidationError:
        known = "min_step_time, min_peak, pareto"
        raise typer.BadParameter(f"{text!r} is not one of {known}", param_hint="--objective") from None


def emit_plan(answer: Plan, output: Path | None, as_json: bool) -> None:
    """The plan to a file with a summary on standard output, or the plan itself on standard output."""
    if output is None or output in STANDARD_OUTPUT:
        print(canonical(answer).decode())
        return
    write(answer, output)
    assert answer.predicted is not None
    bound = answer.bound
    summary: dict[str, Any] = {"plan": str(output), "plan_id": answer.plan_id}
    summary |= {"predicted": answer.predicted, "bound": bound}
    before, after = answer.predicted.baseline_peak_bytes, answer.predicted.peak_bytes
    line = (
        f"{output}: peak {sizes.told(before, after)}, step "
        f"{answer.predicted.baseline_step_us / 1000:.3f} -> {answer.predicted.step_us / 1000:.3f} ms (simulated)"
    )
    if bound is not None:
        line += f"; at most {100 * bound.gap:.2f} % above the bound, {bound.status}"
    line += _peak_told(answer)
    _answer(summary, line, as_json)


def _peak_told(answer: Plan) -> str:
    """Of a plan for the least peak, what is proven of that."""
    told = answer.explain[0] if answer.objective == "min_peak" and answer.explain else {}
    if "least_hbm_bytes" not in told:
        return ""
    least, lower = told["least_hbm_bytes"], told["lower_bound_bytes"]
    slower = " so fast" if "max_slowdown" in told else ""
    if least <= lower:
        return f"; no plan{slower} needs less HBM (proven)"
    return f"; no plan{slower} needs less than {sizes.told(lower)} of HBM (proven), {sizes.told(least)} is in hand"


def _answer(figures: dict[str, Any], line: str, as_json: bool) -> None:
    print(msgspec.json.encode(figures).decode() if as_json else line)


def _not_run(why: dict[str, Any], line: str, as_json: bool, code: int) -> int:
    """The answer of `replay` where there are no figures: every key of the others is there all the same."""
    if as_json:
        figures = dict.fromkeys(("step_us", "peak_bytes", "stall_us", "tier_peak_bytes"))
        print(msgspec.json.encode({**figures, "feasible": False, **why}).decode())
    say(line)
    return code


def _violation(v: Violation) -> dict[str, Any]:
    return {"code": str(v.code), "op": v.op, "storage": v.storage, "message": v.message}


def say(line: str) -> None:
    """To standard error. Where that cannot be written nobody can be told, and the exit code has to do."""
    if sys.stderr is None:  # closed; `print` would take standard output
        return
    try:
        print(f"hyperopt: {plain(line)}", file=sys.stderr, flush=True)
    except OSError:
        mute(sys.stderr)


def mute(stream: TextIO | None) -> None:
    """What is left in a stream that cannot be written goes nowhere, or Python's end would find fault with it."""
    if stream is None:
        return
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """A line that is one, whatever names are in it: they come from outside, and what reads a pipeline's output obeys
    some lines (GitHub: `::error` and the like at the start, `##[` anywhere; Azure: `##vso[`)."""
    written = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text).replace("##", "#\\x23")
    return re.sub(r"^(\s*):(?=:)", r"\1\\x3a", written)


def answer(text: str) -> None:
    """To standard output. Who has closed the other end does not want it: what the command says by its exit code holds.
    Raises OSError where there is no standard output, or it cannot be written."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "standard output is closed")
    try:
        print(text, flush=True)
    except BrokenPipeError:
        mute(sys.stdout)
