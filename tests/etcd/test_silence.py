"""What is between a client and etcd goes without a word: a balancer's host, or a firewall that forgets connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from dlock_core.errors import OutcomeUnknownError
from dlock_etcd import AsyncEtcdStore, EtcdStore
from tests.balancer import Balancer
from tests.etcd.support import TIMEOUT_S, any_claim, renewed


@pytest.fixture
def balancer(address: str) -> Iterator[Balancer]:
    """Return one, on the way to the server."""
    balancer = Balancer(address)
    yield balancer
    balancer.close()


def test_renewal_after_one_without_an_answer_goes_by_a_new_connection(balancer: Balancer, key: str) -> None:
    """To find out that a connection is dead takes gRPC longer than many a lease: the lock was lost."""
    store = EtcdStore(f"etcd://{balancer.address}/tests")
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None

    balancer.forget()
    with pytest.raises(OutcomeUnknownError):
        store.replace(renewed(record), timeout_s=0.3)

    assert store.replace(renewed(record), timeout_s=2.0).applied
    store.close()


def test_renewal_by_asyncio_too(balancer: Balancer, key: str) -> None:
    """The same way."""

    async def renew() -> bool:
        store = AsyncEtcdStore(f"etcd://{balancer.address}/tests")
        record = (await store.claim(any_claim(key), timeout_s=TIMEOUT_S)).record
        assert record is not None
        balancer.forget()
        with pytest.raises(OutcomeUnknownError):
            await store.replace(renewed(record), timeout_s=0.3)
        reply = await store.replace(renewed(record), timeout_s=2.0)
        await store.close()
        return reply.applied

    assert asyncio.run(renew())
