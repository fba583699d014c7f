"""pytest-benchmark's JSON (`--benchmark-json`) as samples: a file is a run, each of its benchmarks a metric.

Files of other machines (their kind, not their name), or of another Python, are never compared.

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


class _Cpu(msgspec.Struct, frozen=True):
    """As py-cpuinfo finds it; versions before 5 called it `brand`."""

    arch: str = ""
    brand_raw: str = ""
    brand: str = ""
    count: int = 0


class _Machine(msgspec.Struct, frozen=True):
    system: str = ""
    machine: str = ""
    python_implementation: str = ""
    python_version: str = ""
    cpu: _Cpu = _Cpu()

    def kind(self) -> dict[str, str]:
        """What identifies the kind of machine: not its name, its kernel or its clock of the moment, which differ
        between runners of one kind."""
        return {
            "system": self.system,
            "machine": self.machine,
            "CPU": self.cpu.brand_raw or self.cpu.brand or self.cpu.arch,
            "number of CPUs": str(self.cpu.count or ""),
            "Python": f"{self.python_implementation} {'.'.join(self.python_version.split('.')[:2])}".strip(),
        }


class _File(msgspec.Struct, frozen=True):
    benchmarks: tuple[_Benchmark, ...]
    machine_info: _Machine = _Machine()


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
    sides = [[file.machine_info.kind() for file in side] for side in (before, after)]
    found = []
    for name in _Machine().kind():
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
