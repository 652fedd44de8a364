"""A primary and standbys that stream from it: what ``guarantees()`` says of them, and what a promotion does to a held lock."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.pq import ExecStatus

from dlock_core import LockClient, connect
from dlock_core.errors import OutcomeUnknownError, StoreUnavailableError, UnsafeStoreError
from dlock_core.store import Grade
from dlock_postgres import PostgresStore
from tests.postgres.support import TIMEOUT_S, any_claim
from tests.scripted import ScriptedServer

ACCEPTED = frozenset({"postgres-async-replica"})
FENCE = PostgresStore.fence_sql()
LEASE_S = 30.0


class Member:
    """A server, and a connection to it that is nobody's client."""

    def __init__(self, **variables: str) -> None:
        self.server = ScriptedServer("postgres.sh", DLOCK_SERVER="postgres", **variables)
        self.url = self.server.told
        self.admin = psycopg.connect(self.url, autocommit=True)

    def set(self, name: str, value: str) -> None:
        """Change a setting of the server."""
        quoted = value.replace("'", "''")
        self.admin.execute(f"ALTER SYSTEM SET {name} = '{quoted}'")
        self.admin.execute("SELECT pg_reload_conf()")

    def wait_until(self, condition: str) -> None:
        """Return when the query *condition* is true."""
        for _ in range(1000):
            if self.admin.execute(f"SELECT {condition}").fetchone() == (True,):
                return
            self.admin.execute("SELECT pg_sleep(0.01)")
        raise AssertionError(f"not within 10 s: {condition}")

    def end(self) -> None:
        """End it."""
        self.admin.close()
        self.server.stop()


class Standby(Member):
    """A server that follows *primary*."""

    def __init__(self, primary: Member) -> None:
        super().__init__(DLOCK_POSTGRES_PRIMARY=str(primary.server.port))
        self._primary, self.name = primary, f"standby-{self.server.port}"
        [self._source] = self.admin.execute("SHOW primary_conninfo").fetchone() or ()
        self.set("wal_retrieve_retry_interval", "100ms")
        primary.wait_until(f"EXISTS (SELECT FROM pg_stat_replication WHERE application_name = '{self.name}')")

    def catch_up(self) -> None:
        """Return when the standby shows all that the primary has written."""
        [written] = self._primary.admin.execute("SELECT pg_current_wal_lsn()::text").fetchone() or ()
        self.wait_until(f"pg_last_wal_replay_lsn() >= '{written}'")

    def part(self) -> None:
        """Let it receive nothing more, as where the network to the primary has failed."""
        self.set("primary_conninfo", "")
        self.wait_until("NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")

    def rejoin(self) -> None:
        """Follow the primary again."""
        self.set("primary_conninfo", self._source)

    def promote(self) -> None:
        """Make it a primary; the old one goes on."""
        self.admin.execute("SELECT pg_promote()")


@pytest.fixture(scope="module")
def primary() -> Iterator[Member]:
    """Start the primary, with the table made."""
    member = Member(DLOCK_POSTGRES_ARGS="-c wal_level=logical")
    connect(member.url, provision=True).close()
    yield member
    member.end()


@pytest.fixture
def standby(primary: Member) -> Iterator[Standby]:
    """Start a standby."""
    member = Standby(primary)
    yield member
    member.end()


@pytest.fixture(scope="module")
def synchronous(primary: Member) -> Iterator[Standby]:
    """Start a standby that has each write on disk before it counts; the tests with it follow one another."""
    member = Standby(primary)
    primary.set("synchronous_standby_names", f'"{member.name}"')
    primary.wait_until("EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')")
    yield member
    member.end()


def fenced(url: str, key: str, token: int, owner: str) -> bool:
    """Whether a transaction on the server at *url* finds that *owner* holds the lock with *token*."""
    with psycopg.connect(url) as connection:
        return connection.execute(FENCE, {"key": key, "token": token, "owner": owner}).fetchone() is not None


def test_a_promoted_asynchronous_standby_grants_a_held_lock_again(primary: Member, standby: Standby, key: str) -> None:
    """It was refused by name, and graded C. Both hold the lock with one token; the fence also compares the owner, and stops the zombie."""
    with pytest.raises(UnsafeStoreError) as refused:
        connect(primary.url)
    with pytest.raises(StoreUnavailableError, match="this is a standby: name the primary"):
        connect(standby.url, allow_unsafe=ACCEPTED)

    with connect(primary.url, allow_unsafe=ACCEPTED, lease_duration=LEASE_S) as old:
        said = old.guarantees()
        old.acquire(key).release()
        standby.catch_up()
        standby.part()
        zombie = old.acquire(key)
        standby.promote()
        with connect(standby.url, lease_duration=LEASE_S) as new:
            second = new.acquire(key, timeout=0)

            assert zombie.is_valid
            assert second.is_valid
            assert zombie.fencing_token == second.fencing_token
            assert not fenced(standby.url, key, zombie.fencing_token, zombie.owner)
            assert fenced(standby.url, key, second.fencing_token, second.owner)
    assert refused.value.name == "postgres-async-replica"
    assert said.grade is Grade.C
    assert "granted again" in said.failover
    assert not said.refusal_linearizable


def either(first: Member, second: Member) -> str:
    """Return a URL that names both servers."""
    return f"{first.url.rpartition('/')[0]},{second.url.rpartition('@')[2]}"


@contextmanager
def switched_over(primary: Member, standby: Standby, client: LockClient, key: str) -> Iterator[None]:
    """Make *primary* read-only, which closes no connection and *client* finds out, and promote *standby*."""
    primary.set("default_transaction_read_only", "on")
    try:
        primary.wait_until("current_setting('default_transaction_read_only') = 'on'")
        standby.catch_up()
        with pytest.raises(StoreUnavailableError, match="session is read-only"):
            client.try_acquire(f"{key}/other")
        standby.promote()
        yield
    finally:
        primary.set("default_transaction_read_only", "off")


def test_a_holder_follows_a_switchover_that_leaves_the_old_primary_up(
    primary: Member, standby: Standby, key: str
) -> None:
    """It was made read-only, and closed no connection: the holder's went on to be refused there, and who reads alone saw old records."""
    both = either(primary, standby)
    with (
        connect(both, allow_unsafe=ACCEPTED, lease_duration=LEASE_S) as client,
        connect(both, allow_unsafe=ACCEPTED) as reader,
    ):
        lease = client.acquire(key, auto_renew=False)
        before = reader.get(key)
        with switched_over(primary, standby, client, key):
            lease.renew()
            with pytest.raises(StoreUnavailableError, match="records may be old; the session is read-only"):
                reader.get(key)
            after = reader.get(key)

        assert before is not None
        assert after is not None
        assert before.rvn != after.rvn

        assert fenced(standby.url, key, lease.fencing_token, lease.owner)


def test_waiters_listen_at_the_new_primary_where_the_old_one_closes_no_connection(
    primary: Member, standby: Standby, key: str
) -> None:
    """They listened at the old one, which had nothing to tell any more, for as long as they waited: each hand-over cost a poll."""
    both = either(primary, standby)
    listens = "EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'dlock' AND query LIKE 'LISTEN%')"
    with (
        connect(both, allow_unsafe=ACCEPTED, lease_duration=LEASE_S) as holder,
        connect(both, allow_unsafe=ACCEPTED, lease_duration=LEASE_S) as rival,
        ThreadPoolExecutor(1) as pool,
    ):
        lease = holder.acquire(key)
        waiting = pool.submit(rival.acquire, key, timeout=LEASE_S)
        primary.wait_until(listens)
        with switched_over(primary, standby, rival, key):
            standby.wait_until(listens)
            primary.wait_until(f"NOT {listens}")
            lease.release()
            waiting.result().release()


def test_a_standby_that_is_away_and_has_a_slot_counts(primary: Member) -> None:
    """It may come back, or be promoted, without having seen the last grants."""
    primary.admin.execute("SELECT pg_create_physical_replication_slot('away')")

    with pytest.raises(UnsafeStoreError):
        connect(primary.url)

    primary.admin.execute("SELECT pg_drop_replication_slot('away')")
    connect(primary.url).close()


@contextmanager
def receiving(primary: Member, start: str, **options: str) -> Iterator[None]:
    """Receive what the server writes, by a replication connection on which *start* was said."""
    with psycopg.connect(primary.url, autocommit=True, **options) as receiver:  # type: ignore[arg-type]  # options of libpq
        began = receiver.pgconn.exec_(start.encode())
        assert began.status == ExecStatus.COPY_BOTH, began.error_message
        yield
        receiver.pgconn.finish()


@pytest.mark.parametrize("user", ["postgres", "app"])
def test_what_cannot_be_promoted_is_no_replica(primary: Member, user: str) -> None:
    """Who reads the changes by logical replication, and the log that goes with a backup: an ordinary user sees a sender, and no state."""
    primary.admin.execute("DROP ROLE IF EXISTS app")
    primary.admin.execute("CREATE ROLE app LOGIN")
    primary.admin.execute("SELECT pg_create_logical_replication_slot('changes', 'pgoutput')")
    [at] = primary.admin.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone() or ()
    changes = "START_REPLICATION SLOT changes LOGICAL 0/0 (proto_version '1', publication_names 'all')"
    url = primary.url.replace("postgres@", f"{user}@")

    with receiving(primary, changes, replication="database"):
        connect(url).close()
    with receiving(primary, f"START_REPLICATION {at}", replication="true", application_name="pg_basebackup"):
        connect(url).close()
    with receiving(primary, f"START_REPLICATION {at}", replication="true"), pytest.raises(UnsafeStoreError):
        connect(url)

    primary.wait_until("NOT EXISTS (SELECT FROM pg_stat_replication)")
    primary.admin.execute("SELECT pg_drop_replication_slot('changes')")


def test_a_write_that_the_synchronous_standby_does_not_confirm_does_not_count(
    primary: Member, synchronous: Standby, key: str
) -> None:
    """Its outcome is unknown, and no read shows it before the standby has it: a promoted one would grant the lock again."""
    synchronous.part()
    store = PostgresStore(primary.url)
    assert store.guarantees().grade is Grade.A

    with pytest.raises(OutcomeUnknownError):
        store.claim(any_claim(key), timeout_s=1.0)
    assert store.read(key, timeout_s=TIMEOUT_S) is None

    synchronous.rejoin()
    primary.wait_until(f"EXISTS (SELECT FROM public.dlock WHERE key = '{key}')")
    store.close()


@pytest.mark.parametrize("heard", ["notice", "error"])
def test_a_write_whose_wait_for_the_standby_is_cancelled_does_not_count(
    primary: Member, synchronous: Standby, key: str, heard: str
) -> None:
    """By an administrator, as what runs long: the server answers as if the standby had it, but for a warning that a role may not hear."""
    primary.admin.execute(f"ALTER ROLE postgres SET client_min_messages = {heard}")
    synchronous.part()
    store = PostgresStore(primary.url)

    def claimed() -> object:
        return store.claim(any_claim(key), timeout_s=TIMEOUT_S)

    with ThreadPoolExecutor() as threads:
        claiming = threads.submit(claimed)
        primary.wait_until("EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')")
        primary.admin.execute("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        with pytest.raises(OutcomeUnknownError, match="synchronous standby was cancelled"):
            claiming.result()

    synchronous.rejoin()
    assert store.read(key, timeout_s=TIMEOUT_S) is not None  # on the same connection
    primary.admin.execute("ALTER ROLE postgres RESET client_min_messages")
    store.close()


def test_one_write_without_a_standby_leaves_no_further_session_behind(
    primary: Member, synchronous: Standby, key: str
) -> None:
    """Whoever waits for its row is sent away: the server would else have no connection left for anybody, as long as the standby is away."""
    synchronous.part()
    store = PostgresStore(primary.url)
    store.guarantees()

    with pytest.raises(OutcomeUnknownError):
        store.claim(any_claim(key), timeout_s=1.0)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="lock timeout"):
            store.claim(any_claim(key), timeout_s=1.0)
    assert primary.admin.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone() == (
        0,
    )

    synchronous.rejoin()
    primary.wait_until(f"EXISTS (SELECT FROM public.dlock WHERE key = '{key}')")
    store.close()


def test_the_mark_of_a_waiter_waits_for_no_standby(primary: Member, synchronous: Standby, key: str) -> None:
    """It would leave a session of the server behind, and has to last no longer than the one that listens."""
    store = PostgresStore(primary.url)
    store.guarantees()
    granted = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert granted is not None

    synchronous.part()
    store.wait(granted, ticket="", timeout_s=1.0)
    assert primary.admin.execute("SELECT sought FROM public.dlock WHERE key = %s", [key]).fetchone() == (True,)

    synchronous.rejoin()
    store.close()


def test_a_lock_outlives_its_primary_where_the_standby_is_synchronous(
    primary: Member, synchronous: Standby, key: str
) -> None:
    """The last test here: the primary crashes. The holder's next renewal goes to the promoted standby, which refuses all others."""
    both = either(primary, synchronous)
    with connect(both, lease_duration=LEASE_S) as client:
        grade = client.guarantees().grade
        lease = client.acquire(key, auto_renew=False)
        primary.server.crash()
        synchronous.promote()

        with connect(synchronous.url) as other:
            assert other.try_acquire(key) is None
        lease.renew()
        assert fenced(synchronous.url, key, lease.fencing_token, lease.owner)

    assert grade is Grade.A
