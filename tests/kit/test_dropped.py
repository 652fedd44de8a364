"""What a caller drops is gone at once, also where an error was raised beside it: no frame is kept by a circle of an error and itself."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from dlock_core.errors import StoreError
from dlock_core.kit import Lane, in_own_thread
from dlock_core.kit.exchange import perform
from tests.kit.test_exchange import AsyncLink, AsyncStore, DriverError, Link, Server, Store

pytestmark = pytest.mark.usefixtures("no_collector")


class Lease:
    """What a caller has in hand."""


def is_dropped(call: Callable[[], object]) -> bool:
    """Whether the lease of a caller of *call*, which raises, is gone after it."""

    def caller() -> weakref.ref[Lease]:
        lease = Lease()
        with suppress(StoreError, DriverError):
            call()
        return weakref.ref(lease)

    return caller()() is None


def fail() -> None:
    """Raise an error of its own: nobody else has it in hand."""
    raise DriverError("no")


class Down(Link):
    """The way to a server that does not answer, for threads."""

    def send(self, *_: object) -> None:
        """Fail."""
        fail()


class AsyncDown(AsyncLink):
    """The same for tasks."""

    async def send(self, *_: object) -> None:
        """Fail."""
        fail()


def test_an_error_of_a_lane() -> None:
    """It was raised in another thread."""
    lane = Lane(1)

    assert is_dropped(lambda: lane.run(fail, 5.0))


def test_an_error_of_an_exchange() -> None:
    """The driver's is the cause of the store's."""
    assert is_dropped(lambda: Store(Server(), Down(Server())).read("k", timeout_s=5.0))


def test_an_error_of_an_exchange_for_tasks() -> None:
    """The same."""

    async def caller() -> weakref.ref[Lease]:
        lease = Lease()
        with suppress(StoreError):
            await AsyncStore(Server(), AsyncDown(Server())).read("k", timeout_s=5.0)
        return weakref.ref(lease)

    async def scene() -> bool:
        return (await caller())() is None

    assert asyncio.run(scene())


def test_an_error_of_steps() -> None:
    """It is thrown into them, and they raise it on."""

    def steps() -> Iterator[Any]:
        fail()
        yield

    def nested() -> Iterator[Any]:
        with suppress(ZeroDivisionError):
            yield
        fail()

    assert is_dropped(lambda: perform(steps()))  # type: ignore[arg-type]  # a generator
    assert is_dropped(lambda: perform(nested()))  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize("ends_first", ["task", "loop"])
def test_answer_for_a_task_that_is_gone_is_handed_over(ends_first: str) -> None:
    """It may be a connection, which somebody has to close; the event loop may have ended as well."""
    late, answers = list[int](), threading.Event()

    async def scene() -> list[threading.Thread]:
        before = threading.enumerate()
        task = asyncio.create_task(in_own_thread(lambda: int(answers.wait(10)), late.append))
        await asyncio.sleep(0)
        made = [thread for thread in threading.enumerate() if thread not in before]
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        if ends_first == "task":
            answers.set()
            made.pop().join()
            await asyncio.sleep(0)
        return made

    made = asyncio.run(scene())
    answers.set()
    for thread in made:
        thread.join()
    assert late == [1]
