"""`hyperopt read` and `hyperopt upload` of what other profilers wrote: exit codes, the manifest, one clear line."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from hyperopt import profile as profiles
from tests.cli.command import Cli
from tests.profiler.read.mindspore.pipeline_files import write_pipeline

FIELDS = {
    "rank", "status", "reason", "kind", "file", "operators", "storages", "peak_bytes", "replayed_peak_bytes",
    "base_bytes", "reserved_bytes", "external_bytes", "fragmentation_bytes", "step_us", "replayed_step_us", "coverage",
    "computing_us", "warnings", "dropped", "units", "notes",
}  # fmt: skip


def test_a_folder_becomes_profiles_and_a_manifest(cli: Cli, tmp_path: Path) -> None:
    run = write_pipeline(tmp_path / "run")
    assert cli("read", run, "-o", tmp_path / "out", "--json") == 0
    manifest = cli.answer
    assert manifest["kind"] == "mindinsight_pipeline"
    assert [rank["status"] for rank in manifest["ranks"]] == ["accepted", "accepted"]
    assert "stage 1 (rank 1) computes 3.73 times" in manifest["warnings"][0]
    for rank in manifest["ranks"]:
        assert set(rank) >= FIELDS and set(rank["coverage"]) >= {"step", "peak"}
        document, _ = profiles.load((tmp_path / "out" / rank["file"]).read_bytes())
        assert document.run.name == "run" and len(document.operators) == rank["operators"]


def test_an_archive_is_the_same(cli: Cli, tmp_path: Path) -> None:
    run = write_pipeline(tmp_path / "run")
    assert cli("read", run, "-o", tmp_path / "a", "--json") == 0
    with zipfile.ZipFile(tmp_path / "run.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in run.iterdir():
            archive.write(file, f"deep/down/{file.name}")
    assert cli("read", tmp_path / "run.zip", "-o", tmp_path / "b", "--json") == 0
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_one_bad_rank_is_told_and_does_not_sink_the_rest(cli: Cli, tmp_path: Path) -> None:
    run = write_pipeline(tmp_path / "run")
    (run / "step_trace_raw_1_detail_time.csv").write_bytes(b"\0" * 500)
    assert cli("read", run, "-o", tmp_path / "out") == 0
    assert "refused" in cli.out and "rank 1: step_trace_raw_1_detail_time.csv" in cli.out
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["rank_0.json.gz"]


def test_the_table_is_for_people(cli: Cli, tmp_path: Path) -> None:
    assert cli("read", write_pipeline(tmp_path / "run", first_ms=500.0), "-o", tmp_path / "out") == 0
    lines = cli.out.splitlines()
    assert lines[0].endswith("run: mindinsight_pipeline")
    assert lines[1].split()[:4] == ["rank", "status", "kind", "operators"]
    assert any("rank 0: step 1 left out as warm-up" in line for line in lines)


@pytest.mark.parametrize("as_json", [True, False])
def test_what_nobody_knows_is_bad_input_in_one_line(cli: Cli, tmp_path: Path, as_json: bool) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("hello")
    assert cli("read", tmp_path / "run", "-o", tmp_path / "out", *["--json"] * as_json) == 64
    assert not (tmp_path / "out").exists()
    assert len(cli.err.splitlines()) == 1 and "no kind of profile was recognised in run" in cli.err
    if as_json:
        assert cli.answer["kind"] == "unknown" and cli.answer["ranks"] == []


def test_paths_that_do_not_do(cli: Cli, tmp_path: Path) -> None:
    assert cli("read", tmp_path / "nowhere", "-o", tmp_path / "out") == 64
    assert cli.err == f"hyperopt: there is no file or folder {tmp_path / 'nowhere'}\n" and cli.out == ""
    (tmp_path / "file").write_text("x")
    assert cli("read", write_pipeline(tmp_path / "run"), "-o", tmp_path / "file") == 64
    assert "is no folder" in cli.err and len(cli.err.splitlines()) == 1
    assert cli("read", tmp_path / "run", "-o", tmp_path / "file" / "x") == 64
    assert "is no folder" in cli.err and len(cli.err.splitlines()) == 1


def test_a_hostile_archive_is_one_line(cli: Cli, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("../../evil.json", "{}")
    assert cli("read", tmp_path / "bad.zip", "-o", tmp_path / "out", "--json") == 64
    assert "a member that leads outside: '../../evil.json'" in cli.err and cli.out == ""
    assert not (tmp_path / "out").exists()


def test_layer_descriptions_are_shown(cli: Cli, tmp_path: Path) -> None:
    layer = {"name": "L", "type": "BODY", "time": 1, "nb_layer": 4, "memory_parameter": 1, "memory_activation": 2}
    (tmp_path / "m.json").write_text(
        json.dumps({"name": "m", "auto_partition_layer": {"L": 2}, "layers_description": [layer]})
    )
    assert cli("read", tmp_path, "-o", tmp_path / "out", "--json") == 0
    assert cli.answer["kind"] == "sapp_ppb" and cli.answer["layers"][0]["layers"][0]["count"] == 4
    assert cli.answer["warnings"] == ["m.json: auto_partition_layer says 2 L, its description nb_layer 4"]
    assert cli("upload", tmp_path / "m.json", "--wait", "0", "--server", "http://127.0.0.1:9") == 64
    assert "layer descriptions are no profiles" in cli.err
