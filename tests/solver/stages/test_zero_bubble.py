"""Zero-bubble schedules: the published bubbles, what is held, never worse than 1F1B, and small cases tried out."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hyperopt import layers
from hyperopt.documents import DocumentError
from solver.stages import NoPlanError, Problem, Request, answer, problem, solve, value
from solver.stages.memory import memory
from solver.stages.picture import draw, spans
from solver.stages.problem import fastest_split, uniform
from solver.stages.schedule import graph, most_alive, orders
from solver.stages.ways import zero_bubble
from tests.cases.test_stages import C4
from tests.solver.stages.enumeration import Case, best, makespan, order
from tests.solver.stages.test_small import asked, made


def equal_layers(count: int, **more: Any) -> dict[str, Any]:
    body = {"name": "b", "type": "BODY", "time": 1, "nb_layer": count, "memory_activation": 34}
    return {"layers_description": [body | {"memory_backward_weight": 32} | more]}


def described(document: dict[str, Any], stages: int, micro_batches: int, schedule: Any = "zero-bubble") -> Problem:
    description, warnings = layers.load(json.dumps(document).encode())
    assert warnings == []
    return problem(description, Request(stages=stages, micro_batches=micro_batches, schedule=schedule))


def test_the_order_of_zb_h1_is_the_paper_s() -> None:
    """Qi et al. 2023, figure 3: four stages; all keep as many micro-batches in flight."""
    first, *_, last = orders("zero-bubble", 4, 1, 8, ahead=1, lag=3)
    told = [" ".join(f"{'FBW'[t.direction]}{t.micro_batch}" for t in order) for order in (first, last)]
    assert told[0] == "F0 F1 F2 F3 B0 W0 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 B5 W5 B6 W6 B7 W7"
    assert told[1] == "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 W5 W6 W7"
    assert [most_alive(order, 1)[0] for order in orders("zero-bubble", 4, 1, 8, 1, 3)] == [
        (4, 0), (3, 1), (2, 2), (1, 3),
    ]  # fmt: skip


def test_the_published_bubbles() -> None:
    """Per stage, from its first task to its last: 1F1B (p-1)(F+B+W), ZB-H1 (p-1)(F+B-W), ZB-H2 (p-1)(F+B-2W)."""
    p = described(equal_layers(4), 4, 12)
    split = fastest_split(p, [1, 1, 1, 1])
    ours = {(q.ahead, q.lag): q for q in zero_bubble(p)}
    for q, bubble in ((ours[1, 3], 3.0), (ours[2, 6], 0.0)):
        rows, _ = spans(q, split)
        for row in rows:
            work = sum(end - start for start, end, *_ in row)
            assert (row[-1][1] - row[0][0] - work) * q.tick <= bubble
        assert max(row[-1][1] - row[0][0] - 36 / q.tick for row in rows) * q.tick == bubble
    assert value(ours[1, 3], "makespan", split) * p.tick == 36 + 3
    whole = described(equal_layers(4), 4, 12, "1f1b")
    assert value(whole, "makespan", split) * whole.tick == 36 + 9


def test_what_is_held_between_the_halves() -> None:
    p = described(equal_layers(4), 4, 12)
    split = fastest_split(p, [1, 1, 1, 1])
    ours = {(q.ahead, q.lag): (memory(q, split).peak * q.grain).tolist() for q in zero_bubble(p)}
    whole = described(equal_layers(4), 4, 12, "1f1b")
    assert ours[1, 0] == (memory(whole, split).peak * whole.grain).tolist()
    assert ours[1, 3] == [4 * 34, 3 * 34 + 32, 2 * 34 + 2 * 32, 34 + 3 * 32]  # never above stage 0's
    assert max(ours[2, 6]) == ours[2, 6][0] == 7 * 34  # 2 p - 1
    recomputed = described(equal_layers(4, memory_recompute=2, memory_activation=40), 4, 12)
    again = np.zeros_like(fastest_split(recomputed, [1] * 4))
    again[:, next(k for k, c in enumerate(recomputed.columns) if c.level == "full")] = 1
    held = [(memory(q, again).peak * q.grain).tolist() for q in zero_bubble(recomputed) if (q.ahead, q.lag) == (1, 3)]
    assert held == [[8.0, 2 * 2 + 2 * 32, 2 + 3 * 32, 4 * 32]]  # what W needs stays, whatever is recomputed


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 8, 11])
def test_no_order_waits_for_ever_and_all_are_the_tests_own(stages: int, micro_batches: int) -> None:
    for ahead in (1, 2):
        for lag in range(2 * stages):
            made_ = graph("zero-bubble", stages, 1, micro_batches, ahead, lag)
            assert len(made_.duration) == 3 * stages * micro_batches
            case = Case({}, stages, 1, micro_batches, "zero-bubble", "makespan", 0, ahead, lag)
            for s, listed in enumerate(made_.orders):
                assert [("FBW"[t.direction], t.chunk, t.micro_batch) for t in listed] == order(case, s)


def halves(seed: int) -> Case:
    """A small case with weights' gradients of their own time and memory."""
    dice = random.Random(1000 + seed)
    case = made(seed)
    while case.chunks > 1:
        seed += 1000
        case = made(seed)
    for layer in case.document["layers_description"]:
        if layer["type"] == "BODY":
            if dice.random() < 0.7:
                layer["backward_weight_time"] = dice.randint(0, 2 * layer["time"])
            if dice.random() < 0.7:
                layer["memory_backward_weight"] = dice.randint(0, layer["memory_activation"])
    return replace(case, schedule="zero-bubble", objective="makespan")


@pytest.mark.parametrize("sixth", range(6))
def test_small_cases_are_as_good_as_trying_everything_and_never_worse_than_1f1b(sixth: int) -> None:
    plans = 0
    for seed in range(sixth, 30, 6):
        case = halves(seed)
        wanted = best(case)
        description, _ = layers.load(json.dumps(case.document).encode())
        try:
            found = solve(problem(description, asked(case)), time_limit_s=60)
        except NoPlanError:
            assert wanted is None, f"seed {seed}: there is a split of {wanted}"
            continue
        assert wanted is not None, f"seed {seed}: no split fits"
        p = found.problem
        assert found.status == "optimal", f"seed {seed}"
        assert found.value * p.tick == pytest.approx(wanted, rel=1e-6), f"seed {seed}"
        chosen = replace(case, ahead=p.ahead, lag=p.lag)
        durations = p.durations(found.split) * p.tick
        assert found.makespan * p.tick == pytest.approx(makespan(chosen, *durations.T.tolist()), rel=1e-9)
        whole = best(replace(case, schedule="1f1b"))
        assert whole is None or found.value * p.tick <= whole * (1 + 1e-9), f"seed {seed}"
        plans += 1
    assert plans > 1


@pytest.mark.parametrize("seed", range(12))
def test_with_activations_that_move_it_is_never_worse_than_1f1b(seed: int) -> None:
    """A small enumeration: all cuts, how many of each stage's layers move, and all orders, the undivided one too."""
    dice = random.Random(seed)
    stages, micro_batches, time, kept = 2, dice.randint(1, 4), dice.randint(1, 6), 10
    into, out, limit = dice.choice([1, 2, 5]), dice.choice([2, 10]), dice.randint(6, 40)
    document = equal_layers(4, time=time, memory_activation=kept, memory_backward_weight=0) | {
        "offload_link": {"out_mb_per_time": out, "in_mb_per_time": into}, "memory_limits": limit,
    }  # fmt: skip
    document["layers_description"][0]["offload_levels"] = [{"name": "off", "memory": 1}]

    def told(case: Case, cut: tuple[int, int], off: tuple[int, int]) -> float | None:
        forward = [max(time * n, 9 * o / out) for n, o in zip(cut, off, strict=True)]
        halves = case.schedule == "zero-bubble"
        backward = [max((1 if halves else 2) * time * n, 9 * o / into) for n, o in zip(cut, off, strict=True)]
        for s in range(stages):
            alive = 0
            for what, *_ in order(case, s):
                alive += {"F": 1, "B": -1, "W": 0}[what]
                if alive * (kept * (cut[s] - off[s]) + off[s]) > limit:
                    return None
        return makespan(case, forward, backward, [float(time * n) for n in cut] if halves else ())

    whole = Case({}, stages, 1, micro_batches, "1f1b", "makespan", 1)
    cases = [whole] + [replace(whole, schedule="zero-bubble", ahead=a, lag=g) for a in (1, 2) for g in range(a + 1)]
    splits = [((n, 4 - n), (a, b)) for n in (1, 2, 3) for a in range(n + 1) for b in range(5 - n)]
    values = [[v for split in splits if (v := told(case, *split)) is not None] for case in cases]
    wanted = min((v for found in values for v in found), default=None)
    if wanted is None:
        with pytest.raises(NoPlanError):
            solve(described(document, stages, micro_batches), time_limit_s=20)
        return
    found = solve(described(document, stages, micro_batches), time_limit_s=20)
    assert found.status == "optimal"
    assert found.value * found.problem.tick == pytest.approx(wanted, rel=1e-6)
    assert found.value * found.problem.tick <= min(values[0], default=np.inf) * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_with_w_right_behind_b_every_split_holds_what_1f1b_holds_and_ends_no_later(seed: int) -> None:
    dice = random.Random(seed)
    case = halves(seed)
    description, _ = layers.load(json.dumps(case.document).encode())
    whole = problem(description, replace(asked(case), schedule="1f1b", min_layers=0))
    halved, *_ = zero_bubble(problem(description, replace(asked(case), min_layers=0)))
    assert (halved.ahead, halved.lag) == (1, 0)
    for _ in range(5):
        cuts = sorted(dice.randint(0, whole.layers) for _ in range(whole.groups - 1))
        split = fastest_split(whole, np.diff([0, *cuts, whole.layers]).tolist())
        ends = [value(p, "makespan", split) * p.tick for p in (halved, whole)]
        assert ends[0] <= ends[1] * (1 + 1e-9)
        held = [memory(p, split).peak * p.grain for p in (halved, whole)]
        assert held[0] == pytest.approx(held[1], rel=1e-9)


def test_the_answer_says_how_far_w_stays_behind_and_shows_it() -> None:
    p = described(equal_layers(8) | {"memory_limits": 500}, 4, 8)
    found = solve(p, time_limit_s=20)
    told = answer(found)
    assert told["schedule"] == "zero-bubble" and told["zero_bubble"] == {
        "ahead": found.problem.ahead, "lag": found.problem.lag,
    }  # fmt: skip
    assert told["weight"] == [[2.0]] * 4 and told["backward"] == [[2.0]] * 4
    assert all(peak <= 500 for peak in told["peak"])
    assert draw(found.problem, found.split, svg=True).count("<rect") == 3 * 4 * 8
    assert draw(found.problem, found.split).count(" W ") == 4
    assert told["uniform"]["makespan"] == told["makespan"] == 8 * 6 + 3 * 2
    assert uniform(p) == [2, 2, 2, 2]


@pytest.mark.parametrize("micro_batches", [2, 8])
def test_c4_ends_sooner_than_the_best_split_of_1f1b(micro_batches: int) -> None:
    ends = []
    for schedule in ("1f1b", "zero-bubble"):
        found = solve(described(C4, 2, micro_batches, schedule), time_limit_s=20)
        assert found.status == "optimal"
        ends.append(found.value * found.problem.tick)
    assert ends[1] < 0.95 * ends[0]


def test_weights_cannot_take_longer_than_the_whole_backward() -> None:
    with pytest.raises(DocumentError, match=r"backward_weight_time"):
        described(equal_layers(4, backward_weight_time=2.5), 4, 8)
