"""What becomes of the place of a waiter: it is kept, given up, taken again, and ends with its session or its client."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from dlock_core import AcquireTimeoutError, LockClient
from dlock_core.kit import Call
from dlock_core.record import LockRecord
from dlock_zookeeper import ZooKeeperStore, _queue, _verbs
from tests.zookeeper.support import TIMEOUT_S, Waiter, granted, released, until


def test_client_that_waits_writes_nothing_after_its_place_and_none_is_left_by_who_gives_up(
    store: ZooKeeperStore,
    url: str,
    client: Any,
    standing: LockRecord,
    places: Callable[[], list[str]],
) -> None:
    """It looks at the key again and again; each write is one of the whole ensemble."""
    waiting, patched = ZooKeeperStore(url), pytest.MonkeyPatch.context()
    with patched as patch, LockClient(waiting, poll_period=0.1) as clients, ThreadPoolExecutor(1) as pool:
        patch.setattr(_queue, "_TURN_S", TIMEOUT_S * 2)  # nobody is so slow that its turn passes
        with pytest.raises(AcquireTimeoutError):
            clients.acquire(standing.key, timeout=1)
        until(lambda: places() == [])

        acquiring = pool.submit(clients.acquire, standing.key)
        until(lambda: len(places()) == 1)
        [place], looks = places(), waiting.requests["read"]
        made = client.exists(f"/tests/+/{standing.key}/{place}").czxid
        until(lambda: waiting.requests["read"] > looks + 3)
        assert client.exists(f"/tests/+/{standing.key}/{place}").czxid == made
        store.release(released(standing), timeout_s=TIMEOUT_S)
        acquiring.result(TIMEOUT_S)
    waiting.close()


def test_waiter_that_died_takes_its_place_with_it(
    url: str,
    store: ZooKeeperStore,
    standing: LockRecord,
    waiter: Callable[[], Waiter],
    places: Callable[[], list[str]],
) -> None:
    """The place ends with the session, and the one behind comes forward."""
    program = f"""
from dlock_core import connect
with connect("{url}", prefix="") as client:
    client.acquire("{standing.key}")
"""
    dying = subprocess.Popen([sys.executable, "-c", program])
    until(lambda: len(places()) == 1)
    dying.send_signal(signal.SIGKILL)
    dying.wait()
    behind = waiter()

    store.release(released(standing), timeout_s=TIMEOUT_S)

    assert behind.woken.wait(TIMEOUT_S)
    assert behind.claims().held


def test_place_is_taken_again_where_it_ended_with_a_session(
    client: Any,
    store: ZooKeeperStore,
    standing: LockRecord,
    waiter: Callable[[], Waiter],
    places: Callable[[], list[str]],
) -> None:
    """Its waiter is in the queue no more, as another one sees, until it comes back to wait; its claim is granted without."""
    first, second = waiter(), waiter()
    for place in reversed(places()):
        client.delete(f"/tests/+/{standing.key}/{place}")
    until(lambda: len(places()) == 1)  # who was woken by the one before it has come forward
    store.release(released(standing), timeout_s=TIMEOUT_S)

    assert first.woken.wait(TIMEOUT_S)
    assert second.woken.wait(TIMEOUT_S)
    assert first.claims().held


def test_place_whose_waiter_was_interrupted_at_its_end_is_given_up(
    standing: LockRecord, waiter: Callable[[], Waiter], places: Callable[[], list[str]]
) -> None:
    """A signal handler may raise when a wait has ended, before the place is left: its client gives it up, and others wait in that."""
    living = waiter().store
    queue = living._queue
    place = queue.attend(standing.key, "interrupted", time.monotonic())
    living._run(living._verbs.moved_on(place, standing), Call("read", standing.key, TIMEOUT_S))
    assert len(places()) == 2

    until(lambda: len(places()) == 1 and place not in queue)


def test_place_that_could_not_be_left_is_left_later(
    url: str, standing: LockRecord, places: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection broke at the end of the wait: it would have stood as long as the session, with nobody of that client behind it."""
    leave, cuts = _queue.Queue.leave, [True]

    def cut_and_leave(queue: _queue.Queue, *names: str) -> Any:
        if cuts:
            cuts.clear()
            impatient._link._client._connection._socket.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
        return leave(queue, *names)

    monkeypatch.setattr(_queue.Queue, "leave", cut_and_leave)
    with closing(ZooKeeperStore(url)) as impatient:
        impatient.read(standing.key, timeout_s=TIMEOUT_S)
        impatient.wait(standing, ticket="impatient", timeout_s=0.2)
        assert not cuts

        until(lambda: places() == [])


def test_client_remembers_nothing_of_those_who_gave_up(url: str, standing: LockRecord) -> None:
    """Until the record changed, or the one before them went, it remembered each: for ever where that news was lost with a connection."""
    with closing(ZooKeeperStore(url)) as other, closing(ZooKeeperStore(url)) as behind:
        for number in range(3):
            other.wait(standing, ticket=f"first/{number}", timeout_s=0.1)
            assert not any(other._queue._watched.values())
        first = threading.Thread(target=lambda: other.wait(standing, ticket="stays", timeout_s=TIMEOUT_S), daemon=True)
        first.start()
        until(lambda: any(other._queue._watched.values()))
        for number in range(3):
            behind.wait(standing, ticket=f"behind/{number}", timeout_s=0.1)
            assert not any(behind._queue._watched.values())

        assert behind._queue._watched
        behind._changed(SimpleNamespace(path=None))
        assert not behind._queue._watched
    first.join()


def test_close_leaves_the_queue_of_a_session_that_goes_on(
    address: str, client: Any, standing: LockRecord, places: Callable[[], list[str]]
) -> None:
    """A client of the user's keeps its session, which would keep the place."""
    waiter = Waiter(ZooKeeperStore(client, root="tests"), standing.key)
    until(lambda: len(places()) == 1)

    waiter.store.close()

    assert places() == []


def test_child_of_a_fork_has_no_place(standing: LockRecord, waiter: Callable[[], Waiter]) -> None:
    """Those of its parent are the parent's to leave."""
    store = waiter().store
    child = os.fork()
    if child == 0:
        os._exit(0 if store._queue.own(standing.key, "ticket") is None and not store._queue._places else 1)

    assert os.waitpid(child, 0)[1] == 0
    assert store._queue._places


def test_place_that_a_copy_of_the_data_brings_back_is_removed_by_its_client(
    store: ZooKeeperStore,
    client: Any,
    standing: LockRecord,
    waiter: Callable[[], Waiter],
    places: Callable[[], list[str]],
) -> None:
    """It stood as long as that client's session; those behind it had no news of the lock, and had to poll for it."""
    first = waiter()
    name = f"{0:016x}-{first.store._queue._client}-gone"
    client.create(f"/tests/+/{standing.key}/{name}", ephemeral=True)

    first.store.wait(standing, ticket="another", timeout_s=1)

    assert name not in places()
    store.release(released(standing), timeout_s=TIMEOUT_S)
    assert first.woken.wait(TIMEOUT_S)


def test_who_waits_for_a_damaged_record_is_told_at_once(
    store: ZooKeeperStore, client: Any, standing: LockRecord
) -> None:
    """By its claim, which reads what stands; it has no need to wait for a change."""
    client.set(f"/tests/{standing.key}", b"damaged")
    began = time.monotonic()

    store.wait(standing, ticket="t", timeout_s=TIMEOUT_S)

    assert time.monotonic() - began < TIMEOUT_S


def test_what_a_client_remembers_of_many_keys_is_bounded(
    store: ZooKeeperStore, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that locks ever other keys has run for months; what it has forgotten, it asks for."""
    monkeypatch.setattr(_queue, "_MANY", 2)
    monkeypatch.setattr(_verbs, "_HINTS_MAX", 2)

    records = [granted(store, f"{key}-{number}") for number in range(4)]
    for record in records:
        store._queue.attend(record.key, record.rvn, time.monotonic())

    queue, hints = store._queue, store._verbs._hints  # type: ignore[attr-defined]
    assert list(queue._since) == [record.rvn for record in records[2:]]
    assert list(queue._held_since) == [record.key for record in records[2:]]
    assert len(hints) <= 2
    assert all(store.release(released(record), timeout_s=TIMEOUT_S).applied for record in records)


def test_client_forgets_for_how_long_it_holds_back(store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each lock that it frees; they may be many."""
    monkeypatch.setattr(_queue, "_TURN_S", 0.0)
    queue: Any = store._queue

    queue.lets_pass("a", "r")
    queue.lets_pass("b", "s")

    assert list(queue._freed) == ["b"]
