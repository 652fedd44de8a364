"""Two members of a Galera cluster, which replicate a write at its commit: who was slower there is refused, or runs its statement again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pymysql
import pytest
from dlock_conformance.servers import free_port

from dlock_core.errors import StoreUnavailableError
from dlock_core.record import LockRecord
from dlock_core.store import Replace
from dlock_mysql import MySQLStore
from tests.core.worlds import eventually
from tests.mysql.support import TABLE, TIMEOUT_S, claim, held, opened, plain, taken
from tests.scripted import ScriptedServer

PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
ROUNDS = 50
# As the page has it.
FENCE = (
    f"UPDATE {TABLE} SET written_at = written_at + INTERVAL 1 MICROSECOND "  # noqa: S608  # the table of these tests
    "WHERE k = %(key)s AND state = 'held' AND token = %(token)s AND owner = %(owner)s"
)


def member_of(others: str, address: str) -> ScriptedServer:
    """Start a member that joins *others*, or the first one."""
    assert PROVIDER.exists(), "Galera is not there: apt-get install galera-4"
    options = f"gmcast.listen_addr=tcp://{address};ist.recv_addr=127.0.0.1:{free_port()};gcache.size=16M"
    words = [
        *("on=ON", f"provider={PROVIDER}", f"cluster-address=gcomm://{others}", f"node-address={address}"),
        *("sst-method=rsync", f"sst-receive-address=127.0.0.1:{free_port()}", f"provider-options={options}"),
    ]
    return ScriptedServer(
        "mariadb.sh", words=("--skip-ssl", "--binlog-format=ROW", *(f"--wsrep-{word}" for word in words))
    )


def has_joined(url: str) -> bool:
    """Whether the server at *url* takes part in its cluster, and has the database."""
    with plain(url, database="mysql") as cursor:
        cursor.execute("SHOW STATUS LIKE 'wsrep_ready'")
        ready = bool(cursor.fetchone()[1] == "ON")
        if ready:
            cursor.execute("CREATE DATABASE IF NOT EXISTS locks")
    return ready


@pytest.fixture(scope="module")
def members() -> Iterator[list[MySQLStore]]:
    """Start two members, and open a store on each."""
    first, second = (f"127.0.0.1:{free_port()}" for _ in range(2))
    stores = list[MySQLStore]()
    with ExitStack() as stack:
        for address, others in ((first, ""), (second, first)):
            server = member_of(others, address)
            stack.callback(server.stop)
            url = f"mysql://root@127.0.0.1:{server.port}/locks"
            eventually(partial(has_joined, url))
            stores.append(opened(url))
            stack.callback(stores[-1].close)
            stores[-1].provision()
        yield stores


def url_of(store: MySQLStore) -> str:
    """Return the URL of the member that *store* is on."""
    return f"mysql://root@127.0.0.1:{store.options.port}/locks"


def test_of_two_claims_at_two_members_one_is_granted(members: list[MySQLStore], key: str) -> None:
    """The answer of a statement that ran again has the rows of both runs; the first says what was not committed."""
    begun = threading.Barrier(len(members))

    def granted(store: MySQLStore, key: str) -> LockRecord | None:
        begun.wait()
        try:
            reply = store.claim(claim(key), timeout_s=TIMEOUT_S)
        except StoreUnavailableError:  # 1213: it was rolled back
            return None
        return reply.record if reply.applied else None

    with ThreadPoolExecutor(len(members)) as pool:
        for number in range(ROUNDS):
            found = list(pool.map(granted, members, [f"{key}/{number}"] * len(members)))

            assert sum(record is not None for record in found) == 1


def test_a_fence_that_writes_the_row_stops_a_zombie(members: list[MySQLStore], key: str) -> None:
    """Galera replicates what was written, and no locks: a transaction that has only locked the row is replayed behind the takeover."""
    here, there = members
    begun = threading.Barrier(len(members))

    def take_over(record: LockRecord) -> int | None:
        """Return how often the account was written before it, or None where it was rolled back."""
        begun.wait()
        request = Replace(held(record.key, fencing_token=record.fencing_token + 1), record.version)
        try:
            applied = there.replace(request, timeout_s=TIMEOUT_S).applied
        except StoreUnavailableError:  # 1213
            return None
        assert applied
        other.execute("SELECT n FROM account")
        return int(other.fetchone()[0])

    with (
        ThreadPoolExecutor(1) as pool,
        plain(url_of(here)) as cursor,
        plain(url_of(there)) as other,
    ):
        cursor.execute("CREATE TABLE account (n INT PRIMARY KEY)")
        cursor.execute("INSERT INTO account VALUES (0)")
        cursor.connection.commit()
        for number in range(ROUNDS):
            record = taken(here, f"{key}/{number}")
            eventually(partial(has_record, there, record))
            holder = {"key": record.key, "token": record.fencing_token, "owner": record.owner}
            assert cursor.execute(FENCE, holder) == 1
            cursor.execute("UPDATE account SET n = n + 1")
            cursor.execute("SELECT n FROM account")
            written = cursor.fetchone()[0]
            taking = pool.submit(take_over, record)
            begun.wait()
            try:
                cursor.connection.commit()
            except pymysql.OperationalError:  # 1213
                cursor.connection.rollback()
                written = 0
            seen = taking.result()
            other.connection.rollback()

            assert seen is None or seen >= written


def has_record(store: MySQLStore, record: LockRecord) -> bool:
    """Whether the member of *store* shows *record*."""
    return store.read(record.key, timeout_s=TIMEOUT_S) == record
