"""From a sample of a model to a description of its layers: what `hyperopt stages` is asked with.

Times are replayed, activations are what backward reads of forward, and the levels of recomputation and offload are
those of the residency solver (`levels`). Of a layer's backward, what nothing before it waits for is its weights' part
(zero-bubble schedules put it off): the operators from which no path leads to the gradient of the layer's inputs.
"""

from __future__ import annotations

from hyperopt.documents import DocumentError
from hyperopt.layers import Description, LayerFields, OffloadLevel, OffloadLink, RecomputeLevel, Run
from hyperopt.plan import HOST
from hyperopt.profile import COMPUTE
from solver.joint.levels import LayerCost, layer_cost
from solver.joint.sample import HEAD, TAIL, Part, Sample
from solver.residency.warm import warm

MS, MB = 1e6, 1e6
"""Nanoseconds and bytes of the description's units."""


def described(sample: Sample, level_s: float, seed: int = 0, hbm_bytes: int | None = None) -> Description:
    """Layers, times in milliseconds and memory in MB (10^6 bytes) of one device, with its limits and its link to the
    host; `level_s` seconds at most for each question to the residency solver, 0: only what is kept whole.

    `memory_limits` is what one device has (`hbm_bytes`, or the profile's) without what is there anyway and what one
    pass of a layer needs besides; left out where neither is known. Raises `DocumentError` where that leaves nothing.
    The optimizer's time is no part of a schedule and is left out.
    """
    if level_s:
        warm()  # compiled once on a machine: that is no time of a question
    device = sample.profile.device
    costs = {
        name: layer_cost(sample, part, level_s if level_s and part.name not in (HEAD, TAIL) else None, seed)
        for name, part in {HEAD: sample.head, **sample.layers, TAIL: sample.tail}.items()
    }
    tier = device.tiers.get(HOST)
    sent = sum(sample.profile.by_id[s].bytes for s in next(reversed(sample.layers.values())).leaves)
    besides = device.base_bytes + max(cost.working for cost in costs.values()) + 4 * sent
    hbm = device.hbm_bytes if hbm_bytes is None else hbm_bytes
    if hbm <= besides and (hbm or hbm_bytes is not None):
        field = "$.device.hbm_bytes" if hbm_bytes is None else "--hbm-bytes"
        raise DocumentError(field, f"{hbm} bytes, of which {besides} go before any layer's", "give more")
    moves = tier is not None and min(tier.d2h_bytes_per_s, tier.h2d_bytes_per_s, tier.bytes) > 0
    totals = {name: sum(count for other, count in sample.stack if other == name) for name in sample.layers}
    entries = [_ends(sample.head, costs[HEAD], "HEAD", sample)]
    entries += [_body(sample, name, costs[name], totals[name], moves) for name in sample.layers]
    entries.append(_ends(sample.tail, costs[TAIL], "TAIL", sample))
    return Description(
        name=sample.profile.run.model or sample.profile.run.name,
        layers_description=tuple(entries),
        layer_types=tuple(Run(name=name, count=count) for name, count in sample.stack),
        memory_limits=(hbm - besides) / MB if hbm else None,
        host_limits=tier.bytes / MB if tier is not None and moves else None,
        offload_link=OffloadLink(
            out_mb_per_time=tier.d2h_bytes_per_s / MB / 1000, in_mb_per_time=tier.h2d_bytes_per_s / MB / 1000
        )
        if tier is not None and moves
        else None,
    )


def passed_mb(sample: Sample) -> float:
    """MB that go from a layer to the next for one micro-batch."""
    return sum(sample.profile.by_id[s].bytes for s in next(reversed(sample.layers.values())).leaves) / MB


def _ends(part: Part, cost: LayerCost, kind: str, sample: Sample) -> LayerFields:
    return _entry(part, cost, sample, {"name": kind.lower(), "type": kind})


def _body(sample: Sample, name: str, cost: LayerCost, count: int, moves: bool) -> LayerFields:
    again = [level for level in cost.levels[1:] if not level.moved]
    moved = [level for level in cost.levels if level.moved] if moves else []

    def coef(extra_ns: int) -> float:
        return extra_ns / cost.backward_ns if cost.backward_ns else 0.0

    return _entry(
        sample.layers[name],
        cost,
        sample,
        {
            "name": name,
            "type": "BODY",
            "nb_layer": count,
            "recompute_levels": tuple(
                RecomputeLevel(name=x.name, memory=x.kept / MB, coef=coef(x.extra_ns)) for x in again
            ),
            "offload_levels": tuple(
                OffloadLevel(name=x.name, memory=(x.kept - x.moved) / MB, moved=x.moved / MB, coef=coef(x.extra_ns))
                for x in moved
            ),
        },
    )


def _entry(part: Part, cost: LayerCost, sample: Sample, more: dict[str, object]) -> LayerFields:
    weight_ns, weight_bytes = weight_part(sample, part)
    return LayerFields(
        forward_time=cost.forward_ns / MS,
        backward_time=cost.backward_ns / MS,
        backward_weight_time=min(weight_ns, cost.backward_ns) / MS,
        memory_parameter=cost.parameters / MB,
        memory_activation=cost.levels[0].kept / MB,
        memory_backward_weight=weight_bytes / MB,
        **more,  # type: ignore[arg-type]
    )


def weight_part(sample: Sample, part: Part) -> tuple[int, int]:
    """Nanoseconds of backward that the gradient of the part's inputs does not wait for, on the compute stream, and
    bytes that these operators read of what was made before them for the micro-batch."""
    operators, by_id = sample.profile.operators, sample.profile.by_id
    wanted = set(part.back_leaves)
    late: list[int] = []
    for i in reversed(part.backward):
        o = operators[i]
        if wanted.isdisjoint(o.writes):
            late.append(i)
        else:
            wanted |= set(o.reads)
    late = [i for i in late if i not in sample.closing]
    made = {s for i in late for s in operators[i].writes}
    read = {s for i in late for s in operators[i].reads} - made - sample.gradients
    takes = sum(round(operators[i].duration_us * 1000) for i in late if operators[i].stream == COMPUTE)
    return takes, sum(by_id[s].bytes for s in read if not by_id[s].resident_at_start)
