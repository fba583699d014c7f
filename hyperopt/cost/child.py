"""Training in a process of its own, that can be killed and has a memory limit.

Documents are handed over one at a time, each when the one before has become rows, so that neither side ever holds two::

    parent   profile ─▶        profile ─▶        ... train ─▶
    child              ◀─ read           ◀─ read              ◀─ learned | too few | failed
"""

from __future__ import annotations

import multiprocessing
import resource
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hyperopt import profile as profiles
from hyperopt.cost import model as models
from hyperopt.cost.drift import Drift
from hyperopt.cost.feedback import Copy
from hyperopt.cost.lesson import Learned, Lesson, When
from hyperopt.cost.training import TooFew
from hyperopt.cost.work import Table
from hyperopt.documents import canonical


class TrainingFailed(RuntimeError):
    """The child ended without an answer: cancelled, out of memory, killed, or a fault; the message says which."""


def train_in_child(
    device: str,
    documents: Iterable[tuple[bytes, When]],
    copies: Sequence[Copy],
    current: bytes | None,
    *,
    operators: Path | None,
    memory_limit_bytes: int | None,
    cancelled: Callable[[], bool],
    progress: Callable[[dict[str, Any]], None],
) -> Learned:
    """A model of profiles, given as their documents, oldest first, and of copies, against the document of the model in
    use (`When`).

    `operators`: a table of one's own. `progress` gets {stage, profiles, operators}. Raises `TooFew`, and
    `TrainingFailed`, also where `cancelled` answers true: nothing of half a training is of use.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(theirs, device, operators, memory_limit_bytes), daemon=True)
    child.start()
    theirs.close()

    def asked(*message: object) -> tuple[Any, ...]:
        try:
            ours.send(message)
            while not cancelled():
                if ours.poll(0.1):
                    break
            else:
                raise TrainingFailed("cancelled")
            answer: tuple[Any, ...] = ours.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            child.join()
            raise TrainingFailed(
                f"the training process ended with code {child.exitcode} (its memory limit?)"
            ) from error
        if answer[0] == "too few":
            raise TooFew(answer[1])
        if answer[0] == "failed":
            raise TrainingFailed(answer[1])
        return answer

    try:
        count = total = 0
        for document, when in documents:
            _, read = asked("profile", document, when)
            count, total = count + 1, total + read
            progress({"stage": "reading", "device": device, "profiles": count, "operators": total})
        progress({"stage": "fitting", "device": device, "profiles": count, "operators": total})
        _, document, promoted, why, groups, drift, superseded = asked("train", list(map(tuple, copies)), current)
        found = None if drift is None else Drift(**drift)
        return Learned(models.load(document), promoted, why, groups, found, superseded)
    finally:
        if child.is_alive():
            child.kill()
        child.join()
        ours.close()


def _child(pipe: Connection, device: str, operators: Path | None, memory_limit_bytes: int | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    for library in ("scipy.optimize", "sklearn.ensemble"):  # before the limit: a library that cannot be loaded whole
        import_module(library)  # gives no MemoryError
    if memory_limit_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit_bytes, memory_limit_bytes))
    try:
        lesson = Lesson(device, Table.load(operators))
        while True:
            kind, *content = pipe.recv()
            if kind == "profile":
                pipe.send(("read", lesson.add(profiles.load(content[0])[0], content[1])))
                continue
            copies, current = content
            lesson.add_copies([Copy(*one) for one in copies])
            learned = lesson.learn(None if current is None else models.load(current))
            drift = None if learned.drift is None else asdict(learned.drift)
            told = (learned.promoted, learned.why, learned.groups, drift, learned.superseded)
            pipe.send(("learned", canonical(learned.model), *told))
            return
    except (EOFError, BrokenPipeError):
        return  # the parent is gone: nobody waits for an answer
    except TooFew as error:
        pipe.send(("too few", str(error)))
    except MemoryError:
        pipe.send(("failed", f"out of its memory limit of {memory_limit_bytes} bytes"))
    except Exception as error:  # reported to the parent, whole, instead of to a lost stderr
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
