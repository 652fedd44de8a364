"""What a forked child does with the connections of its parent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dlock_mysql import MySQLStore
from tests.mysql.support import TIMEOUT_S, renewal, taken


def sockets() -> set[int]:
    """Return the numbers of what this process has open."""
    return {entry.stat().st_ino for entry in Path("/proc/self/fd").iterdir() if entry.exists()}


def test_a_forked_child_has_connections_of_its_own(store: MySQLStore, key: str) -> None:
    """Both go on, each on its own; the child gives back its copy of the parent's, by which the server would take that for alive."""
    record, link = taken(store, key), _link_of(store)
    connection = link.pools[False].shelf.take()
    link.pools[False].shelf.put(connection)
    parents = os.fstat(connection._driver._sock.fileno()).st_ino
    child = os.fork()
    if not child:
        code = 1
        try:
            found = store.read(key, timeout_s=TIMEOUT_S)
            code = 3 if parents in sockets() else 0 if found == record else 2
        finally:
            os._exit(code)

    assert parents in sockets()
    assert store.replace(renewal(record), timeout_s=TIMEOUT_S).applied
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in {0, 2}


def test_a_connection_that_is_closed_keeps_no_child_from_the_others(store: MySQLStore, key: str) -> None:
    """It is met where somebody still has it; an error would end what the child does right after its fork."""
    taken(store, key)
    connection = _link_of(store).pools[False].shelf.take()
    connection.close()

    connection.disown()


def _link_of(store: MySQLStore) -> Any:
    return store._link
