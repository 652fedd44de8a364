"""Waiters: first come, first woken; one at a time; a place that is given up or whose process died keeps nobody out."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest
import redis
import redis.asyncio
from dlock_conformance.proxy import FaultProxy

from dlock_core.errors import StoreUnavailableError
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from dlock_redis import AsyncRedisStore, RedisStore
from dlock_redis._connections import NUDGE
from dlock_redis._scripts import TURN_MS
from tests.redis.support import Server, calls, claim, granted, held, release, tomb

SOON_S, LONG_S = 5.0, 20.0


class Waiter:
    """A wait in a thread of its own."""

    def __init__(self, store: Any, record: LockRecord, ticket: str, timeout_s: float = LONG_S) -> None:
        self._ends_at = time.monotonic() + timeout_s
        self._returned_at = 0.0
        self._wait: Callable[[], None] = lambda: store.wait(record, ticket=ticket, timeout_s=timeout_s)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def waits(self) -> bool:
        """Whether it is still waiting."""
        return self._thread.is_alive()

    def join(self) -> None:
        """Return when it was woken: a wait that nobody ended fails the test."""
        self._thread.join()
        assert self._returned_at < self._ends_at

    def _run(self) -> None:
        with suppress(StoreUnavailableError):  # where a test kills its connection
            self._wait()
        self._returned_at = time.monotonic()


def queued(client: Any, key: str, count: int) -> None:
    """Return when so many wait for *key*."""
    until = time.monotonic() + SOON_S
    while (client.hget(key, "queue") or b"").count(b"\x1e") != count:
        assert time.monotonic() < until, client.hget(key, "queue")
        time.sleep(0.002)  # the queue changes when they come


@pytest.fixture
def blocking(url: str) -> Any:
    """Return a store for threads."""
    with redis.Redis.from_url(url) as client:
        store = RedisStore(client)
        yield store
        store.close()


def test_waiters_are_woken_in_the_order_in_which_they_came(blocking: Any, raw: Any, key: str) -> None:
    """Each release wakes the first, and only the first."""
    record = granted(blocking, key)
    waiters = []
    for number in range(5):
        waiters.append(Waiter(blocking, record, f"t{number}"))
        queued(raw, key, number + 1)

    for number, waiter in enumerate(waiters):
        assert release(blocking, record).applied
        waiter.join()
        assert all(later.waits for later in waiters[number + 1 :])
        record = granted(blocking, key, ticket=f"t{number}")


def test_free_key_is_kept_for_the_first_waiter_for_a_while(blocking: Any, raw: Any, key: str) -> None:
    """Who comes along is refused, and told to wait; when the turn was not used, the key is anybody's."""
    record = granted(blocking, key)
    waiter = Waiter(blocking, record, "first")
    queued(raw, key, 1)
    release(blocking, record)
    waiter.join()

    refused = claim(blocking, key, ticket="another")
    assert not refused.applied
    assert refused.record is not None
    assert refused.record.state is State.HELD
    standing = blocking.read(key, timeout_s=SOON_S)
    assert standing.state is State.FREE
    assert standing.version == refused.record.version

    time.sleep(TURN_MS / 1000 + 0.01)  # the turn ends by the server's clock
    assert claim(blocking, key, ticket="another").applied


def test_turn_is_not_believed_for_longer_than_a_turn(blocking: Any, raw: Any, key: str) -> None:
    """The clock of the server was set back: the turn that it had given would last until it is there again."""
    release(blocking, granted(blocking, key))
    seconds, micros = raw.time()
    later = (seconds + 60) * 1_000_000 + micros
    raw.hset(key, "turn", b"dlock:0123456789abcdefsomebody\x1f%d" % later)

    assert claim(blocking, key, ticket="another").applied


def test_turn_belongs_to_its_ticket(blocking: Any, raw: Any, key: str) -> None:
    """The woken one is granted the key, and the turn is over."""
    record = granted(blocking, key)
    waiter = Waiter(blocking, record, "first")
    queued(raw, key, 1)
    release(blocking, record)
    waiter.join()

    assert not claim(blocking, key, ticket="another").applied
    mine = granted(blocking, key, ticket="first")

    release(blocking, mine)
    assert claim(blocking, key, ticket="another").applied


def test_claim_without_a_ticket_is_not_held_up(blocking: Any, raw: Any, key: str) -> None:
    """Turns are among those who wait; the port's condition stands for whoever has no place."""
    record = granted(blocking, key)
    waiter = Waiter(blocking, record, "first")
    queued(raw, key, 1)
    release(blocking, record)
    waiter.join()

    assert claim(blocking, key).applied


def test_waiter_that_gave_up_takes_no_turn(blocking: Any, raw: Any, key: str) -> None:
    """Its wait is over, so the next is woken."""
    record = granted(blocking, key)
    blocking.wait(record, ticket="short", timeout_s=0.05)
    waiter = Waiter(blocking, record, "long")
    queued(raw, key, 2)

    release(blocking, record)

    waiter.join()


def test_waiter_that_comes_back_at_once_keeps_its_rank(blocking: Any, raw: Any, key: str) -> None:
    """A fallback poll between two waits does not send it to the end of the queue."""
    record = granted(blocking, key)
    blocking.wait(record, ticket="first", timeout_s=0.05)
    second = Waiter(blocking, record, "second")
    queued(raw, key, 2)
    first = Waiter(blocking, record, "first")
    time.sleep(0.1)  # nothing tells that the place was taken again

    release(blocking, record)
    first.join()

    assert second.waits
    release(blocking, granted(blocking, key, ticket="first"))
    second.join()


def test_release_before_the_wait_is_not_missed(store: Any, key: str) -> None:
    """The wait sees that the key is free, and returns."""
    record = granted(store, key)
    release(store, record)

    began = time.monotonic()
    store.wait(record, ticket="late", timeout_s=SOON_S)

    assert time.monotonic() - began < 1.0
    assert claim(store, key, ticket="late").applied


def test_turn_that_came_between_two_waits_is_not_missed(store: Any, raw: Any, key: str) -> None:
    """Its message was published to nobody: the next wait sees that the key is kept for it, and returns."""
    record = granted(store, key)
    release(store, record)
    seconds, micros = raw.time()
    verbs = (store.raw if hasattr(store, "raw") else store)._verbs
    raw.hset(key, "turn", b"%s\x1f%d" % (verbs.place("t"), seconds * 1_000_000 + micros + TURN_MS * 900))

    began = time.monotonic()
    store.wait(record, ticket="t", timeout_s=SOON_S)

    assert time.monotonic() - began < 1.0


def test_wait_ends_at_its_time_out(store: Any, key: str) -> None:
    """Not before, and hardly after."""
    record = granted(store, key)
    for timeout_s in (0.02, 0.3):
        began = time.monotonic()
        store.wait(record, ticket="t", timeout_s=timeout_s)
        assert timeout_s * 0.95 <= time.monotonic() - began < timeout_s + 1.0


def test_killed_waiter_holds_up_nobody_for_long(server: Server, admin: Any) -> None:
    """Its turn lapses, and whoever asks next is granted."""
    with redis.Redis.from_url(server.url) as client:
        store = RedisStore(client)
        record = granted(store, "k")
        waiter = Waiter(store, record, "dead", timeout_s=0.5)
        queued(admin, "k", 1)
        admin.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        release(store, record)

        began = time.monotonic()
        while not claim(store, "k", ticket="alive").applied:
            assert time.monotonic() - began < 1.0
            time.sleep(0.005)  # as a poll does

        waiter.join()
        store.close()


def test_queue_is_bounded(blocking: Any, raw: Any, key: str) -> None:
    """Beyond the bound a waiter only polls; nothing grows without end."""
    record = granted(blocking, key)
    far = 9 * 10**15
    raw.hset(key, "queue", b"".join(b"dlock:0123456789abcdef%d\x1f%d\x1e" % (n, far) for n in range(512)))

    blocking.wait(record, ticket="one more", timeout_s=0.05)

    assert raw.hget(key, "queue").count(b"\x1e") == 512


def test_places_leave_nothing_behind(server: Server, admin: Any) -> None:
    """After a while only the record is there."""
    with redis.Redis.from_url(server.url) as client:
        store = RedisStore(client)
        record = granted(store, "k")
        waiter = Waiter(store, record, "t")
        queued(admin, "k", 1)
        release(store, record)
        waiter.join()
        store.wait(record, ticket="u", timeout_s=0.3)
        time.sleep(TURN_MS / 1000 + 0.05)  # a wake-up that nobody took expires

        assert admin.keys() == [b"k"]
        store.close()


def test_cancelled_waiter_passes_its_turn_on(blocking: Any, url: str, key: str) -> None:
    """Woken and cancelled at once: the next is woken instead."""

    async def scene() -> float:
        async with redis.asyncio.Redis.from_url(url) as client:
            store = AsyncRedisStore(client)
            record = granted(blocking, key)
            first = asyncio.create_task(store.wait(record, ticket="first", timeout_s=SOON_S))
            await asyncio.sleep(0.05)  # nothing tells that it waits
            second = asyncio.create_task(store.wait(record, ticket="second", timeout_s=SOON_S))
            await asyncio.sleep(0.05)
            release(blocking, record)  # the event loop does not see the wake-up before the cancellation
            first.cancel()
            began = time.monotonic()
            await asyncio.wait([first, second])
            assert first.cancelled()
            await store.close()
            return time.monotonic() - began

    assert asyncio.run(scene()) < 1.0


def _claim(key: str) -> Any:
    return Claim(held(key), Expect.ANY)


def _release(record: LockRecord) -> Any:
    return Release(tomb(record), record.version)


def test_many_tasks_wait_at_the_same_time(url: str, key: str) -> None:
    """All on one connection that wakes them."""

    async def scene() -> list[str]:
        woken: list[str] = []
        async with redis.asyncio.Redis.from_url(url) as client:
            store = AsyncRedisStore(client)

            async def contend(name: str) -> None:
                while True:
                    reply = await store.claim(_claim(key)._replace(ticket=name), timeout_s=SOON_S)
                    assert reply.record is not None
                    if reply.applied:
                        woken.append(name)
                        await store.release(_release(reply.record), timeout_s=SOON_S)
                        return
                    await store.wait(reply.record, ticket=name, timeout_s=SOON_S)

            await asyncio.wait_for(asyncio.gather(*(contend(f"t{n}") for n in range(40))), 30)
            await store.close()
        return woken

    assert len(asyncio.run(scene())) == 40


def test_break_that_frees_wakes_a_waiter(blocking: Any, raw: Any, key: str) -> None:
    """A replace that leaves the key free is a release, too."""
    record = granted(blocking, key)
    waiter = Waiter(blocking, record, "t")
    queued(raw, key, 1)

    assert blocking.replace(Replace(tomb(record), record.version), timeout_s=SOON_S).applied

    waiter.join()


@pytest.mark.parametrize("batch", [False, True], ids=["alone", "in_a_batch"])
def test_renewal_wakes_the_first_waiter_for_a_look(blocking: Any, raw: Any, key: str, *, batch: bool) -> None:
    """It alone is woken, gets no turn, and keeps its place for the release."""
    record = granted(blocking, key)
    first = Waiter(blocking, record, "first")
    queued(raw, key, 1)
    second = Waiter(blocking, record, "second")
    queued(raw, key, 2)

    renewal = Replace(held(key, record.fencing_token), record.version)
    reply = blocking.replace_many([renewal], timeout_s=SOON_S)[0] if batch else renewed(blocking, renewal)
    standing = reply.record
    assert reply.applied
    assert standing is not None
    first.join()
    assert second.waits
    assert raw.hget(key, "turn") in (None, b"")

    again = Waiter(blocking, standing, "first")
    release(blocking, standing)
    again.join()
    assert second.waits
    release(blocking, granted(blocking, key, ticket="first"))
    second.join()


def test_renewal_passes_over_a_wait_that_is_over(blocking: Any, raw: Any, key: str) -> None:
    """Whoever left has nothing to look for; the next is woken."""
    record = granted(blocking, key)
    blocking.wait(record, ticket="short", timeout_s=0.05)
    waiter = Waiter(blocking, record, "long")
    queued(raw, key, 2)

    assert renewed(blocking, Replace(held(key, record.fencing_token), record.version)).applied

    waiter.join()


def renewed(store: Any, renewal: Replace) -> Reply:
    """Return the answer to a single renewal."""
    reply: Reply = store.replace(renewal, timeout_s=SOON_S)
    return reply


def test_a_wait_ends_in_time_on_a_server_that_seldom_looks(
    server: Server, admin: redis.Redis, open_store: Callable[..., Any]
) -> None:
    """A server without other work looks by its own clock, by default ten times a second, for waits that are over.

    It is nudged by a command, whose answer is nobody's: a proxy may answer an empty line, and an answer left over shifts those after it.
    """
    admin.config_set("hz", 1)
    said, waits = list[bytes](), 6

    def note(part: bytes) -> bool:
        said.append(part)
        return True

    with closing(FaultProxy("127.0.0.1", server.port, is_request=note)) as way:
        store = open_store(f"redis://{way.address}")
        record = granted(store, "k")
        began = time.monotonic()
        for number in range(waits):
            asked = Claim(held("k"), Expect.ANY, ticket=f"t{number}")
            assert store.claim_when_free(asked, wait_s=0.05, timeout_s=SOON_S).record == record
            assert store.read("k", timeout_s=SOON_S) == record
        assert time.monotonic() - began < waits / 2
        nudges = b"".join(said).count(NUDGE)
        with redis.Redis.from_url(server.url) as client, closing(RedisStore(client)) as holder:
            freeing = threading.Timer(0.2, release, (holder, record))
            freeing.start()
            last = Claim(held("k"), Expect.ANY, ticket="last")
            assert store.claim_when_free(last, wait_s=LONG_S, timeout_s=SOON_S).applied
            freeing.join()

    assert b"".join(said).count(NUDGE) == nudges > 0, "it is nudged before the wait is over"
    assert calls(admin, "blpop") == waits + 1
    assert [part for part in said if not part.startswith(b"*")] == []
    assert admin.info("stats")["total_connections_received"] < waits
