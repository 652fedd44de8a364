"""The table: how it is made, what it must be, what its server promises, and which rights its users need. No verb makes it."""

# Every value goes through literal(), and every name is one that the options have checked.
# ruff: noqa: S608

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dlock_core.errors import StoreSetupError
from dlock_core.store import Grade, Guarantees, TokenOrder
from dlock_mysql._wire import COLUMNS, Request, identifier, literal

if TYPE_CHECKING:
    from dlock_core.kit import Exchange
    from dlock_mysql.options import MySQLStoreOptions

_OLDEST = {"MariaDB": (10, 6), "MySQL": (8, 0)}
# What every user may see. A server shows the variables and counters that it has.
_FACTS = (
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'version_comment', 'read_only', 'super_read_only', 'innodb_read_only', "
    "'innodb_flush_log_at_trx_commit', 'innodb_flush_method', 'innodb_doublewrite', 'log_bin', 'sync_binlog', 'binlog_format', 'wsrep_on', "
    "'group_replication_group_name'); "
    "SHOW GLOBAL STATUS WHERE Variable_name IN ('Slaves_connected', 'Slave_running', 'Innodb_redo_log_enabled')"
)
_OTHER_SERVERS = re.compile("TiDB|Vitess|PlanetScale|SingleStore|OceanBase")


def grants(options: MySQLStoreOptions) -> str:
    """Return the GRANT that lets a user lock, renew and list, and nothing else."""
    return f"GRANT SELECT, INSERT, UPDATE ON {identifier(options)} TO {literal(options.user)}@'%';"


def create(options: MySQLStoreOptions) -> Exchange[None]:
    """Make the table unless it is there.

    Raises: StoreSetupError: a table of that name is not dlock's.
    """
    if not (yield from _is_there(options)):
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        yield Request(
            f"CREATE TABLE IF NOT EXISTS {identifier(options)} ({columns}, PRIMARY KEY (k)) "
            "ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        )


def guarantees(options: MySQLStoreOptions) -> Exchange[Guarantees]:
    """Say what the server promises, from its settings.

    Raises: StoreSetupError: it is too old or read-only, or the table is missing or another program's.
    """
    rows = yield Request(_FACTS)
    settings = dict(rows)
    _check_server(settings)
    if not (yield from _is_there(options)):
        raise StoreSetupError(f"there is no table {identifier(options)}; 'dlock init --url URL' creates it")
    return _promises(settings)


def _is_there(options: MySQLStoreOptions) -> Exchange[bool]:
    """Return whether the table is there.

    Raises: StoreSetupError: it is there, and is not dlock's.
    """
    where = f"table_schema = {literal(options.database)} AND table_name = {literal(options.table)}"
    rows = yield Request(
        f"SELECT 'engine', LOWER(COALESCE(engine, table_type)), '' FROM information_schema.tables WHERE {where}; "
        f"SELECT column_name, LOWER(data_type), IF(column_key = 'PRI', 'PRI', '') FROM information_schema.columns WHERE {where}; "
        # Of a step that meets a row of another key in such an index, that would be the answer.
        "SELECT CONCAT('unique index ', index_name), 'a column of it', '' FROM information_schema.statistics "
        f"WHERE {where} AND non_unique = 0 AND (index_name <> 'PRIMARY' OR sub_part IS NOT NULL)"
    )
    found = {name: (kind, key) for name, kind, key in rows}
    wanted = {"engine": ("innodb", "")} | {
        name: (re.split(r"\W", kind.lower())[0], "PRI" if name == "k" else "") for name, kind in COLUMNS.items()
    }
    wrong = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
    if found and wrong:
        raise StoreSetupError(
            f"the table {identifier(options)} is not dlock's: {', '.join(wrong)} differ; if programs keep locks in it, put that right, "
            "since in another table what they hold is free; else name another one with table=…"
        )
    return bool(found)


def _check_server(settings: dict[str, str]) -> None:
    name, version = _name(settings), settings.get("version", "")
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < _OLDEST.get(name, ()):
        raise StoreSetupError(f"{name} {version} is too old; MySQL 8.0 or MariaDB 10.6 is needed")
    if found := [name for name in ("read_only", "super_read_only", "innodb_read_only") if _is_on(settings, name)]:
        raise StoreSetupError(f"the server has {found[0]} = ON, as a replica has; name the primary")
    if _is_on(settings, "log_bin") and settings.get("binlog_format") == "STATEMENT":
        raise StoreSetupError(
            "the server has binlog_format = STATEMENT, which does not go with READ COMMITTED; set ROW or MIXED"
        )


def _name(settings: dict[str, str]) -> str:
    said = f"{settings.get('version')} {settings.get('version_comment')}"
    other = _OTHER_SERVERS.search(said)
    return other.group() if other else "MariaDB" if "MariaDB" in said else "MySQL"


def _is_on(settings: dict[str, str], name: str) -> bool:
    # MariaDB's read_only has four values.
    return settings.get(name, "OFF").upper() not in {"OFF", "0", "NO"}


def _promises(settings: dict[str, str]) -> Guarantees:
    name, forgetful = _name(settings), _forgetful(settings)
    grade, failover, unsafe = _failover(settings)
    notes = [f"{each}: a crash can take back the last grants" for each in forgetful]
    if _is_on(settings, "log_bin"):
        notes.append("binary logging is on: a replica that can't be seen, and is promoted, may grant a held lock again")
    if forgetful or name not in _OLDEST:
        grade = Grade.C
    if name != "MariaDB":
        notes.append(f"this is {name}: the project's own runs are on MariaDB, with the statements for MySQL among them")
    return Guarantees(
        store="mysql",
        version=f"{name} {settings.get('version')}",
        grade=grade,
        token=TokenOrder.ORDERED,
        deletes=False,
        refusal_linearizable=True,
        durable=not forgetful,
        failover=failover,
        clock="none: the clients time the leases; with server_clock, and for waits below a lease, that of the server "
        "measures ages, and must not step ahead",
        notes=tuple(notes),
        unsafe=unsafe,
    )


def _forgetful(settings: dict[str, str]) -> list[str]:
    """Return what lets a crash of the server, or of its host, take back commits that were answered, or damage the table."""
    found = {
        "innodb_flush_log_at_trx_commit is not 1": settings.get("innodb_flush_log_at_trx_commit") != "1",
        # After a crash of the host a commit is rolled back where the binary log does not have it.
        "sync_binlog is not 1": _is_on(settings, "log_bin") and settings.get("sync_binlog") != "1",
        "innodb_flush_method is nosync": settings.get("innodb_flush_method") == "nosync",
        "innodb_doublewrite is off": settings.get("innodb_doublewrite", "ON").upper() in {"OFF", "0", "DETECT_ONLY"},
        "the redo log is disabled": settings.get("Innodb_redo_log_enabled") == "OFF",
    }
    return [what for what, is_so in found.items() if is_so]


def _failover(settings: dict[str, str]) -> tuple[Grade, str, tuple[tuple[str, str], ...]]:
    """Return the grade, what a failover does, and what must be accepted by name."""
    galera = _is_on(settings, "wsrep_on")
    if galera or settings.get("group_replication_group_name"):
        reason = "a member may show older records than another one has answered"
        reason += (
            ": a client that is led to several members then loses locks; name one, or set wsrep_sync_wait = 7 on all"
            if galera
            else "; this project has not tested group replication"
        )
        return (
            Grade.C,
            "the cluster's own; it may show older records, and grant a held lock again",
            (("mysql-cluster", reason),),
        )
    if settings.get("Slaves_connected", "0") != "0" or _is_on(settings, "Slave_running"):
        reason = "the server has replicas, or is one: the one that is promoted may lack the last grants"
        return (
            Grade.C,
            "asynchronous replication: a promoted replica may grant a held lock again",
            (("mysql-replica", reason),),
        )
    return Grade.B, "none: one server, as far as can be seen", ()
