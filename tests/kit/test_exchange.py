"""Both faces of an exchange: the same errors, one deadline, and nothing left open."""

from __future__ import annotations

import asyncio
import time
import traceback
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core.errors import OutcomeUnknownError, RecordError, StoreError, StoreUnavailableError
from dlock_core.kit import (
    AsyncExchangeStore,
    Batches,
    Call,
    ClaimsMany,
    Exchange,
    ExchangeStore,
    ReadsAge,
)
from dlock_core.record import LockRecord, State, Version
from dlock_core.store import Claim, Connections, Expect, Grade, Guarantees, Release, Replace, TokenOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

RECORD = LockRecord("k", State.HELD, "r", 1, "o", 1000)
REPLACE = Replace(RECORD, Version("r", 1))
GUARANTEES = Guarantees(
    store="test",
    version="1",
    grade=Grade.A,
    token=TokenOrder.ORDERED,
    deletes=False,
    refusal_linearizable=True,
    durable=False,
    failover="",
    clock="",
)


class DriverError(Exception):
    """What the driver raises."""


class Interrupt(BaseException):
    """As Ctrl-C, and as the cancellation of a task."""


class Server:
    """Verbs whose exchange is *script*, and links that answer each request with the next of *answers*, or raise it."""

    name = "Test"

    def __init__(self, *answers: object, script: Callable[[], Exchange[Any]] | None = None) -> None:
        self.answers = list(answers)
        self.sent: list[tuple[Any, float]] = []
        self.calls: list[Call] = []
        self.closed = 0
        self.close_errors: list[BaseException] = []
        self.ended = 0
        self.slow_s = 0.0
        self.script = script or self.one_request

    def one_request(self) -> Exchange[Any]:
        """Send one request and return its answer."""
        try:
            return (yield "request")
        finally:
            self.ended += 1

    def claim(self, _: Claim) -> Exchange[Any]:
        """Begin the exchange."""
        return self.script()

    def replace(self, _: Replace) -> Exchange[Any]:
        """Begin the exchange."""
        return self.script()

    def release(self, _: Release) -> Exchange[Any]:
        """Begin the exchange."""
        return self.script()

    def read(self, _: str) -> Exchange[Any]:
        """Begin the exchange."""
        return self.script()

    def guarantees(self) -> Exchange[Any]:
        """Begin the exchange."""
        return self.script()

    def provision(self) -> Exchange[Any]:
        """Begin the exchange."""
        return self.script()

    def replace_many(self, _: Sequence[Replace]) -> Exchange[Any]:
        """Begin the exchange."""
        return self.script()

    def claim_many(self, _: Sequence[Claim]) -> Exchange[Any]:
        """Begin the exchange."""
        return self.script()

    def read_age(self, _: str) -> Exchange[Any]:
        """Begin the exchange."""
        return self.script()

    def scan(self, _: str) -> Iterator[Exchange[Iterable[LockRecord]]]:
        """Begin an exchange for each answer."""
        while self.answers:
            yield self.script()

    def trouble(self, error: Exception, call: Call) -> StoreError | None:
        """Translate the errors of the driver, and time-outs."""
        self.calls.append(call)
        if isinstance(error, (DriverError, TimeoutError)):
            return (OutcomeUnknownError if call.writes else StoreUnavailableError)(str(error), key=call.key)
        return None

    def answer(self, request: Any, timeout_s: float) -> Any:
        """Note the request, and give the next answer."""
        self.sent.append((request, timeout_s))
        time.sleep(self.slow_s)  # the deadline of the real clock is the subject
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        """Count the calls, and raise the next of *close_errors*."""
        self.closed += 1
        if self.close_errors:
            raise self.close_errors.pop(0)


class Link:
    """The way for threads."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def send(self, request: Any, timeout_s: float) -> Any:
        """Answer the request."""
        return self.server.answer(request, timeout_s)

    def close(self) -> None:
        """Count the call."""
        self.server.close()


class AsyncLink:
    """The way for tasks."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def send(self, request: Any, timeout_s: float) -> Any:
        """Answer the request."""
        await asyncio.sleep(0)
        return self.server.answer(request, timeout_s)

    async def close(self) -> None:
        """Count the call."""
        self.server.close()


class Store(Batches, ClaimsMany, ReadsAge, ExchangeStore):
    """With both optional parts."""

    batch_limit = 9
    capabilities = frozenset()


class AsyncStore(Batches, ClaimsMany, ReadsAge, AsyncExchangeStore):
    """The twin."""

    batch_limit = 9
    capabilities = frozenset()


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> Callable[[Server], Callable[..., Any]]:
    """Return how a verb of a store in each colour is called: ``face(server)(verb, *arguments)``."""

    def of_threads(server: Server) -> Callable[..., Any]:
        store: Any = Store(server, Link(server))

        def call(verb: str, *arguments: Any, **keywords: Any) -> Any:
            came = getattr(store, verb)(*arguments, **keywords)
            return list(came) if verb == "scan" else came

        return call

    def of_tasks(server: Server) -> Callable[..., Any]:
        store: Any = AsyncStore(server, AsyncLink(server))

        def call(verb: str, *arguments: Any, **keywords: Any) -> Any:
            async def asked() -> Any:
                came = getattr(store, verb)(*arguments, **keywords)
                return [each async for each in came] if verb == "scan" else await came

            return asyncio.run(asked())

        return call

    return of_threads if request.param == "sync" else of_tasks


VERBS: dict[str, tuple[Any, ...]] = {
    "claim": (Claim(RECORD, Expect.ANY),),
    "replace": (REPLACE,),
    "release": (Release(RECORD, Version("r", 1)),),
    "read": ("k",),
    "replace_many": ([REPLACE],),
    "claim_many": ([Claim(RECORD, Expect.ANY)],),
    "read_age": ("k",),
}
Face = Any


@pytest.mark.parametrize("verb", VERBS)
def test_verb_sends_its_request_and_returns_what_the_exchange_returns(face: Face, verb: str) -> None:
    """With the whole time-out for the first request."""
    server = Server("answer")

    assert face(server)(verb, *VERBS[verb], timeout_s=5.0) == "answer"

    [(request, timeout_s)] = server.sent
    assert request == "request"
    assert 4.0 < timeout_s <= 5.0
    assert server.ended == 1


def test_calls_without_a_time_out_have_one(face: Face) -> None:
    """Guarantees and provisioning end, too."""
    server = Server(GUARANTEES, None)

    assert face(server)("guarantees") is GUARANTEES
    assert face(server)("provision") is None
    assert all(0 < timeout_s <= 10 for _, timeout_s in server.sent)


def test_scan_gives_the_records_of_all_pages(face: Face) -> None:
    """Each page is an exchange of its own."""
    server = Server([RECORD], [], [RECORD])

    assert face(server)("scan", "", timeout_s=5.0) == [RECORD, RECORD]
    assert len(server.sent) == 3


@pytest.mark.parametrize("verb", VERBS)
def test_driver_error_leaves_as_one_of_dlock(face: Face, verb: str) -> None:
    """The verbs say what it means, by the call; the driver's error is the cause."""
    error = DriverError("gone")
    server = Server(error)

    with pytest.raises(StoreError, match="gone") as caught:
        face(server)(verb, *VERBS[verb], timeout_s=5.0)

    assert caught.value.__cause__ is error
    assert type(caught.value) is (StoreUnavailableError if verb.startswith("read") else OutcomeUnknownError)
    assert server.calls == [Call(verb.replace("_many", "").replace("_age", ""), server.calls[0].key, 5.0)]
    assert server.ended == 1


def test_error_that_is_not_the_drivers_stays_what_it_is(face: Face) -> None:
    """A mistake in the adapter is not called trouble of the store."""
    with pytest.raises(ZeroDivisionError):
        face(Server(ZeroDivisionError()))("read", "k", timeout_s=5.0)


def test_error_of_dlock_in_an_exchange_is_not_translated(face: Face) -> None:
    """What the verbs decide themselves. Where its cause has a traceback, its own leaves out the way through the link: people read it."""
    error = RecordError("damaged", key="k")
    error.__cause__ = DriverError("refused")
    server = Server(error)

    with pytest.raises(RecordError, match="damaged"):
        face(server)("read", "k", timeout_s=5.0)
    assert server.calls == []
    assert "answer" not in [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def test_exchange_may_catch_an_error_and_send_on(face: Face) -> None:
    """An error in the middle is raised at the yield, and the exchange decides what it means."""

    def script() -> Exchange[Any]:
        try:
            yield "by digest"
        except DriverError:
            return (yield "whole script")
        return None

    server = Server(DriverError("no such script"), "answer", script=script)

    assert face(server)("claim", *VERBS["claim"], timeout_s=5.0) == "answer"
    assert [request for request, _ in server.sent] == ["by digest", "whole script"]


def test_deadline_is_one_for_all_requests(face: Face) -> None:
    """Each request has what is left of it; when nothing is left, no further request is sent."""

    def script() -> Exchange[Any]:
        while True:
            yield "again"

    server = Server(*["answer"] * 99, script=script)
    server.slow_s = 0.02

    with pytest.raises(OutcomeUnknownError, match="time-out"):
        face(server)("claim", *VERBS["claim"], timeout_s=0.1)

    left = [timeout_s for _, timeout_s in server.sent]
    assert left == sorted(left, reverse=True)
    assert 1 <= len(left) <= 6


def test_interrupt_closes_the_exchange(face: Face) -> None:
    """Ctrl-C and cancellation leave through the exchange, whose ``finally`` runs, and are not translated."""
    server = Server(Interrupt())

    with pytest.raises(Interrupt):
        face(server)("claim", *VERBS["claim"], timeout_s=5.0)

    assert server.ended == 1
    assert server.calls == []


def test_task_that_is_cancelled_closes_the_exchange() -> None:
    """At the await of the link."""

    class Hanging(AsyncLink):
        async def send(self, request: Any, timeout_s: float) -> Any:
            """Never answer."""
            asking.set()
            await asyncio.Event().wait()

    asking = asyncio.Event()

    async def cancelled(server: Server) -> None:
        store = AsyncStore(server, Hanging(server))
        task = asyncio.create_task(store.read("k", timeout_s=5.0))
        await asyncio.wait_for(asking.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    server = Server()
    asyncio.run(cancelled(server))

    assert server.ended == 1


@pytest.mark.parametrize("verb", [*VERBS, "scan", "guarantees", "provision"])
def test_closed_store_sends_nothing(face: Face, verb: str) -> None:
    """Every verb says so; a second close() does nothing."""
    server = Server("answer")
    call = face(server)
    call("close")
    call("close")

    arguments = VERBS.get(verb, ("",) if verb == "scan" else ())
    keywords = {} if verb in ("guarantees", "provision") else {"timeout_s": 5.0}
    with pytest.raises(StoreUnavailableError, match="Test store was closed"):
        call(verb, *arguments, **keywords)

    assert server.closed == 1
    assert server.sent == []


@pytest.mark.parametrize("error", [Interrupt(), DriverError()], ids=["interrupt", "error"])
def test_close_after_one_that_failed_closes_the_link(face: Face, error: BaseException) -> None:
    """The store refuses every verb at once, but the link is closed again until it has returned once."""
    server = Server("answer")
    server.close_errors = [error]
    call = face(server)
    with pytest.raises(type(error)):
        call("close")
    with pytest.raises(StoreUnavailableError, match="Test store was closed"):
        call("read", "k", timeout_s=5.0)

    call("close")
    call("close")

    assert server.closed == 2
    assert server.sent == []


def test_connections_are_those_of_all_pools_of_the_link() -> None:
    """None where the driver has its own."""
    server = Server()
    link: Any = Link(server)
    store = ExchangeStore(server, link)
    assert store.connections is None

    link.pools = [SimpleNamespace(connections=Connections(1, 2, 5)), SimpleNamespace(connections=Connections(1, 0, 1))]

    assert store.connections == Connections(2, 2, 6)
