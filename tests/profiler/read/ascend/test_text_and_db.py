"""Text and sqlite of one run are one profile: sizes to the byte, times to 1 us.

Fixtures are one list of events in both forms; the shared convolutional net is the same script run twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import msgspec
import pytest

from hyperopt.profile import IDLE, Operator, Profile
from profiler.read.findings import Findings
from profiler.read.ranks import Source
from tests.conftest import ABSENT, SHARED_DATA
from tests.profiler.read.ascend.ascend_fixture import Database, Text, random_run, write_db, write_text

CONVNET = SHARED_DATA / "ascend_convnet"

FORMS = {
    "level 2": Text(level=2),
    "level 1, CRLF": Text(level=1, crlf=True),
    "level 0": Text(level=0),
    "2023": Text(level=1, year=2023),
    "MindSpore": Text(level=2, mindspore=True),
}


def read(kind: str, folder: Path) -> tuple[Profile, Findings]:
    source = import_module(f"profiler.read.{kind}").SOURCE
    assert isinstance(source, Source)
    (files,) = source.find(folder)
    findings = Findings(folder)
    return source.read(files, findings), findings


def differences(one: object, other: object, place: str = "$") -> Iterator[str]:
    """Where two documents differ; times may by 1 us."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from differences(one.get(key), other.get(key), f"{place}.{key}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            yield f"{place}: {len(one)} and {len(other)} of them"
        for i, pair in enumerate(zip(one, other, strict=False)):
            yield from differences(*pair, f"{place}[{i}]")
    elif isinstance(one, float) and isinstance(other, float) and place.endswith("_us"):
        if abs(one - other) > 1:
            yield f"{place}: {one} and {other} us"
    elif one != other:
        yield f"{place}: {one!r} and {other!r}"


# No record of the graph engine beside MindSpore's own is known.
@pytest.mark.parametrize(
    ("form", "engine"),
    [(form, engine) for form in FORMS for engine in (False, True) if not (FORMS[form].mindspore and engine)],
)
@pytest.mark.parametrize("seed", range(3))
def test_text_and_sqlite_are_one_profile(tmp_path: Path, seed: int, form: str, engine: bool) -> None:
    text = FORMS[form]
    run = random_run(seed, engine=engine, steps=1 + seed % 2)
    end = "ascend_ms" if text.mindspore else "ascend_pt"
    # Text does not say when the host launched a kernel.
    database = Database(level=text.level, host_times=False, studio=seed == 1)
    by_text, told_text = read("ascend.text", write_text(run, tmp_path / f"text_{end}", text))
    by_db, told_db = read("ascend.database", write_db(run, tmp_path / f"db_{end}", database))
    one, other = msgspec.to_builtins(by_text), msgspec.to_builtins(by_db)
    other["device"]["name"] = one["device"]["name"]  # text does not say which model of device it was
    if text.level == 0:  # nor, at this level, the type of a collective
        for operator in other["operators"]:
            operator["type"] = operator["type"] if operator["type"] == IDLE else ""
    assert list(differences(one, other))[:5] == []
    assert told_text.dropped == told_db.dropped == []
    assert by_db.measured is not None and by_db.measured.peak_bytes == run.peak


def shared(form: str, rank: int) -> Profile:
    if not CONVNET.exists():
        pytest.skip(ABSENT)
    kind = "ascend.text" if form.startswith("text") else "ascend.database"
    return read(kind, CONVNET / form / f"rank{rank}_ascend_pt")[0]


def kernels(profile: Profile) -> list[Operator]:
    return [operator for operator in profile.operators if operator.type != IDLE]


def names(profile: Profile) -> list[str]:
    """Names of kernels; those of collectives contain the number of a group, which is new in each run."""
    return [re.sub(r"__\d+_", "__N_", operator.name) for operator in kernels(profile)]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_shared_net_is_the_same_as_text_and_as_sqlite(rank: int) -> None:
    text, db = shared("text_level2", rank), shared("db_level2", rank)
    assert names(text) == names(db) and len(names(db)) == 191
    for field in ("type", "stream", "shapes", "dtypes", "phase", "layer"):
        assert [getattr(o, field) for o in kernels(text)] == [getattr(o, field) for o in kernels(db)], field
    assert text.measured is not None and db.measured is not None
    assert text.measured.peak_bytes == db.measured.peak_bytes == 1322299392  # PTA+GE
    assert text.measured.reserved_bytes == db.measured.reserved_bytes
    assert text.device.base_bytes == db.device.base_bytes


@pytest.mark.parametrize("rank", [0, 1])
def test_level_zero_has_the_same_kernels(rank: int) -> None:
    assert names(shared("text_level0", rank)) == names(shared("db_level2", rank))
