"""The demonstration's processes: `hyperopt serve`, and one `hyperopt capture` or `apply` after the other.

A process for each, because MindSpore's pool, its modes and its compiled graphs outlive a run: peaks would mix.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

STOP_S = 15.0


class ChildFailed(RuntimeError):
    """A child process ended badly; the message has its last words and the file with all of them."""


def run(arguments: list[str], log: Path) -> dict[str, Any]:
    """The JSON answer of ``hyperopt ARGUMENTS --json``; what it writes to standard error goes to `log`."""
    with log.open("wb") as errors:
        done = subprocess.run(
            [sys.executable, "-m", "hyperopt", *arguments, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            check=False,
        )
    if done.returncode != 0:
        raise ChildFailed(_last_words(arguments[0], done.returncode, log))
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@dataclass(frozen=True)
class Server:
    """A server that is starting; asking for its `url` waits until it is there."""

    process: subprocess.Popen[bytes]
    log: Path

    @cached_property
    def url(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ChildFailed(_last_words("serve", self.process.wait(), self.log))
        return str(json.loads(line)["url"])


@contextmanager
def serving(data_dir: Path, log: Path) -> Iterator[Server]:
    """A server with its worker on a free port of the loopback and SQLite files in `data_dir`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HYPEROPT_")}
    arguments = ["serve", "--host", "127.0.0.1", "--port", "0", "--data-dir", str(data_dir), "--worker", "--json"]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "hyperopt", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
        )
    try:
        yield Server(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _last_words(command: str, code: int, log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"hyperopt {command} ended with {code}: {lines[-1] if lines else 'nothing said'} (all of it: {log})"
