"""Every setting of the service and its clients: one name, one environment variable, one place.

`docs/reference/settings.md` lists the same, and a test compares the two.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

GIB = 1024**3


class SettingError(ValueError):
    """An environment variable whose value cannot be used."""


def _bytes(text: str) -> int:
    """A whole number of bytes, at least 1; binary suffixes K, M, G and T are understood."""
    factor = {"K": 1024, "M": 1024**2, "G": GIB, "T": 1024**4}.get(text[-1:].upper(), 1)
    number = int(text[:-1] if factor > 1 else text) * factor
    if number < 1:
        raise ValueError("must be at least 1")
    return number


def _whole(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("must be at least 1")
    return number


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number < 65536:
        raise ValueError("a port is between 0 and 65535")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError("must be more than 0")
    return number


def _yes(text: str) -> bool:
    if text.lower() not in ("1", "0", "true", "false", "yes", "no"):
        raise ValueError("say true or false")
    return text.lower() in ("1", "true", "yes")


def _home() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "hyperopt"


def _about(read: Callable[[str], Any], shown: str, help: str) -> dict[str, Any]:
    """How a setting is read from text, its default as documented, and its meaning."""
    return {"read": read, "shown": shown, "help": help}


@dataclass(frozen=True)
class Settings:
    """What the service runs with. Sizes in bytes, times in seconds; `port` is `HYPEROPT_PORT`, and so on."""

    data_dir: Path = field(
        default_factory=_home,
        metadata=_about(Path, "~/.local/share/hyperopt", "Folder of the SQLite files and of uploads under way."),
    )
    database_url: str = field(
        default="",
        metadata=_about(
            str, "sqlite:///DATA_DIR/hyperopt.sqlite", "Database of profiles and plans, as a SQLAlchemy URL."
        ),
    )
    jobs_database_url: str = field(
        default="",
        metadata=_about(
            str,
            "sqlite:///DATA_DIR/jobs.sqlite",
            "Database of the job queue. Where DATABASE_URL is Postgres, the default is that same database "
            "(DBOS keeps to a schema of its own, `dbos`).",
        ),
    )
    host: str = field(
        default="127.0.0.1", metadata=_about(str, "127.0.0.1", "Address that `hyperopt serve` listens on.")
    )
    port: int = field(
        default=8750,
        metadata=_about(_port, "8750", "Port that `hyperopt serve` listens on; 0: any free one."),
    )
    server_url: str = field(
        default="http://127.0.0.1:8750",
        metadata=_about(str, "http://127.0.0.1:8750", "Server that `hyperopt upload` and `hyperopt show` speak to."),
    )
    max_upload_bytes: int = field(
        default=512 * 1024**2, metadata=_about(_bytes, "512M", "Largest body of an upload, as sent.")
    )
    max_document_bytes: int = field(
        default=2 * GIB, metadata=_about(_bytes, "2G", "Largest uploaded document when unpacked.")
    )
    max_archive_bytes: int = field(
        default=16 * GIB, metadata=_about(_bytes, "16G", "Largest uploaded archive of a profiler's folder, unpacked.")
    )
    worker: bool = field(
        default=True,
        metadata=_about(_yes, "true", "Whether `hyperopt serve` also solves; false: `hyperopt worker` does."),
    )
    worker_name: str = field(
        default_factory=socket.gethostname,
        metadata=_about(
            str,
            "the host's name",
            "Name of this worker. After a crash, the jobs it was solving wait for a worker of the same name.",
        ),
    )
    worker_jobs: int = field(default=1, metadata=_about(_whole, "1", "Jobs that one worker solves at the same time."))
    solve_memory_bytes: int = field(
        default=4 * GIB,
        metadata=_about(_bytes, "4G", "Memory limit of one solve or training, which is a process of its own."),
    )
    operators: Path | None = field(
        default=None,
        metadata=_about(Path, "none", "File of operator types that adds to the cost model's table (TOML)."),
    )
    max_time_limit_s: float = field(
        default=3600.0,
        metadata=_about(_seconds, "3600", "Longest time limit that a request for a plan may ask for, in seconds."),
    )

    @property
    def store_url(self) -> str:
        return self.database_url or f"sqlite:///{self.data_dir.resolve()}/hyperopt.sqlite"

    @property
    def queue_url(self) -> str:
        if self.jobs_database_url:
            return self.jobs_database_url
        if self.store_url.startswith("sqlite"):
            return f"sqlite:///{self.data_dir.resolve()}/jobs.sqlite"
        return self.store_url


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return "HYPEROPT_" + name.upper()


def from_environment(environment: Mapping[str, str] | None = None, **given: Any) -> Settings:
    """Settings from the environment; what is `given` (and not None) goes first. Raises `SettingError`."""
    environment = os.environ if environment is None else environment
    values = {name: value for name, value in given.items() if value is not None}
    for setting in fields(Settings):
        text = environment.get(variable(setting.name), "")
        if setting.name in values or not text:
            continue
        try:
            values[setting.name] = setting.metadata["read"](text)
        except ValueError as error:
            raise SettingError(f"{variable(setting.name)}={text!r}: {error}") from error
    return Settings(**values)


def table() -> str:
    """All settings as the Markdown table of docs/reference/settings.md."""
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    for setting in fields(Settings):
        shown, help = setting.metadata["shown"], setting.metadata["help"]
        lines.append(f"| `{variable(setting.name)}` | `{shown}` | {help} |")
    return "\n".join(lines)
