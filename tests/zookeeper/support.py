"""A session of ZooKeeper's own, and claims."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kazoo.client import KazooClient

from dlock_core.record import LockRecord
from dlock_zookeeper import ZooKeeperStore
from tests.etcd.support import TIMEOUT_S, Waiter, any_claim, held, released, renewed, until

__all__ = ["TIMEOUT_S", "Waiter", "any_claim", "granted", "held", "released", "renewed", "session", "until"]


@contextmanager
def session(address: str, **options: Any) -> Iterator[Any]:
    """Do what is not the store's."""
    client = KazooClient(address, **options)
    client.start(timeout=60)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def granted(store: ZooKeeperStore, key: str, token: int = 1) -> LockRecord:
    """Claim *key*, and return its record."""
    reply = store.claim(any_claim(key, token), timeout_s=TIMEOUT_S)
    assert reply.applied
    assert reply.record is not None
    return reply.record
