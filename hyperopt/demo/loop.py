"""The loop on the demo model: capture, upload, plan, fetch, apply, measure again, in both modes of MindSpore."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hyperopt import profile as profiles
from hyperopt.client import Client
from hyperopt.cost.feedback import copies_of
from hyperopt.demo.children import ChildFailed, run, serving
from hyperopt.demo.outcome import Outcome, claims
from hyperopt.documents import write
from hyperopt.plan import Plan
from hyperopt.profile import Profile
from hyperopt.replay import replay
from hyperopt.report import Case, Measurement, page

TIGHT, LOOSE, GRAPH = 0.53, 0.75, 0.70
"""Budgets as shares of the replayed peak: two in PyNative, one in graph mode."""

HOST = 1.5
"""Budget of host memory, as a multiple of what must leave: enough, and not enough to move everything there is."""

STEPS = 5
"""Of training, without and with a plan; the second budget gets the fewest that can be measured, to save time."""

FEWEST_STEPS = 3
SOLVE_S = 8.0

Say = Callable[[str], None]


class DemoFailed(RuntimeError):
    """The loop could not be completed; the message says where."""


def run_demo(folder: Path, sizes: dict[str, int], say: Say) -> Outcome:
    """Runs the loop and leaves profiles, plans, execution logs and the report in `folder`.

    `sizes` as in ``profiler.demo.model.Config``. Raises `DemoFailed`; a claim that does not hold is in the outcome.
    """
    started = time.monotonic()
    loop = _Loop(folder, sizes, say)
    try:
        with serving(folder / "server", folder / "logs" / "serve.log") as server:
            eager = loop.captured("pynative")  # while the server starts
            say(f"server at {server.url}")
            with Client(server.url) as service:
                tight, loose = loop.planned(service, "pynative", eager, (TIGHT, LOOSE))
                (graph,) = loop.planned(service, "graph", loop.captured("graph"), (GRAPH,))
    except ChildFailed as failed:
        raise DemoFailed(str(failed)) from failed
    found = claims(tight, loose, graph)
    report = folder / "report.html"
    seconds = time.monotonic() - started
    version = tight.profile.run.framework_version
    lead = f"Decoder-only transformer in MindSpore {version} on {tight.profile.device.name}; run in {seconds:.0f} s"
    judged = [(claim.text, claim.holds) for claim in found]
    report.write_text(page("hyperopt: the loop on a real model", lead, (tight, loose, graph), judged))
    return Outcome((tight, loose, graph), found, str(report), seconds)


class _Loop:
    def __init__(self, folder: Path, sizes: dict[str, int], say: Say) -> None:
        self.folder, self.say = folder, say
        self.sizes = [part for name, size in sizes.items() for part in (f"--{name}", str(size))]
        (folder / "logs").mkdir(parents=True, exist_ok=True)

    def planned(
        self, service: Client, mode: str, captured: tuple[Profile, Measurement], shares: tuple[float, ...]
    ) -> list[Case]:
        """Uploads what was captured in `mode`, and plans, applies and measures it once for each budget."""
        profile, before = captured
        stored = service.upload(self._profile(mode), project="demo")
        self.say(f"{mode}: stored as {stored['id']}")
        peak = replay(profile).peak_bytes
        jobs = [self._asked(service, stored["id"], peak, share) for share in shares]
        cases = []
        for share, job in zip(shares, jobs, strict=True):
            plan = self._solved(service, job, mode, share)
            file = self.folder / f"{mode}-{share:.0%}.plan.json".replace("%", "")
            write(plan, file)
            steps = STEPS if share == shares[0] else FEWEST_STEPS
            after, execution = self._applied(mode, file, steps)
            service.measured(
                plan.plan_id,
                steps=steps,
                step_us=after.step_us,
                step_us_spread=after.step_us_spread,
                peak_bytes=after.peak_bytes,
                copies=copies_of(execution),
            )
            title = f"{mode}, budget {share:.0%} of the peak"
            cases.append(Case(title, profile, plan, before, after, execution))
        return cases

    def captured(self, mode: str) -> tuple[Profile, Measurement]:
        """The profile of the model in `mode`, and what training it measured without a plan."""
        with self._told(f"{mode}: train {STEPS} steps, then capture"):
            output = ["-o", str(self._profile(mode)), "--mode", mode, "--trial-steps", str(STEPS)]
            figures = run(["capture", *output, "--name", f"demo {mode}", *self.sizes], self._log(f"{mode}-capture"))
        profile, _ = profiles.load(self._profile(mode).read_bytes())
        return profile, _measurement(figures["trial"], figures["excluded_bytes"])

    def _asked(self, service: Client, profile: str, peak_bytes: int, share: float) -> str:
        hbm_bytes = int(peak_bytes * share)
        host_bytes = int((peak_bytes - hbm_bytes) * HOST)
        job = service.plan(profile, hbm_bytes=hbm_bytes, tiers={"host": host_bytes}, time_limit_s=SOLVE_S)
        return str(job["id"])

    def _solved(self, service: Client, job: str, mode: str, share: float) -> Plan:
        def progress(event: dict[str, Any]) -> None:
            if "step_us" in event:
                step, bound = event["step_us"] / 1000, event["bound_us"] / 1000
                self.say(f"  {event['stage']}: step {step:.1f} ms, bound {bound:.1f} ms (simulated)")

        with self._told(f"{mode}: plan for {share:.0%} of the peak"):
            done = service.wait(job, on_progress=progress, timeout_s=SOLVE_S + 60, poll_s=0.1)
        if done["state"] != "succeeded" or done["result"]["status"] != "planned":
            raise DemoFailed(f"no plan in {mode} for {share:.0%} of the peak: {json.dumps(done['result'])}")
        return service.fetch_plan(done["result"]["plan_id"])

    def _applied(self, mode: str, plan: Path, steps: int) -> tuple[Measurement, dict[str, Any]]:
        with self._told(f"{mode}: apply {plan.name}, train {steps} steps"):
            arguments = ["apply", str(self._profile(mode)), str(plan), "--steps", str(steps), *self.sizes]
            figures = run(arguments, self._log(plan.name.removesuffix(".plan.json") + "-apply"))
        execution: dict[str, Any] = json.loads(Path(figures["log"]).read_text())
        return _measurement(figures, figures["excluded_bytes"]), execution

    def _profile(self, mode: str) -> Path:
        return self.folder / f"{mode}.profile.json.gz"

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        self.say(f"{what} ...")
        started = time.monotonic()
        yield
        self.say(f"  done in {time.monotonic() - started:.1f} s")


def _measurement(figures: dict[str, Any], excluded_bytes: int) -> Measurement:
    return Measurement(
        peak_bytes=figures["peak_bytes"] + excluded_bytes,
        resident_peak_bytes=figures["resident_peak_bytes"],
        step_us=figures["step_us"],
        step_us_spread=figures["step_us_spread"],
        losses=tuple(figures["losses"]),
    )
