"""Made-up traces: they are legal, they are what they say, and the same arguments give the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperopt import plan as plans
from hyperopt.cost.followed import bytes_of
from hyperopt.cost.work import Table, Uncounted
from hyperopt.documents import canonical, write
from hyperopt.plan import Action, Plan, Recompute, Residency
from hyperopt.profile import COMPUTE, Profile, load
from hyperopt.replay import replay
from hyperopt.testing import TRACES, figures, generate
from hyperopt.validate import validate

NAMES = list(TRACES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("operators", [500, 900, 2000])
def test_a_trace_loads_without_warnings_has_its_size_and_fits_its_device(name: str, operators: int) -> None:
    made = generate(name, operators)
    profile, warnings = load(msgspec.json.encode(made))
    assert not warnings and canonical(profile) == canonical(made)
    assert abs(len(profile.operators) - operators) <= operators / 10
    free = replay(profile)
    assert replay(profile, hbm_bytes=profile.device.hbm_bytes).step_ns == free.step_ns


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(NAMES), operators=st.integers(500, 4000), seed=st.integers(0, 2**31 - 1))
def test_any_size_and_seed_is_legal_and_listed_in_the_order_of_its_starts(name: str, operators: int, seed: int) -> None:
    profile = generate(name, operators, seed)
    assert abs(len(profile.operators) - operators) <= operators / 10
    assert validate(profile, plans.EMPTY, profile.device.hbm_bytes) == []
    assert [round(o.start_us * 1000) for o in profile.operators] == replay(profile).start


def _gaps(profile: Profile) -> dict[int, list[tuple[int, int]]]:
    """Per storage the spans between consecutive accesses that both read and start at the writer."""
    last: dict[int, int] = {}
    gaps: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for i, operator in enumerate(profile.operators):
        for s in operator.accesses:
            if s in last:
                gaps[s].append((last[s], i))
            last[s] = i
    return gaps


@pytest.mark.parametrize("name", NAMES)
def test_every_recomputable_operator_may_run_again_where_its_inputs_are_as_they_were(name: str) -> None:
    """One plan for each (every third): drop what it wrote after some access, and run it alone before the next."""
    profile = generate(name, 500)
    operators = profile.operators
    gaps, writes = _gaps(profile), defaultdict[int, list[int]](list)
    for i, operator in enumerate(operators):
        for s in operator.writes:
            writes[s].append(i)
    tried = 0
    for k, operator in enumerate(operators):
        for s in operator.writes if operator.recomputable and k % 3 == 0 else ():
            for after, before in gaps[s]:
                changed = any(k < w < before for r in (*operator.reads, *operator.writes) for w in writes[r])
                on_compute = operators[after].stream == operators[before].stream == COMPUTE
                if after < k or before <= after + 1 or changed or not on_compute:
                    continue
                drop = Action(op=after, when="after", kind="release", storage=s)
                again = Recompute(storage=s, before_op=before, ops=(k,))
                plan = Plan(residency=Residency(actions=(drop,), recompute=(again,)))
                assert validate(profile, plan) == []
                tried += 1
                break
    assert tried > 20


@pytest.mark.parametrize("name", NAMES)
def test_what_updates_in_place_is_not_recomputable_and_nothing_is_overwritten_that_is_still_recomputable(
    name: str,
) -> None:
    profile = generate(name, 900)
    for operator in profile.operators:
        if set(operator.reads) & set(operator.writes):
            assert not operator.recomputable
        if any(profile.by_id[s].kind in ("optimizer_state", "parameter") for s in operator.writes):
            assert not operator.recomputable


@pytest.mark.parametrize("name", NAMES)
def test_a_budget_of_a_third_is_not_below_what_one_operator_needs(name: str) -> None:
    found = figures(generate(name, 2000))
    assert sum(found.at_peak.values()) == found.peak_bytes
    assert found.working_set < 0.25 * found.peak_bytes
    assert 0 < found.recomputable < 1


@pytest.mark.parametrize("name", NAMES)
def test_equal_kernels_take_times_within_a_few_percent_of_each_other(name: str) -> None:
    times: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for o in (profile := generate(name, 900)).operators:
        sizes = [profile.by_id[s].bytes for s in (*o.reads, *o.writes)]
        times[o.type, o.layer.rstrip("0123456789"), o.phase, o.shapes, tuple(sizes)].append(o.duration_us)
    alike = [sorted(found) for key, found in times.items() if key[0] not in ("idle", "FlashAttention")]
    assert max(found[-1] / found[0] for found in alike) < 1.2 and any(found[0] < found[-1] for found in alike)


@pytest.mark.parametrize("name", NAMES)
def test_shapes_are_those_of_what_is_read_and_written_and_tell_the_work(name: str) -> None:
    """What goes in, then what comes out. Products are none that shapes contradict, and types that a model's step has
    are known; attention over packed rows, experts and caches are left out."""
    profile, table = generate(name, 900), Table.load()
    counted = kernels = 0
    for o in profile.operators:
        sizes = [bytes_of(shape, dtype) for shape, dtype in zip(o.shapes, o.dtypes, strict=True)]
        assert sizes[o.inputs or 0 :] == [profile.by_id[s].bytes for s in o.writes]
        if o.inputs:
            assert set(sizes[: o.inputs]) <= {profile.by_id[s].bytes for s in o.reads}
        kernels += o.type != "idle"
        try:
            table.of(o)
            counted += o.type != "idle"
        except Uncounted as why:
            assert not o.type.startswith(("MatMul", "GroupedMatMul", "RmsNorm", "Rotary", "SwiGlu")), (o.type, why)
    assert counted > 0.4 * kernels


@pytest.mark.parametrize("suffix", ["json", "json.gz", "json.zst"])
def test_the_same_arguments_give_the_same_bytes_in_another_process(tmp_path: Path, suffix: str) -> None:
    name, path, again = "qwen3-30b-a3b-skewed", tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    write(generate(name, 600, 7), path)
    command = [sys.executable, "-m", "hyperopt", "traces", name, "--operators", "600", "--seed", "7", "-o", str(again)]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": "1"})
    assert path.read_bytes() == again.read_bytes()


def test_another_seed_has_the_same_program_and_other_times() -> None:
    one, other = generate("llama3-8b-decode", 600, 0), generate("llama3-8b-decode", 600, 1)
    assert one.program_digest == other.program_digest and one.digest != other.digest
    assert replay(one).step_ns != replay(other).step_ns


@pytest.mark.parametrize(("name", "operators", "says"), [("none", 500, "llama3-8b"), ("llama3-8b", 5, "300 to 300000")])
def test_what_cannot_be_made_is_said(name: str, operators: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        generate(name, operators)


def test_names_about_tiers_have_them() -> None:
    three, contended = (generate(f"llama3-8b-{name}", 500) for name in ("three-tiers", "contended"))
    assert list(three.device.tiers) == ["host", "pool", "flash"]
    assert three.device.host_bytes == three.device.tiers["host"].bytes == three.device.hbm_bytes // 4
    assert not contended.device.tiers["host"].duplex
    assert contended.device.host_bytes == 8 * contended.device.hbm_bytes


def test_shapes_of_kernels_of_two_tensors_broadcast_to_what_they_write() -> None:
    """A row's statistics stand in a column: with as many rows as columns a row of them would be another product."""
    shapes: dict[int, tuple[int, ...]] = {}
    columns = 0
    for o in generate("llama3-8b-unfused", 500).operators:
        if o.type in ("Mul", "Add", "MulSub") and all(s in shapes for s in o.reads):
            written = o.shapes[o.inputs or 0]
            assert np.broadcast_shapes(*(shapes[s] for s in o.reads)) == written
            columns += any(shapes[s] == (written[0], 1) for s in o.reads)
        shapes.update(zip(o.writes, o.shapes[o.inputs or 0 :], strict=False))
    assert columns
