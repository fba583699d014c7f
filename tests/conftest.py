"""In CI a skipped test is a failed run: a test that cannot run proves nothing, and nobody reads the count of skips.

One reason is let pass: that the shared data folder is absent, where it is.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import pytest

# MindSpore's generated code goes only with protobuf's Python implementation, and aborts the process that chose the
# other one for OR-Tools before. Tests of both share this process; processes that they start choose for themselves.
CHOICE = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
os.environ[CHOICE] = "python"
import_module("google.protobuf.internal.api_implementation")  # where the choice is made
del os.environ[CHOICE]

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"
"""Instances and traces too large for the repository, beside the checkout."""

ABSENT = "shared data folder is absent"
"""The reason to skip with."""

_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not (ABSENT in reason and not SHARED_DATA.exists()):
            _skipped.append(f"{report.nodeid}: {reason}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _skipped and os.environ.get("CI"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _skipped and os.environ.get("CI"):
        terminalreporter.section("skipped, which fails the run in CI")
        for line in _skipped:
            terminalreporter.write_line(line)
