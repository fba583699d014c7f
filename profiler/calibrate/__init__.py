"""A sweep of MindSpore on the machine at hand: operators over shapes, and copies between the tiers -> one profile.

    sweep.py      which operators, which shapes; chunks        networks.py   a chunk as a MindSpore network
    copies.py     copies, alone and several at once            child.py      one process: a chunk, or one that copies

The profile is timing only (no storages): every kernel of the sweep, forward and backward, with its shapes and its
typical time of interleaved executions, and every copy. The cost model learns from it as from any other profile.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import structs

from hyperopt import profile as profiles
from hyperopt.documents import write
from hyperopt.profile import Device, Operator, Profile, Run
from profiler.calibrate.sweep import PASSES, STEPS, chunks

COPIERS = (1, 2, 4)
"""How many processes copy at the same time."""

CPU = "cpu"
"""As captures in graph mode call it: what is measured here is what they measure."""

COPY_LEAD_S = 8.0
"""What a process takes to be ready to copy."""


class CalibrationError(RuntimeError):
    """The sweep cannot go on; the message says why."""


def calibrate(output: Path, minutes: float = 10.0, say: Callable[[str], None] = lambda line: None) -> Profile:
    """Measures and writes the profile to `output`; what was measured before an interruption lies in a folder beside it
    and is not measured again. After `minutes` nothing new is begun: the profile then says how much of the sweep it
    holds. Chunks deal all kinds of operators in turn, so a part is a thinner sweep and not a narrower one.

    Raises `CalibrationError` where nothing could be measured.
    """
    parts = output.with_name(output.name + ".parts")
    parts.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + minutes * 60
    lasted = [0.0]
    for copiers in COPIERS:
        if time.monotonic() + 2 * max(lasted) < end:
            _copies(parts, copiers, say)
    count = len(chunks())
    for again, chunk in ((again, chunk) for again in range(PASSES) for chunk in range(count)):
        done = _part(parts, chunk, again)
        if done.exists():
            continue
        if time.monotonic() + max(lasted) > end:
            break
        begin = time.monotonic()
        failed = _run(["operators", str(chunk), str(done)])
        lasted.append(time.monotonic() - begin)
        say(f"pass {again + 1} of {PASSES}, chunk {chunk + 1} of {count}: {failed or f'{lasted[-1]:.0f} s'}")
    profile = _joined(parts, count)
    write(profile, output)
    for part in parts.iterdir():
        part.unlink()
    parts.rmdir()
    return profile


def _part(parts: Path, chunk: int, again: int) -> Path:
    return parts / f"operators_{chunk}_{again}.json.gz"


def _run(arguments: list[str]) -> str:
    """Why the child failed; "" where it did not."""
    command = [sys.executable, "-m", "profiler.calibrate.child", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    return f"failed: {lines[-1] if lines else f'ended with {done.returncode}'}"


def _copies(parts: Path, copiers: int, say: Callable[[str], None]) -> None:
    outputs = [parts / f"copies_{copiers}_{number}.json" for number in range(copiers)]
    if all(output.exists() for output in outputs):
        return
    start = str(time.time() + COPY_LEAD_S)
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "profiler.calibrate.child", "copies", start, str(output)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for output in outputs
    ]
    codes = [child.wait() for child in children]
    if any(codes):
        for output in outputs:
            output.unlink(missing_ok=True)
    say(f"copies, {copiers} at a time: {'failed' if any(codes) else 'done'}")


def _quickest(passes: Sequence[Profile]) -> Profile:
    """Each kernel's smaller time of the passes over one chunk: the same kernels, maybe in another order."""
    times: dict[str, float] = {}
    for profile in passes:
        for operator in profile.operators:
            times[operator.name] = min(operator.duration_us, times.get(operator.name, operator.duration_us))
    first = passes[0]
    operators = tuple(structs.replace(operator, duration_us=times[operator.name]) for operator in first.operators)
    return structs.replace(first, operators=operators)


def _joined(parts: Path, count: int) -> Profile:
    """One profile of all parts, one after the other in time; copies that ran together start together."""
    captured = []
    passes = 0
    for chunk in range(count):
        files = [_part(parts, chunk, again) for again in range(PASSES)]
        if found := [profiles.load(file.read_bytes())[0] for file in files if file.exists()]:
            captured.append(_quickest(found))
            passes += len(found)
    if not captured:
        raise CalibrationError("no chunk of the sweep could be measured: try `hyperopt capture` to see why")
    operators: list[Operator] = []
    now = 0.0
    for number, profile in enumerate(captured):
        for operator in profile.operators:
            name = f"chunk{number}/{operator.name}"
            operators.append(structs.replace(operator, start_us=now, layer=f"chunk{number}", name=name))
            now += operator.duration_us
    for copiers in COPIERS:
        paths = [parts / f"copies_{copiers}_{number}.json" for number in range(copiers)]
        if not all(path.exists() for path in paths):
            continue
        together = zip(*(json.loads(path.read_text()) for path in paths), strict=True)
        for turn in together:
            for number, (way, size, us) in enumerate(turn):
                operators.append(
                    Operator(
                        name=f"{way}-{size}-{number + 1}of{copiers}", type=way, stream=f"copies{number}", start_us=now,
                        duration_us=us, shapes=((size,), (size,)), dtypes=("uint8", "uint8"), inputs=1,
                        recomputable=False,
                    )
                )  # fmt: skip
            now += max(us for _, _, us in turn)
    first = captured[0]
    profile = Profile(
        run=Run(
            name="calibration",
            framework=first.run.framework,
            framework_version=first.run.framework_version,
            model="sweep",
            source="calibration",
            notes=(
                f"{len(captured)} of {count} chunks of the sweep, {passes / len(captured):.1f} passes; median of the "
                f"fastest quarter of {STEPS} interleaved executions, the smaller of the passes",
                "copies that run at the same time start at the same time, each on a stream of its own",
            ),
        ),
        device=Device(name=CPU),
        operators=tuple(operators),
        storages=(),
    )
    profiles.check(profile)
    return profile
