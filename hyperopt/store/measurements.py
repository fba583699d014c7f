"""What trainings that followed a plan measured, beside what the plan had predicted."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from hyperopt.plan import Plan
from hyperopt.profile import ns
from hyperopt.store.tables import Measurement, PlanRow, Program, Rank


@dataclass(frozen=True)
class StoredMeasurement:
    """Microseconds and bytes. `program`: digest of what the plan is of; `copies`: (bytes, microseconds) of each copy
    back; `step_off`, `peak_off`: how many times the predicted figure the measured one is."""

    id: str
    plan: str
    program: str
    steps: int
    step_us: float
    step_us_spread: float
    peak_bytes: int | None
    predicted_step_us: float
    predicted_peak_bytes: int
    copies: list[tuple[int, float]]
    created_at: datetime

    @property
    def step_off(self) -> float | None:
        return self.step_us / self.predicted_step_us if self.predicted_step_us else None

    @property
    def peak_off(self) -> float | None:
        if not self.predicted_peak_bytes or self.peak_bytes is None:
            return None
        return self.peak_bytes / self.predicted_peak_bytes


def put_measurement(
    session: Session,
    plan: Plan,
    *,
    steps: int,
    step_us: float,
    step_us_spread: float,
    peak_bytes: int | None,
    copies: Sequence[tuple[int, float]],
) -> tuple[StoredMeasurement, bool]:
    """Keeps what was measured of a stored plan that has predictions; and whether it is new. The same figures of the
    same plan are kept once."""
    assert plan.predicted is not None
    content = [plan.plan_id, steps, ns(step_us), ns(step_us_spread), peak_bytes, [list(copy) for copy in copies]]
    id = "measurement-" + hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:24]
    new = session.get(Measurement, id) is None
    if new:
        session.add(
            Measurement(
                id=id,
                plan_id=plan.plan_id,
                steps=steps,
                step_ns=ns(step_us),
                spread_ns=ns(step_us_spread),
                peak_bytes=peak_bytes,
                predicted_step_ns=ns(plan.predicted.step_us),
                predicted_peak_bytes=plan.predicted.peak_bytes,
                copies=[list(copy) for copy in copies],
            )
        )
        session.flush()
    (found,) = _measurements(session, _all().where(Measurement.id == id))
    return found, new


def of_plan(session: Session, plan: str) -> list[StoredMeasurement]:
    """Oldest first."""
    return _measurements(session, _all().where(Measurement.plan_id == plan))


def get_measurements(session: Session, ids: Sequence[str]) -> list[StoredMeasurement]:
    """Those with these ids, oldest first."""
    return _measurements(session, _all().where(Measurement.id.in_(ids)))


def _all() -> Select[Measurement, str]:
    return (
        select(Measurement, Program.digest)
        .join(PlanRow, PlanRow.id == Measurement.plan_id)
        .join(Rank, Rank.id == PlanRow.profile_id)
        .join(Program, Program.id == Rank.program_id)
        .order_by(Measurement.created_at, Measurement.id)
    )


def _measurements(session: Session, asked: Select[Measurement, str]) -> list[StoredMeasurement]:
    return [
        StoredMeasurement(
            id=row.id,
            plan=row.plan_id,
            program=program,
            steps=row.steps,
            step_us=row.step_ns / 1000,
            step_us_spread=row.spread_ns / 1000,
            peak_bytes=row.peak_bytes,
            predicted_step_us=row.predicted_step_ns / 1000,
            predicted_peak_bytes=row.predicted_peak_bytes,
            copies=[(int(size), float(us)) for size, us in row.copies],
            created_at=row.created_at,
        )
        for row, program in session.execute(asked)
    ]
