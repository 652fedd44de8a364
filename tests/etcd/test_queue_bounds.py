"""A client of very many attempts: what it remembers of them is bounded, and no place is left standing by that."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest

from dlock_etcd import AsyncEtcdStore, EtcdStore, _queue, _schema
from dlock_etcd._verbs import EtcdVerbs
from dlock_etcd.options import EtcdStoreOptions
from tests.etcd.support import TIMEOUT_S, Refusal, Waiter, administer, any_claim, coded, held, released, until

MANY = 20


def test_waiter_stays_the_first_while_its_client_has_more_attempts_than_it_remembers(
    address: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands came after it: it is granted the lock in its turn, and its place goes with that, where it had blocked the key for ever."""
    monkeypatch.setattr(_queue, "_MANY", 2)
    store, client = (EtcdStore(f"etcd://{address}/queue") for _ in range(2))
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None
    first = Waiter(client, key)
    until(lambda: bool(client._verbs.queue._places))
    for number in range(3):
        client.wait(record, ticket=f"later/{number}", timeout_s=0.05)

    store.release(released(record), timeout_s=TIMEOUT_S)

    assert len(client._verbs.queue._since) == 2
    assert first.woken.wait(TIMEOUT_S)
    assert first.claims().held
    client.close()
    store.close()


class _Upkeep:
    """A queue with places that were left long ago, and an upkeep of it whose requests the test answers."""

    def __init__(self, *tickets: str) -> None:
        self.queue = EtcdVerbs(EtcdStoreOptions.from_url("etcd://host/queue")).queue
        self.bells = [self.queue.attend("key", ticket, time.monotonic() - TIMEOUT_S) for ticket in tickets]

    def begins(self) -> Any:
        """Return the upkeep, and its first request."""
        steps = self.queue.upkeep()
        return steps, next(steps)


def test_waiter_that_comes_back_while_other_places_are_given_up_keeps_its_own() -> None:
    """Its place is left alone: without it nobody would know of what it then puts there, and that would block the key."""
    upkeep = _Upkeep("gone", "back")
    steps, _ = upkeep.begins()
    removals = [_schema._CLASSES["OpAnswer"](delete={"deleted": 1})] * 2
    nobody = _schema._CLASSES["OpAnswer"](range={})

    assert upkeep.queue.attend("key", "back", time.monotonic() + TIMEOUT_S) == upkeep.bells[1]
    with pytest.raises(StopIteration):
        steps.send(_schema._CLASSES["TxnAnswer"](header={"revision": 2}, responses=[*removals, nobody]))

    assert list(upkeep.queue._places) == upkeep.bells[1:]
    assert upkeep.queue._places[upkeep.bells[1]][1] > time.monotonic()


def test_places_are_kept_before_others_are_given_up() -> None:
    """To give up thousands takes longer than the lease of those that stand, and all who wait would come anew at once."""
    upkeep = _Upkeep("gone")
    upkeep.queue._lease = 1

    _, first = upkeep.begins()

    assert first.method.path.endswith("/LeaseKeepAlive")


def test_tasks_that_begin_to_wait_at_once_have_one_lease(address: str, key: str) -> None:
    """Each had one of its own; all but the last ended after two seconds, and woke who had it."""

    async def leases() -> set[str]:
        store = AsyncEtcdStore(f"etcd://{address}/queue")
        record = (await store.claim(any_claim(key), timeout_s=TIMEOUT_S)).record
        assert record is not None
        tickets = [f"ticket/{number}" for number in range(MANY)]
        waiting = [asyncio.create_task(store.wait(record, ticket=ticket, timeout_s=TIMEOUT_S)) for ticket in tickets]
        start, found = f"queue/wait/{len(key)}:{key}/", list[Any]()
        while len(found) < MANY:
            shown = await asyncio.to_thread(
                administer, address, "kv/range", key=coded(start), range_end=coded(start[:-1] + "0")
            )
            found = shown.get("kvs", [])
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await store.close()
        return {place["lease"] for place in found}

    assert len(asyncio.run(leases())) == 1


def test_waiters_whose_lease_was_lost_ask_for_the_same_one() -> None:
    """Whoever comes second finds it there, and does not take it from the first."""
    upkeep = _Upkeep("first", "second")
    upkeep.queue._lease = 5
    entering = [upkeep.queue.enter(bell, held("key")) for bell in upkeep.bells]
    for each in entering:
        next(each)
    lost = Refusal(grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found")
    stands = Refusal(grpc.StatusCode.FAILED_PRECONDITION, "etcdserver: lease already exists")

    asked = [each.throw(lost).message.id for each in entering]
    entered = [entering[0].send(None), entering[1].throw(stands)]

    used = {op.put.lease for request in entered for op in request.message.failure if op.put.key}
    assert {*asked} == used == {upkeep.queue._lease}
