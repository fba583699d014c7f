"""One list of events, written as Ascend's profilers write it: as text and as sqlite.

    run = random_run(seed)
    write_text(run, folder / "text_ascend_pt", Text(level=2))
    write_db(run, folder / "db_ascend_pt")

A `Run` is the truth, in ns and bytes. What the forms say of it differs in units, in digits, and in what they leave out.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.profiler.read.ascend import ascend_db_fixture, ascend_text_fixture
from tests.profiler.read.ascend.ascend_db_fixture import Database
from tests.profiler.read.ascend.ascend_run import Block, Kernel, Run, random_run
from tests.profiler.read.ascend.ascend_text_fixture import Text

__all__ = ["Block", "Database", "Kernel", "Run", "Text", "random_run", "write_db", "write_text"]

OUTPUT = "ASCEND_PROFILER_OUTPUT"


def write_text(run: Run, folder: Path, text: Text | None = None) -> Path:
    """A profiler's folder of the run; the name of `folder` should end with the tool's ``_ascend_pt``/``_ascend_ms``."""
    ascend_text_fixture.write(run, _output(run, folder), text or Text())
    return folder


def write_db(run: Run, folder: Path, database: Database | None = None) -> Path:
    """The same run as sqlite."""
    kind = "mindspore" if folder.name.endswith("_ascend_ms") else "pytorch"
    path = _output(run, folder) / f"ascend_{kind}_profiler_{run.rank}.db"
    ascend_db_fixture.write(run, path, database or Database())
    return folder


def _output(run: Run, folder: Path) -> Path:
    """The folder for the tables, with the file that names the rank beside it."""
    output = folder / OUTPUT
    output.mkdir(parents=True)
    version = "ms_version" if folder.name.endswith("_ascend_ms") else "torch_npu_version"
    info = {"config": {}, version: "2.7.1", "cann_version": "8.3.RC1", "rank_id": str(run.rank)}
    (folder / f"profiler_info_{run.rank}.json").write_text(json.dumps(info))
    return output
