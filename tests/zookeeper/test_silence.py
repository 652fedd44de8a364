"""What is between a client and ZooKeeper goes without a word, or a server stands still."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dlock_core.errors import OutcomeUnknownError, StoreUnavailableError
from dlock_zookeeper import ZooKeeperStore
from tests.balancer import Balancer
from tests.deaf import deaf_place
from tests.zookeeper.support import TIMEOUT_S, Waiter, any_claim, granted, renewed, session, until

# Sooner than kazoo, which a client that asks so often keeps from its pings.
SOON_S = 2.0


@pytest.fixture
def balancer(address: str) -> Iterator[Balancer]:
    """Return one, on the way to the server."""
    balancer = Balancer(address)
    yield balancer
    balancer.close()


def socket_of(store: ZooKeeperStore) -> Any:
    """Return that of the connection."""
    return store._link._client._connection._socket  # type: ignore[attr-defined]


def renews_after_silence(store: ZooKeeperStore, key: str, forget: Callable[[], None], silent_s: float) -> bool:
    """Whether a renewal is made soon after one that has waited for an answer for so long."""
    record = granted(store, key)
    forget()
    with pytest.raises(OutcomeUnknownError):
        store.replace(renewed(record), timeout_s=silent_s)
    return store.replace(renewed(record), timeout_s=SOON_S).applied


def test_renewal_after_one_without_an_answer_goes_by_a_new_connection(balancer: Balancer, key: str) -> None:
    """A client that goes on asking had no answer for as long as the server was silent, and lost its locks, though others were there."""
    store = ZooKeeperStore(f"zookeeper://{balancer.address}/tests")

    assert renews_after_silence(store, key, balancer.forget, 0.3)
    store.close()


def test_client_of_the_user_connects_anew_too(balancer: Balancer, key: str) -> None:
    """Others may count on its connection: it was silent for longer."""
    with session(balancer.address) as client:
        store = ZooKeeperStore(client, root="tests")

        assert renews_after_silence(store, key, balancer.forget, 1.2)
        assert client.connected


def test_time_that_is_too_short_for_an_answer_ends_no_connection(balancer: Balancer, key: str) -> None:
    """What is under way for others would end with it."""
    store = ZooKeeperStore(f"zookeeper://{balancer.address}/tests")
    record = granted(store, key)
    connection = socket_of(store)

    balancer.forget()
    with pytest.raises(OutcomeUnknownError):
        store.replace(renewed(record), timeout_s=0.05)

    assert socket_of(store) is connection
    store.close()


def test_server_that_answers_others_ends_no_connection(store: ZooKeeperStore, key: str) -> None:
    """A request without an answer proves nothing where another had one meanwhile."""
    record = granted(store, key)
    connection, link = socket_of(store), store._link

    class Unanswered:
        """A request that no answer comes to, while others have theirs."""

        def get(self, timeout: float) -> object:
            store.read(key, timeout_s=TIMEOUT_S)
            return kazoo.handler.async_result().get(timeout=0.05)

    kazoo = link._client  # type: ignore[attr-defined]
    with pytest.raises(kazoo.handler.timeout_exception):
        link.send(lambda client, news: [Unanswered()], 1.0)

    assert socket_of(store) is connection
    assert store.replace(renewed(record), timeout_s=TIMEOUT_S).applied


def test_server_that_is_slow_is_not_connected_to_anew_for_each_short_request(balancer: Balancer, key: str) -> None:
    """Each that left a queue ended the connection of all, again and again: no renewal was answered any more, and the locks were lost."""
    store = ZooKeeperStore(f"zookeeper://{balancer.address}/tests")
    record = granted(store, key)
    balancer.delay_s = 0.5
    assert store.read(key, timeout_s=TIMEOUT_S) == record
    connection = socket_of(store)

    for _ in range(3):
        with pytest.raises(StoreUnavailableError):
            store.read(key, timeout_s=0.25)

    assert store.replace(renewed(record), timeout_s=TIMEOUT_S).applied
    assert socket_of(store) is connection
    store.close()


def test_host_that_takes_no_connection_delays_the_next_one_for_less_than_a_session(
    address: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three lost its power: kazoo waited a whole session for it, and all locks with a short lease were lost meanwhile."""
    monkeypatch.setattr("kazoo.protocol.connection.random.shuffle", lambda _: None)
    with deaf_place() as (host, port):
        store = ZooKeeperStore(f"zookeeper://{host}:{port},{address}/tests")

        reply = store.claim(any_claim(key), timeout_s=2 * SOON_S)

        assert reply.applied
        store.close()


def test_connection_that_was_ended_takes_no_request(store: ZooKeeperStore, key: str) -> None:
    """Kazoo may not know it yet, and whether a write that was sent there came would be unknown."""
    record = granted(store, key)
    store._link._ended_way = socket_of(store)  # type: ignore[attr-defined]

    with pytest.raises(StoreUnavailableError, match="nothing was written"):
        store.replace(renewed(record), timeout_s=0.3)


@pytest.mark.usefixtures("standing")
def test_connection_that_was_lost_has_those_who_wait_ask_again(waiter: Callable[[], Waiter]) -> None:
    """All watches have ended with it, of which kazoo tells by an event without a path."""
    waiting = waiter()
    until(lambda: bool(waiting.store._link.watch.queues))

    assert waiting.store._changed(SimpleNamespace(path=None)) == ()

    assert waiting.woken.wait(TIMEOUT_S)
