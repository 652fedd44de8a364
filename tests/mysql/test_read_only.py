"""A server that takes no writes, as a replica does, or a primary after a failover; and one that ends a session as it begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dlock_core.errors import StoreError, StoreSetupError, StoreUnavailableError
from dlock_mysql import MySQLStore
from tests.mysql.support import TABLE, TIMEOUT_S, claim, opened, plain, taken


@pytest.fixture
def admin(url: str) -> Iterator[Any]:
    """Yield a cursor of who may write all the same; the server takes writes again after the test."""
    with plain(url) as cursor:
        cursor.execute("CREATE USER reader@'%' IDENTIFIED BY 'r'")
        cursor.execute(f"GRANT SELECT, INSERT, UPDATE ON {TABLE} TO reader@'%'")
        yield cursor
        cursor.execute("SET GLOBAL read_only = 0")
        cursor.execute("DROP USER reader@'%'")


@pytest.fixture
def common(url: str) -> Iterator[MySQLStore]:
    """Open a store for a user without the right to write in spite of it."""
    store = opened(url, user="reader", password="r")
    yield store
    store.close()


def test_a_read_only_server_is_refused(admin: Any, common: MySQLStore, key: str) -> None:
    """1290 for a user without that right, and guarantees() for everybody."""
    admin.execute("SET GLOBAL read_only = 1")

    with pytest.raises(StoreUnavailableError, match=r"1290.*primary"):
        common.claim(claim(key), timeout_s=TIMEOUT_S)
    with pytest.raises(StoreSetupError, match="read_only = ON"):
        common.guarantees()


def test_after_a_read_only_server_no_idle_connection_is_used(admin: Any, common: MySQLStore, key: str) -> None:
    """A new one may lead to the new primary: each of the old ones would cost a renewal its turn."""
    link: Any = common._link
    shelf = link.pools[False].shelf
    before = []
    for number in range(2):
        taken(common, f"{key}/{number}")
        before.append(shelf.take())
    for each in before:
        shelf.put(each)
    admin.execute("SET GLOBAL read_only = 1")
    with pytest.raises(StoreUnavailableError, match="1290"):
        common.claim(claim(key), timeout_s=TIMEOUT_S)
    admin.execute("SET GLOBAL read_only = 0")

    taken(common, key)

    assert shelf.take() not in before


def test_who_waits_behind_a_lock_on_all_tables_is_told_of_such(admin: Any, common: MySQLStore, key: str) -> None:
    """As a backup takes; no transaction has locked the row, which was all that the error knew."""
    taken(common, key)
    admin.execute("FLUSH TABLES WITH READ LOCK")
    with pytest.raises(StoreError, match="or ALTER TABLE or a backup the table"):
        common.claim(claim(key), timeout_s=0.5)
    admin.execute("UNLOCK TABLES")


def test_a_user_whose_sessions_end_as_they_begin_is_told_why(url: str, key: str) -> None:
    """1184, for all users but those with SUPER."""
    with plain(url) as cursor:
        cursor.execute("CREATE USER beginner@'%' IDENTIFIED BY 'b'")
        cursor.execute(f"GRANT SELECT, INSERT, UPDATE ON {TABLE} TO beginner@'%'")
        cursor.execute("SET GLOBAL init_connect = 'SELECT no_such_column'")
        store = opened(url, user="beginner", password="b")
        try:
            with pytest.raises(StoreSetupError, match=r"1184.*init_connect"):
                store.claim(claim(key), timeout_s=TIMEOUT_S)
        finally:
            store.close()
            cursor.execute("SET GLOBAL init_connect = DEFAULT")
            cursor.execute("DROP USER beginner@'%'")
