"""A client of very many attempts: what it remembers of them is bounded, and no place is left standing by that."""

from __future__ import annotations

import pytest

from dlock_etcd import EtcdStore, _queue
from tests.etcd.support import TIMEOUT_S, Waiter, any_claim, released, until


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

    assert first.woken.wait(TIMEOUT_S)
    assert first.claims().held
    client.close()
    store.close()
