"""What is between a client and etcd goes without a word: a balancer's host, or a firewall that forgets connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

import grpc
import pytest

from dlock_core.errors import OutcomeUnknownError, StoreUnavailableError
from dlock_etcd import AsyncEtcdStore, EtcdStore
from tests.balancer import Balancer
from tests.etcd.support import TIMEOUT_S, any_claim, renewed

# By chance only one of two ways is taken in so many times: once in 500,000 runs.
MANY = 20


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


def test_server_that_is_slow_has_no_new_connection_for_each_short_request(balancer: Balancer, key: str) -> None:
    """Each that left a queue had one made, with all that TLS asks of a server that is slow as it is."""
    store = EtcdStore(f"etcd://{balancer.address}/tests")
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None
    balancer.delay_s = 0.5
    assert store.read(key, timeout_s=TIMEOUT_S) == record
    connection = store._link._channels[0]

    for _ in range(3):
        with pytest.raises(StoreUnavailableError):
            store.read(key, timeout_s=0.25)

    assert store.replace(renewed(record), timeout_s=TIMEOUT_S).applied
    assert store._link._channels[0] is connection
    store.close()


def test_name_with_several_addresses_leads_to_any_of_them(address: str, key: str) -> None:
    """Always to the first, and a member that was cut off from the others had each new connection, too: all locks were lost."""
    ways = Balancer(address), Balancer(address)
    both = f"ipv4:{','.join(way.address for way in ways)}"
    for _ in range(MANY):
        store = EtcdStore("etcd://name-with-two-addresses/tests")
        store._link._grpc = SimpleNamespace(insecure_channel=lambda _, options: grpc.insecure_channel(both, options))
        store.read(key, timeout_s=TIMEOUT_S)
        store.close()

    assert all(way.is_used for way in ways)
    for way in ways:
        way.close()
