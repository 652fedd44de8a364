"""Steps that are written once perform the same in threads and in tasks, and are told of each error and each interrupt."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core.kit import aperform, perform

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


class Interrupted(BaseException):
    """What a signal handler raises."""


def fails() -> int:
    """Fail as a call of a step may."""
    raise OSError("the call failed")


@pytest.fixture(params=["sync", "async"])
def performed(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return what performs the steps of a function, in one colour; the function is given how a call is made."""

    def in_threads(steps: Callable[..., Generator[Any, Any, Any]]) -> Any:
        return perform(steps(lambda work: work()))

    def in_tasks(steps: Callable[..., Generator[Any, Any, Any]]) -> Any:
        async def call(work: Callable[[], Any]) -> Any:
            await asyncio.sleep(0)
            return work()

        return asyncio.run(aperform(steps(call)))

    return in_threads if request.param == "sync" else in_tasks


def test_steps_are_sent_what_their_calls_return(performed: Callable[..., Any]) -> None:
    """And their own result is that of the whole."""

    def steps(call: Any) -> Generator[Any, Any, list[int]]:
        first = yield call(lambda: 1)
        second = yield call(lambda: first + 1)
        return [first, second]

    assert performed(steps) == [1, 2]


def test_the_error_of_a_call_is_raised_where_it_was_made(performed: Callable[..., Any]) -> None:
    """The steps may handle it, and go on with further calls."""

    def steps(call: Any) -> Generator[Any, Any, str]:
        try:
            yield call(fails)
        except OSError as error:
            mended = yield call(lambda: "mended")
            return f"{error}, {mended}"
        raise AssertionError("it did not fail")

    assert performed(steps) == "the call failed, mended"


def test_an_error_that_is_not_handled_ends_the_steps(performed: Callable[..., Any]) -> None:
    """After what they do at their end, which may need calls, too."""
    done: list[int] = []

    def steps(call: Any) -> Generator[Any, Any, None]:
        try:
            yield call(fails)
        finally:
            done.append((yield call(lambda: 3)))

    with pytest.raises(OSError, match="the call failed"):
        performed(steps)
    assert done == [3]


def test_an_interrupt_between_two_steps_is_raised_in_the_steps() -> None:
    """So they undo what they have begun, as a waiter that has entered a queue leaves it."""
    undone: list[int] = []

    def steps() -> Generator[Any, Any, None]:
        try:
            yield 1
        except Interrupted:
            undone.append((yield 2))
            raise

    class Signalled:
        """Steps whose first answer a signal handler keeps from them."""

        def __init__(self) -> None:
            self._steps = steps()
            self.throw = self._steps.throw
            self._signalled = False

        def __getattr__(self, name: str) -> Any:
            return getattr(self._steps, name)

        def send(self, came: Any) -> Any:
            """Send it; the first time, an interrupt follows."""
            answer = self._steps.send(came)
            if not self._signalled:
                self._signalled = True
                raise Interrupted
            return answer

    signalled: Any = Signalled()
    with pytest.raises(Interrupted):
        perform(signalled)
    assert undone == [2]


def test_a_cancellation_is_raised_in_the_steps() -> None:
    """They may await what they do at their end."""
    undone: list[int] = []

    async def scene() -> None:
        async def answer() -> int:
            await asyncio.sleep(0)
            return 2

        def steps() -> Generator[Any, Any, None]:
            try:
                yield asyncio.sleep(60)
            finally:
                undone.append((yield answer()))

        task = asyncio.create_task(aperform(steps()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(scene())
    assert undone == [2]
