"""What the server's settings promise, without a server: each row of them, and the answer."""

from __future__ import annotations

import pytest

from dlock_core.errors import StoreSetupError
from dlock_core.store import Grade, Guarantees
from dlock_mysql import MySQLStoreOptions
from dlock_mysql._wire import COLUMNS
from dlock_mysql.provision import guarantees

SOUND = {
    "version": "10.11.19-MariaDB-log",
    "read_only": "OFF",
    "innodb_flush_log_at_trx_commit": "1",
    "innodb_flush_method": "O_DIRECT",
    "innodb_doublewrite": "ON",
    "log_bin": "OFF",
    "sync_binlog": "0",
    "binlog_format": "MIXED",
    "wsrep_on": "OFF",
    "Slaves_connected": "0",
}
MYSQL = {"version": "8.0.36", "version_comment": "MySQL Community Server - GPL"}
TABLE = [("engine", "innodb", "")] + [
    (name, kind.lower().split("(")[0].split(" ")[0], "PRI" if name == "k" else "") for name, kind in COLUMNS.items()
]


def promised(**changes: str) -> Guarantees:
    """Return what a server with these settings promises."""
    exchange = guarantees(MySQLStoreOptions(database="app"))
    next(exchange)
    exchange.send(list((SOUND | changes).items()))
    with pytest.raises(StopIteration) as end:
        exchange.send(TABLE)
    found: Guarantees = end.value.value
    return found


def test_a_server_that_flushes_each_commit_is_durable() -> None:
    """And survives all but the loss of its disk."""
    found = promised()

    assert (found.grade, found.durable, found.unsafe, found.notes) == (Grade.B, True, (), ())
    assert promised(binlog_format="STATEMENT") == found  # of a log that there is not


@pytest.mark.parametrize(
    ("changes", "durable", "note"),
    [
        ({"innodb_flush_log_at_trx_commit": "2"}, False, "innodb_flush_log_at_trx_commit"),
        ({"log_bin": "ON"}, False, "sync_binlog"),
        ({"innodb_flush_method": "nosync"}, False, "innodb_flush_method"),
        ({"innodb_doublewrite": "OFF"}, False, "innodb_doublewrite"),
        (MYSQL | {"innodb_doublewrite": "DETECT_ONLY"}, False, "innodb_doublewrite"),
        (MYSQL | {"Innodb_redo_log_enabled": "OFF"}, False, "redo log"),
        ({"version": "8.0.11-TiDB-v7.5.0"}, True, "this is TiDB"),
    ],
)
def test_what_weakens_it_is_grade_c_with_a_note(changes: dict[str, str], durable: bool, note: str) -> None:
    """Each by itself."""
    found = promised(**changes)

    assert (found.grade, found.durable) == (Grade.C, durable)
    assert any(note in each for each in found.notes)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"Slaves_connected": "1"}, "mysql-replica"),
        ({"Slave_running": "ON"}, "mysql-replica"),
        ({"wsrep_on": "ON"}, "mysql-cluster"),
        (MYSQL | {"group_replication_group_name": "3E11FA47"}, "mysql-cluster"),
    ],
)
def test_what_can_grant_twice_must_be_accepted_by_name(changes: dict[str, str], name: str) -> None:
    """Asynchronous replicas, and clusters whose members may lag behind."""
    found = promised(**changes)

    assert found.grade is Grade.C
    assert [trait for trait, _ in found.unsafe] == [name]


def test_mysql_is_let_in_with_a_note() -> None:
    """Its binary log is on by default, and its replicas can't be seen."""
    found = promised(**MYSQL, log_bin="ON", sync_binlog="1", binlog_format="ROW")

    assert found.grade is Grade.B
    assert found.version == "MySQL 8.0.36"
    assert any("MariaDB" in note for note in found.notes)
    assert any("replica" in note for note in found.notes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": "10.5.2-MariaDB"}, "too old"),
        (MYSQL | {"version": "5.7.44"}, "too old"),
        ({"read_only": "ON"}, "read_only = ON"),
        ({"read_only": "NO_LOCK"}, "read_only = ON"),
        ({"super_read_only": "ON"}, "super_read_only"),
        ({"log_bin": "ON", "binlog_format": "STATEMENT"}, "binlog_format"),
    ],
)
def test_what_does_not_fit_is_a_setup_error(changes: dict[str, str], said: str) -> None:
    """The message names the setting."""
    with pytest.raises(StoreSetupError, match=said):
        promised(**changes)


def test_a_missing_table_is_a_setup_error() -> None:
    """It names the command that makes it."""
    exchange = guarantees(MySQLStoreOptions(database="app"))
    next(exchange)
    exchange.send(list(SOUND.items()))

    with pytest.raises(StoreSetupError, match="dlock init"):
        exchange.send([])
