"""Steps as they may turn out: durations of all operators and copies drawn together, from how far predictions are off.

An error is drawn by its rank and looked up among the held-out errors of its class, so that each duration by itself
errs as the model was seen to err. Ranks go together: some of what makes one kernel slow makes all of them slow, and a
bound on every operator by itself would say nothing of their sum::

    rank  =  normal(  sqrt(TOGETHER) x common  +  sqrt(1 - TOGETHER) x own  )
    duration  =  as in the profile  x  exp(error of that rank)

`own` is one number for all operators of a signature where the duration is predicted, because the model errs alike on
all of them, and one for each operator where it was measured, because what is left then is scatter. Copies have one
number a step: a link is shared, or it is not.

Of n steps each number falls once into each n-th part of its chance, in an order of its own (McKay, Beckman and Conover,
"A comparison of three methods for selecting values of input variables", 1979): 200 draws of the common part alone had
its 95th percentile at 1.3 where it is 1.64, and all figures of a plan hung on that.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from msgspec import structs
from scipy.special import ndtr, ndtri

from hyperopt.cost.intervals import POOL
from hyperopt.cost.model import LINK, SEEN, CostModel
from hyperopt.cost.work import Table, Uncounted
from hyperopt.profile import IDLE, Operator, Profile, ns

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

TOGETHER = 0.12
"""Share of the variance of ranks that all operators of a step have in common: so much it was over the demo model's
steps at six sizes, 0.05 to 0.39 with probability 0.9 (docs/why/cost.md)."""

LEVEL = 0.95
"""A class whose errors are too few to say this quantile is not drawn from: errors of all classes are."""


@dataclass(frozen=True)
class Scenarios:
    """`duration_ns`: (scenarios, operators); `copies`: (scenarios,), what a copy takes by comparison with the profile's
    links. `classes`: of how many operators errors are drawn from which class; `notes`: in words."""

    profile: Profile
    duration_ns: I64
    copies: F64
    classes: Counter[str]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.copies)

    def step(self, number: int) -> Profile:
        """One of them as a profile."""
        return shaped(self.profile, self.duration_ns[number], float(self.copies[number]))


def shaped(profile: Profile, duration_ns: I64, copies: float) -> Profile:
    """The profile with these durations, and links on which copies take `copies` times as long."""
    operators = tuple(
        structs.replace(o, duration_us=d / 1000) for o, d in zip(profile.operators, duration_ns.tolist(), strict=True)
    )
    links = profile.device.links

    def slower(speed: float) -> float:
        return speed / copies

    tiers = tuple(
        structs.replace(
            tier, d2h_bytes_per_s=slower(tier.d2h_bytes_per_s), h2d_bytes_per_s=slower(tier.h2d_bytes_per_s),
            latency_us=tier.latency_us * copies,
        )
        for tier in links.tiers
    )  # fmt: skip
    links = structs.replace(
        links, d2h_bytes_per_s=slower(links.d2h_bytes_per_s), h2d_bytes_per_s=slower(links.h2d_bytes_per_s),
        latency_us=links.latency_us * copies, tiers=tiers,
    )  # fmt: skip
    return structs.replace(profile, operators=operators, device=structs.replace(profile.device, links=links))


def scenarios(
    profile: Profile, model: CostModel, table: Table, count: int, seed: int, together: float = TOGETHER
) -> Scenarios:
    """So many, the same for the same seed. Raises ValueError where the model has too few errors to draw from."""
    errors = model.errors
    if errors.class_used(POOL, LEVEL) is None:
        raise ValueError(
            f"the model knows errors of {errors.counts.get(POOL, 0)} groups of shapes: too few to say what durations "
            f"may be with probability {LEVEL:g} (fit it to more)"
        )
    classes, signature, named = _classes(profile, model, table)
    chance = np.random.default_rng(seed)
    operators = len(profile.operators)
    common, shared = np.hsplit(_normal(chance, count, 2), 2)
    own = _normal(chance, count, int(signature.max(initial=-1)) + 1)[:, signature]
    rank = ndtr(np.sqrt(together) * common + np.sqrt(1 - together) * own)
    base = np.array([ns(o.duration_us) for o in profile.operators], np.int64)
    factor = np.ones((count, operators))
    for name in sorted(set(classes)):
        mine = np.array([c == name for c in classes])
        if name:
            factor[:, mine] = _factor(model, name, rank[:, mine], base[mine] / 1000)
    link = LINK if errors.class_used(LINK, LEVEL) == LINK else POOL
    copies = _factor(model, link or ALL, ndtr(shared[:, 0]))
    told = Counter(named)
    notes = [
        "errors of durations: " + ", ".join(f"{n} operators by {_words(name)}" for name, n in told.most_common()),
        f"errors of copies: by {_words(link or ALL)}"
        + ("" if link else ", since the model has none of copies themselves"),
        f"{together:.0%} of the errors' variance is taken to be common to the step",
    ]
    return Scenarios(profile, np.round(base * factor).astype(np.int64), copies, told, tuple(notes))


def _normal(chance: np.random.Generator, count: int, columns: int) -> F64:
    """Normal numbers (count, columns), each column spread evenly over its distribution and in an order of its own."""
    even = (np.arange(count)[:, None] + chance.random((count, columns))) / count
    return np.asarray(ndtri(np.clip(chance.permuted(even, axis=0), 1e-12, 1 - 1e-12)))


ALL, SCATTER = "*", "**"
"""Classes: errors of all families together; the scatter of what was measured again."""


def _words(name: str) -> str:
    return {ALL: "errors of all families", SCATTER: "the scatter of repeated measurements"}.get(
        name, f"errors of {name}"
    )


def _factor(model: CostModel, name: str, rank: F64, us: F64 | None = None) -> F64:
    """Measured over known, at these ranks; `us`: durations, for what scatters by a kernel's length."""
    if name == SCATTER and model.repeats is not None and us is not None:
        return model.repeats.drawn(us, rank)
    errors = np.array(model.errors.by_class[POOL if name == ALL else name], np.float64)
    return np.asarray(np.exp(np.quantile(errors, rank)))


def _classes(profile: Profile, model: CostModel, table: Table) -> tuple[list[str], I64, list[str]]:
    """For each operator whose errors its own is drawn from ("": none, idle time) and the number of its draw; and the
    classes of those that have one."""
    scatter = model.repeats is not None and model.repeats.single.class_used(POOL, LEVEL) is not None
    classes: list[str] = []
    numbers: dict[object, int] = {}
    families: dict[object, str] = {}
    signature = np.zeros(len(profile.operators), np.int64)
    for place, operator in enumerate(profile.operators):
        key: object = place
        if operator.type == IDLE:
            name = ""
        elif operator.predicted in ("", SEEN) and scatter:
            name = SCATTER
        else:
            alike = (operator.type or operator.name, operator.shapes, operator.dtypes, operator.inputs)
            if alike not in families:
                families[alike] = _family(operator, table)
            family = families[alike]
            name = family if model.errors.class_used(family, LEVEL) == family else ALL
            key = alike if operator.shapes else place
        classes.append(name)
        signature[place] = numbers.setdefault(key, len(numbers))
    return classes, signature, [name for name in classes if name]


def _family(operator: Operator, table: Table) -> str:
    """Of what is counted as the model counts it; else by its type alone."""
    try:
        return table.of(operator)[0].family
    except Uncounted:
        kind = table.kind(operator.type, operator.name)
        return kind.family if kind is not None else ALL
