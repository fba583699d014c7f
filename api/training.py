"""What a job that trains cost models does: of each device of a project a model of all that was measured.

Each device is trained in a child process; what comes of all of them is stored at the end, in one transaction with the
job's result. The same data have one model: a device whose data a model has learned from is not trained again.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from hyperopt import names
from hyperopt.cost.feedback import Copy, MeasuredPlan, medians, plans_off
from hyperopt.cost.lesson import Learned, When
from hyperopt.cost.residual import importances
from hyperopt.cost.training import TooFew
from hyperopt.cost.work import Table
from hyperopt.documents import canonical
from hyperopt.store import Database, jobs, models
from hyperopt.store.measurements import StoredMeasurement
from hyperopt.store.profiles import get_document

KIND = "train-cost-models"

Json = dict[str, Any]


class Train(Protocol):
    """As `hyperopt.cost.child.train_in_child`."""

    def __call__(
        self,
        device: str,
        documents: Iterable[tuple[bytes, When]],
        copies: Sequence[Copy],
        current: bytes | None,
        *,
        operators: Path | None,
        memory_limit_bytes: int | None,
        cancelled: Callable[[], bool],
        progress: Callable[[Json], None],
    ) -> Learned: ...


@dataclass(frozen=True)
class Trained:
    """What came of one device: a model to store, or what else there is to say (`told`)."""

    data: models.DeviceData
    told: Json
    digest: str = ""
    learned: Learned | None = None
    measurements: Sequence[StoredMeasurement] = ()
    superseded: Sequence[str] = ()
    before: models.StoredModel | None = None
    etag: str = ""


class Trainer:
    """`train`: in a process of its own; `operators`: a table of types of one's own."""

    def __init__(self, database: Database, train: Train, operators: Path | None, memory_limit_bytes: int) -> None:
        self.database, self.train, self.memory_limit_bytes = database, train, memory_limit_bytes
        self.operators = operators

    def devices(
        self, request: Json, cancelled: Callable[[], bool], progress: Callable[[Json], None]
    ) -> Iterator[Trained]:
        """Of each device that the request is for, as soon as it is done. Raises `child.TrainingFailed`."""
        project, only = request["project"], request["device"]
        table = Table.load(self.operators).digest
        with self.database.read() as session:
            found = models.training_data(session, project)
        for data in found:
            if only in (None, data.device, data.name):
                yield self._one(project, data, models.digest_of(data, table), cancelled, progress)

    def _one(
        self,
        project: str,
        data: models.DeviceData,
        digest: str,
        cancelled: Callable[[], bool],
        progress: Callable[[Json], None],
    ) -> Trained:
        with self.database.read() as session:
            known = models.get_model(session, models.model_id(project, data.device, digest))
            before = models.model_in_use(session, project, data.device)
            etag = models.etag_in_use(session, project, data.device)
            stored = None if before is None else models.get_model_document(session, before.id)
            measured = models.measurements_of(session, data)
            profiles = models.oldest_first(session, data.profiles)
        if known is not None:
            told = {"status": "unchanged", "model": known.id, "state": known.state}
            return Trained(data, told | {"why": "nothing was measured since"})
        try:
            learned = self.train(
                data.device,
                self._documents(profiles, before),
                [copy for one in measured for copy in medians(Copy(*copy) for copy in one.copies)],
                None if stored is None else stored.data,
                operators=self.operators,
                memory_limit_bytes=self.memory_limit_bytes,
                cancelled=cancelled,
                progress=progress,
            )
        except TooFew as reason:
            return Trained(data, {"status": "too few", "why": str(reason)})
        superseded = tuple(sorted(profiles[place] for place in learned.superseded))
        return Trained(data, {}, digest, learned, measured, superseded, before, etag)

    def _documents(self, profiles: Sequence[str], before: models.StoredModel | None) -> Iterator[tuple[bytes, When]]:
        """One at a time: together they may be more than fits."""
        known, superseded = (set(before.profiles), set(before.superseded)) if before else (set(), set())
        for id in profiles:
            with self.database.read() as session:
                document = get_document(session, id)
            assert document is not None, "profiles are not deleted"
            yield document.data, "superseded" if id in superseded else "known" if id in known else "new"

    def finish(self, job: jobs.JobRecord, done: Sequence[Trained], outcome: jobs.Outcome, reason: str) -> None:
        """Stores what came of the devices and the job's result, in one transaction. A model that is better is put into
        use, unless somebody has changed what is in use meanwhile."""
        project = job.request["project"]
        with self.database.write() as session:
            told = []
            for one in done:
                if one.learned is None:
                    told.append({"device": one.data.device, **one.told})
                    continue
                model = models.put_model(session, project, one.data, job=job.id, **_columns(one, one.learned))
                why = one.learned.why
                if one.learned.promoted and model.state != "in use":  # it is, where two workers have trained the same
                    try:
                        used = models.use_model(session, model.id, who=f"training {job.id}", why=why, expected=one.etag)
                        model = used or model
                    except models.UseChanged as changed:
                        why += f"; not put into use: {changed}"
                told.append(
                    {"device": model.device, "status": "trained", "model": model.id, "state": model.state, "why": why}
                )
            result: Json = {"status": "trained", "models": told}
            jobs.finish_job(session, job.id, outcome, result | ({"reason": reason} if reason else {}))


def _columns(trained: Trained, learned: Learned) -> Json:
    """What `models.put_model` keeps of a model beside its data."""
    plans = [
        MeasuredPlan(m.program, m.predicted_step_us, m.step_us, m.predicted_peak_bytes, m.peak_bytes)
        for m in trained.measurements
    ]
    before = trained.before
    return {
        "data_digest": trained.digest,
        "superseded": list(trained.superseded),
        "document": gzip.compress(canonical(learned.model), mtime=0),
        "signatures": learned.model.signatures,
        "groups": learned.groups,
        "scores": msgspec.to_builtins(learned.model.scores),
        "importances": {name: list(map(list, importances(group))) for name, group in learned.model.learned.items()},
        "plans": msgspec.to_builtins(plans_off(plans)),
        "drift": None if learned.drift is None else asdict(learned.drift),
        "compared_with": None if before is None else before.id,
        "why": learned.why,
        "software": names.our_version(),
    }
