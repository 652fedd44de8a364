"""When the way or the server fails: what is told, and that nothing is sent twice."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.credentials import CredentialProvider
from redis.exceptions import ResponseError

from dlock_core import connect
from dlock_core.errors import LockLostError, OutcomeUnknownError, StoreSetupError, StoreUnavailableError
from dlock_core.record import TOKEN_MAX, LockRecord, Version
from dlock_core.store import Claim, Expect, Replace
from dlock_redis import _errors as errors
from dlock_redis._aconnections import aconnected
from dlock_redis._servers import source_of
from tests.core.worlds import eventually
from tests.redis.support import Blocking, Proxy, Server, calls, claim, fresh, granted, held, idle, release, renew

CUTS = 25


def through(proxy: Proxy) -> str:
    """Return the URL of the disturbed way."""
    return f"redis://127.0.0.1:{proxy.port}/0"


def send(store: Any, verb: str, record: LockRecord) -> object:
    """Send a write that will be applied."""
    match verb:
        case "claim":
            return claim(store, record.key)
        case "renew":
            return renew(store, record)
        case "release":
            return release(store, record)
    return store.replace_many([Replace(held(record.key, record.fencing_token), record.version)], timeout_s=5.0)


@pytest.mark.parametrize("verb", ["claim", "renew", "release", "batch"])
def test_lost_reply_is_an_unknown_outcome_and_never_sent_again(
    open_store: Callable[..., Any], server: Server, admin: Any, proxy: Proxy, verb: str
) -> None:
    """The server got each request once, applied it, and its answer was lost."""
    store, direct = open_store(through(proxy)), open_store(server.url)
    nobody = Replace(held("none"), Version("x", 1))
    for known in (
        lambda: claim(store, "other"),
        lambda: renew(store, held("none")),
        lambda: store.replace_many([nobody], timeout_s=5.0),
    ):
        known()
    for number in range(CUTS):
        key = f"k{number}"
        record = held(key) if verb == "claim" else granted(direct, key)
        store.read(key, timeout_s=5.0)
        before = calls(admin, "evalsha", "eval")
        proxy.mode = "cut"

        with pytest.raises(OutcomeUnknownError) as caught:
            send(store, verb, record)

        proxy.mode = "pass"
        assert caught.value.__cause__ is not None
        assert calls(admin, "evalsha", "eval") - before == 1
        standing = direct.read(key, timeout_s=5.0)
        assert standing.version != record.version
        assert standing.held == (verb != "release")


def test_refused_connection_was_not_sent(open_store: Callable[..., Any], server: Server, key: str) -> None:
    """Nobody listens: certainly not applied, and nothing to wait for; when the server is back, so is the store."""
    store = open_store(server.url)
    record = granted(store, key)
    server.crash()

    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            claim(store, key)
    with pytest.raises(StoreUnavailableError):
        store.wait(record, ticket="t", timeout_s=5.0)

    server.start()
    granted(store, key)


def test_credentials_that_the_clients_own_code_does_not_get_are_told(
    open_store: Callable[..., Any], server: Server, key: str
) -> None:
    """It may raise anything, and nothing was sent."""

    class Broken(CredentialProvider):
        def get_credentials(self) -> tuple[str, str]:
            raise KeyError("token")

        async def get_credentials_async(self) -> tuple[str, str]:
            return self.get_credentials()

    store = open_store(server.url, credential_provider=Broken())

    with pytest.raises(StoreUnavailableError, match="code of the client that was given failed: KeyError"):
        claim(store, key)


@pytest.mark.parametrize("timeout_s", [0.05, 0.3])
def test_stopped_server_is_given_up_in_time(
    open_store: Callable[..., Any], server: Server, key: str, timeout_s: float
) -> None:
    """On a kept connection the outcome is unknown; a new one is not even made, unless the driver greets nobody. A wait is over, as any."""
    kept, new = open_store(server.url), open_store(server.url)
    record = granted(kept, key)
    kept.wait(record, ticket="t", timeout_s=0.05)
    server.pause()
    try:
        for store, kind in ((kept, OutcomeUnknownError), (new, (StoreUnavailableError, OutcomeUnknownError))):
            began = time.monotonic()
            with pytest.raises(kind):
                claim(store, key, timeout_s=timeout_s)
            assert timeout_s * 0.9 <= time.monotonic() - began < timeout_s + 1.0
        began = time.monotonic()
        kept.wait(record, ticket="t", timeout_s=timeout_s)
        assert timeout_s * 0.9 <= time.monotonic() - began < timeout_s + 1.0
    finally:
        server.resume()


@pytest.mark.parametrize(
    ("scheme", "kind", "hint"),
    [("redis", "connection", ""), ("rediss", "TLS connection", "; a server that speaks no TLS wants redis://")],
)
def test_server_that_never_greets_is_named(open_store: Callable[..., Any], scheme: str, kind: str, hint: str) -> None:
    """By its address, which the driver's own words leave out. A Redis without TLS is silent where a client begins with it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        store = open_store(f"{scheme}://127.0.0.1:{port}/1")

        with pytest.raises(
            StoreUnavailableError, match=f"no {kind} to 127.0.0.1:{port} in time .nothing was applied{hint}[)]"
        ):
            store.read("k", timeout_s=0.3)


def test_reply_that_trickles_ends_in_time_too(open_store: Callable[..., Any], proxy: Proxy, key: str) -> None:
    """The time-out is for the whole answer, not for each of its bytes."""
    store = open_store(through(proxy))
    record = granted(store, key)
    proxy.mode = "trickle"

    began = time.monotonic()
    with pytest.raises(OutcomeUnknownError):
        claim(store, key, timeout_s=0.5)

    assert time.monotonic() - began < 0.8
    proxy.mode = "pass"
    assert store.read(key, timeout_s=5.0) == record


def test_late_answer_is_never_taken_for_another(open_store: Callable[..., Any], server: Server, key: str) -> None:
    """A connection whose answer did not come in time is not used again."""
    store = open_store(server.url)
    first, second = granted(store, f"{key}/1"), granted(store, f"{key}/2")
    for _ in range(10):
        server.pause()
        with pytest.raises((OutcomeUnknownError, StoreUnavailableError)):
            store.read(first.key, timeout_s=0.02)
        server.resume()

        assert store.read(second.key, timeout_s=5.0) == second


def test_answer_that_nobody_asked_for_grants_nothing(
    open_store: Callable[..., Any], server: Server, proxy: Proxy, key: str
) -> None:
    """It came while the connection was idle, as of a proxy that loses count: to a claim it would look like a token."""
    store, direct = open_store(through(proxy)), open_store(server.url)
    holder = granted(direct, key)
    store.read(key, timeout_s=5.0)
    proxy.say(b":5\r\n")
    [link] = idle(store.raw if isinstance(store, Blocking) else store)
    until = time.monotonic() + 5
    # Of asyncio the event loop has read it before anybody asks.
    while not (link._spoilt if isinstance(store, Blocking) else not link.is_alive()):
        assert time.monotonic() < until
        time.sleep(0.001)  # it is on its way
        if isinstance(store, Blocking):
            store.run(asyncio.sleep(0))

    reply = claim(store, key)

    assert not reply.applied
    assert reply.record == holder


def test_connections_that_the_server_dropped_are_replaced_unseen(
    open_store: Callable[..., Any], server: Server, admin: Any, key: str
) -> None:
    """An idle connection that is dead is not found out by a request."""
    store = open_store(server.url)
    record = granted(store, key)
    admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    time.sleep(0.05)  # the end of a connection takes its way through the kernel

    assert release(store, record).applied


def test_store_that_was_closed_refuses_everything(open_store: Callable[..., Any], server: Server, key: str) -> None:
    """Also what it never connected for."""
    store = open_store(server.url)
    record = granted(store, key)
    store.close()
    store.close()

    for ask in (
        lambda: claim(store, key),
        lambda: release(store, record),
        lambda: store.read(key, timeout_s=1.0),
        lambda: store.wait(record, ticket=fresh(), timeout_s=1.0),
        lambda: list(store.scan("", timeout_s=1.0)),
        store.guarantees,
    ):
        with pytest.raises(StoreUnavailableError, match="closed"):
            ask()


def test_connection_that_may_hear_nothing_is_closed(
    open_store: Callable[..., Any], server: Server, admin: Any, key: str
) -> None:
    """The waiter is told which right is missing; each wait would leave another one open."""
    admin.execute_command("ACL", "SETUSER", "mute", "on", ">pw", "~*", "+@all", "resetchannels")
    store = open_store(server.url.replace("redis://", "redis://mute:pw@"))
    record = granted(store, key)

    with pytest.raises(StoreSetupError, match="&dlock:") as caught:
        store.wait(record, ticket="t", timeout_s=5.0)

    eventually(lambda: not [each for each in admin.client_list() if each["cmd"] == "subscribe"])
    assert caught.value.__cause__ is not None


def test_full_memory_refuses_claims_and_keeps_what_is_held(
    open_store: Callable[..., Any], server: Server, admin: Any, key: str
) -> None:
    """At maxmemory a lock is renewed, alone and in a batch, and given back, and its waiter is woken; nobody gets a new one."""
    store = open_store(server.url)
    record, short = granted(store, key), granted(store, key + "/short", fields={"data": b"kept"})
    release(store, granted(store, key + "/free"))
    admin.config_set("maxmemory", 1)
    try:
        for name in ("/new", "/free"):
            with pytest.raises(StoreUnavailableError, match="maxmemory"):
                claim(store, key + name)
        assert claim(store, key).record == record
        for _ in range(3):
            renewed = renew(store, record)
            assert renewed.applied
            assert renewed.record is not None
            record = renewed.record
            requests = [Replace(held(each.key, each.fencing_token), each.version, True) for each in (record, short)]
            results = store.replace_many(requests, timeout_s=5.0)
            assert [result.applied for result in results] == [True, True]
            record, short = (result.record for result in results)
        assert release(store, record).applied
        assert release(store, short).applied
        assert not store.read(key, timeout_s=5.0).held
    finally:
        admin.config_set("maxmemory", 0)
    assert claim(store, key).applied


def test_several_claims_of_which_one_has_no_token_left_take_nothing(store: Any, key: str) -> None:
    """The others are free as before."""
    release(store, granted(store, key, fields={"token": TOKEN_MAX}))
    requests = [Claim(held(each), Expect.ANY) for each in (f"{key}/other", key)]

    with pytest.raises(StoreUnavailableError, match="reached its end"):
        store.claim_many(requests, timeout_s=5.0)

    assert store.read(f"{key}/other", timeout_s=5.0) is None


def test_a_release_tells_that_the_server_has_lost_the_lock_and_granted_it_again(
    server: Server, admin: redis.Redis
) -> None:
    """As after a failover: a block that is shorter than a heartbeat hears of it at its end, and else never would."""
    with connect(server.url) as client, connect(server.url) as other:
        lease = client.acquire("k")
        admin.flushall()
        with other.lock("k", timeout=5), pytest.raises(LockLostError, match="took it over"):
            lease.release()


def test_a_cancellation_that_the_driver_swallows_ends_the_connecting(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It connects by asyncio.wait_for, which in Python 3.11 loses one that comes with its end: the task would go on."""
    connect: Callable[..., Any] = redis.asyncio.Connection.connect

    async def swallowing(connection: Any) -> None:
        await connect(connection)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)

    async def main() -> None:
        monkeypatch.setattr(redis.asyncio.Connection, "connect", swallowing)
        pool = redis.asyncio.Redis.from_url(url).connection_pool
        with pytest.raises(asyncio.CancelledError):
            await aconnected(source_of(pool.connection_class, pool.connection_kwargs), time.monotonic() + 5)

    asyncio.run(main())


@pytest.mark.parametrize(
    "said",
    [
        "ERR Unknown Redis command called from script script: 8bc6, on @user_script:44.",
        "ERR Error running script (call to f_8bc6): @user_script:44: @user_script: 44: Unknown Redis command called from Lua script",
    ],
)
def test_a_command_that_the_server_has_renamed_is_told(said: str) -> None:
    """The script has written nothing, and would not the next time: who asks for a lock does not wait for ever."""
    error = errors.trouble(ResponseError(said), "k", sent=True)

    assert type(error) is StoreSetupError
    assert "renamed or disabled" in str(error)


@pytest.mark.parametrize(("command", "sent"), [("EVALSHA", True), ("AUTH", False)])
def test_arguments_of_an_unknown_command_are_not_shown(command: str, sent: bool) -> None:
    """The server repeats them: the payload of a lock, the whole script, or a password stood in the error, its cause, and the log."""
    said = ResponseError(f"ERR unknown command '{command}', with args beginning with: 'NOAUTH' 'hunter2' ")

    told = str(errors.trouble(said, "k", sent=sent))

    assert f"unknown command '{command}' (the server, or a proxy before it, lacks this command" in told
    assert "hunter2" not in f"{told} {said!r} {said}"
