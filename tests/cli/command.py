"""The command line as a test calls it."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from hyperopt.cli import main


class Cli:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys
        self.out = self.err = ""

    def __call__(self, *arguments: object) -> int:
        self.monkeypatch.setattr(sys, "argv", ["hyperopt", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        self.out, self.err = self.capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code

    @property
    def answer(self) -> Any:
        return json.loads(self.out)
