"""Waiters of several clients: one release wakes one of them, the first, and none of them holds up the others for long."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from dlock_core import AcquireTimeoutError, LockClient
from dlock_core.kit import Call
from dlock_core.record import LockRecord, Member, Members, SessionRef
from dlock_core.store import Claim, Expect
from dlock_etcd import AsyncEtcdStore, EtcdStore, _queue
from dlock_etcd._queue import Queue
from tests.etcd.support import TIMEOUT_S, Waiter, administer, any_claim, coded, held, released, renewed, until

ROOT = "queue"


@pytest.fixture
def standing(address: str, key: str) -> Iterator[tuple[EtcdStore, LockRecord]]:
    """Hold the key."""
    store = EtcdStore(f"etcd://{address}/{ROOT}")
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None
    yield store, record
    store.close()


@pytest.fixture
def waiter(address: str, standing: tuple[EtcdStore, LockRecord]) -> Iterator[Callable[[], Waiter]]:
    """Return what makes one more waiter, once it has its place."""
    made: list[Waiter] = []

    def wait() -> Waiter:
        before = places(address, standing[1].key)
        made.append(Waiter(EtcdStore(f"etcd://{address}/{ROOT}"), standing[1].key))
        until(lambda: places(address, standing[1].key) > before)
        return made[-1]

    yield wait
    for each in made:
        each.store.close()


def places(address: str, key: str) -> int:
    """Return how many keys of etcd's the waiters for *key* have, but for their bells."""
    start = f"{ROOT}/wait/{len(key)}:{key}/"
    found = administer(address, "kv/range", key=coded(start), range_end=coded(start[:-1] + "0"), count_only=True)
    return int(found.get("count", 0))


def test_release_wakes_the_first_alone(
    address: str, standing: tuple[EtcdStore, LockRecord], waiter: Callable[[], Waiter]
) -> None:
    """Each client hears of its turn and of no other's: three of them are served in the order in which they came."""
    store, record = standing
    waiters = [waiter() for _ in range(3)]

    for place, each in enumerate(waiters):
        assert store.release(released(record), timeout_s=TIMEOUT_S).applied
        assert each.woken.wait(TIMEOUT_S)
        assert [other.woken.is_set() for other in waiters] == [True] * (place + 1) + [False] * (2 - place)
        store, record = each.store, each.claims()

    assert places(address, record.key) == 0


def test_release_by_one_of_the_queue_is_one_request(
    standing: tuple[EtcdStore, LockRecord], waiter: Callable[[], Waiter]
) -> None:
    """Its claim has told it who comes next, so the release itself wakes that one."""
    first, second = waiter(), waiter()
    standing[0].release(released(standing[1]), timeout_s=TIMEOUT_S)
    assert first.woken.wait(TIMEOUT_S)
    record = first.claims()
    before = first.store.requests["release"]

    first.store.release(released(record), timeout_s=TIMEOUT_S)

    assert second.woken.wait(TIMEOUT_S)
    assert first.store.requests["release"] == before + 1


def test_waiter_that_came_back_before_the_one_that_the_holder_knows_is_woken(
    standing: tuple[EtcdStore, LockRecord], waiter: Callable[[], Waiter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has an older place, which it had given up for a moment when the holder last heard of the queue."""
    store, record = standing
    behind = waiter()
    record = store.replace(renewed(record), timeout_s=TIMEOUT_S).record or record
    monkeypatch.setattr(Queue, "attend", _attend_early(Queue.attend))
    first = waiter()
    before = store.requests["release"]

    store.release(released(record), timeout_s=TIMEOUT_S)

    assert store.requests["release"] == before + 2
    assert first.woken.wait(TIMEOUT_S)
    assert first.claims().held
    behind.woken.wait(TIMEOUT_S)


def test_waiter_that_comes_back_waits_before_those_who_came_after_it(
    address: str,
    standing: tuple[EtcdStore, LockRecord],
    waiter: Callable[[], Waiter],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its wait was over, and its place was given up; it waits once more under the same ticket."""
    monkeypatch.setattr(_queue, "_TURN_S", 2 * TIMEOUT_S)  # nobody passes its turn on meanwhile
    store, record = standing
    back = EtcdStore(f"etcd://{address}/{ROOT}")
    back.wait(record, ticket="back", timeout_s=0.1)
    behind = waiter()
    back.read(record.key, timeout_s=TIMEOUT_S)  # so it knows of a later revision than that of the one behind it
    woken = threading.Event()

    def wait_again() -> None:
        back.wait(record, ticket="back", timeout_s=2 * TIMEOUT_S)
        woken.set()

    threading.Thread(target=wait_again, daemon=True).start()
    until(lambda: places(address, record.key) == 2)
    store.release(released(record), timeout_s=TIMEOUT_S)

    assert woken.wait(TIMEOUT_S)
    assert not behind.woken.is_set()
    back.close()


def _attend_early(attend: Callable[[Queue, str, str, float], str]) -> Callable[[Queue, str, str, float], str]:
    def early(queue: Queue, key: str, ticket: str, until: float) -> str:
        queue._since[ticket] = 1
        return attend(queue, key, ticket, until)

    return early


def test_client_that_waits_writes_nothing_after_its_place_and_none_is_left_by_who_gives_up(
    address: str, standing: tuple[EtcdStore, LockRecord]
) -> None:
    """It looks at the key again and again; etcd keeps each write until it is told to compact."""
    store, record = standing
    waiting = EtcdStore(f"etcd://{address}/{ROOT}")
    with LockClient(waiting, lease_duration=0.4) as client, ThreadPoolExecutor(1) as pool:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(_queue, "_TURN_S", TIMEOUT_S * 2)
            with pytest.raises(AcquireTimeoutError):
                client.acquire(record.key, timeout=1)
            until(lambda: places(address, record.key) == 0)

        acquiring = pool.submit(client.acquire, record.key)
        until(lambda: places(address, record.key) == 1)
        store.read(record.key, timeout_s=TIMEOUT_S)
        before, looks = store._verbs.revision, waiting.requests["read"]
        until(lambda: waiting.requests["read"] > looks + 3)
        store.read(record.key, timeout_s=TIMEOUT_S)
        assert store._verbs.revision == before
        store.release(released(record), timeout_s=TIMEOUT_S)
        acquiring.result(TIMEOUT_S)
    waiting.close()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_closing_leaves_the_queue(address: str, standing: tuple[EtcdStore, LockRecord], asynchronous: bool) -> None:
    """Also a place that is kept for a look at the key, which would hold up those behind it for seconds."""
    _, record = standing

    async def wait_and_close() -> None:
        store = AsyncEtcdStore(f"etcd://{address}/{ROOT}")
        await store.wait_keeping_place(record, ticket="t", timeout_s=0.2)
        await store.close()

    if asynchronous:
        asyncio.run(wait_and_close())
    else:
        store = EtcdStore(f"etcd://{address}/{ROOT}")
        store.wait_keeping_place(record, ticket="t", timeout_s=0.2)
        store.close()

    assert places(address, record.key) == 0


def test_newcomer_does_not_pass_who_waits(
    address: str, standing: tuple[EtcdStore, LockRecord], waiter: Callable[[], Waiter]
) -> None:
    """A claim with a ticket finds the free key held, by nobody; one without, a single try, is granted."""
    store, record = standing
    waiting = waiter()
    store.release(released(record), timeout_s=TIMEOUT_S)
    waiting.woken.wait(TIMEOUT_S)

    refused = store.claim(Claim(held(record.key), Expect.ANY, ticket="new"), timeout_s=TIMEOUT_S)
    single = store.claim(any_claim(record.key), timeout_s=TIMEOUT_S)

    assert not refused.applied
    assert refused.record is not None
    assert (refused.record.held, refused.record.owner) == (True, "(free, kept for the first who waits)")
    assert single.applied


def test_waiter_that_was_woken_and_does_not_claim_loses_its_turn(
    standing: tuple[EtcdStore, LockRecord], waiter: Callable[[], Waiter]
) -> None:
    """Its client lives, and gives its place up: the next one is woken, and nobody had to look."""
    idle, busy = waiter(), waiter()

    standing[0].release(released(standing[1]), timeout_s=TIMEOUT_S)

    assert idle.woken.wait(TIMEOUT_S)
    assert busy.woken.wait(TIMEOUT_S)
    assert busy.claims().held


def test_waiter_that_died_takes_its_place_with_it(address: str, standing: tuple[EtcdStore, LockRecord]) -> None:
    """The place has a lease of a few seconds, so the claims of those behind it are refused no longer."""
    store, record = standing
    program = f"""
from dlock_core import connect
with connect("etcd://{address}/{ROOT}", prefix="") as client:
    client.acquire("{record.key}")
"""
    dying = subprocess.Popen([sys.executable, "-c", program])
    until(lambda: places(address, record.key) == 1)
    dying.send_signal(signal.SIGKILL)
    dying.wait()
    store.release(released(record), timeout_s=TIMEOUT_S)

    until(lambda: store.claim(Claim(held(record.key), Expect.ANY, ticket="new"), timeout_s=TIMEOUT_S).applied)


def test_renewal_tells_that_another_client_waits(
    standing: tuple[EtcdStore, LockRecord], waiter: Callable[[], Waiter]
) -> None:
    """And lets the holder know whom to wake, in the same transaction as its release."""
    store, record = standing
    assert not store.replace(renewed(record), timeout_s=TIMEOUT_S).wanted
    record = store.read(record.key, timeout_s=TIMEOUT_S) or record
    waiting = waiter()
    (reply,) = store.replace_many([renewed(record)], timeout_s=TIMEOUT_S)
    before = store.requests["release"]

    store.release(released(reply.record), timeout_s=TIMEOUT_S)

    assert reply.wanted
    assert waiting.woken.wait(TIMEOUT_S)
    assert store.requests["release"] == before + 1


def test_place_is_taken_again_after_etcd_has_forgotten_it(
    address: str, standing: tuple[EtcdStore, LockRecord], waiter: Callable[[], Waiter]
) -> None:
    """The lease was lost while its client stood still: who waits is woken, and comes back under another one."""
    lost = waiter()
    for lease in administer(address, "lease/leases").get("leases", []):
        administer(address, "lease/revoke", ID=lease["ID"])
    assert lost.woken.wait(TIMEOUT_S)

    lost.woken.clear()
    threading.Thread(target=lost.wait, daemon=True).start()
    until(lambda: places(address, standing[1].key) == 1)
    standing[0].release(released(standing[1]), timeout_s=TIMEOUT_S)

    assert lost.woken.wait(TIMEOUT_S)
    assert lost.claims().held


def test_place_whose_waiter_was_interrupted_at_its_end_is_given_up(
    address: str, standing: tuple[EtcdStore, LockRecord], waiter: Callable[[], Waiter]
) -> None:
    """A signal handler may raise when a wait has ended, before the place is left: its client gives it up, and others wait in that."""
    living = waiter().store
    queue = living._verbs.queue
    bell = queue.attend(standing[1].key, "interrupted", time.monotonic())
    living._run(queue.enter(bell, standing[1]), Call("read", standing[1].key, TIMEOUT_S))

    until(lambda: bell not in queue._places)
    assert places(address, standing[1].key) <= 1


def test_who_waits_for_a_shared_lock_has_no_place_once_it_is_woken(address: str, key: str) -> None:
    """It joins by no claim, which would take the place away: the next one to leave would wake nobody by it."""
    store = EtcdStore(f"etcd://{address}/{ROOT}")
    reader, session = Member("0" * 16, "read", None, None, 1, 0), SessionRef("s", 1000, 1)
    members = Members("rw", (session,), (reader,))
    store.claim(Claim(replace(held(key), lease_ms=None, members=members), Expect.ANY), timeout_s=TIMEOUT_S)
    waiters = []
    for place in range(2):
        waiters.append(Waiter(EtcdStore(f"etcd://{address}/{ROOT}"), key))
        until(lambda place=place: places(address, key) == place + 1)  # type: ignore[misc]  # bound on purpose
    first, second = waiters
    step = renewed(first.record)._replace(wakes=True)

    assert store.replace(step, timeout_s=TIMEOUT_S).applied

    assert first.woken.wait(TIMEOUT_S)
    assert places(address, key) == 1
    assert first.store.requests["leave"] == 1  # it has used its turn, and wakes nobody by it
    assert not second.woken.is_set()
    for each in (first.store, second.store, store):
        each.close()


def test_place_that_comes_after_it_was_given_up_ends_with_its_lease(
    address: str, standing: tuple[EtcdStore, LockRecord], waiter: Callable[[], Waiter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler that raises leaves the request for the place under way; the client lives on, and others wait in it."""
    store, record = standing
    living = waiter().store
    link, late = living._link, []
    send = link.send

    def interrupted(request: Any, timeout_s: float) -> Any:
        if any(each.put.lease for each in request.message.failure):
            late.append(request)
            raise KeyboardInterrupt
        return send(request, timeout_s)

    with monkeypatch.context() as patched:
        patched.setattr(link, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            living.wait(record, ticket="interrupted", timeout_s=TIMEOUT_S)
    send(late[0], TIMEOUT_S)
    assert places(address, record.key) == 2
    store.release(released(record), timeout_s=TIMEOUT_S)

    until(lambda: store.claim(Claim(held(record.key), Expect.ANY, ticket="new"), timeout_s=TIMEOUT_S).applied)


def test_asyncio_waiter_that_is_cancelled_leaves_no_place(
    address: str, standing: tuple[EtcdStore, LockRecord], waiter: Callable[[], Waiter]
) -> None:
    """It was the first; the next one has its turn at once."""
    store, record = standing

    async def wait_and_be_cancelled() -> None:
        other = AsyncEtcdStore(f"etcd://{address}/{ROOT}")
        waiting = asyncio.create_task(other.wait(record, ticket="cancelled", timeout_s=TIMEOUT_S))
        while not await asyncio.to_thread(places, address, record.key):
            pass
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await other.close()

    asyncio.run(wait_and_be_cancelled())
    assert places(address, record.key) == 0
    behind = waiter()
    store.release(released(record), timeout_s=TIMEOUT_S)

    assert behind.woken.wait(TIMEOUT_S)


def test_client_of_a_loop_that_is_closed_leaves_no_error_to_the_next_loop(
    address: str, standing: tuple[EtcdStore, LockRecord], caplog: pytest.LogCaptureFixture
) -> None:
    """A program that calls ``asyncio.run`` again and again had tracebacks of gRPC in its log: 'Event loop is closed'."""
    store, record = standing

    async def wait_for_the_release(number: int) -> None:
        other = AsyncEtcdStore(f"etcd://{address}/{ROOT}")
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await other.wait(record, ticket=f"loop-{number}", timeout_s=TIMEOUT_S)
        await other.close()

    for number in range(5):
        asyncio.run(wait_for_the_release(number))

    assert [each.getMessage() for each in caplog.records if each.name == "asyncio"] == []
    assert store.read(record.key, timeout_s=TIMEOUT_S) == record
