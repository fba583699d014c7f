"""pytest-benchmark's JSON (`--benchmark-json`) as samples: a file is a run, each of its benchmarks a metric.

Files of other machines (their kind, not their name), or of another Python, are never compared.

Files hold every round's seconds under `stats.data` where they were asked for, else the median is the run's one value.
Format: pytest-benchmark 4 and 5, as written by `--benchmark-json` (its documentation, "Usage").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from hyperopt.documents import DocumentError, decompress
from hyperopt.gate.samples import MOST_BYTES, Design, Metric, Samples, Steps, check


class _Stats(msgspec.Struct, frozen=True):
    median: float | None = None
    data: tuple[float, ...] = ()


class _Benchmark(msgspec.Struct, frozen=True):
    stats: _Stats
    name: str
    fullname: str = ""


def _kind(info: dict[str, Any]) -> dict[str, str]:
    """What identifies the kind of machine: not its name, its kernel or its clock of the moment, which differ between
    runners of one kind. Of `machine_info`, which a project may have changed; the CPU is as py-cpuinfo finds it (whose
    versions before 5 called the first `brand`)."""
    cpu = info.get("cpu")
    if not isinstance(cpu, dict):
        cpu = {"brand_raw": cpu}
    python = ".".join(str(info.get("python_version") or "").split(".")[:2])
    found = {
        "system": info.get("system"),
        "machine": info.get("machine"),
        "CPU": cpu.get("brand_raw") or cpu.get("brand") or cpu.get("arch"),
        "number of CPUs": cpu.get("count"),
        "Python": f"{info.get('python_implementation') or ''} {python}".strip(),
    }
    return {name: str(one or "") for name, one in found.items()}


class _File(msgspec.Struct, frozen=True):
    benchmarks: tuple[_Benchmark, ...]
    machine_info: dict[str, Any] = {}


def read(
    baseline: Sequence[tuple[str, bytes]], candidate: Sequence[tuple[str, bytes]], design: Design
) -> tuple[Samples, list[str]]:
    """Samples from (name, bytes) of each side's files, in the order they were run, and what was left out.

    Raises `DocumentError`.
    """
    old, new = ([_file(*file) for file in side] for side in (baseline, candidate))
    before, after = ([_runs(file) for file in side] for side in (old, new))
    files = [*before, *after]
    known = dict.fromkeys(name for file in files for name in file)
    common = [name for name in known if all(name in file for file in files)]
    lacking = tuple(name for name in known if name not in common and any(name in file for file in before))
    added = tuple(name for name in known if name not in common and name not in lacking)
    warnings = [f"benchmark {name} is not in every file: left out" for name in known if name not in common]
    if not common:
        raise DocumentError("$.benchmarks", "no benchmark is in every file", "run the same benchmarks on both sides")
    metrics = tuple(
        Metric(name=name, unit="s", baseline=tuple(f[name] for f in before), candidate=tuple(f[name] for f in after))
        for name in common
    )
    # pytest-benchmark has warmed up by itself before it counts.
    samples = Samples(
        design=design,
        warmup_steps=0,
        metrics=metrics,
        lacking=lacking,
        added=added,
        obstacles=tuple(_obstacles(old, new)),
    )
    check(samples)
    return samples, warnings


def _obstacles(before: Sequence[_File], after: Sequence[_File]) -> list[str]:
    """What differs between any two of the machines; what only some give may differ."""
    sides = [[_kind(file.machine_info) for file in side] for side in (before, after)]
    found = []
    for name in _kind({}):
        old, new = (sorted({kind[name] for kind in side}) for side in sides)
        if len({*old, *new}) > 1:
            told = [" and ".join(repr(one) if one else "none given" for one in side) for side in (old, new)]
            found.append(f"different {name}: baseline {told[0]}, candidate {told[1]}")
    return found


def _file(name: str, data: bytes) -> _File:
    try:
        return msgspec.json.decode(decompress(data, MOST_BYTES), type=_File)
    except msgspec.DecodeError as error:
        remedy = "give a file that pytest wrote with --benchmark-json"
        raise DocumentError(name, f"not pytest-benchmark's JSON: {error}", remedy) from error


def _runs(file: _File) -> dict[str, Steps]:
    runs: dict[str, Steps] = {}
    for benchmark in file.benchmarks:
        values = benchmark.stats.data or (() if benchmark.stats.median is None else (benchmark.stats.median,))
        if values:
            runs[benchmark.fullname or benchmark.name] = values
    return runs
