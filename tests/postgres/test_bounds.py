"""A verb ends in its time, however long the search for the server's name takes."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.pq import PollingStatus

from dlock_core.errors import StoreUnavailableError
from dlock_postgres import AsyncPostgresStore, PostgresStore
from dlock_postgres._session import TASKS, THREADS, Colour, Session, _aready, _Opening, cancel
from dlock_postgres._wire import statement
from tests.core.worlds import eventually
from tests.postgres.conftest import TABLE
from tests.postgres.support import TIMEOUT_S, any_claim, renewed

# What a busy machine may add.
SLACK_S = 2.0
FAR = "postgresql://postgres@db.example/postgres"


@pytest.fixture
def _search(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let every search for a name take long."""
    end = threading.Event()

    def search(*_: object, **__: object) -> list[object]:
        end.wait(30)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", search)
    yield
    end.set()


@pytest.mark.usefixtures("_search")
def test_a_name_that_is_searched_for_long_is_given_up(key: str) -> None:
    """The search goes on, on its own thread, and holds nobody."""
    store = PostgresStore(FAR)
    began = time.monotonic()

    with pytest.raises(StoreUnavailableError, match="nothing was written"):
        store.claim(any_claim(key), timeout_s=0.3)

    assert time.monotonic() - began < 0.3 + SLACK_S
    store.close()


@pytest.mark.usefixtures("_search")
def test_a_task_gives_it_up_as_well(key: str) -> None:
    """Nor does the end of the event loop wait for the search."""

    async def claim() -> None:
        store = AsyncPostgresStore(FAR)
        with pytest.raises(StoreUnavailableError, match="nothing was written"):
            await store.claim(any_claim(key), timeout_s=0.3)
        await store.close()

    began = time.monotonic()

    asyncio.run(claim())

    assert time.monotonic() - began < 0.3 + SLACK_S


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let connections be made only once the event is set."""
    event = threading.Event()

    connect = _Opening.connect

    def wait(*arguments: Any, **settings: Any) -> Any:
        event.wait(30)
        return connect(*arguments, **settings)

    monkeypatch.setattr("dlock_postgres._session._Opening.connect", wait)
    yield event
    event.set()


def test_a_connection_that_comes_too_late_serves_the_next_request(url: str, gate: threading.Event, key: str) -> None:
    """A server that takes longer for a connection than a request may take would else serve none, however often it is asked."""
    store = PostgresStore(url.partition("?")[0], table=TABLE)
    shelf = store._link.pools[False].shelf
    with pytest.raises(StoreUnavailableError, match=r"no connection to .*, in time"):
        store.claim(any_claim(key), timeout_s=0.2)

    gate.set()
    until = time.monotonic() + 20
    while not shelf and time.monotonic() < until:
        time.sleep(0.01)  # until the opener has put it there
    gate.clear()

    assert store.claim(any_claim(key), timeout_s=TIMEOUT_S).applied
    store.close()


def test_connections_are_counted(store: PostgresStore, key: str) -> None:
    """Those that are open, and those that there may be."""
    store.claim(any_claim(key), timeout_s=TIMEOUT_S)

    connections = store.connections

    assert connections is not None
    assert (connections.busy, connections.idle) == (0, 1)
    assert connections.limit > 1


@pytest.mark.parametrize("opened", [PostgresStore, AsyncPostgresStore])
def test_a_connection_on_which_a_statement_was_cancelled_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch, url: str, key: str, admin: psycopg.Connection[Any], opened: type[Any]
) -> None:
    """The statement's answer may come first; the server would then cancel the next statement on that connection."""
    inspect = PostgresStore(url.partition("?")[0], table=TABLE)
    record = inspect.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None
    asked = []

    def let_it_end(_: object) -> None:
        asked.append(key)
        admin.execute("COMMIT")

    monkeypatch.setattr("dlock_postgres._session.cancel", let_it_end)
    admin.execute("BEGIN")
    admin.execute(f"SELECT FROM {TABLE} WHERE key = %s FOR UPDATE", [key])

    async def renew() -> tuple[Any, int]:
        store = opened(url.partition("?")[0], table=TABLE)
        answers = [store.guarantees(), store.replace(renewed(record), timeout_s=4.0)]
        if isinstance(store, AsyncPostgresStore):
            answers = [await answer for answer in answers]
        kept = store.connections.idle
        closing = store.close()
        if closing is not None:
            await closing
        return answers[1], kept

    reply, kept = asyncio.run(renew())

    assert asked == [key]
    assert reply.applied
    assert kept == 0
    inspect.close()


def test_the_statement_of_a_cancelled_task_is_cancelled(url: str, key: str, admin: psycopg.Connection[Any]) -> None:
    """It would be applied when nobody waits for it any more."""
    name = key[-16:]
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = %s"

    def is_waiting() -> bool:
        return admin.execute(waiting, [name]).fetchone() is not None

    async def renew() -> None:
        store = AsyncPostgresStore(f"{url.partition('?')[0]}?application_name={name}", table=TABLE)
        await store.guarantees()
        record = (await store.claim(any_claim(key), timeout_s=TIMEOUT_S)).record
        assert record is not None
        with admin.transaction():
            admin.execute(f"SELECT FROM {TABLE} WHERE key = %s FOR UPDATE", [key])
            renewal = asyncio.create_task(store.replace(renewed(record), timeout_s=TIMEOUT_S * 2))
            await asyncio.to_thread(eventually, is_waiting)
            renewal.cancel()
            await asyncio.to_thread(eventually, lambda: not is_waiting())
        assert await store.read(key, timeout_s=TIMEOUT_S) == record
        await store.close()

    asyncio.run(renew())


def test_a_session_cancels_nothing_that_is_over_or_must_not_be(
    monkeypatch: pytest.MonkeyPatch, server_url: str
) -> None:
    """A commit that waits for a standby would be shown before it is confirmed."""
    cancelled: list[object] = []
    monkeypatch.setattr("dlock_postgres._session.cancel", cancelled.append)
    over, must_not_be = Session(server_url, THREADS), Session(server_url, THREADS)

    with monkeypatch.context() as patched:
        patched.setattr(
            "dlock_postgres._session._CANCEL_S", TIMEOUT_S * 2
        )  # of a shorter time only a quarter is cut off
        over.send(statement("SELECT pg_sleep(0.05)"), time.monotonic() + TIMEOUT_S)
    with pytest.raises(TimeoutError):
        must_not_be.send(statement("SELECT pg_sleep(1)")._replace(cancels=False), time.monotonic() + 0.1)
    over.close()
    must_not_be.close()

    assert cancelled == []


@pytest.mark.parametrize("answers", [True, False])
def test_a_server_is_waited_for_that_is_asked_to_cancel_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """The connection that carries the request is closed then, and its thread ends."""
    monkeypatch.setattr("dlock_postgres._session._CONNECT_S", TIMEOUT_S if answers else 0.1)
    ended, polled = threading.Event(), list[PollingStatus]()
    ours, theirs = socket.socketpair()

    def poll() -> PollingStatus:
        polled.append((PollingStatus.WRITING, PollingStatus.READING, PollingStatus.OK)[len(polled)])
        if answers and polled[-1] == PollingStatus.READING:
            threading.Timer(0.05, theirs.sendall, [b"x"]).start()
        return polled[-1]

    asking = SimpleNamespace(start=lambda: None, poll=poll, finish=ended.set, socket=ours.fileno())
    connection: Any = SimpleNamespace(cancel_conn=lambda: asking)
    with ours, theirs:
        cancel(connection)

        assert ended.wait(TIMEOUT_S)

    assert polled == [PollingStatus.WRITING, PollingStatus.READING, *[PollingStatus.OK] * answers]


@pytest.mark.parametrize("lasts", [True, False])
def test_a_statement_that_is_not_cancelled_limits_its_waits_at_the_server(server_url: str, lasts: bool) -> None:
    """For a lock it waits a little shorter than it may take; one that need not last waits for no standby."""
    asked = statement(
        "SELECT setting::bigint, current_setting('synchronous_commit') FROM pg_settings WHERE name = 'lock_timeout'"
    )

    with closing(Session(server_url, THREADS)) as session:
        answer = session.send(asked._replace(cancels=False, lasts=lasts), time.monotonic() + 8)

    [(lock_timeout_ms, commits)] = answer.rows
    assert 6_000 < lock_timeout_ms <= 7_750
    assert commits == ("on" if lasts else "off")


@pytest.mark.parametrize("writes", [False, True])
def test_a_task_that_waits_for_a_socket_leaves_nothing_at_its_loop(writes: bool) -> None:
    """What stays there would wake the loop without end, and be in the way of the next connection of this number."""

    async def wait() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            fd, loop = ours.fileno(), asyncio.get_running_loop()
            for said, is_ready in (b"", writes), (b"x", True):
                theirs.sendall(said)
                assert await _aready(fd, TIMEOUT_S if is_ready else 0.01, writes=writes) is is_ready
                assert not loop.remove_reader(fd)
                assert not loop.remove_writer(fd)

    asyncio.run(wait())


@pytest.mark.parametrize("colour", [THREADS, TASKS], ids=["threads", "tasks"])
def test_a_statement_that_the_socket_takes_in_parts_is_sent_whole(server_url: str, colour: Colour) -> None:
    """As one of many renewals with large payloads."""
    payload = bytes(32 << 20)

    async def ask() -> Any:
        with closing(Session(server_url, colour)) as session:
            answer = session.send(statement("SELECT octet_length($1)", payload), time.monotonic() + 4 * TIMEOUT_S)
            return (await answer if colour is TASKS else answer).rows

    assert asyncio.run(ask()) == [(len(payload),)]


def test_each_address_of_each_name_is_tried(monkeypatch: pytest.MonkeyPatch, server_url: str, key: str) -> None:
    """In their order; a name without one is left out."""
    port = urlsplit(server_url).port
    addresses = {"first.example": ["127.0.0.2", "127.0.0.3"], "second.example": ["127.0.0.1"]}
    searched = []

    def search(name: str, *_: object, **__: object) -> list[object]:
        searched.append(name)
        if name not in addresses:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses[name]]

    monkeypatch.setattr(socket, "getaddrinfo", search)
    hosts = ["lost.example", "first.example", "second.example"]

    with closing(PostgresStore(f"host={','.join(hosts)} port={port} user=postgres", table=TABLE)) as store:
        assert store.claim(any_claim(key), timeout_s=TIMEOUT_S).applied

    assert searched == hosts


def test_a_name_without_an_address_is_told(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """As what has not been asked."""

    def search(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", search)

    with (
        closing(PostgresStore("host=lost.example")) as store,
        pytest.raises(StoreUnavailableError, match=r"nothing was written: failed to resolve host 'lost.example'"),
    ):
        store.claim(any_claim(key), timeout_s=TIMEOUT_S)


def test_the_environment_says_how_long_a_connection_may_take(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As libpq has it for every program: the store's own time is for who says nothing."""
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "7")

    with closing(Session(server_url, THREADS)) as session:
        options = {option.keyword: option.val for option in session.pg.info}

    assert options[b"connect_timeout"] == b"7"


@pytest.mark.usefixtures("no_collector")
def test_an_attempt_to_connect_that_got_no_answer_leaves_no_connection() -> None:
    """It stayed open until garbage was collected, and a pooler that had been away for a moment granted no more of them."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(StoreUnavailableError, match="in time"):
            Session(f"postgresql://postgres@127.0.0.1:{port}/postgres?connect_timeout=2", THREADS)
        accepted, _ = silent.accept()
        with accepted:
            accepted.settimeout(TIMEOUT_S)
            while accepted.recv(4096):
                pass  # what was asked before it was closed
