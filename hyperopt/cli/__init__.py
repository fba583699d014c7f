"""The command line: the top door, the only part of `hyperopt` that may import every folder, and only when asked.

Exit codes of every command: 0 done, 64 usage error or bad input, 70 a fault of ours, 74 the answer could not be
written, 141 nobody reads it; others are said by the command. One clear line
on standard error says what is wrong and what to do; `--json` puts a machine's answer on standard output.
"""

from __future__ import annotations

import errno
import io
import sys
import traceback
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from hyperopt import names
from hyperopt.cli import (
    allocate,
    baselines,
    cost,
    files,
    front,
    gate,
    history,
    place,
    programs,
    read,
    remote,
    report,
    service,
    shard,
    stages,
    traces,
    training,
)
from hyperopt.documents import DocumentError

BAD_INPUT = 64
FAULT = 70
"""A fault of ours. Not 1, which some commands have for what they found."""

UNWRITTEN = 74
"""Standard output could not be written (EX_IOERR of sysexits.h): the answer is lost, whatever it was."""

CLOSED = 141
"""Standard output was closed by its reader, as a shell says of a program that is ended by that (SIGPIPE)."""

# Typer brings a click of its own in some versions and uses the installed one in others; its public
# BadParameter tells which.
UsageError = typer.BadParameter.__bases__[0]


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """Typer answers Ctrl-C without a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Abort from None


app = typer.Typer(
    name="hyperopt",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"{names.OURS} {names.our_version()}")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version and leave.")
    ] = False,
) -> None:
    """Profiling-guided memory plans for large models: capture, plan, apply, check."""


for room in (training, cost, read, allocate, shard, stages, programs, place, files, front):
    room.register(app)
for room in (gate, baselines, history, report, remote, service, traces):
    room.register(app)


OF_A_STREAM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""What the system says of a stream that cannot be written; of a file it comes with its name."""


def main() -> None:
    """The console script `hyperopt`. No failure of standard output or error leaves with a code that is a verdict."""
    try:
        _main()
    except OSError:
        files.mute(sys.stdout)
        files.mute(sys.stderr)
        sys.exit(UNWRITTEN)


def _main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal cannot show is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    if clash := names.clash():
        files.say(clash)
    try:
        code = app(standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _closed()
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError):  # click's own answer to it is 1
            _closed()
        raise
    except typer.Abort:
        _fail("interrupted", 130)
    except ModuleNotFoundError as error:
        extra = names.EXTRA_OF.get((error.name or "").partition(".")[0])
        if extra is None:
            _trace()
            _fail("a fault of hyperopt's own, see above: please report it", FAULT)
        _fail(f"{error.name} is not installed here: {names.remedy(extra)}", BAD_INPUT)
    except DocumentError as error:
        _fail(str(error), BAD_INPUT)
    except OSError as error:
        if error.filename is None and error.errno in OF_A_STREAM:
            files.mute(sys.stdout)
            _fail(f"standard output: {error.strerror}", UNWRITTEN)
        _fail(_of_a_file(error), BAD_INPUT)
    except Exception as error:
        if not isinstance(error, UsageError):
            _trace()
            _fail("a fault of hyperopt's own, see above: please report it", FAULT)
        context = getattr(error, "ctx", None)
        _fail(_usage(error) + (f" (see '{context.command_path} --help')" if context else ""), BAD_INPUT)
    sys.exit(code if isinstance(code, int) else 0)


def _trace() -> None:
    try:
        traceback.print_exc()
    except OSError:
        files.mute(sys.stderr)


def _closed() -> NoReturn:
    files.mute(sys.stdout)
    sys.exit(CLOSED)


def _of_a_file(error: OSError) -> str:
    """What the system says of a file, by its name, and what to do about it; the system's own words where neither is
    known."""
    remedy = {
        errno.ENOENT: "give a path that exists",
        errno.EACCES: "give one that you may use, or change its permissions",
        errno.EISDIR: "give a file in it",
        errno.ENOTDIR: "give a path through folders only",
        errno.ENOSPC: "make room on that disk, or write elsewhere; nothing has been written",
        errno.EDQUOT: "make room in your quota, or write elsewhere; nothing has been written",
        errno.EROFS: "write to another disk: this one is read-only",
    }.get(error.errno or 0)
    if error.filename is None or remedy is None:
        return str(error)
    told = error.strerror or "cannot be used"
    return f"{error.filename}: {told[0].lower()}{told[1:]} ({remedy})"


def _usage(error: Exception) -> str:
    message: str = error.format_message() if hasattr(error, "format_message") else str(error)
    return message or "name a command"


def _fail(line: str, code: int) -> NoReturn:
    files.say(line)
    sys.exit(code)
