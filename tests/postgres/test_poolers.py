"""PgBouncer between the store and the server: in transaction mode every verb works and waiters poll; statement mode is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
import pytest

from dlock_core import aconnect, connect
from dlock_core.errors import StoreError, StoreSetupError, StoreUnavailableError
from dlock_core.store import Capability
from dlock_postgres import PostgresStore
from dlock_postgres._wire import statement
from tests.core.worlds import eventually
from tests.postgres.conftest import TABLE
from tests.postgres.support import TIMEOUT_S, any_claim, released, renewed
from tests.scripted import ScriptedServer

LEASE_S = 5.0


@contextmanager
def pooled(url: str, mode: str) -> Iterator[str]:
    """Yield the URL of the locks' table through a pooler before the server at *url*."""
    port = str(urlsplit(url).port)
    pooler = ScriptedServer("pgbouncer.sh", DLOCK_PGBOUNCER_TO=port, DLOCK_PGBOUNCER_MODE=mode)
    yield f"{pooler.told}?table={TABLE}"
    pooler.stop()


@pytest.fixture(scope="module")
def pooled_url(url: str) -> Iterator[str]:
    """Return the URL through a pooler in transaction mode, which has two sessions with the server for all."""
    with pooled(url, "transaction") as made:
        yield made


def test_an_option_that_a_pooler_does_not_take_is_a_setup_error(pooled_url: str) -> None:
    """Nobody would ask again for ever."""
    with pytest.raises(StoreSetupError, match=r"unsupported startup parameter.*check the URL"):
        connect(f"{pooled_url}&options=-cgeqo%3Doff")


def test_every_verb_works_in_transaction_mode(pooled_url: str, key: str) -> None:
    """Whichever session a statement goes to; the store says that waiters poll."""
    store = PostgresStore(pooled_url, table=TABLE)

    notes = store.guarantees().notes
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None
    renewal = renewed(record)
    assert store.replace(renewal, timeout_s=TIMEOUT_S).applied
    [batched] = store.replace_many([renewed(renewal.record)], timeout_s=TIMEOUT_S)
    standing = store.read(key, timeout_s=TIMEOUT_S)
    assert standing is not None
    assert [found.key for found in store.scan(key, timeout_s=TIMEOUT_S)] == [key]
    assert store.release(released(standing), timeout_s=TIMEOUT_S).applied
    prepared = store._link.send(statement("SELECT count(*) FROM pg_prepared_statements"), TIMEOUT_S).rows
    store.close()

    assert getattr(batched, "applied", False)
    assert prepared == [(0,)]
    assert "a pooler stands between: waiters poll" in notes
    assert Capability.NOTIFY not in store.capabilities


def test_more_threads_than_sessions_take_turns_in_transaction_mode(pooled_url: str, key: str) -> None:
    """A waiter finds a lock free although nothing notifies it, and a counter loses no step."""
    count = 0

    def add() -> None:
        nonlocal count
        for _ in range(5):
            with client.lock(key, timeout=TIMEOUT_S):
                seen = count
                count = seen + 1

    with connect(pooled_url, lease_duration=LEASE_S) as client:
        threads = [threading.Thread(target=add) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert count == 30


def test_a_task_waits_through_a_pooler(pooled_url: str, key: str) -> None:
    """Tasks poll as well."""

    async def wait() -> int:
        async with aconnect(pooled_url, lease_duration=LEASE_S) as client:
            first = await client.acquire(key)
            waiter = asyncio.create_task(client.acquire(key, timeout=TIMEOUT_S))
            assert await client.try_acquire(key) is None  # meanwhile the waiter asks as well
            await first.release()
            lease = await waiter
            await lease.release()
            return lease.fencing_token - first.fencing_token

    assert asyncio.run(wait()) == 1


def test_the_fence_holds_through_a_pooler(pooled_url: str, key: str) -> None:
    """In transaction mode a transaction keeps its session, so it keeps the row of the lock."""
    dsn = pooled_url.partition("?")[0]
    with (
        connect(pooled_url, lease_duration=LEASE_S) as client,
        psycopg.connect(dsn, prepare_threshold=None) as database,
    ):
        with client.lock(key) as lease:
            holder = {"key": key, "token": lease.fencing_token, "owner": lease.owner}
            assert database.execute(PostgresStore.fence_sql(TABLE), holder).fetchone() == (lease.fencing_token,)
            database.commit()
        assert database.execute(PostgresStore.fence_sql(TABLE), holder).fetchone() is None


def refusal(store: PostgresStore, key: str) -> str:
    """Return what a claim is answered, which is refused."""
    with pytest.raises(StoreError) as caught:
        store.claim(any_claim(key), timeout_s=1.0)
    return str(caught.value)


def test_a_pooler_that_reaches_no_server_says_that_nothing_was_written(key: str) -> None:
    """It refuses each statement for its ``server_login_retry``, without a code."""
    server = ScriptedServer("postgres.sh")
    with pooled(server.told, "transaction") as url:
        store = PostgresStore(url, table=TABLE)
        store.provision()
        server.crash()

        eventually(lambda: "server_login_retry" in refusal(store, key))  # the first one waits for a session
        with pytest.raises(StoreUnavailableError, match=r"the pooler sent nothing.*server_login_retry"):
            store.claim(any_claim(key), timeout_s=TIMEOUT_S)
        store.close()
    server.stop()


def test_statement_mode_is_refused(url: str) -> None:
    """The error names the setting, and comes before any statement about a lock."""
    with (
        pooled(url, "statement") as made,
        pytest.raises(StoreSetupError, match="set its pool_mode to transaction or session"),
    ):
        connect(made)
