"""pytest-benchmark's JSON (`--benchmark-json`) as samples: a file is a run, each of its benchmarks a metric.

Files hold every round's seconds under `stats.data` where they were asked for, else the median is the run's one value.
Format: pytest-benchmark 4 and 5, as written by `--benchmark-json` (its documentation, "Usage").
"""

from __future__ import annotations

from collections.abc import Sequence

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


class _File(msgspec.Struct, frozen=True):
    benchmarks: tuple[_Benchmark, ...]


def read(
    baseline: Sequence[tuple[str, bytes]], candidate: Sequence[tuple[str, bytes]], design: Design
) -> tuple[Samples, list[str]]:
    """Samples from (name, bytes) of each side's files, in the order they were run, and what was left out.

    Raises `DocumentError`.
    """
    before, after = ([_runs(*file) for file in side] for side in (baseline, candidate))
    files = [*before, *after]
    known = dict.fromkeys(name for file in files for name in file)
    common = [name for name in known if all(name in file for file in files)]
    warnings = [f"benchmark {name} is not in every file: left out" for name in known if name not in common]
    if not common:
        raise DocumentError("$.benchmarks", "no benchmark is in every file", "run the same benchmarks on both sides")
    metrics = tuple(
        Metric(name=name, unit="s", baseline=tuple(f[name] for f in before), candidate=tuple(f[name] for f in after))
        for name in common
    )
    # pytest-benchmark has warmed up by itself before it counts.
    samples = Samples(design=design, warmup_steps=0, metrics=metrics)
    check(samples)
    return samples, warnings


def _runs(name: str, data: bytes) -> dict[str, Steps]:
    try:
        found = msgspec.json.decode(decompress(data, MOST_BYTES), type=_File)
    except msgspec.DecodeError as error:
        remedy = "give a file that pytest wrote with --benchmark-json"
        raise DocumentError(name, f"not pytest-benchmark's JSON: {error}", remedy) from error
    runs: dict[str, Steps] = {}
    for benchmark in found.benchmarks:
        values = benchmark.stats.data or (() if benchmark.stats.median is None else (benchmark.stats.median,))
        if values:
            runs[benchmark.fullname or benchmark.name] = values
    return runs
