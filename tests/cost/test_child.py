"""Training in a process of its own: the same model, and every way to end without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from hyperopt.cost.child import TrainingFailed, train_in_child
from hyperopt.cost.feedback import Copy
from hyperopt.cost.lesson import Learned, When
from hyperopt.cost.training import TooFew
from tests.cost.synthetic import device

TOY = "toy made up 1"


def train(documents: list[bytes], current: bytes | None = None, cancelled: Any = None, **more: Any) -> Learned:
    asked = {"operators": None, "memory_limit_bytes": None, "progress": lambda told: None, **more}
    copies = [Copy(1 << n, 10.0 + (1 << n) / 5000) for n in range(10, 20)]
    new: list[tuple[bytes, When]] = [(document, "new") for document in documents]
    return train_in_child(TOY, new, copies, current, cancelled=cancelled or (lambda: False), **asked)


def test_a_model_comes_back_and_the_next_one_is_held_against_it() -> None:
    told: list[dict[str, Any]] = []
    first = train([msgspec.json.encode(device(seed, 40)) for seed in (1, 2)], progress=told.append)
    assert first.promoted and first.model.device == TOY and set(first.model.links) == {"CopyIn"}
    assert [(one["stage"], one["profiles"], one["operators"]) for one in told] == [
        ("reading", 1, 40),
        ("reading", 2, 80),
        ("fitting", 2, 80),
    ]
    again = train([msgspec.json.encode(device(1, 60))], msgspec.json.encode(first.model))
    assert not again.promoted or again.drift is not None


def test_too_few_and_faults_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(TooFew, match="19 are needed"):
        train([msgspec.json.encode(device(1, 9))])
    with pytest.raises(TrainingFailed, match="DocumentError"):
        train([b"not a profile"])
    (tmp_path / "own.toml").write_text("[A]\nformula = 'none such'\n")
    with pytest.raises(TrainingFailed, match="OperatorFileError"):
        train([msgspec.json.encode(device(1, 60))], operators=tmp_path / "own.toml")


def test_cancelled_it_is_killed_and_leaves_nothing() -> None:
    asked = iter(range(10**6))
    with pytest.raises(TrainingFailed, match="cancelled"):
        train([msgspec.json.encode(device(1, 400))], cancelled=lambda: next(asked) >= 1)


def test_its_memory_is_limited() -> None:
    with pytest.raises(TrainingFailed, match="memory limit"):
        train([msgspec.json.encode(device(1, 60))], memory_limit_bytes=1 << 28)
