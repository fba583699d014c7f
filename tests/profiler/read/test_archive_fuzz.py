"""Archives with damage of any kind: unpacked or refused, below their folder, with nothing left behind."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from profiler.read.archive import Limits, is_archive, unpacked
from profiler.read.findings import UnreadableError
from tests.profiler.read.test_archive import PACKERS, tarred, zipped

FILES = [("run/a.csv", b"x,y\n1,2\n" * 50), ("run/" + "n" * 150 + "/b.json", b"{}"), ("c", b""), ("d", b"\xaa" * 999)]
WHOLE = {"zip": zipped(FILES)} | {packing: pack(tarred(FILES)) for packing, pack in PACKERS.items()}
NASTY = (b"\xff" * 8, b"\0" * 8, b"9" * 11, b"7" * 11, b"\x80" + b"\xff" * 11, b"../", b"/", b"\x01")


def damaged(data: bytes, rng: random.Random) -> bytes:
    """A few bits flipped, bytes overwritten, pieces cut out or doubled, the end cut off."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(out))
        to = min(len(out), at + rng.randrange(1, 600))
        match rng.randrange(5):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                out[at : at + 4] = rng.choice(NASTY)
            case 2:
                del out[max(at, 2) :]
            case 3:
                out[at:at] = out[at:to]
            case _:
                del out[max(at, 1) : to]
    return bytes(out)


@pytest.mark.parametrize("packing", WHOLE)
def test_any_damage(tmp_path: Path, packing: str) -> None:
    rng = random.Random(packing)
    path, scratch = tmp_path / "given", tmp_path / "scratch"
    scratch.mkdir()
    ends = {"unpacked": 0, "refused": 0}
    for _ in range(300):
        path.write_bytes(damaged(WHOLE[packing], rng))
        is_archive(path)
        try:
            with unpacked(path, Limits(bytes=1 << 20, members=100), scratch) as folder:
                for file in folder.rglob("*"):
                    assert file.resolve().is_relative_to(folder.resolve()) and not file.is_symlink()
            ends["unpacked"] += 1
        except UnreadableError as error:
            assert str(error).startswith("given ")
            ends["refused"] += 1
        assert list(scratch.iterdir()) == []
    assert ends["refused"] > 30
