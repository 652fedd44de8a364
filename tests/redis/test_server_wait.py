"""Claims that wait in the server: applied by the release, dropped with their connection, and never for who has left."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from dlock_core.errors import StoreError
from dlock_core.record import LockRecord
from dlock_core.store import Claim, Expect, Replace, Reply, is_withdrawn
from dlock_redis import AsyncRedisStore, RedisStore
from dlock_redis._connections import _WAITING_MAX
from dlock_redis._scripts import IN_SERVER, LEAVE, PLACES_MAX, TURN_MS
from tests.core.worlds import eventually
from tests.redis.support import claim, granted, held, release
from tests.redis.test_waiting import LONG_S, SOON_S, Waiter, queued


class Waiting:
    """A claim that waits, in a thread of its own."""

    def __init__(self, store: Any, key: str, wait_s: float = LONG_S, ticket: str | None = None) -> None:
        self.request = Claim(held(key), Expect.ANY, ticket=ticket or f"t{time.monotonic_ns()}")
        self._call: Callable[[], Reply] = lambda: store.claim_when_free(self.request, wait_s=wait_s, timeout_s=SOON_S)
        self._came: list[Reply | StoreError] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def result(self) -> Reply | StoreError:
        """Return what it was answered, or the error."""
        self._thread.join(LONG_S + SOON_S)
        [came] = self._came
        return came

    def granted(self) -> LockRecord:
        """Return the record that it was granted."""
        came = self.result()
        assert isinstance(came, Reply), came
        assert came.applied, came
        assert came.record is not None
        return came.record

    def _run(self) -> None:
        try:
            self._came.append(self._call())
        except StoreError as error:
            self._came.append(error)


@pytest.fixture
def waiter(url: str) -> Iterator[RedisStore]:
    """Return the store of who waits."""
    with redis.Redis.from_url(url) as client:
        store = RedisStore(client)
        yield store
        store.close()


def blocked(raw: Any, count: int = 1) -> list[dict[str, Any]]:
    """Return the connections that are blocked, once they are so many."""
    until = time.monotonic() + SOON_S
    while len(found := [each for each in raw.client_list() if each["cmd"] == "blpop"]) < count:
        assert time.monotonic() < until, f"{len(found)} connections are blocked, not {count}"
        time.sleep(0.002)  # they come when they like
    return found


def test_release_applies_the_claim_in_the_server(store: Any, waiter: RedisStore, raw: Any, key: str) -> None:
    """The waiter is told of a grant; no list and no turn is left behind."""
    record = granted(store, key)
    waiting = Waiting(waiter, key)
    queued(raw, key, 1)
    blocked(raw)

    released = release(store, record).record
    mine = waiting.granted()

    assert released is not None
    assert mine.fencing_token > released.fencing_token
    assert mine.rvn == waiting.request.record.rvn
    assert store.read(key, timeout_s=SOON_S) == mine
    assert raw.hmget(key, "queue", "turn") == [b"", b""]
    assert raw.keys(f"{key}*") == [key.encode()]


def test_claim_behind_a_wait_that_ends_otherwise_asks_for_its_place(
    store: Any, waiter: RedisStore, raw: Any, key: str
) -> None:
    """Its place is gone, as after a LEAVE; the blocked command is ended, and the claim behind it runs: it takes nothing (K1)."""
    record = granted(store, key)
    waiting = Waiting(waiter, key)
    queued(raw, key, 1)
    [blocking] = blocked(raw)
    raw.hset(key, "queue", "")
    release(store, record)

    raw.client_unblock(int(blocking["id"]))

    came = waiting.result()
    assert isinstance(came, Reply)
    assert not came.applied
    assert came.record is not None
    assert not came.record.held
    assert not store.read(key, timeout_s=SOON_S).held


def test_claim_behind_a_wait_that_ends_otherwise_is_applied_where_its_place_is_known(
    store: Any, waiter: RedisStore, raw: Any, key: str
) -> None:
    """Whoever freed the key woke nobody; the place goes with the grant."""
    granted(store, key)
    waiting = Waiting(waiter, key)
    queued(raw, key, 1)
    [blocking] = blocked(raw)
    raw.hset(key, "state", "free")

    raw.client_unblock(int(blocking["id"]))

    waiting.granted()
    assert raw.hget(key, "queue") == b""


def test_waiter_whose_connection_is_killed_gets_nothing(store: Any, waiter: RedisStore, raw: Any, key: str) -> None:
    """The server drops its claim; the key is free for the next after a turn at most."""
    record = granted(store, key)
    waiting = Waiting(waiter, key)
    queued(raw, key, 1)
    [blocking] = blocked(raw)
    raw.client_kill_filter(_id=blocking["id"])
    assert isinstance(waiting.result(), StoreError)

    release(store, record)

    eventually(lambda: claim(store, key, ticket="next").applied, "the end of the turn of who is gone")


def test_waiter_that_goes_on_in_the_other_way_keeps_its_one_place(store: Any, waiter: Any, raw: Any, key: str) -> None:
    """By message after a claim that was cut off, or in the server again: the release wakes it where it waits now."""
    record = granted(store, key)
    ticket, place = "t", waiter._verbs.place("t")
    waiting = Waiting(waiter, key, ticket=ticket)
    queued(raw, key, 1)
    [blocking] = blocked(raw)
    raw.client_kill_filter(_id=blocking["id"])
    assert isinstance(waiting.result(), StoreError)

    by_message = Waiter(waiter, record, ticket)
    eventually(lambda: raw.hget(key, "queue").startswith(place), "the place of who waits by message")
    queued(raw, key, 1)
    release(store, record)
    by_message.join()

    record = granted(store, key)
    waiter.wait(record, ticket=ticket, timeout_s=0.1)
    again = Waiting(waiter, key, ticket=ticket)
    eventually(lambda: raw.hget(key, "queue").startswith(b"!" + place), "the place of who waits in the server")
    queued(raw, key, 1)
    blocked(raw)
    release(store, record)
    again.granted()


def test_closing_the_store_ends_its_waits(store: Any, waiter: RedisStore, raw: Any, key: str) -> None:
    """The thread that waits is told, and its claim is not applied any more."""
    record = granted(store, key)
    waiting = Waiting(waiter, key)
    queued(raw, key, 1)
    blocked(raw)

    began = time.monotonic()
    waiter.close()

    assert isinstance(waiting.result(), StoreError)
    assert time.monotonic() - began < LONG_S / 2
    release(store, record)
    assert not store.read(key, timeout_s=SOON_S).held


def test_those_without_a_connection_of_their_own_wait_as_well(
    store: Any, waiter: RedisStore, raw: Any, key: str
) -> None:
    """More wait than there are connections for claims that wait: each is served in its turn."""
    record = granted(store, key)
    waits = []
    for number in range(_WAITING_MAX + 2):
        waits.append(Waiting(waiter, key))
        queued(raw, key, number + 1)
    assert len(blocked(raw, _WAITING_MAX)) == _WAITING_MAX

    for each in waits:
        release(store, record)
        record = each.granted()


def test_renewal_wakes_the_first_for_a_look(store: Any, waiter: RedisStore, raw: Any, key: str) -> None:
    """It is refused long before its wait ends, and shown the renewed record: so it sees early when a dead holder renewed last."""
    record = granted(store, key)
    waiting = Waiting(waiter, key)
    queued(raw, key, 1)
    blocked(raw)

    renewed = store.replace(renewal_of(record), timeout_s=SOON_S).record

    came = waiting.result()
    assert isinstance(came, Reply)
    assert not came.applied
    assert came.record == renewed


def renewal_of(record: LockRecord) -> Replace:
    """Return a renewal that keeps the payload."""
    return Replace(held(record.key, record.fencing_token), record.version, keep_payload=True)


def test_list_of_a_waiter_that_has_just_left_is_no_record(store: Any, raw: Any, key: str) -> None:
    """A wake-up that nobody took stands for a moment beside the key: a list of all locks passes it over."""
    record = granted(store, key)
    left = f"{key}{{{key}}}!dlock:0123456789abcdefticket"
    raw.rpush(left, "1")
    try:
        assert list(store.scan(key, timeout_s=SOON_S)) == [record]
    finally:
        raw.delete(left)


def entry(raw: Any, place: str, left_s: float) -> str:
    """Return what stands in a queue for the waiter at *place*, whose wait ends in so many seconds."""
    seconds, micros = raw.time()
    return f"{place}\x1f{seconds * 1_000_000 + micros + int(left_s * 1_000_000)}\x1e"


def test_list_of_a_waiter_that_is_gone_goes_with_its_turn(store: Any, raw: Any, key: str) -> None:
    """Nobody takes the wake-up, which is no record."""
    record, place = granted(store, key), "!dlock:0123456789abcdefticket"
    raw.hset(key, "queue", entry(raw, place, 60))

    release(store, record)

    assert 0 < raw.pttl(f"{key}{{{key}}}{place}") <= TURN_MS


def test_waiter_that_was_away_for_a_moment_keeps_its_rank(store: Any, raw: Any, key: str) -> None:
    """Its turn is the next one's who waits now; after a second its place is dropped."""
    record = granted(store, key)
    gone, away, here = entry(raw, "gone", -60), entry(raw, "away", -0.1), entry(raw, "here", 60)
    raw.hset(key, "queue", gone + away + here)

    release(store, record)

    assert raw.hget(key, "queue").decode() == away
    assert raw.hget(key, "turn").startswith(b"here\x1f")


@pytest.mark.parametrize("keep_payload", [False, True])
def test_turn_that_is_over_goes_with_the_next_grant(store: Any, raw: Any, key: str, *, keep_payload: bool) -> None:
    """Whose it was finds no claim of its own to apply."""
    release(store, granted(store, key))
    raw.hset(key, "turn", entry(raw, "gone", -1).rstrip("\x1e"))

    granted(store, key, ticket="t", keep_payload=keep_payload)

    assert raw.hget(key, "turn") == b""


def test_full_queue_takes_a_newcomer_where_a_place_is_over(store: Any, raw: Any, key: str) -> None:
    """For longer than a second; the others keep theirs."""
    record, place = granted(store, key), store._verbs.place("t").decode()
    others = [entry(raw, f"p{number}", 60) for number in range(PLACES_MAX - 1)]
    raw.hset(key, "queue", "".join([entry(raw, "gone", -60), *others]))

    store.wait(record, ticket="t", timeout_s=0.05)

    *left, mine = raw.hget(key, "queue").decode().split("\x1e")[:-1]
    assert [f"{each}\x1e" for each in left] == others
    assert mine.startswith(place)


@pytest.mark.parametrize("released", [False, True])
def test_claim_that_was_cancelled_while_it_waited_is_withdrawn_unless_it_was_granted(
    waiter: RedisStore, raw: Any, url: str, key: str, *, released: bool
) -> None:
    """It has its place no more, so nothing of it can come later, and nobody has to wait for that."""
    record, request = granted(waiter, key), Claim(held(key), Expect.ANY, ticket="t")

    async def scene() -> BaseException:
        async with redis.asyncio.Redis.from_url(url) as client:
            other = AsyncRedisStore(client)
            waits = asyncio.create_task(other.claim_when_free(request, wait_s=LONG_S, timeout_s=SOON_S))
            await asyncio.to_thread(blocked, raw)
            await asyncio.sleep(0.05)  # nothing tells that the first answer was read
            if released:
                release(waiter, record)  # which applies the claim; the event loop sees nothing of it
                eventually(lambda: waiter.read(key, timeout_s=SOON_S).rvn == request.record.rvn)  # type: ignore[union-attr]
            waits.cancel()
            with pytest.raises(asyncio.CancelledError) as ended:
                await waits
            await other.close()
            return ended.value

    assert is_withdrawn(asyncio.run(scene()), request.record.rvn) is not released


@pytest.mark.parametrize("heard", [False, True])
def test_claim_that_may_be_on_its_way_when_it_is_interrupted_is_not_withdrawn(
    waiter: Any, raw: Any, key: str, monkeypatch: pytest.MonkeyPatch, *, heard: bool
) -> None:
    """The place that is known is that of an earlier wait; or nobody could ask whether the claim still had its own."""
    granted(waiter, key)
    request, send = Claim(held(key), Expect.ANY, ticket="t"), waiter._link.send
    raw.hset(key, "queue", entry(raw, waiter._verbs.waiting_place(request).decode(), 60))

    def interrupted(asked: Any, timeout_s: float) -> Any:
        if getattr(asked, "wait_s", 0):
            asked.heard.extend([1] * heard)
            raise KeyboardInterrupt
        if heard:
            raise ConnectionError
        return send(asked, timeout_s)

    monkeypatch.setattr(waiter._link, "send", interrupted)
    with pytest.raises(KeyboardInterrupt) as ended:
        waiter.claim_when_free(request, wait_s=LONG_S, timeout_s=SOON_S)

    assert heard or raw.hget(key, "queue") == b""
    assert not is_withdrawn(ended.value, request.record.rvn)


def test_wait_for_an_absent_key_ends_at_once(store: Any, raw: Any, key: str) -> None:
    """In both ways; nothing is written before the claim."""
    began = time.monotonic()

    store.wait(held(key), ticket="t", timeout_s=LONG_S)
    assert not raw.exists(key)
    assert store.claim_when_free(Claim(held(key), Expect.ANY, ticket="t"), wait_s=LONG_S, timeout_s=SOON_S).applied

    assert time.monotonic() - began < SOON_S


def test_wait_for_a_record_of_a_newer_format_leaves_it_alone(store: Any, raw: Any, key: str) -> None:
    """Its queue may be another."""
    raw.hset(key, mapping={"v": "2", "state": "held", "rvn": "r", "token": "7"})
    before = raw.hgetall(key)

    store.wait(held(key), ticket="t", timeout_s=0.05)
    reply = store.claim_when_free(Claim(held(key), Expect.ANY, ticket="t"), wait_s=0.05, timeout_s=SOON_S)

    assert not reply.applied
    assert [raw.eval(LEAVE.text, 1, each, "place") for each in (key, f"{key}/absent")] == [0, 0]
    assert raw.hgetall(key) == before


@pytest.mark.parametrize("in_server", [True, False])
def test_turn_that_came_between_two_waits_is_used(
    store: Any, waiter: Any, raw: Any, key: str, *, in_server: bool
) -> None:
    """Sent to look by a renewal, it waits in its other way after that: it slept beside the free key that was kept for it."""
    record = granted(store, key)
    release(store, record)
    (seconds, micros), place = raw.time(), waiter._verbs.place("t")
    till = b"%d" % (seconds * 1_000_000 + micros + TURN_MS * 1000)
    raw.hset(key, "turn", (place if in_server else IN_SERVER.encode() + place) + b"\x1f" + till)

    waits: Any = Waiting(waiter, key, ticket="t") if in_server else Waiter(waiter, record, "t")

    waits._thread.join(SOON_S)
    assert not waits._thread.is_alive()


@pytest.mark.parametrize("wait_s", [0.001, 0.0004])
def test_wait_of_no_length_ends(open_store: Any, server: Any, key: str, wait_s: float) -> None:
    """To the server a wait of 0 is one without an end."""
    store = open_store(server.url)
    record = granted(store, key)

    reply = store.claim_when_free(Claim(held(key), Expect.ANY, ticket="t"), wait_s=wait_s, timeout_s=SOON_S)

    assert (reply.applied, reply.record) == (False, record)


def test_user_without_the_right_to_block_is_told_which(server: Any, open_store: Any, key: str) -> None:
    """A policy from before claims waited in the server: the error names what is missing."""
    with redis.Redis.from_url(server.url) as admin:
        admin.execute_command("ACL", "SETUSER", "old", "on", ">pw", "~*", "&*", "+@all", "-blpop")
    store = open_store(server.url.replace("redis://", "redis://old:pw@"))
    granted(store, key)

    with pytest.raises(StoreError, match=r"\+blpop"):
        store.claim_when_free(Claim(held(key), Expect.ANY, ticket="t"), wait_s=0.1, timeout_s=SOON_S)
    assert not claim(store, key).applied
