"""Compilation that takes long is told, once."""

from __future__ import annotations

import logging
import threading

import pytest

from solver import compiling


def test_it_is_told_once_and_only_where_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiling, "_told", threading.Event())
    with caplog.at_level(logging.WARNING), compiling.compiling():
        pass
    assert not caplog.records
    monkeypatch.setattr(compiling, "LONG_S", 0.0)
    for _ in range(2):
        with caplog.at_level(logging.WARNING), compiling.compiling():
            assert compiling._told.wait(10)
    assert [record.message for record in caplog.records] in ([compiling.MESSAGE], [])
