"""The queue of what is due: nothing is lost by a signal in the middle of a call, and it stays as small as what is in it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from dlock_core.engine import timers as module
from dlock_core.engine.handle import Handle
from dlock_core.engine.timers import TimerQueue
from dlock_core.timings import NEVER


class Due:
    """What the queue sees of a handle; *looked* is called when somebody looks at its instant."""

    def __init__(self, looked: Callable[[], object] = lambda: None) -> None:
        self._due, self.looked = NEVER, looked

    @property
    def due(self) -> int:
        """When it is due, in ns."""
        self.looked()
        return self._due

    @due.setter
    def due(self, due: int) -> None:
        self._due = due


def handle(looked: Callable[[], object] = lambda: None) -> Handle:
    """Return one that is not due."""
    return cast("Handle", Due(looked))


def test_first_is_who_is_due_first_and_nobody_after_the_last() -> None:
    """Two that are due together come in the order in which they were put."""
    queue, a, b, c = TimerQueue(), handle(), handle(), handle()
    for each, due in ((a, 7), (b, 5), (c, 5)):
        queue.put(each, due)
    came = []
    while (first := queue.first()) is not None:
        came.append(first)
        queue.put(first, NEVER)

    assert came == [b, c, a]
    assert queue.live == 0


def test_same_instant_again_adds_no_entry() -> None:
    """A renewal that stays due when it was due costs nothing."""
    queue, one = TimerQueue(), handle()
    for _ in range(3):
        queue.put(one, 5)

    assert len(queue._heap) == queue.live == 1


def test_entries_of_the_past_are_dropped_once_they_outnumber_the_others() -> None:
    """Not before: dropping them costs a look at each."""
    queue, one = TimerQueue(), handle()
    most = 2 + module._SLACK
    for due in range(1, most + 1):
        queue.put(one, due)
    assert len(queue._heap) == most

    queue.put(one, most + 1)

    assert [entry[0] for entry in queue._heap] == [most + 1]
    assert queue.first() is one


def test_what_is_kept_is_a_heap_again(rng: random.Random) -> None:
    """Entries of the past lie between those that count."""
    queue, many = TimerQueue(), [handle() for _ in range(4 * module._SLACK)]
    for _ in range(20 * len(many)):
        queue.put(rng.choice(many), rng.randrange(1_000_000))
    assert len(queue._heap) <= 2 * queue.live + module._SLACK

    came = []
    while (first := queue.first()) is not None:
        came.append(first.due)
        queue.put(first, NEVER)

    assert came == sorted(came)


def test_put_by_a_signal_in_the_middle_of_a_clean_up_is_kept() -> None:
    """The handler runs in the thread that cleans up, and takes an attempt of its own."""
    queue, late = TimerQueue(), handle()
    most = 2 + module._SLACK
    looks = 0

    def looked() -> None:
        nonlocal looks
        looks += len(queue._heap) > most
        if looks == most:
            queue.put(late, 3)

    one = handle(looked)
    for due in range(10, 11 + most):
        queue.put(one, due)

    assert looks >= most
    assert queue.first() is late


def test_signal_that_raises_before_the_entry_leaves_it_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who repeats the step puts it then; a handle that seems due already would be put no more."""
    queue, one = TimerQueue(), handle()

    def raises(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("heapq.heappush", raises)
        with pytest.raises(KeyboardInterrupt):
            queue.put(one, 5)
    assert (one.due, queue.live) == (NEVER, 0)

    queue.put(one, 5)

    assert queue.first() is one
