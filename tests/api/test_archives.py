"""POST /v1/archives: ranks of another profiler's folder become profiles; bad input is a problem and leaves nothing."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from hyperopt.client import Client, ServiceError
from hyperopt.settings import Settings
from tests.api.test_bad_input import stored
from tests.api.test_commands import run as command
from tests.profiler.read.mindspore.pipeline_files import write_pipeline

_count = iter(range(1, 1000))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two ranks, different from all before."""
    more = next(_count) / 100
    return write_pipeline(tmp_path / "run", (10.0 + more, 40.0 + more))


def zipped(folder: Path, names: Callable[[str], str] = str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, names(file.name))
    return out.getvalue()


def post(http: httpx.Client, body: bytes, **params: str) -> httpx.Response:
    return http.post("/v1/archives", content=body, params=params)


@pytest.fixture(autouse=True)
def nothing_left(settings: Settings) -> Any:
    yield
    assert list((settings.data_dir / "uploads").glob("*")) == []


def test_every_rank_becomes_a_profile(http: httpx.Client, folder: Path) -> None:
    before = stored(http)
    answer = post(http, zipped(folder), name="run.zip", project="archives")
    assert answer.status_code == 201, answer.text
    manifest, ranks = answer.json()["manifest"], answer.json()["stored"]
    assert (manifest["path"], manifest["kind"]) == ("run.zip", "mindinsight_pipeline")
    assert "stage 1 (rank 1) computes" in manifest["warnings"][0]
    assert [rank["rank"] for rank in ranks] == [0, 1] and stored(http) == before + 2
    for rank, entry in zip(ranks, manifest["ranks"], strict=True):
        summary = http.get(f"/v1/profiles/{rank['profile']}").json()
        assert (summary["rank"], summary["run_name"], summary["project"]) == (rank["rank"], "run", "archives")
        assert (summary["operators"], summary["timing_only"]) == (entry["operators"], True)
    again = post(http, zipped(folder, "x/{}".format), name="run.zip", project="archives")
    assert (again.status_code, again.json()["stored"]) == (200, ranks)
    assert stored(http) == before + 2


def test_a_tar_and_a_single_file(http: httpx.Client, folder: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        archive.add(folder, "run")
    assert post(http, out.getvalue(), name="t.tar.gz").status_code == 201
    file = folder / "step_trace_raw_0_detail_time.csv"
    answer = post(http, file.read_bytes(), name=file.name)
    assert answer.status_code == 201 and answer.json()["manifest"]["ranks"][0]["path"] == "."


def test_a_bad_rank_does_not_sink_the_upload(http: httpx.Client, folder: Path) -> None:
    (folder / "step_trace_raw_1_detail_time.csv").write_text("step_num,start_point\n1,2\n")
    answer = post(http, zipped(folder), name="bad rank.zip")
    assert answer.status_code == 201
    assert [rank["status"] for rank in answer.json()["manifest"]["ranks"]] == ["accepted", "refused"]
    assert [rank["rank"] for rank in answer.json()["stored"]] == [0]


def test_sql_in_names_is_a_name(http: httpx.Client, tmp_path: Path) -> None:
    bad = "Receive'); DROP TABLE profiles; --"
    folder = write_pipeline(tmp_path / "run", (12.345,))
    file = folder / "step_trace_raw_0_detail_time.csv"
    file.write_text(file.read_text().replace("Receive-op663", bad))
    project = "x'; DELETE FROM runs; --"
    before = stored(http)
    answer = post(http, zipped(folder), name="a'; DROP TABLE runs; --.zip", project=project)
    assert answer.status_code == 201, answer.text
    id = answer.json()["stored"][0]["profile"]
    assert stored(http) == before + 1
    assert http.get("/v1/profiles", params={"project": project}).json()["profiles"][0]["id"] == id
    summary = http.get(f"/v1/profiles/{id}").json()
    assert summary["run_name"] == "a'; DROP TABLE runs; --"
    document = http.get(f"/v1/profiles/{id}/document")
    assert bad.encode() in gzip.decompress(document.content)


def test_of_another_project(http: httpx.Client, folder: Path) -> None:
    assert post(http, zipped(folder), name="p.zip", project="one").status_code == 201
    answer = post(http, zipped(folder), name="p.zip", project="two")
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:hyperopt:problem:other-project")


def link() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("kernel_details.csv")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    return out.getvalue()


def one(name: str, content: bytes = b"x") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return out.getvalue()


FAULTS = {
    "traversal": (one("../../evil"), "leads outside: '../../evil'"),
    "absolute": (one("/etc/cron.d/evil"), "leads outside"),
    "link": (link(), "has a link: 'kernel_details.csv'"),
    "bomb": (one("bomb.csv", b"\0" * (100 << 20)), "grows more than 200-fold"),
    "truncated": (one("a.csv", bytes(range(256)) * 50)[:-30], ""),
    "unknown": (one("readme.txt"), "no kind of profile was recognised in"),
    "empty": (b"", "no kind of profile was recognised in"),
    "noise": (b"\x00\x01\x02" * 1000, "no kind of profile was recognised in"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_archives_are_problems(http: httpx.Client, fault: str) -> None:
    body, words = FAULTS[fault]
    before = stored(http)
    answer = post(http, body, name="upload.zip")
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:hyperopt:problem:unreadable")
    assert words in answer.json()["detail"] and answer.json()["remedy"]
    assert "/uploads/" not in answer.text, "the server's folders are its own"
    assert stored(http) == before


def test_too_large_as_sent(http: httpx.Client) -> None:
    answer = post(http, b"x" * 200_001)
    assert (answer.status_code, answer.json()["type"]) == (413, "urn:hyperopt:problem:too-large")


@pytest.mark.parametrize("name", ["../x", "a/b", ".", "..", ".x", "a\\b", "", "a\nb", "x" * 201])
def test_names_that_are_no_file_names(http: httpx.Client, name: str) -> None:
    answer = post(http, b"x", name=name)
    assert (answer.status_code, answer.json()["field"]) == (422, "query.name")


@pytest.mark.parametrize("name", ["profiles", "unpacked", "body", "-rf"])
def test_names_of_our_own_folders_do_no_harm(http: httpx.Client, name: str) -> None:
    assert post(http, b"x", name=name).status_code == 422


def test_the_client(server: str, http: httpx.Client, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run.zip").write_bytes(zipped(folder))
    with Client(server) as client:
        answer = client.upload_archive(tmp_path / "run.zip", project="by client")
        assert [rank["rank"] for rank in answer["stored"]] == [0, 1]
        (tmp_path / "bad.zip").write_bytes(FAULTS["traversal"][0])
        with pytest.raises(ServiceError, match="leads outside"):
            client.upload_archive(tmp_path / "bad.zip")


def test_the_command_reads_here_and_uploads_ranks(
    server: str, http: httpx.Client, folder: Path, tmp_path: Path
) -> None:
    done = command("upload", folder, "--server", server, "--project", "folders")
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [f"{folder} rank 0", f"{folder} rank 1"]
    assert "stage 1 (rank 1) computes" in done.stderr
    found = http.get("/v1/profiles", params={"project": "folders"}).json()["profiles"]
    assert [(p["run_name"], p["rank"]) for p in found] == [("run", 1), ("run", 0)]
    (tmp_path / "run.zip").write_bytes(zipped(folder))
    done = command("upload", tmp_path / "run.zip", "--server", server, "--project", "folders", "--json")
    assert done.returncode == 0 and '"rank": 1' in done.stdout
    assert len(http.get("/v1/profiles", params={"project": "folders"}).json()["profiles"]) == 2
