"""What is solved: 24 made-up steps of three sizes and, where their files are at hand, real ones; and four budgets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hyperopt.profile import Profile, load
from hyperopt.testing.traces import generate

BUDGETS = (90, 70, 50, 30)
"""Per cent of the peak without a plan."""

SIZES = {"small": 2_000, "medium": 20_000, "large": 100_000}
"""The most operators of each size, those of `large` give or take 10 %."""


@dataclass(frozen=True)
class Step:
    """A step to be planned. `operators` is what is asked for; `file` is None where it is made up."""

    name: str
    operators: int
    seed: int = 0
    file: Path | None = None

    @property
    def size(self) -> str:
        return next((size for size, most in SIZES.items() if self.operators <= most), "large")

    @property
    def group(self) -> str:
        """Where it is counted: its size, or `real`."""
        return "real" if self.file else self.size

    def profile(self, folder: Path) -> tuple[Path, Profile]:
        """The profile and the file it is in, which is written to `folder` first where the step is made up."""
        path = self.file
        if path is None:
            path = folder / f"{self.name}-{self.operators}-{self.seed}.json"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                fresh = path.with_suffix(".new")
                fresh.write_bytes(msgspec.json.encode(generate(self.name, self.operators, self.seed)))
                fresh.rename(path)
        return path, load(path.read_bytes())[0]


# Sizes are such that no trace of `small` and `medium` has more operators than its size admits (within 10 %).
STEPS = (
    Step("qwen3-30b-a3b-decode", 500),
    Step("qwen3-0.6b", 600),
    Step("llama3-8b-contended", 800),
    Step("llama3-8b-decode", 1_000),
    Step("llama3-8b-1f1b-last", 1_000),
    Step("llama3-8b-tp8", 1_200),
    Step("qwen3-30b-a3b-skewed", 1_400),
    Step("llama3-8b-unfused", 1_500),
    Step("llama3-8b-three-tiers", 1_600),
    Step("llama3-8b-skewed-lengths", 1_700),
    Step("llama3-8b-optimizer-pieces", 1_800),
    Step("qwen3-30b-a3b", 1_850),
    Step("llama3-8b", 1_900),
    Step("llama3-8b-1f1b", 1_900),
    Step("llama3-8b-prefill", 1_900),
    Step("deepseek-v3-mixed", 1_900),
    Step("llama3-8b-optimizer-states", 5_000),
    Step("llama3-8b-decode-long", 8_000),
    Step("llama3-8b-1f1b", 11_000),
    Step("qwen3-30b-a3b-skewed", 14_000),
    Step("deepseek-v3-mixed", 17_000),
    Step("llama3-8b-three-tiers", 19_000),
    Step("llama3-8b", 100_000),
    Step("qwen3-30b-a3b", 100_000),
)


def real_steps(folder: Path) -> Iterator[Step]:
    """Every profile in a folder."""
    for path in sorted(folder.glob("*.profile.json*")) if folder.is_dir() else ():
        profile, _ = load(path.read_bytes())
        yield Step(path.name.partition(".")[0], len(profile.operators), file=path)
