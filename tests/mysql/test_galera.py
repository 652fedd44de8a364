"""Two members of a Galera cluster, which replicate a write at its commit: who was slower there is refused, or runs its statement again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from dlock_conformance.servers import free_port

from dlock_core.errors import StoreUnavailableError
from dlock_core.record import LockRecord
from dlock_mysql import MySQLStore
from tests.core.worlds import eventually
from tests.mysql.support import TIMEOUT_S, claim, opened, plain
from tests.scripted import ScriptedServer

PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
ROUNDS = 20


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
