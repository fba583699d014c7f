"""Work beside the search: answers in order, the same ones whether beside or at once; closing ends it."""

from __future__ import annotations

import time

import pytest

from solver.residency.aside import Aside
from solver.stop import Stopped


def refuses() -> object:
    raise Stopped


@pytest.mark.parametrize("beside", [True, False])
def test_answers_come_in_order_and_none_for_what_was_stopped(beside: bool) -> None:
    aside = Aside([("one", lambda: 1), ("two", refuses), ("three", lambda: 3)], beside=beside)
    found = []
    with aside:
        while aside.left:
            name = aside.next
            found.append(aside.take())
            assert found[-1][0] == name
    assert found == [("one", 1), ("two", None), ("three", 3)]
    assert not aside.ready()


def test_at_once_a_job_is_done_when_it_is_asked_for() -> None:
    done: list[int] = []
    aside = Aside([("one", lambda: done.append(1)), ("two", lambda: done.append(2))], beside=False)
    assert aside.ready() and not done
    aside.take()
    assert done == [1]


def test_closing_ends_what_asks_and_leaves_out_the_rest() -> None:
    done: list[int] = []

    def long() -> object:
        while not aside.closed():
            time.sleep(0.001)
        raise Stopped

    aside = Aside([("long", long), ("never", lambda: done.append(1))], beside=True)
    with aside:
        assert not aside.ready()
    assert not done


def test_a_job_that_fails_is_told_where_its_answer_is_taken() -> None:
    def fails() -> object:
        raise ValueError("no")

    for beside in (True, False):
        with Aside([("one", fails)], beside=beside) as aside, pytest.raises(ValueError, match="no"):
            aside.take()
