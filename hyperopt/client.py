"""A client of the service: upload, plan, wait, fetch. Needs httpx and msgspec, nothing of the server.

    with Client("http://127.0.0.1:8750") as service:
        profile = service.upload(Path("rank_0.json.gz"))
        job = service.wait(service.plan(profile["id"], hbm_bytes=48 * 2**30)["id"], on_progress=print)
        plan = service.fetch_plan(job["result"]["plan_id"])

Whatever goes wrong, one `ServiceError` says what, where and what to do about it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from hyperopt import plan as plans
from hyperopt.documents import write_bytes
from hyperopt.node import Node
from hyperopt.plan import Plan
from hyperopt.settings import from_environment

Json = dict[str, Any]

FINAL = frozenset({"succeeded", "failed", "cancelled"})
CHUNK = 1 << 20
COPIES = 10_000
"""Of one measurement, as many as a server takes: they are copies of a few storages, over and over."""


class ServiceError(Exception):
    """What the service, or the way to it, answered with.

    `status` is the HTTP status, 0 where there was no answer; `type`, `title`, `detail`, `field` and `remedy`
    are those of the problem document (docs/reference/http.md).
    """

    def __init__(
        self, status: int, detail: str, *, type: str = "", title: str = "", field: str = "", remedy: str = ""
    ) -> None:
        self.status, self.detail, self.type, self.title = status, detail, type, title
        self.field, self.remedy = field, remedy
        super().__init__(": ".join(part for part in (field, detail) if part) + (f" ({remedy})" if remedy else ""))


class Client:
    """A connection to one server. `plan_cache`: a folder in which fetched plans survive the process.

    `url`: None for the setting HYPEROPT_SERVER_URL. `timeout_s`: of one request without any sign of life.
    """

    def __init__(self, url: str | None = None, *, timeout_s: float = 60.0, plan_cache: Path | None = None) -> None:
        self.url = url or from_environment().server_url
        self._http = httpx.Client(base_url=self.url, timeout=timeout_s)
        self._cached: dict[str, tuple[str, bytes]] = {}
        self._folder = plan_cache

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def await_server(self, seconds: float) -> bool:
        """Waits that long for a server that takes no connections yet; whether it takes them."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self._http.get("/v1/healthz")
                return True
            except httpx.ConnectError:
                if time.monotonic() >= deadline:
                    return False
            except httpx.TransportError:
                return True  # another fault: waiting does not help
            time.sleep(min(0.3, seconds))

    def upload(self, source: Path | bytes, project: str = "default") -> Json:
        """Uploads a profile document (plain, gzip, zstd), a file as a stream; returns its summary."""
        body = _chunks(source) if isinstance(source, Path) else source
        headers = {"Content-Type": "application/octet-stream"}
        return self._json("POST", "/v1/profiles", params={"project": project}, content=body, headers=headers)

    def upload_archive(self, source: Path, project: str = "default") -> Json:
        """Uploads an archive of another profiler's folder, or one of its files, as a stream; the server reads it.

        Returns {manifest, stored}: docs/reference/readers/index.md.
        """
        params = {"project": project, "name": source.name.lstrip(".") or "upload"}
        headers = {"Content-Type": "application/octet-stream"}
        return self._json("POST", "/v1/archives", params=params, content=_chunks(source), headers=headers)

    def profiles(self, project: str | None = None, limit: int = 50) -> list[Json]:
        """Summaries of stored profiles, newest first."""
        params = {"limit": limit} | ({} if project is None else {"project": project})
        found: list[Json] = self._json("GET", "/v1/profiles", params=params)["profiles"]
        return found

    def profile(self, id: str) -> Json:
        """The summary of a stored profile."""
        return self._json("GET", f"/v1/profiles/{id}")

    def document(self, id: str) -> bytes:
        """The profile's document, byte by byte as it was uploaded."""
        return self._request("GET", f"/v1/profiles/{id}/document").content

    def peak(self, id: str, limit: int = 50) -> Json:
        """Which storages are alive at the peak, largest first."""
        return self._json("GET", f"/v1/profiles/{id}/peak", params={"limit": limit})

    def idle(self, id: str, limit: int = 50) -> list[Json]:
        """Which storages lie idle longest, by bytes x time."""
        found: list[Json] = self._json("GET", f"/v1/profiles/{id}/idle", params={"limit": limit})["storages"]
        return found

    def accesses(self, id: str) -> list[Json]:
        """How often storages are touched, by kind and layer."""
        found: list[Json] = self._json("GET", f"/v1/profiles/{id}/accesses")["groups"]
        return found

    def validate(self, profile_id: str, plan: Plan) -> list[Json]:
        """Every violation of `plan` against a stored profile."""
        body = msgspec.json.encode(plan)
        found: list[Json] = self._json("POST", f"/v1/profiles/{profile_id}/validate", content=body)["violations"]
        return found

    def plan(
        self,
        profile_id: str,
        *,
        hbm_bytes: int | None = None,
        tiers: dict[str, int] | None = None,
        objective: str = "min_step_time",
        time_limit_s: float | None = 60.0,
        work_limit: int | None = None,
        seed: int = 0,
        max_slowdown: float | None = None,
        points: int = 8,
        node: Node | None = None,
    ) -> Json:
        """Asks for a plan and returns the job. Budgets in bytes; None: what the profile's device has.

        `max_slowdown`: for `min_peak`, as a fraction of the unlimited step. `points`: for `pareto`.
        `node`: the plan is for a rank as it is there.
        """
        asked = {
            "profile": profile_id,
            "budget": {"hbm_bytes": hbm_bytes, "tiers": tiers or {}},
            "objective": objective,
            "time_limit_s": time_limit_s,
            "work_limit": work_limit,
            "seed": seed,
            "max_slowdown": max_slowdown,
            "points": points,
            "node": None if node is None else msgspec.to_builtins(node),
        }
        return self._json("POST", "/v1/plans", json=asked)

    def job(self, id: str) -> Json:
        return self._json("GET", f"/v1/jobs/{id}")

    def events(self, id: str, after: int = 0) -> Json:
        """{state, last, events}: reports of progress with a number above `after`."""
        return self._json("GET", f"/v1/jobs/{id}/events", params={"after": after})

    def cancel(self, id: str) -> Json:
        """Asks the job to stop; it keeps the best plan so far."""
        return self._json("DELETE", f"/v1/jobs/{id}")

    def wait(
        self,
        job_id: str,
        *,
        on_progress: Callable[[Json], None] | None = None,
        timeout_s: float | None = None,
        poll_s: float = 0.3,
        patience_s: float = 60.0,
    ) -> Json:
        """Waits until the job is finished, and returns it. `on_progress` gets each report once.

        A server that is away for less than `patience_s` (restarted, say) is waited for: its jobs survive.
        Raises `ServiceError` (status 0) after `timeout_s`; the job goes on.
        """
        last, answered = 0, time.monotonic()
        deadline = None if timeout_s is None else answered + timeout_s
        while True:
            try:
                news = self.events(job_id, last)
                answered = time.monotonic()
            except ServiceError as error:
                if error.status != 0 or time.monotonic() - answered > patience_s:
                    raise
                news = {"state": "", "last": last, "events": []}
            last = news["last"]
            for event in news["events"]:
                if on_progress is not None:
                    on_progress(event["data"])
            if news["state"] in FINAL:
                return self.job(job_id)
            if deadline is not None and time.monotonic() > deadline:
                raise ServiceError(
                    0, f"{job_id} was not finished after {timeout_s:g} s", remedy="wait again: it goes on"
                )
            time.sleep(poll_s)

    def fetch_plan(self, id: str) -> Plan:
        """The plan; one fetched before is only asked about, and sent again when it has changed."""
        kept = self._cached.get(id) or self._read_cache(id)
        headers = {"If-None-Match": kept[0]} if kept else {}
        response = self._request("GET", f"/v1/plans/{id}", headers=headers)
        if response.status_code != 304 or kept is None:
            kept = (response.headers["etag"], response.content)
            self._write_cache(id, kept)
        self._cached[id] = kept
        return plans.load(kept[1])[0]

    def check(
        self,
        candidate: str,
        *,
        baseline: str | None = None,
        branch: str = "main",
        head: str | None = None,
        commit: str = "",
        policy: Json | None = None,
        samples: Json | None = None,
    ) -> Json:
        """Judges a stored profile against another, None: against what was accepted on the branch. `head`: what it is a
        commit of, None: the branch itself. `policy` and `samples` as in docs/reference/http.md.

        With `must_fit_bytes` in the policy plans are solved for: waits for that, and raises `ServiceError` (status 0)
        where it failed.
        """
        asked: Json = {"candidate": candidate, "baseline": baseline, "branch": branch, "commit": commit}
        asked |= {"head": head, "policy": policy or {}, "samples": samples}
        answer = self._request("POST", "/v1/checks", json=asked)
        if answer.status_code != 202:
            kept: Json = answer.json()
            return kept
        job = self.wait(answer.json()["id"])
        result = job["result"] or {}
        if "check" not in result:
            raise ServiceError(0, f"{job['id']} {job['state']}: {result.get('reason', 'no reason given')}")
        return self.fetch_check(result["check"])

    def checks(
        self,
        project: str | None = None,
        branch: str | None = None,
        model: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> list[Json]:
        """Stored checks, newest first; `before`: id of the last one of the page before."""
        asked = {"project": project, "branch": branch, "model": model, "limit": limit, "before": before}
        params = {name: value for name, value in asked.items() if value is not None}
        found: list[Json] = self._json("GET", "/v1/checks", params=params)["checks"]
        return found

    def history(
        self, branch: str = "main", model: str | None = None, project: str | None = None, limit: int = 200
    ) -> list[Json]:
        """Where the figures of a branch changed, each kind of run for itself: docs/reference/http.md."""
        asked = {"branch": branch, "model": model, "project": project, "limit": limit}
        params = {name: value for name, value in asked.items() if value is not None}
        found: list[Json] = self._json("GET", "/v1/history", params=params)["histories"]
        return found

    def fetch_check(self, id: str) -> Json:
        return self._json("GET", f"/v1/checks/{id}")

    def baselines(
        self, project: str | None = None, branch: str | None = None, stale_after_days: float = 30
    ) -> list[Json]:
        """What branches are compared with; `frozen` and `stale` say which should be looked at."""
        asked = (("project", project), ("branch", branch), ("stale_after_days", stale_after_days))
        params = {name: value for name, value in asked if value is not None}
        found: list[Json] = self._json("GET", "/v1/baselines", params=params)["baselines"]
        return found

    def accept(
        self,
        profile: str,
        *,
        who: str,
        why: str,
        branch: str = "main",
        etag: str | None = None,
        check: str | None = None,
        accept_regression: bool = False,
        accept_inconclusive: bool = False,
    ) -> Json:
        """Makes a stored profile the baseline of its kind. `etag`: of the one it replaces, None: there is none yet."""
        asked = {"profile": profile, "branch": branch, "who": who, "why": why, "check": check}
        headers = {"If-None-Match": "*"} if etag is None else {"If-Match": f'"{etag}"'}
        body = {**asked, "accept_regression": accept_regression, "accept_inconclusive": accept_inconclusive}
        return self._json("POST", "/v1/baselines", json=body, headers=headers)

    def freeze(self, baseline: str, frozen: bool, *, who: str, why: str, etag: str) -> Json:
        """Keeps a baseline from being replaced, or allows it again."""
        body, headers = {"frozen": frozen, "who": who, "why": why}, {"If-Match": f'"{etag}"'}
        return self._json("PATCH", f"/v1/baselines/{baseline}", json=body, headers=headers)

    def train(self, project: str = "default", device: str | None = None) -> Json:
        """Asks for cost models of all that the project has measured, of one device or of each; returns the job."""
        return self._json("POST", "/v1/cost-models", json={"project": project, "device": device})

    def cost_models(
        self, project: str | None = None, device: str | None = None, state: str | None = None
    ) -> list[Json]:
        """By project and device, the newest of each first. `state`: candidate, in use, retired."""
        asked = {"project": project, "device": device, "state": state}
        params = {name: value for name, value in asked.items() if value is not None}
        found: list[Json] = self._json("GET", "/v1/cost-models", params=params)["models"]
        return found

    def cost_model(self, id: str) -> Json:
        return self._json("GET", f"/v1/cost-models/{id}")

    def cost_model_document(self, id: str) -> bytes:
        """The model's `hyperopt.cost/1` document."""
        return self._request("GET", f"/v1/cost-models/{id}/document").content

    def use_cost_model(self, id: str, *, who: str, why: str, etag: str) -> Json:
        """Puts a model into use in place of the one before. `etag`: as the caller saw it on a model of the device."""
        headers = {"If-Match": f'"{etag}"'}
        return self._json("POST", f"/v1/cost-models/{id}/use", json={"who": who, "why": why}, headers=headers)

    def drift(self, profile: str, model: str | None = None) -> Json:
        """Whether what a stored profile measured lies in the intervals of a model, None: the one in use."""
        params = {} if model is None else {"model": model}
        return self._json("GET", f"/v1/profiles/{profile}/drift", params=params)

    def predict(self, profile: str, model: str | None = None, level: float = 0.9) -> Json:
        """Predicted durations of a stored profile's operators, in columns, with intervals."""
        params: Json = {"level": level} | ({} if model is None else {"model": model})
        return self._json("GET", f"/v1/profiles/{profile}/prediction", params=params)

    def measured(
        self,
        plan: str,
        *,
        steps: int,
        step_us: float,
        step_us_spread: float = 0.0,
        peak_bytes: int | None = None,
        copies: Sequence[tuple[int, float]] = (),
    ) -> Json:
        """Keeps what a training that followed a stored plan measured. `copies`: bytes and microseconds of each copy
        back from the host; the last `COPIES` are sent."""
        asked: Json = {"steps": steps, "step_us": step_us, "step_us_spread": step_us_spread, "peak_bytes": peak_bytes}
        asked["copies"] = [{"bytes": size, "us": us} for size, us in copies[-COPIES:]]
        return self._json("POST", f"/v1/plans/{plan}/measurements", json=asked)

    def measurements(self, plan: str) -> list[Json]:
        """What was measured of a plan beside what it predicted, oldest first."""
        found: list[Json] = self._json("GET", f"/v1/plans/{plan}/measurements")["measurements"]
        return found

    def _read_cache(self, id: str) -> tuple[str, bytes] | None:
        if self._folder is None or not (file := self._folder / f"{id}.plan").exists():
            return None
        tag, _, document = file.read_bytes().partition(b"\n")
        return tag.decode("ascii"), document

    def _write_cache(self, id: str, kept: tuple[str, bytes]) -> None:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_bytes(kept[0].encode("ascii") + b"\n" + kept[1], self._folder / f"{id}.plan")

    def _json(self, method: str, path: str, **request: Any) -> Json:
        found: Json = self._request(method, path, **request).json()
        return found

    def _request(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **request)
        except httpx.TransportError as error:
            detail = f"no answer from {self.url}: {error}"
            remedy = "start `hyperopt serve`, or set HYPEROPT_SERVER_URL"
            raise ServiceError(0, detail, remedy=remedy) from error
        if response.status_code >= 400:
            raise _problem(response)
        return response


def _problem(response: httpx.Response) -> ServiceError:
    try:
        told = response.json()
    except ValueError:
        told = None
    if not isinstance(told, dict) or "detail" not in told:  # not ours: a proxy in between, say
        detail = f"{response.status_code} {response.reason_phrase} from {response.request.url}"
        return ServiceError(response.status_code, detail)
    parts = {name: str(told.get(name) or "") for name in ("type", "title", "field", "remedy")}
    return ServiceError(response.status_code, str(told["detail"]), **parts)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk
