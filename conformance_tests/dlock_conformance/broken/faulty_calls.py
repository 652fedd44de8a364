"""Clients of the store behind a socket whose calls go wrong in one verb, or in one kind of trouble: of all else they are right.

A fault of :func:`playing` is a generator of the calls that it makes, so it is written once for threads and for tasks.
"""

from __future__ import annotations

import asyncio
import select
import socket
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, ClassVar, NamedTuple, TypeAlias

from dlock_conformance.wire.errors import NoReplyError, NotSentError, WireError
from dlock_conformance.wire.links import AsyncLink, AsyncLinks, Links, ReplyTimeoutError
from dlock_core.errors import StoreError
from dlock_core.store import Reply

__all__ = [
    "AsyncAnswersForGood",
    "AsyncSendsLater",
    "Call",
    "Clients",
    "SendsLater",
    "cut_off",
    "deaf_later",
    "deaf_to_its_end",
    "in_chunks",
    "no_longer_than_a_minute",
    "playing",
    "sent_again",
    "sent_again_halfway",
    "showing_the_last",
    "waiting_in_its_time_out",
]

STEPS = ("claim", "replace", "release")
CHUNK = 20
LONGEST_S = 60

Clients: TypeAlias = tuple[type[Links], type[AsyncLinks]]


class Call(NamedTuple):
    """A call of a client: the arguments of ``ask``."""

    verb: str
    request: Any
    more: Any
    timeout_s: float


Play: TypeAlias = Callable[[dict[Any, Any], Call], Generator[Call | float, Any, Any]]


class Playing(Links):
    """Makes the calls that its *play* yields for one call, and sleeps where it yields seconds; all calls of a client share a memory."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._memory: dict[Any, Any] = {}

    @staticmethod
    def play(memory: dict[Any, Any], call: Call, /) -> Generator[Call | float, Any, Any]:
        """Yield the calls to make for *call*, and return the answer to it."""
        raise NotImplementedError

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Make the calls of *play* until it returns."""
        steps = self.play(self._memory, Call(verb, request, more, timeout_s))
        try:
            step = next(steps)
            while True:
                try:
                    came = super().ask(*step) if isinstance(step, Call) else threading.Event().wait(step)
                except (WireError, StoreError) as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(came)
        except StopIteration as end:
            return end.value


class AsyncPlaying(AsyncLinks):
    """The same for tasks."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._memory: dict[Any, Any] = {}

    @staticmethod
    def play(memory: dict[Any, Any], call: Call, /) -> Generator[Call | float, Any, Any]:
        """Yield the calls to make for *call*, and return the answer to it."""
        raise NotImplementedError

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Make the calls of *play* until it returns."""
        steps = self.play(self._memory, Call(verb, request, more, timeout_s))
        try:
            step = next(steps)
            while True:
                try:
                    came = await (super().ask(*step) if isinstance(step, Call) else asyncio.sleep(step))
                except (WireError, StoreError) as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(came)
        except StopIteration as end:
            return end.value


def playing(game: Play) -> Clients:
    """Return clients whose *play* is *game*."""

    class Plays(Playing):
        play = staticmethod(game)

    class AsyncPlays(AsyncPlaying):
        play = staticmethod(game)

    return Plays, AsyncPlays


# ---- what is sent


def sent_again(verb: str) -> Clients:
    """Return clients that send *verb* again on a new connection when the old one was lost, in what is left of the time-out."""

    def play(_: dict[Any, Any], call: Call) -> Generator[Call | float, Any, Any]:
        until = time.monotonic() + call.timeout_s
        try:
            return (yield call)
        except NoReplyError as error:
            if call.verb != verb or isinstance(error, ReplyTimeoutError):
                raise
        return (yield call._replace(timeout_s=max(until - time.monotonic(), 0.001)))

    return playing(play)


def sent_again_halfway(_: dict[Any, Any], call: Call) -> Generator[Call | float, Any, Any]:
    """Send a step again that has no answer in half of its time."""
    if call.verb not in STEPS:
        return (yield call)
    half = call._replace(timeout_s=call.timeout_s / 2)
    try:
        return (yield half)
    except ReplyTimeoutError:
        return (yield half)


def in_chunks(_: dict[Any, Any], call: Call) -> Generator[Call | float, Any, Any]:
    """Send a batch in several requests."""
    if call.verb != "replace_many" or len(call.request) <= CHUNK:
        return (yield call)
    came: list[Any] = []
    chunks = [call.request[start : start + CHUNK] for start in range(0, len(call.request), CHUNK)]
    for chunk in chunks:
        try:
            came += yield call._replace(request=chunk, timeout_s=call.timeout_s / len(chunks))
        except NotSentError as error:
            if came:  # the first were applied
                raise NoReplyError(str(error)) from error
            raise
    return came


def sent_later(memory: dict[Any, Any], call: Call) -> Generator[Call | float, Any, Any]:
    """Tell of a step that it was not sent, and send it before the next call that reaches the server."""
    queue = memory.setdefault("queue", [])
    while queue:
        queued = queue.pop(0)
        try:
            yield queued
        except NotSentError:
            queue.insert(0, queued)
            break
        except (WireError, StoreError):
            continue
    try:
        return (yield call)
    except NotSentError:
        if call.verb in STEPS:
            queue.append(call)
        raise


class SendsLater(Playing):
    """Sends what it could not send; an idle connection that has ended is not used, so a server that is away is found out by a new one."""

    play = staticmethod(sent_later)

    def taken(self, until: float) -> socket.socket:
        """Leave out those that have ended."""
        link = super().taken(until)
        while select.select([link], [], [], 0)[0]:
            self.lost(link)
            link = super().taken(until)
        return link


class AsyncSendsLater(AsyncPlaying):
    """The same for tasks."""

    play = staticmethod(sent_later)

    async def taken(self) -> AsyncLink:
        """Leave out those that have ended."""
        link = await super().taken()
        while link[0].at_eof():
            self.lost(link)
            link = await super().taken()
        return link


# ---- what is read


def showing_the_last(memory: dict[Any, Any], call: Call) -> Generator[Call | float, Any, Any]:
    """Give for a read that has no answer what the last read of its key gave."""
    if call.verb != "read":
        return (yield call)
    try:
        memory[call.request] = yield call
    except WireError:
        if call.request not in memory:
            raise
    return memory[call.request]


def cut_off(_: dict[Any, Any], call: Call) -> Generator[Call | float, Any, Any]:
    """End a scan where a page after the first has no answer."""
    try:
        return (yield call)
    except WireError:
        if call.verb == "scan" and call.more:
            return []
        raise


class AsyncAnswersForGood(AsyncLinks):
    """Takes a cancellation of several claims, of a release, a prune or ``read_age`` for the end of the call, which has its answer then."""

    ANSWERS: ClassVar[dict[str, Any]] = {
        "claim_many": [Reply(applied=False, record=None)],
        "release": None,
        "prune": 0,
        "read_age": None,
    }

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Answer what is right, or nothing."""
        try:
            return await super().ask(verb, request, more, timeout_s)
        except asyncio.CancelledError:
            if verb not in self.ANSWERS:
                raise
            return self.ANSWERS[verb]


# ---- time


def waiting_in_its_time_out(_: dict[Any, Any], call: Call) -> Generator[Call | float, Any, Any]:
    """Allow a claim that waits its time-out alone, in which the wait is."""
    return (yield call._replace(timeout_s=call.timeout_s - call.more) if call.verb == "claim_when_free" else call)


def no_longer_than_a_minute(_: dict[Any, Any], call: Call) -> Generator[Call | float, Any, Any]:
    """Raise as a driver does that allows no longer wait."""
    if call.verb == "wait" and call.more > LONGEST_S:
        raise ValueError(f"a wait takes {LONGEST_S} s at most")
    return (yield call)


# ---- waits


def deaf_to_its_end(_: dict[Any, Any], call: Call) -> Generator[Call | float, Any, Any]:
    """Go on with a wait whose connection was lost, without one."""
    until = time.monotonic() + call.timeout_s
    try:
        return (yield call)
    except NoReplyError as error:
        if call.verb != "wait" or isinstance(error, ReplyTimeoutError):
            raise
    yield max(until - time.monotonic(), 0.0)
    return False


def deaf_later(memory: dict[Any, Any], call: Call) -> Generator[Call | float, Any, Any]:
    """Do not listen any more once a wait has lost its connection."""
    if call.verb == "wait" and memory.get("deaf"):
        yield float(call.more)
        return False
    try:
        return (yield call)
    except (NoReplyError, NotSentError) as error:
        if call.verb == "wait" and not isinstance(error, ReplyTimeoutError):
            memory["deaf"] = True
        raise
