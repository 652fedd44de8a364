"""A link that lends each request a connection for itself, in both colours."""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import pytest

from dlock_core.errors import StoreError, StoreUnavailableError
from dlock_core.kit import AsyncPooledLink, PooledLink

TIMEOUT_S = 20.0


class Request(NamedTuple):
    """What is asked of a connection: *ask* is called with it."""

    ask: Callable[[Connection], object]
    urgent: bool = False


class Connection:
    """A connection to nothing, which answers with what the request returns."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.fit = self.alive = True
        self.closed = self.disowned = self.demoted = False

    def is_alive(self) -> bool:
        """Whether it is."""
        return self.fit and self.alive

    def close(self) -> None:
        """Note it."""
        self.closed = True

    def disown(self) -> None:
        """Note it."""
        self.disowned = True

    def send(self, request: Request, deadline: float) -> Any:
        """Answer."""
        return request.ask(self)


class TaskConnection(Connection):
    """The same for tasks."""

    async def send(self, request: Request, deadline: float) -> Any:
        """Answer."""
        return request.ask(self)


class Links:
    """Links of one colour, and how their requests are sent."""

    def __init__(self, kind: type[Any], connection: type[Connection]) -> None:
        self._kind, self._connection = kind, connection
        self.made: list[Connection] = []

    def link(self, connect: Callable[[float], Connection] | None = None, *, most: int = 2) -> Any:
        """Return a link."""
        return self._kind(connect or self.connect, unconnected, most=most, urgent=1)

    def connect(self, deadline: float) -> Connection:
        """Make a connection."""
        self.made.append(self._connection(deadline))
        return self.made[-1]

    def run(self, scene: Callable[[], Any]) -> Any:
        """Return what *scene* returns, awaited if need be, within one event loop."""

        async def awaited() -> Any:
            result = scene()
            return await result if inspect.isawaitable(result) else result

        return asyncio.run(awaited())


def unconnected(error: Exception) -> StoreError:
    """Return the error of a connection that was not made."""
    return StoreUnavailableError(f"no connection: {error!r}")


@pytest.fixture(params=["threads", "tasks"])
def links(request: pytest.FixtureRequest) -> Links:
    """Return links of either colour."""
    if request.param == "threads":
        return Links(PooledLink, Connection)
    return Links(AsyncPooledLink, TaskConnection)


def sent(links: Links, link: Any, request: Request, timeout_s: float = TIMEOUT_S) -> Any:
    """Return the answer to *request*."""
    return links.run(lambda: link.send(request, timeout_s))


def test_a_connection_is_used_again(links: Links) -> None:
    """By the next request, and it has its time from the request that it was made for."""
    link = links.link()

    first, second = (sent(links, link, Request(lambda connection: connection)) for _ in range(2))

    assert first is second
    assert first.deadline > time.monotonic()
    assert [pool.connections for pool in link.pools] == [(0, 1, 2), (0, 0, 1)]


def test_urgent_requests_have_connections_of_their_own(links: Links) -> None:
    """Where the others are lent out."""
    link = links.link()
    usual = sent(links, link, Request(lambda connection: connection))
    assert link.pools[0].shelf.take() is usual

    assert sent(links, link, Request(lambda connection: connection, urgent=True)) is not usual
    assert link.pools[1].connections == (0, 1, 1)


def test_an_urgent_request_borrows_an_idle_connection(links: Links) -> None:
    """A server that grants no second one must not cost a lock. The connection goes back to where it was."""

    def connect(deadline: float) -> Connection:
        if links.made:
            raise ConnectionError("too many connections")
        return links.connect(deadline)

    link = links.link(connect)
    usual = sent(links, link, Request(lambda connection: connection))

    assert sent(links, link, Request(lambda connection: connection, urgent=True)) is usual
    assert [pool.connections for pool in link.pools] == [(0, 1, 2), (0, 0, 1)]
    assert sent(links, link, Request(lambda connection: connection)) is usual


@pytest.mark.parametrize("what", ["fit", "alive"])
def test_one_that_is_unfit_or_dead_is_closed(links: Links, what: str) -> None:
    """After the request that left it unfit, or before the next one."""
    link = links.link()

    def spoil(connection: Connection) -> Connection:
        setattr(connection, what, False)
        return connection

    spoiled = sent(links, link, Request(spoil))
    assert spoiled.closed is (what == "fit")
    again = sent(links, link, Request(lambda connection: connection))

    assert spoiled.closed
    assert again is not spoiled


def silent(connection: Connection, *, demoted: bool = False) -> None:
    """Get no answer, as PyMySQL tells of it: its error is raised while the socket's is handled. Or that the server takes no writes."""
    connection.fit, connection.demoted = False, demoted
    error = ConnectionError("the connection was lost during the query")
    error.__context__ = None if demoted else TimeoutError("no answer in time")
    raise error


def idle(links: Links, link: Any) -> None:
    """Put a connection on the shelf of each pool."""
    for pool in link.pools:
        pool.shelf.put(links.connect(0.0))


@pytest.mark.parametrize(("urgent", "demoted"), [(False, False), (True, False), (False, True)])
def test_after_a_request_without_an_answer_the_next_one_has_a_new_connection(
    links: Links, urgent: bool, demoted: bool
) -> None:
    """A way that is gone without a word takes all idle connections with it, as does a server that is no primary any more."""
    link = links.link(most=4)
    idle(links, link)
    idle(links, link)
    before = list(links.made)

    with pytest.raises(ConnectionError):
        sent(links, link, Request(partial(silent, demoted=demoted), urgent))

    assert sum(connection.closed for connection in before) == 1
    assert sent(links, link, Request(lambda connection: connection, urgent=True)) not in before
    assert all(connection.closed for connection in before)
    assert link.pools[0].connections == (0, 0, 4)


def test_an_idle_connection_serves_after_all_where_there_is_no_new_one(links: Links) -> None:
    """A request that got no answer may have waited for a row: on a full server that must cost no lock."""
    deadlines: list[float] = []

    def connect(deadline: float) -> Connection:
        deadlines.append(deadline)
        raise ConnectionError("too many connections")

    link = links.link(connect)
    idle(links, link)
    usual = links.made[0]

    with pytest.raises(ConnectionError):
        sent(links, link, Request(silent, urgent=True))

    assert sent(links, link, Request(lambda connection: connection, urgent=True)) is usual
    assert sent(links, link, Request(lambda connection: connection)) is usual
    assert len(deadlines) == 1


def test_an_error_that_was_answered_leaves_the_others(links: Links) -> None:
    """Only silence says something about connections that nobody has asked."""
    link = links.link()
    idle(links, link)

    with pytest.raises(ZeroDivisionError):
        sent(links, link, Request(lambda _: 1 / 0))

    assert sent(links, link, Request(lambda connection: connection, urgent=True)) is links.made[1]


def test_an_error_of_a_request_is_its_own(links: Links) -> None:
    """The connection stays if it is fit, and its seat is free."""
    link = links.link(most=1)

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            sent(links, link, Request(lambda _: 1 // 0))

    assert link.pools[0].connections == (0, 1, 1)
    assert len(links.made) == 1


def test_what_comes_while_an_idle_connection_is_looked_for_leaves_the_seat_free(links: Links) -> None:
    """A signal handler may raise in any call."""
    link = links.link(most=1)

    def interrupted() -> bool:
        raise KeyboardInterrupt

    def disturb(connection: Any) -> None:
        connection.is_alive = interrupted

    sent(links, link, Request(disturb))
    with pytest.raises(KeyboardInterrupt):
        sent(links, link, Request(id))

    assert link.pools[0].connections == (0, 0, 1)
    assert sent(links, link, Request(lambda _: 1)) == 1


def test_a_connection_that_cannot_be_made_is_told_as_the_store_says(links: Links) -> None:
    """With its cause; a store's own error stays as it is."""

    def refuse(_: float) -> Connection:
        raise ValueError("not a server")

    def known(_: float) -> Connection:
        raise StoreUnavailableError("known")

    with pytest.raises(StoreUnavailableError, match="no connection: ValueError") as caught:
        sent(links, links.link(refuse), Request(lambda _: 1))
    with pytest.raises(StoreUnavailableError, match=r"^known$"):
        sent(links, links.link(known), Request(lambda _: 1))

    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="there are no such signals here")
def test_what_a_signal_handler_raises_while_a_connection_is_made_comes_out() -> None:
    """As the time limit of a worker does: it is no trouble of the server."""
    links, told = Links(PooledLink, Connection), threading.Event()

    class TimeLimitError(Exception):
        pass

    def handle(*_: object) -> None:
        told.set()
        raise TimeLimitError

    def connect(deadline: float) -> Connection:
        if links.made:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            told.wait(TIMEOUT_S)
        return links.connect(deadline)

    def spoil(connection: Connection) -> None:
        connection.fit = False

    link = links.link(connect)
    # This starts the lane's thread: what a handler raises in Thread.start() CPython 3.11 may turn into a KeyError.
    link.send(Request(spoil), TIMEOUT_S)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(TimeLimitError):
            link.send(Request(id), TIMEOUT_S)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_request_without_a_seat_is_not_sent(links: Links) -> None:
    """Where others have all of them for longer than it may take."""
    link = links.link(most=0)

    with pytest.raises(StoreUnavailableError, match="had all connections all the time; nothing was sent"):
        sent(links, link, Request(lambda _: 1), 0.05)

    assert links.made == []


def test_a_link_that_is_closed_has_closed_its_connections(links: Links) -> None:
    """And what wakes its waiters first."""
    link, closed = links.link(), []

    class Watch:
        def close(self) -> Any:
            closed.append([connection.closed for connection in links.made])
            return asyncio.sleep(0) if isinstance(link, AsyncPooledLink) else None

    sent(links, link, Request(lambda connection: connection))
    link.watch = Watch()
    links.run(link.close)

    assert closed == [[False]]
    assert [connection.closed for connection in links.made] == [True]


@pytest.mark.parametrize("urgent", [False, True])
def test_a_forked_child_begins_without_connections(links: Links, *, urgent: bool) -> None:
    """It closes none of its parent's, but gives back the descriptors."""
    link = links.link()
    idle = sent(links, link, Request(lambda connection: connection, urgent=urgent))

    link.after_fork_in_child()

    assert sent(links, link, Request(lambda connection: connection, urgent=urgent)) is not idle
    assert (idle.closed, idle.disowned) == (False, True)


def test_a_forked_child_gives_back_the_descriptors_of_requests_under_way(links: Links) -> None:
    """The threads that sent them are not there."""
    link = links.link()

    def fork(connection: Connection) -> bool:
        link.after_fork_in_child()
        return connection.disowned

    assert sent(links, link, Request(fork))


def test_a_forked_child_gives_back_the_descriptor_of_a_connection_between_two_places(links: Links) -> None:
    """Another thread has just taken it from the shelf, and no request has it yet."""
    link = links.link()
    idle = sent(links, link, Request(lambda connection: connection))

    def fork() -> bool:
        link.after_fork_in_child()
        return True

    idle.is_alive = fork

    assert sent(links, link, Request(lambda connection: connection)) is idle
    assert idle.disowned


def test_a_connection_for_tasks_needs_no_thread_of_the_loop() -> None:
    """Those are the user's, whose work may have all of them for longer than a lease."""
    links = Links(AsyncPooledLink, TaskConnection)

    async def scene() -> Any:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        over = threading.Event()
        work = asyncio.create_task(asyncio.to_thread(over.wait))
        await asyncio.sleep(0)
        try:
            return await links.link().send(Request(lambda _: "answer"), 5.0)
        finally:
            over.set()
            await work

    assert asyncio.run(scene()) == "answer"


def test_at_a_rush_one_connection_is_made_for_urgent_requests() -> None:
    """Each of the others has one, and no more: a server allows so many."""
    links = Links(AsyncPooledLink, TaskConnection)

    async def scene() -> Any:
        link = links.link(most=8)
        await asyncio.gather(*(link.send(Request(id), TIMEOUT_S) for _ in range(8)))
        return [pool.connections.idle for pool in link.pools]

    usual, urgent = asyncio.run(scene())

    assert usual <= 8
    assert urgent == 1
    assert len(links.made) == usual + urgent
