"""How often does the gate cry wolf, and how often does it see one? `python -m bench.gate [--otava PYTHON]`.

Pairs are drawn from models of noise and from recorded steps (bench/gate_steps.json, of `python -m bench.gate_record`),
with no change, a change of exactly the tolerance, and changes beyond it. Ours and its rivals judge the same pairs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata, ttest_ind

from bench.gate_record import FILE
from hyperopt.gate.interleave import turned
from hyperopt.gate.ranks import ROUNDING, signed_rank_pmf, spread
from hyperopt.gate.throughput import DEFAULT_LEVEL, DEFAULT_TOLERANCE_PERCENT

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

TOLERANCE = DEFAULT_TOLERANCE_PERCENT / 100
LEVEL = DEFAULT_LEVEL
SLOWER = (0, 5, 8, 10, 15)
"""Percent: none, the tolerance, and 3, 5 and 10 beyond it."""

COUNTS = (10, 20)
HISTORY = 40
"""Runs of the branch before the candidate, for who looks at history."""

CHUNK = 2000
RESAMPLES = 400
BOOTSTRAP_TRIALS = 2000
OTAVA_TRIALS = 200
REPORT = Path(__file__).parents[1] / "docs" / "bench" / "gate.md"


@dataclass(frozen=True)
class Draw:
    """`before`, `after`: trials x n, interleaved; `golden`: an earlier run, a value a trial; `history`: trials x
    HISTORY, earlier runs of the baseline, oldest first."""

    before: Floats
    after: Floats
    golden: Floats
    history: Floats


# -- noise -------------------------------------------------------------------------------------------------

Noise = Callable[[np.random.Generator, int, int], Floats]
"""(random, trials, values) -> a series of factors around 1, in the order in which they were taken."""


def log_normal(random: np.random.Generator, trials: int, count: int) -> Floats:
    """1 % from run to run."""
    return np.asarray(np.exp(random.normal(0, 0.01, (trials, count))), np.float64)


def heavy(random: np.random.Generator, trials: int, count: int) -> Floats:
    """Student's t with two degrees of freedom, 1 %: its variance is infinite."""
    return np.asarray(np.exp(0.01 * random.standard_t(2, (trials, count))), np.float64)


def drifting(random: np.random.Generator, trials: int, count: int) -> Floats:
    """1 %, and 20 % more from the first run to the last: a machine that warms up."""
    return np.asarray(log_normal(random, trials, count) * np.exp(np.linspace(0, math.log(1.2), count)), np.float64)


def bimodal(random: np.random.Generator, trials: int, count: int) -> Floats:
    """1 %, and three runs of ten are 6 % slower: a neighbour, or another clock."""
    slow = np.where(random.random((trials, count)) < 0.3, 1.06, 1.0)
    return np.asarray(log_normal(random, trials, count) * slow, np.float64)


def wandering(random: np.random.Generator, trials: int, count: int) -> Floats:
    """1 %, and 5 % that lasts some runs (first order autoregression, 0.5 from run to run): a neighbour at work."""
    slow = random.normal(0, 0.05, (trials, count))
    for i in range(1, count):
        slow[:, i] = 0.5 * slow[:, i - 1] + math.sqrt(1 - 0.5**2) * slow[:, i]
    return np.asarray(log_normal(random, trials, count) * np.exp(slow), np.float64)


NOISES: dict[str, Noise] = {
    "log-normal, 1 %": log_normal,
    "heavy tails, 1 %": heavy,
    "drifting, 1 % and 20 %": drifting,
    "two modes, 1 % and 6 %": bimodal,
    "wandering, 1 % and 5 %": wandering,
}


def simulated(noise: Noise, random: np.random.Generator, trials: int, n: int, slower: float) -> Draw:
    """A series in our order, after a history of runs in the same noise."""
    earlier = random.permuted(noise(random, trials, HISTORY), axis=1)  # each of another job, at any moment of it
    before, after = in_turns(noise(random, trials, 2 * n))
    return Draw(before, slower * after, earlier[:, 0], earlier)


def in_turns(series: Floats, mirrored: bool = True) -> tuple[Floats, Floats]:
    """As `hyperopt interleave` runs them, A B B A B A A B ...: (A, B), trials x n of 2 n. Not `mirrored`: A B B A."""
    pairs = series.reshape(len(series), -1, 2)
    last = [turned(i) if mirrored else i % 2 == 1 for i in range(pairs.shape[1])]
    pairs = np.where(np.array(last)[:, None], pairs[:, :, ::-1], pairs)
    return pairs[:, :, 0], pairs[:, :, 1]


@dataclass(frozen=True)
class Recorded:
    """Pairs as they were recorded, pairs x 2, one array a slowdown; what of it was burnt for real."""

    pairs: dict[int, Floats]

    def noise(self, steps: int) -> float:
        """Of a pair of unchanged runs, as the gate says it."""
        return spread(np.concatenate([np.log(after / before) for before, after in self.windows(0, 10, steps)]))

    def windows(self, slower: int, n: int, steps: int) -> Iterator[tuple[Floats, Floats]]:
        """Every window of n pairs of runs of `steps` steps (their median), none overlapping another."""
        taken = self.pairs[slower]
        runs = np.median(taken[: len(taken) // steps * steps].reshape(-1, steps, 2), axis=1)
        for at in range(0, len(runs) - n + 1, n):
            yield runs[at : at + n, 0], runs[at : at + n, 1]

    def draw(self, random: np.random.Generator, trials: int, n: int, slower: float, steps: int) -> Draw:
        """Pairs of unchanged runs drawn one by one, which of the two is the candidate drawn too: the noise of a pair as
        it was recorded, without what follows from pair to pair (`windows` has that)."""
        taken = self.pairs[0]
        runs = np.median(taken[: len(taken) // steps * steps].reshape(-1, steps, 2), axis=1)
        chosen = runs[random.integers(0, len(runs), (trials, n))]
        swap = random.random((trials, n)) < 0.5
        before, after = np.where(swap, chosen[..., 1], chosen[..., 0]), np.where(swap, chosen[..., 0], chosen[..., 1])
        earlier = runs[random.integers(0, len(runs), (trials, HISTORY)), 0]
        return Draw(before, slower * after, earlier[:, 0], earlier)


def recorded() -> tuple[str, dict[str, Recorded]]:
    """What was recorded, and where; by the clock, and of processor time."""
    told = json.loads(FILE.read_text())
    about = f"{told['what']}, {told['taken']}, {told['cores']} cores, load {told['load'][0]}"
    kinds = {"clock": "clock", "processor": "processor time"}
    return about, {
        name: Recorded({int(slower): np.array(pairs) for slower, pairs in told[kind].items()})
        for kind, name in kinds.items()
    }


# -- rules -------------------------------------------------------------------------------------------------


def ours(draw: Draw) -> Flags:
    """As `hyperopt.gate.judge_samples`, all trials at once (a test holds them equal)."""
    ratios = np.log(draw.after) - np.log(draw.before)
    n = ratios.shape[1]
    below = np.cumsum(signed_rank_pmf(n))
    one, other = np.triu_indices(n)
    found = np.empty(len(ratios), np.bool_)
    for at in range(0, len(ratios), CHUNK):
        some = ratios[at : at + CHUNK]
        above = (some[:, one] + some[:, other]) / 2 > math.log1p(TOLERANCE) + ROUNDING
        found[at : at + CHUNK] = below[len(one) - above.sum(axis=1)] <= LEVEL
    return found


def mean(draw: Draw) -> Flags:
    found: Flags = draw.after.mean(axis=1) > (1 + TOLERANCE) * draw.before.mean(axis=1)
    return found


def golden(draw: Draw) -> Flags:
    found: Flags = draw.after.mean(axis=1) > (1 + TOLERANCE) * draw.golden
    return found


def bootstrap(draw: Draw) -> Flags:
    """The ratio of means of both sides drawn again: is even its 1st percentile beyond the tolerance?"""
    random = np.random.default_rng(1)
    n = draw.before.shape[1]
    means = []
    for side in (draw.before[:BOOTSTRAP_TRIALS], draw.after[:BOOTSTRAP_TRIALS]):
        again = random.integers(0, n, (RESAMPLES, n))
        means.append(side[:, again].mean(axis=2))
    found: Flags = np.quantile(means[1] / means[0], LEVEL, axis=1) > 1 + TOLERANCE
    return found


def welch(draw: Draw) -> Flags:
    """One-sided, against the tolerance, at our level."""
    test = ttest_ind(draw.after, (1 + TOLERANCE) * draw.before, axis=1, equal_var=False, alternative="greater")
    found: Flags = test.pvalue <= LEVEL
    return found


RULES: dict[str, Callable[[Draw], Flags]] = {
    "ours": ours,
    "mean > 5 %": mean,
    "golden value": golden,
    "bootstrap": bootstrap,
    "Welch's t": welch,
}


def otava(python: str, draw: Draw) -> Flags:
    """Apache Otava on the history and the candidate's runs after it, in an environment of its own."""
    series = np.concatenate([draw.history, draw.after], axis=1)[:OTAVA_TRIALS]
    asked = json.dumps({"series": series.tolist(), "magnitude": TOLERANCE})
    script = str(Path(__file__).with_name("gate_otava.py"))
    ran = subprocess.run([python, script], input=asked, capture_output=True, text=True, check=True)
    return np.array(json.loads(ran.stdout), dtype=np.bool_)


# -- the report --------------------------------------------------------------------------------------------


def rates(draw_of: Callable[[float], Draw], oracle: str | None) -> dict[str, list[float]]:
    """Rule -> share of alarms, for each of SLOWER."""
    found: dict[str, list[float]] = {}
    for slower in SLOWER:
        draw = draw_of(1 + slower / 100)
        for name, rule in RULES.items():
            found.setdefault(name, []).append(float(rule(draw).mean()))
        if oracle:
            found.setdefault("Otava", []).append(float(otava(oracle, draw).mean()))
    return found


HEAD = ["| noise | pairs | rule | no change | tolerance | + 3 % | + 5 % | + 10 % |", "|---|---:|---|" + "---:|" * 5]


def rows(noise: str, n: int, found: dict[str, list[float]]) -> list[str]:
    return [
        f"| {noise} | {n} | {name} | " + " | ".join(f"{100 * share:.2f} %" for share in shares) + " |"
        for name, shares in found.items()
    ]


def _plain_order(random: np.random.Generator, trials: int, n: int) -> float:
    """False alarms at the tolerance in wandering noise with A B B A and no mirror image."""
    before, after = in_turns(wandering(random, trials, 2 * n), mirrored=False)
    return float(ours(Draw(before, (1 + TOLERANCE) * after, before[:, 0], before)).mean())


def real(kind: str, record: Recorded) -> list[str]:
    """Windows as they were measured, judged by the gate itself: what was burnt was burnt, nothing is multiplied."""
    from hyperopt.gate import Metric, Samples, check_samples

    lines = []
    for steps, n in ((1, 10), (1, 20), (5, 10), (5, 20)):
        for slower in SLOWER:
            verdicts = []
            for before, after in record.windows(slower, n, steps):
                sides = [tuple((float(value),) for value in side) for side in (before, after)]
                metric = Metric(name="step", baseline=sides[0], candidate=sides[1])
                samples = Samples(design="interleaved", warmup_steps=0, metrics=(metric,))
                verdicts.append(check_samples(samples).verdict)
            counts = [verdicts.count(which) for which in ("regression", "inconclusive", "pass")]
            cells = [kind, steps, n, f"{slower} %", len(verdicts), *counts]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


# -- coarse clocks -----------------------------------------------------------------------------------------

COARSE_TRIALS = 500
TICKS = (20.0, 20.4, 40.0, 100.0)
"""Of a run of the baseline. 20.4 is told as 20, and 5 % more of it as 21: as many ticks as 5 % of 20."""

CLOCKS: dict[str, Callable[[Floats], Floats]] = {"to the nearest tick": np.round, "down to a tick": np.floor}


def signed_ranks(ratios: Floats, pratt: bool) -> float:
    """The other treatments of ties, by all signs of the tied ranks: zeros keep their ranks (Pratt 1959), or are left
    out (Wilcoxon 1945). Exact given the ties that were seen; p that the center is above 0."""
    zeroed = np.where(np.abs(ratios) <= ROUNDING, 0.0, np.round(ratios, 12))
    kept = zeroed if pratt else zeroed[zeroed != 0]
    if not kept.any():
        return 1.0
    ranks = (2 * rankdata(np.abs(kept))).astype(int)
    chance = np.ones(1)
    for rank in ranks[kept != 0]:
        chance = (np.concatenate([chance, np.zeros(rank)]) + np.concatenate([np.zeros(rank), chance])) / 2
    return float(chance[ranks[kept > 0].sum() :].sum())


def coarse(random: np.random.Generator, trials: int) -> list[str]:
    """Shares of regressions and passes at exactly the tolerance, a row a clock and a noise; the worst of TICKS."""
    from hyperopt.gate import Metric, Samples, check_samples

    lines = ["| clock | noise, ticks | pairs | ours: regression | ours: pass | Pratt | Wilcoxon |"]
    lines.append("|---|---:|---:|" + "---:|" * 4)
    for (told, read), noise, n in product(CLOCKS.items(), (0.1, 0.3, 1.0, 3.0), COUNTS):
        shares = []
        for ticks in TICKS:
            alarms = np.zeros(4)
            for _ in range(trials):
                before, after = (read(mean + random.normal(0, noise, n)) for mean in (ticks, (1 + TOLERANCE) * ticks))
                sides = [tuple((float(value),) for value in side) for side in (before, after)]
                metric = Metric(name="step", baseline=sides[0], candidate=sides[1])
                verdict = check_samples(Samples(design="interleaved", warmup_steps=0, metrics=(metric,))).verdict
                ratios = np.log(after) - np.log(before) - math.log1p(TOLERANCE)
                others = [signed_ranks(ratios, pratt) <= LEVEL for pratt in (True, False)]
                alarms += [verdict == "regression", verdict == "pass", *others]
            shares.append(alarms / trials)
        cells = [f"{100 * share:.1f} %" for share in np.max(shares, axis=0)]
        lines.append(f"| {told} | {noise:g} | {n} | " + " | ".join(cells) + " |")
    return lines


def main(trials: int, oracle: str | None, seed: int) -> int:
    random = np.random.default_rng(seed)
    about, records = recorded()
    lines, wanted = list(HEAD), []
    plain = [_plain_order(random, trials, n) for n in COUNTS]
    for name, noise in NOISES.items():
        for n in COUNTS:
            found = rates(lambda slower: simulated(noise, random, trials, n, slower), oracle)  # noqa: B023
            lines += rows(name, n, found)
            if noise is log_normal and n == 10:
                wanted = found["ours"]
            print(name, n, found["ours"], flush=True)
    measured = ["| measured by | steps a run | pairs | slower by | windows | regression | inconclusive | pass |"]
    measured.append("|---|---:|---:|---:|" + "---:|" * 4)
    for kind, record in records.items():
        for steps, n in product((1, 5), COUNTS):
            found = rates(lambda slower: record.draw(random, trials, n, slower, steps), oracle)  # noqa: B023
            name = f"recorded {kind}, {steps} step{'s' * (steps > 1)} a run, {100 * record.noise(steps):.1f} % a pair"
            lines += rows(name, n, found)
            print(name, n, found["ours"], flush=True)
        measured += real(kind, record)
    error = 2.6 * math.sqrt(LEVEL * (1 - LEVEL) / trials)
    met = [wanted[0] <= 0.01, wanted[1] <= LEVEL + error, wanted[2] >= 0.99]
    told = [
        "# The gate and its rivals",
        "",
        f"`make bench-gate`: {trials} simulated trials a cell (bootstrap {BOOTSTRAP_TRIALS}, Otava "
        f"{OTAVA_TRIALS if oracle else 'not run'}), "
        f"seed {seed}, tolerance {100 * TOLERANCE:g} %, level {100 * LEVEL:g} %. "
        "Shares of trials that raise an alarm; + 3 % is 3 points beyond the tolerance. What the rules are: "
        "[why the gate is as it is](../why/gate.md).",
        "",
        "| wanted, at 1 % noise with 10 pairs | seen | met |",
        "|---|---:|---|",
        f"| no change: at most 1 % false alarms | {100 * wanted[0]:.2f} % | {'yes' if met[0] else '**no**'} |",
        f"| at the tolerance: at most 1 %, within the simulation's error of {100 * error:.2f} | "
        f"{100 * wanted[1]:.2f} % | {'yes' if met[1] else '**no**'} |",
        f"| tolerance + 3 %: at least 99 % found | {100 * wanted[2]:.2f} % | {'yes' if met[2] else '**no**'} |",
        "",
        "## Simulated, and drawn from recorded steps",
        "",
        *lines,
        "",
        f"In wandering noise, in the order A B B A without its mirror image, ours would raise {100 * plain[0]:.2f} % "
        f"({COUNTS[0]} pairs) and {100 * plain[1]:.2f} % ({COUNTS[1]}) at the tolerance.",
        "",
    ]
    told += [
        "## Coarse clocks, exactly at the tolerance",
        "",
        f"{COARSE_TRIALS} trials for each of {', '.join(f'{ticks:g}' for ticks in TICKS)} ticks a run of the baseline; "
        "each cell is the worst of them. Pratt and Wilcoxon: false alarms of the other two treatments of ties, "
        "counted exactly.",
        "",
        *coarse(np.random.default_rng(seed), COARSE_TRIALS),
        "",
        "## Interleaved runs as measured",
        "",
        f"Recorded: {about}. Windows of consecutive pairs, none twice; what makes a candidate slower was burnt after "
        "each of its steps, as processor time. By the clock these are steps of a machine that others used.",
        "",
        *measured,
        "",
    ]
    REPORT.write_text("\n".join(told))
    print(f"{REPORT.name}: wanted {'met' if all(met) else 'NOT met'}; load {os.getloadavg()[0]:.1f}")
    return 0 if all(met) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument("--otava", help="the Python of an environment with apache-otava")
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    sys.exit(main(given.trials, given.otava, given.seed))
