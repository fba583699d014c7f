"""What Ascend's profiler folders say beside their tables, whether those are text or sqlite: rank, versions, steps.

::

    rank_0_ascend_pt/
        profiler_info_0.json         rank, versions            (the rank is here: a device's number is not the rank)
        profiler_metadata.json       groups, world size
        ASCEND_PROFILER_OUTPUT/      the tables
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from hyperopt.profile import Profile
from profiler.read.labels import label
from profiler.read.timeline.events import Origin, Step

OUTPUT = "ASCEND_PROFILER_OUTPUT"
MAX_JSON = 16 << 20
"""Bytes of a JSON file beside the tables."""

StepTimes = dict[int | None, dict[str, float]]
"""Step (None: not said) -> computing, communication that nothing hides, and free time, in us."""


def json_of(path: Path) -> dict[str, Any]:
    """A small JSON object; empty where there is none that reads."""
    try:
        if path.stat().st_size > MAX_JSON:
            return {}
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def infos(folder: Path) -> list[Path]:
    """The files that name the rank."""
    try:
        return sorted(p for p in folder.iterdir() if re.fullmatch(r"profiler_info(_\d+)?\.json", p.name))
    except OSError:
        return []


def rank_of(folder: Path, otherwise: int | None = None) -> int | None:
    """The rank by its file, else `otherwise`, else by the folder's name, else None."""
    return _rank_and_place(folder, otherwise)[0]


def unsaid_rank(folder: Path, number: int | None) -> str | None:
    """A warning, where there is a file for the rank and it does not say one: `number` was taken (None: the next free
    one is)."""
    found, place = _rank_and_place(folder, None)
    files = infos(folder)
    if place == "rank_id" or not files:
        return None
    said = json_of(files[0]).get("rank_id")
    what = "no rank_id that reads" if said is None else f"rank_id {label(str(said))[:40]!r}, which is no rank"
    where = f", from {place}" if found is not None and found == number else ""
    taken = "the next free number is taken" if number is None else f"{number} is taken{where}"
    return f"{files[0].name} has {what}: the rank is not known from it, {taken}"


def _rank_and_place(folder: Path, otherwise: int | None) -> tuple[int | None, str]:
    """The rank, and what says so ("" where none does)."""
    for info in infos(folder):
        said = str(json_of(info).get("rank_id", ""))
        if _is_rank(said):
            return int(said), "rank_id"
        if _is_rank(number := next(iter(re.findall(r"\d+", info.name)), "")):
            return int(number), "the file's name"
    if otherwise is not None:
        return otherwise, ""
    named = re.search(r"rank_?(\d{1,9})(?!\d)", folder.name)
    return (int(named[1]), "the folder's name") if named else (None, "")


def origin_of(
    folder: Path,
    rank: int | None,
    *,
    mindspore: bool,
    device: str = "Ascend NPU",
    arguments: Mapping[str, Any] | None = None,
) -> Origin:
    """Framework, versions and place in the run. `mindspore`: the tables say so; the folder may, too. `arguments`:
    how the run is distributed (`distributed_args`), where the tables know; else the folder's metadata do."""
    info = next((json_of(path) for path in infos(folder)), {})
    if not arguments:
        said = json_of(folder / "profiler_metadata.json").get("distributed_args", {})
        arguments = said if isinstance(said, dict) else {}
    number, world = rank or 0, arguments.get("world_size")
    mindspore = mindspore or folder.name.endswith("_ascend_ms") or "ms_version" in info
    notes = []
    if stages := arguments.get("pipeline_model_parallel_size"):
        notes.append(f"pipeline stages: {stages}")
    if cann := info.get("cann_version"):
        notes.append(f"CANN {cann}")
    return Origin(
        framework="mindspore" if mindspore else "torch_npu",
        framework_version=str(info.get("ms_version" if mindspore else "torch_npu_version") or ""),
        source="ascend",
        device=device,
        rank=number,
        world_size=max(world if isinstance(world, int) and 0 < world < 2**31 else 1, number + 1),
        notes=tuple(notes),
    )


def stage_of(folder: Path, rank: int | None) -> int | None:
    """The pipeline stage: the rank's place in its group named "pp"; None where no group says it."""
    return stage_in(json_of(folder / "profiler_metadata.json").get("parallel_group_info"), rank)


def stage_in(groups: object, rank: int | None) -> int | None:
    """As `stage_of`, of the groups as profilers list them: name -> {group_name, global_ranks}."""
    for group in groups.values() if isinstance(groups, dict) else ():
        if isinstance(group, dict) and group.get("group_name") == "pp":
            members = group.get("global_ranks")
            if isinstance(members, list) and len(members) > 1 and rank in members:
                return members.index(rank)
    return None


def steps_of(kernels: pl.DataFrame, times: Mapping[int | None, Mapping[str, float]]) -> tuple[Step, ...]:
    """The steps that kernels (columns `KERNELS`) are marked with; their length is the profiler's where it says, else
    that of the span. Kernels without any mark are one step."""
    if not kernels.height:
        return ()
    ends = (pl.col("start") + pl.col("duration")).max().alias("end")
    spans = kernels.drop_nulls("step").group_by("step").agg(pl.col("start").min(), ends).sort("step")
    marked = spans.height > 0
    if not marked:
        whole = kernels.select(pl.col("start").min(), ends).row(0)
        spans = pl.DataFrame({"step": [0], "start": [whole[0]], "end": [whole[1]]})
    found = []
    for number, start, end in spans.iter_rows():
        said = (times.get(number) if marked else None) or (times.get(None) if spans.height == 1 else None)
        found.append(Step(int(number), start, end, sum(said.values()) if said else (end - start) / 1e3))
    return tuple(found)


def computing_us(profile: Profile, kernels: pl.DataFrame, times: StepTimes) -> float | None:
    """Computing time of the profile's own step, as the step trace says it; None where it has no row of that step.
    Kernels (columns `KERNELS`) without any mark are of the step that the trace does not number."""
    numbered = kernels["step"].null_count() < kernels.height
    said = times.get(profile.run.step) if numbered else None
    said = said or (times.get(None) if len(times) == 1 else None)
    return said["computing"] if said else None


def _is_rank(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
