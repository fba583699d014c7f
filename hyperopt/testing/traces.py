"""Made-up steps of published models, for tests and benchmarks: `generate(name, operators, seed)`.

Sizes and dependencies follow from published shapes (`shapes`), durations from arithmetic and traffic on a stated
device (`accelerator`): simulated, not measured. A trace of N operators is the named recipe with as many layers, up
to what the rank holds, and micro-batches (for inference: chunks or tokens) as come nearest to N. The device's HBM is
the unplanned peak and one part in sixteen, rounded up to GiB, so that the step as it is fits: budgets are given to
the solver. Host memory is eight times HBM unless the name is about tiers. The seed decides durations (3 % jitter),
lengths and the popularity of experts; the same name, N and seed give the same bytes.

::

    recipe ─▶ fit (layers, micro-batches) ─▶ tape ─▶ operators in order of start ─▶ Profile
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from hyperopt.occupancy import occupancy
from hyperopt.profile import Device, Links, Profile, Run, Tier, check
from hyperopt.replay import replay
from hyperopt.testing.accelerator import ASCEND_910C_DIE, GIB, Accelerator
from hyperopt.testing.blocks import Parallel
from hyperopt.testing.inference import Decode, Prefill
from hyperopt.testing.shapes import DEEPSEEK_V3, LLAMA3_8B, QWEN3_0_6B, QWEN3_30B_A3B, ModelShape
from hyperopt.testing.tape import Tape
from hyperopt.testing.training import Training

BASE_BYTES = 256 * 2**20
"""HBM that the framework itself is taken to hold."""

FEWEST, MOST = 300, 300_000
"""Operators that a trace may be asked for."""

FEWEST_LAYERS, FEW_LAYERS = 2, 6
"""Two layers of a mixed model are one of each kind."""


class Recipe(Protocol):
    """What `fit` and `generate` need of a training or inference recipe."""

    @property
    def shape(self) -> ModelShape: ...
    @property
    def layers(self) -> int: ...
    @property
    def micro_batches(self) -> int: ...
    def dense(self, layers: int) -> int: ...
    def build(self, accelerator: Accelerator, layers: int, micro_batches: int, seed: str) -> Tape: ...


@dataclass(frozen=True, slots=True)
class Trace:
    """A named recipe: `tiers` gives the tiers besides HBM from its size in bytes (None: a host of eight times it)."""

    name: str
    about: str
    recipe: Recipe
    accelerator: Accelerator = ASCEND_910C_DIE
    tiers: Callable[[int], tuple[Tier, ...]] | None = None
    fewest_micro_batches: int = 1


def _three_tiers(hbm: int) -> tuple[Tier, ...]:
    """Little host memory, a pool at half its speed, and much slow flash."""
    return (
        ASCEND_910C_DIE.host(hbm // 4),
        Tier(
            name="pool",
            bytes=hbm // 2,
            d2h_bytes_per_s=12 * 10**9,
            h2d_bytes_per_s=25 * 10**9,
            latency_us=20.0,
        ),
        Tier(
            name="flash",
            bytes=16 * hbm,
            d2h_bytes_per_s=3 * 10**9,
            h2d_bytes_per_s=6 * 10**9,
            latency_us=100.0,
            duplex=False,
        ),
    )


CONTENDED = replace(
    ASCEND_910C_DIE,
    name="Ascend 910C, one die, eight on one half-duplex link",
    d2h_bytes_per_s=8 * 10**9,
    h2d_bytes_per_s=8 * 10**9,
    duplex=False,
)

STAGES = 4

TRACES: dict[str, Trace] = {
    trace.name: trace
    for trace in (
        Trace(
            "llama3-8b",
            "dense training step, micro-batches added up, optimizer states shared by 8 ranks",
            Training(LLAMA3_8B, layers=32, parallel=Parallel(data=8)),
        ),
        Trace(
            "llama3-8b-unfused",
            "the same with one kernel per elementwise step, as eager frameworks launch them",
            Training(LLAMA3_8B, layers=32, micro_batches=1, parallel=Parallel(data=8), fused=False),
        ),
        Trace(
            "llama3-8b-tp8",
            "tensor and sequence parallel over 8: collectives, gathers that may be issued again, 32,768 tokens",
            Training(LLAMA3_8B, layers=32, tokens=32768, parallel=Parallel(tensor=8, data=4)),
        ),
        Trace(
            "llama3-8b-1f1b",
            "first of 4 pipeline stages under 1F1B: embedding, 4 micro-batches in flight, waiting time",
            Training(LLAMA3_8B, layers=8, micro_batches=8, parallel=Parallel(stages=STAGES, stage=0, data=8)),
            fewest_micro_batches=STAGES,
        ),
        Trace(
            "llama3-8b-1f1b-last",
            "last of 4 pipeline stages: head and loss, one micro-batch in flight",
            Training(LLAMA3_8B, layers=8, micro_batches=8, parallel=Parallel(stages=STAGES, stage=STAGES - 1, data=8)),
            fewest_micro_batches=STAGES,
        ),
        Trace(
            "llama3-8b-three-tiers",
            "little host memory, a remote pool and flash",
            Training(LLAMA3_8B, layers=32, parallel=Parallel(data=8)),
            tiers=_three_tiers,
        ),
        Trace(
            "llama3-8b-contended",
            "one slow link for both directions",
            Training(LLAMA3_8B, layers=32, parallel=Parallel(data=8)),
            accelerator=CONTENDED,
        ),
        Trace(
            "llama3-8b-optimizer-states",
            "no sharing of optimizer states: they are most of the memory",
            Training(LLAMA3_8B, layers=32, micro_batches=1),
        ),
        Trace(
            "llama3-8b-optimizer-pieces",
            "the same with the states of every large parameter in 8 pieces",
            Training(LLAMA3_8B, layers=32, micro_batches=1, pieces=8),
        ),
        Trace(
            "llama3-8b-skewed-lengths",
            "micro-batches of 2,048 to 8,192 tokens",
            Training(
                LLAMA3_8B, layers=32, tokens=8192, micro_batches=8, parallel=Parallel(data=8), skewed_lengths=True
            ),
        ),
        Trace(
            "qwen3-0.6b",
            "small model, tied and large vocabulary: fp32 logits beside the layers; states of the table in 4 pieces",
            Training(QWEN3_0_6B, layers=28, tokens=8192, loss_chunks=8, pieces=4, pieces_from=2**26),
        ),
        Trace(
            "qwen3-30b-a3b",
            "mixture of experts, 16 of 128 on this rank in one grouped weight",
            Training(QWEN3_30B_A3B, layers=48, parallel=Parallel(experts=8, data=4), loss_chunks=8),
        ),
        Trace(
            "qwen3-30b-a3b-skewed",
            "8 experts on this rank as separate weights, unequally popular, 2 of them without a token in the step",
            Training(
                QWEN3_30B_A3B, layers=48, micro_batches=2, parallel=Parallel(experts=16, data=4), loss_chunks=8, cold=2
            ),
        ),
        Trace(
            "deepseek-v3-mixed",
            "dense layers first, then experts, 4 of 256 on this rank, and one shared; latent attention",
            Training(DEEPSEEK_V3, layers=16, micro_batches=2, parallel=Parallel(experts=64, data=16), loss_chunks=8),
        ),
        Trace(
            "llama3-8b-prefill",
            "inference: chunks of 2,048 tokens, 8 a request; weights read once a chunk, a KV block per layer and chunk",
            Prefill(LLAMA3_8B, layers=32),
        ),
        Trace(
            "llama3-8b-decode",
            "inference: 64 requests, token by token; weights and KV cache of the same size",
            Decode(LLAMA3_8B, layers=32),
        ),
        Trace(
            "llama3-8b-decode-long",
            "inference: 4 groups of 4 requests with 32,768 tokens each; KV cache four times the weights",
            Decode(LLAMA3_8B, layers=32, batch=4, context=32768, groups=4, micro_batches=1),
        ),
        Trace(
            "qwen3-30b-a3b-decode",
            "inference: 16 experts on this rank, 6 of them read per layer and token, the popular ones more often",
            Decode(QWEN3_30B_A3B, layers=48, batch=32, context=4096, experts=16, active=6),
        ),
    )
}
"""All traces by name."""


def generate(name: str, operators: int, seed: int = 0) -> Profile:
    """A step of the named trace with `operators` operators, give or take 10 %.

    Raises `ValueError` for a name that is not in `TRACES`, and for a number of operators that cannot be met.
    """
    trace = TRACES.get(name)
    if trace is None:
        raise ValueError(f"no trace {name!r}; there are {', '.join(TRACES)}")
    layers, micro_batches = fit(trace, operators)
    tape = trace.recipe.build(trace.accelerator, layers, micro_batches, f"{name}/{operators}/{seed}")
    kernels, storages = tape.finish()
    shape = trace.recipe.shape
    run = Run(
        name=f"{name}-{operators}-{seed}",
        framework="none",
        model=shape.name,
        source="generator",
        measured=False,
        notes=(
            f"{trace.about}; {layers} layers, {micro_batches} micro-batches (chunks, tokens), seed {seed}",
            f"shape: {shape.source}",
            "durations: arithmetic and traffic on the stated device, with jitter; no kernel was measured",
        ),
    )
    device = Device(name=trace.accelerator.name, base_bytes=BASE_BYTES)
    bare = Profile(operators=kernels, storages=storages, run=run, device=device)
    profile = msgspec.structs.replace(bare, device=_device(trace, replay(bare).peak_bytes))
    check(profile)
    return profile


def _device(trace: Trace, peak: int) -> Device:
    """A device on which the step fits as it is."""
    hbm = -(-(peak + peak // 16) // GIB) * GIB
    host = trace.accelerator.host(8 * hbm)
    device = Device(name=trace.accelerator.name, hbm_bytes=hbm, base_bytes=BASE_BYTES)
    if trace.tiers is not None:
        tiers = trace.tiers(hbm)
        return msgspec.structs.replace(device, host_bytes=tiers[0].bytes, links=Links(tiers=tiers))
    links = Links(
        d2h_bytes_per_s=host.d2h_bytes_per_s,
        h2d_bytes_per_s=host.h2d_bytes_per_s,
        latency_us=host.latency_us,
        duplex=host.duplex,
    )
    return msgspec.structs.replace(device, host_bytes=host.bytes, links=links)


# -- how many layers and micro-batches ---------------------------------------------------------------------


def fit(trace: Trace, operators: int) -> tuple[int, int]:
    """(layers, micro-batches) for about so many operators.

    Among those within 6 %, nearest to the recipe's number of micro-batches, and rather not under `FEW_LAYERS` layers;
    else the closest. Raises `ValueError` where that is more than 10 % away.
    """
    if not FEWEST <= operators <= MOST:
        raise ValueError(f"{operators} operators: ask for {FEWEST} to {MOST}")
    recipe, sizes = trace.recipe, _sizes(trace)
    found = []
    for layers in range(FEWEST_LAYERS, recipe.layers + 1):
        fixed, each = sizes.of(recipe, layers)
        for count in {(operators - fixed) // each, (operators - fixed) // each + 1}:
            micro_batches = max(count, trace.fewest_micro_batches)
            off = abs(fixed + each * micro_batches - operators) / operators
            far = max(micro_batches / recipe.micro_batches, recipe.micro_batches / micro_batches)
            far *= max(1.0, FEW_LAYERS / layers)
            found.append((max(off - 0.06, 0), far, off, layers, micro_batches))
    _, _, off, layers, micro_batches = min(found)
    if off > 0.1:
        raise ValueError(f"{trace.name} cannot have {operators} operators: nearest is {off:.0%} away")
    return layers, micro_batches


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Operators (fixed, per micro-batch): of one layer and all around, and of each dense or other layer more."""

    one: tuple[int, int]
    dense: tuple[int, int]
    other: tuple[int, int]

    def of(self, recipe: Recipe, layers: int) -> tuple[int, int]:
        dense = recipe.dense(layers) - recipe.dense(1)
        other = layers - 1 - dense
        fixed, each = (one + dense * d + other * o for one, d, o in zip(self.one, self.dense, self.other, strict=True))
        return fixed, each


def _sizes(trace: Trace) -> _Sizes:
    """Counted on small builds: operators grow evenly with layers of each kind and with micro-batches."""
    recipe, some = trace.recipe, trace.fewest_micro_batches
    counts = []
    for layers in range(1, 4):
        few, more = (len(recipe.build(trace.accelerator, layers, m, "").operators) for m in (some, some + 1))
        counts.append((few - (more - few) * some, more - few))
    steps = {"dense": (0, 0), "other": (0, 0)}
    for before, after, layers in zip(counts, counts[1:], (1, 2), strict=False):
        kind = "dense" if recipe.dense(layers + 1) > recipe.dense(layers) else "other"
        steps[kind] = (after[0] - before[0], after[1] - before[1])
    return _Sizes(counts[0], steps["dense"], steps["other"])


# -- what a trace is like ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figures:
    """Of a profile without a plan, simulated. Bytes, and microseconds.

    `at_peak`: bytes by kind of what lies in HBM at the peak, ``workspace`` and ``base`` included. `working_set`: the
    most that one operator needs at once (inputs, outputs, workspace, base), below which no budget can be met.
    `link_us`: the time in which the first tier's slower direction moves as much as the peak.
    """

    operators: int
    storages: int
    peak_bytes: int
    at_peak: dict[str, int]
    working_set: int
    step_us: float
    link_us: float
    recomputable: float


def figures(profile: Profile) -> Figures:
    """Peak, working set and times of a profile."""
    by_id, base = profile.by_id, profile.device.base_bytes
    level = occupancy(profile)
    at_peak: dict[str, int] = {"base": base}
    for block in level.at_peak:
        kind = "workspace" if block.storage is None else by_id[block.storage].kind
        at_peak[kind] = at_peak.get(kind, 0) + block.bytes
    needs = (o.workspace_bytes + sum(by_id[s].bytes for s in o.accesses) for o in profile.operators)
    tier = profile.device.tiers["host"]
    return Figures(
        operators=len(profile.operators),
        storages=len(profile.storages),
        peak_bytes=level.peak_bytes,
        at_peak=at_peak,
        working_set=base + max(needs),
        step_us=replay(profile).step_us,
        link_us=tier.copy_ns(level.peak_bytes, out=tier.d2h_bytes_per_s <= tier.h2d_bytes_per_s) / 1000,
        recomputable=sum(o.recomputable for o in profile.operators) / len(profile.operators),
    )
