"""Waiters of several clients: the record wakes the first, who goes wakes the one behind, and none holds up the others for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from dlock_core.record import LockRecord, Member, Members, SessionRef
from dlock_core.store import Claim, Expect, Reply
from dlock_zookeeper import ZooKeeperStore, _queue
from tests.zookeeper.support import TIMEOUT_S, Waiter, any_claim, granted, held, released, renewed, until


def test_release_wakes_the_first_alone(
    store: ZooKeeperStore, standing: LockRecord, waiter: Callable[[], Waiter], places: Callable[[], list[str]]
) -> None:
    """Three of them are served in the order in which they came, and each grant takes the place away."""
    waiters = [waiter() for _ in range(3)]
    holder, record = store, standing
    reads = waiters[2].store.requests
    until(lambda: reads["read"] == 2)  # its place, and the watch of the place before

    for place, each in enumerate(waiters):
        assert holder.release(released(record), timeout_s=TIMEOUT_S).applied
        assert each.woken.wait(TIMEOUT_S)
        assert [other.woken.is_set() for other in waiters] == [True] * (place + 1) + [False] * (2 - place)
        assert place == 2 or reads["read"] == 2  # it hears of the one before it alone
        holder, record = each.store, each.claims()

    assert places() == []


def test_renewals_of_the_holder_wake_nobody_behind_the_first(
    store: ZooKeeperStore, standing: LockRecord, waiter: Callable[[], Waiter]
) -> None:
    """The first sees each change; who is behind it has no need to."""
    first, behind = waiter(), waiter()

    assert store.replace(renewed(standing), timeout_s=TIMEOUT_S).applied

    assert first.woken.wait(TIMEOUT_S)
    assert not behind.woken.is_set()


def test_client_that_has_freed_a_lock_does_not_pass_who_waits(
    store: ZooKeeperStore, standing: LockRecord, waiter: Callable[[], Waiter]
) -> None:
    """For a moment it finds the key held, by nobody; a single try is granted."""
    waiter()  # never claims
    store.release(released(standing), timeout_s=TIMEOUT_S)

    refused = store.claim(Claim(held(standing.key), Expect.ANY, ticket="new"), timeout_s=TIMEOUT_S)
    single = store.claim(any_claim(standing.key), timeout_s=TIMEOUT_S)
    behind = store.claim(Claim(held(standing.key), Expect.ANY, ticket="new"), timeout_s=TIMEOUT_S)

    assert not refused.applied
    assert refused.record is not None
    assert (refused.record.held, refused.record.owner) == (True, "(free, kept for the first who waits)")
    assert single.applied
    assert behind == Reply(applied=False, record=single.record)


def test_client_that_has_freed_a_lock_holds_back_from_no_key_that_is_gone(
    store: ZooKeeperStore, standing: LockRecord, waiter: Callable[[], Waiter], client: Any
) -> None:
    """Somebody has cleaned up by hand."""
    waiter()
    store.release(released(standing), timeout_s=TIMEOUT_S)
    client.delete(f"/tests/{standing.key}", recursive=True)

    assert store.claim(Claim(held(standing.key), Expect.ANY, ticket="new"), timeout_s=TIMEOUT_S).applied


def test_client_that_has_freed_a_lock_may_claim_again_soon(
    store: ZooKeeperStore, standing: LockRecord, waiter: Callable[[], Waiter]
) -> None:
    """Also where those who waited never claim."""
    waiter()
    store.release(released(standing), timeout_s=TIMEOUT_S)
    again = Claim(held(standing.key), Expect.ANY, ticket="new")

    until(lambda: store.claim(again, timeout_s=TIMEOUT_S).applied)


@pytest.mark.parametrize(("case", "looks"), [((0.0, None), 0), ((0.0, "place"), 1), ((0.02, None), 1)])
def test_release_looks_at_the_queue_where_that_costs_little(
    store: ZooKeeperStore, key: str, monkeypatch: pytest.MonkeyPatch, case: tuple[float, str | None], looks: int
) -> None:
    """Where a lock was held for a moment, and nobody had to wait for it, the look would be a share of what it takes."""
    assert store.read(key, timeout_s=TIMEOUT_S) is None
    now = [5.0]
    client: Any = store._link._client  # type: ignore[attr-defined]
    seen: list[str] = []
    exists = client.exists_async

    def look(path: str) -> Any:
        seen.append(path)
        return exists(path)

    monkeypatch.setattr(_queue, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(client, "exists_async", look)
    held_s, own = case
    record = granted(store, key)
    if own is not None:
        store._queue.claimed(key, own)
    now[0] += held_s
    record = store.replace(renewed(record), timeout_s=TIMEOUT_S).record or record

    assert store.release(released(record), timeout_s=TIMEOUT_S).applied

    assert len(seen) == looks


def test_client_that_held_back_comes_behind_those_who_wait(
    store: ZooKeeperStore, standing: LockRecord, waiter: Callable[[], Waiter], places: Callable[[], list[str]]
) -> None:
    """Where it waits itself, it is the last of the queue, and its claim is granted when it is the first."""
    first = waiter()
    store.release(released(standing), timeout_s=TIMEOUT_S)
    again = Waiter(store, standing.key)
    until(lambda: len(places()) == 2)
    assert not again.woken.is_set()

    record = first.claims()
    first.store.release(released(record), timeout_s=TIMEOUT_S)

    assert again.woken.wait(TIMEOUT_S)
    assert again.claims().held


def test_waiter_that_was_woken_and_does_not_claim_loses_its_turn(
    store: ZooKeeperStore, standing: LockRecord, waiter: Callable[[], Waiter]
) -> None:
    """Its client lives, and gives its place up: the next one is woken, and nobody had to look."""
    idle, busy = waiter(), waiter()

    store.release(released(standing), timeout_s=TIMEOUT_S)

    assert idle.woken.wait(TIMEOUT_S)
    assert busy.woken.wait(TIMEOUT_S)
    assert busy.claims().held


def test_waiter_in_the_middle_that_leaves_does_not_cut_the_queue(
    url: str, store: ZooKeeperStore, standing: LockRecord, waiter: Callable[[], Waiter], places: Callable[[], list[str]]
) -> None:
    """Who was behind it is behind the first now, and is not woken before that one has been served."""
    first = waiter()
    with closing(ZooKeeperStore(url)) as impatient:
        impatient.read(standing.key, timeout_s=TIMEOUT_S)
        impatient.wait(standing, ticket="impatient", timeout_s=0.2)
    last = waiter()
    assert len(places()) == 2

    store.release(released(standing), timeout_s=TIMEOUT_S)

    assert first.woken.wait(TIMEOUT_S)
    assert not last.woken.is_set()
    record = first.claims()
    assert not last.woken.is_set()
    first.store.release(released(record), timeout_s=TIMEOUT_S)
    assert last.woken.wait(TIMEOUT_S)


def test_who_waits_for_a_shared_lock_has_no_place(url: str, store: ZooKeeperStore, key: str, client: Any) -> None:
    """There may be room for several of them: each sees every change."""
    reader, owner = Member("0" * 16, "read", None, None, 1, 0), SessionRef("s", 1000, 1)
    members = Members("rw", (owner,), (reader,))
    claim = Claim(replace(held(key), lease_ms=None, members=members), Expect.ANY)
    record = store.claim(claim, timeout_s=TIMEOUT_S).record
    assert record is not None
    waiters = [Waiter(ZooKeeperStore(url), key) for _ in range(2)]
    until(lambda: all(key in each.store._link.watch.queues for each in waiters))

    assert not client.exists(f"/tests/+/{key}")
    until(lambda: store.replace(renewed(store.read(key, timeout_s=TIMEOUT_S) or record), timeout_s=TIMEOUT_S).applied)
    for each in waiters:
        assert each.woken.wait(TIMEOUT_S)
        each.store.close()


def test_several_of_one_client_who_wait_for_a_shared_lock_are_woken_one_after_the_other(
    url: str, store: ZooKeeperStore, standing: LockRecord
) -> None:
    """A watch tells of one change only: it is set again while somebody waits."""
    shared = replace(standing, lease_ms=None, members=Members("rw", (), ()))
    woken: SimpleQueue[bool] = SimpleQueue()
    record, end = standing, time.monotonic() + TIMEOUT_S
    with closing(ZooKeeperStore(url)) as other:

        def wait() -> None:
            other.wait(shared, ticket="t", timeout_s=TIMEOUT_S)
            woken.put(time.monotonic() < end)

        for _ in range(3):
            threading.Thread(target=wait, daemon=True).start()
        until(lambda: other.requests["read"] == 3)
        other.read(standing.key, timeout_s=TIMEOUT_S)  # behind theirs
        while woken.qsize() < 3 and time.monotonic() < end:
            record = store.replace(renewed(record), timeout_s=TIMEOUT_S).record or record
            time.sleep(0.05)

    assert [woken.get() for _ in range(3)] == [True] * 3


def test_scan_shows_no_queue(
    url: str, store: ZooKeeperStore, standing: LockRecord, waiter: Callable[[], Waiter]
) -> None:
    """The node of the queues is no record."""
    waiter()

    assert [record.key for record in store.scan("+", timeout_s=TIMEOUT_S)] == []
    assert [record.key for record in store.scan(standing.key, timeout_s=TIMEOUT_S)] == [standing.key]


@pytest.mark.parametrize("name", ["+", ".", ".."])
def test_lock_may_have_the_name_of_the_queues_or_one_that_no_node_can_have(store: ZooKeeperStore, name: str) -> None:
    """Its node has another."""
    record = granted(store, name)

    assert store.read(name, timeout_s=TIMEOUT_S) == record
    assert record in list(store.scan(name, timeout_s=TIMEOUT_S))
    store.release(released(record), timeout_s=TIMEOUT_S)
