"""A server in a process of its own, to be killed: `python -m tests.api.crash_server DATA_DIR`.

Each solve and each training takes as long as the file `slow` exists in the data folder; what solves and trains is that
of conftest.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from hyperopt.cost.child import TrainingFailed
from hyperopt.cost.feedback import Copy
from hyperopt.cost.lesson import Learned, When
from hyperopt.plan import Plan
from hyperopt.settings import Settings
from solver.request import Infeasible, Request
from tests.api.conftest import Cancelled, Report, fake_solve, serving, train_here


def main(folder: Path) -> None:
    def solve(
        profile_bytes: bytes,
        request: Request,
        *,
        memory_limit_bytes: int | None,
        cancelled: Cancelled,
        progress: Report,
    ) -> Plan | Infeasible:
        while (folder / "slow").exists() and not cancelled():
            time.sleep(0.01)
        return fake_solve(
            profile_bytes,
            request,
            memory_limit_bytes=memory_limit_bytes,
            cancelled=cancelled,
            progress=progress,
        )

    def train(
        device: str,
        documents: Iterable[tuple[bytes, When]],
        copies: Sequence[Copy],
        current: bytes | None,
        *,
        operators: Path | None,
        memory_limit_bytes: int | None,
        cancelled: Cancelled,
        progress: Report,
    ) -> Learned:
        while (folder / "slow").exists():
            if cancelled():
                raise TrainingFailed("cancelled")
            time.sleep(0.01)
        return train_here(
            device,
            documents,
            copies,
            current,
            operators=operators,
            memory_limit_bytes=memory_limit_bytes,
            cancelled=cancelled,
            progress=progress,
        )

    with serving(Settings(data_dir=folder, worker_name="crash", worker_jobs=2), solve, train) as url:
        print(url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
