"""The command line: the top door, the only part of `hyperopt` that may import every folder, and only when asked.

Exit codes of every command: 0 done, 64 usage error or bad input; others are said by the command. One clear line
on standard error says what is wrong and what to do; `--json` puts a machine's answer on standard output.
"""

from __future__ import annotations

import sys

import typer

from hyperopt import names
from hyperopt.cli import files, gate, remote, report, service, training
from hyperopt.documents import DocumentError

BAD_INPUT = 64

# Typer brings a click of its own in some versions and uses the installed one in others; its public
# BadParameter tells which.
UsageError = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="hyperopt",
    help="Profiling-guided memory plans for large models: capture, plan, apply, check.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for room in (training, files, gate, report, remote, service):
    room.register(app)


def main() -> None:
    """The console script `hyperopt`."""
    if clash := names.clash():
        print(f"hyperopt: {clash}", file=sys.stderr)
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        _fail("interrupted", 130)
    except (DocumentError, OSError) as error:
        _fail(str(error), BAD_INPUT)
    except Exception as error:
        if not isinstance(error, UsageError):
            raise
        context = getattr(error, "ctx", None)
        _fail(_usage(error) + (f" (see '{context.command_path} --help')" if context else ""), BAD_INPUT)
    sys.exit(code if isinstance(code, int) else 0)


def _usage(error: Exception) -> str:
    message: str = error.format_message() if hasattr(error, "format_message") else str(error)
    return message or "name a command"


def _fail(line: str, code: int) -> None:
    print(f"hyperopt: {line}", file=sys.stderr)
    sys.exit(code)
