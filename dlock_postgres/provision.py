"""What PostgreSQL and the table promise, and the making of the table, as exchanges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from dlock_core.store import Grade, Guarantees, TokenOrder
from dlock_postgres._errors import CREATE_IT, misfit
from dlock_postgres._wire import COLUMNS, statement
from dlock_postgres.options import quoted

if TYPE_CHECKING:
    from dlock_core.kit import Exchange

_OLDEST = 12
_EXTRA = {"key": "text", "written": "timestamp with time zone", "sought": "boolean"}
# What PgBouncer says where its pool_mode is statement; it has no code.
_NO_TRANSACTIONS = "transaction blocks not allowed"
_MADE_BY_ANOTHER = ("23505", "42P06", "42P07")

# Neither a backup under way nor what receives changes by logical replication can be promoted. Of a sender an ordinary user sees no more
# than its process and its name.
_LOOK = """
SELECT current_setting('server_version'), current_setting('server_version_num')::int, version(), current_setting('server_encoding'),
  current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
  current_setting('synchronous_standby_names'), current_setting('transaction_isolation'), pg_backend_pid(),
  (SELECT count(*) FROM pg_stat_replication AS r WHERE state IS DISTINCT FROM 'backup' AND application_name IS DISTINCT FROM 'pg_basebackup'
    AND NOT EXISTS (SELECT FROM pg_replication_slots AS s WHERE s.active_pid = r.pid AND s.slot_type = 'logical'))
  + (SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'physical' AND NOT active)
"""
_LOOK_AT_TABLE = """
SELECT c.relkind::text, c.relpersistence::text, c.relrowsecurity,
  (SELECT string_agg(a.attname || ' ' || replace(format_type(a.atttypid, a.atttypmod), '"', ''), ',')
     FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
  EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'key'
     JOIN pg_collation l ON l.oid = a.attcollation WHERE i.indrelid = c.oid AND i.indisprimary AND i.indkey::text = a.attnum::text
     AND l.collname = 'C')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2
"""


class Facts(NamedTuple):
    """What was found out.

    The store *notifies* where no pooler stands between, for which a listener's connection is nothing lasting. Writes are *confirmed* where
    commits wait for a synchronous standby.
    """

    guarantees: Guarantees
    notifies: bool
    confirmed: bool


def policy(table: str) -> str:
    """Return the rights that the user of the locks needs."""
    schema, _, _ = table.partition(".")
    return f'GRANT USAGE ON SCHEMA "{schema}" TO NAME; GRANT SELECT, INSERT, UPDATE ON {quoted(table)} TO NAME'


def provisioning(table: str) -> Exchange[Facts]:
    """Make schema and table where they are missing; then look at them."""
    schema, _, _ = table.partition(".")
    columns = ", ".join(f"{name} {kind}{'' if name == 'lease_ms' else ' NOT NULL'}" for name, kind in COLUMNS.items())
    # Half of each page is left free: most writes then find room on the page of the row, and touch no index.
    create = (
        f'CREATE TABLE {quoted(table)} (key text COLLATE "C" PRIMARY KEY, {columns}, '
        "sought boolean NOT NULL DEFAULT false, written timestamptz NOT NULL) WITH (fillfactor = 50)"
    )
    answer = yield statement("SELECT FROM pg_namespace WHERE nspname = $1", schema)
    missing = [] if answer.rows else [f'CREATE SCHEMA "{schema}"']
    missing += [] if (yield from _look_at_table(table)) else [create]
    for sql in missing:
        yield from _made(sql)
    return (yield from inspection(table))


def _made(sql: str) -> Exchange[None]:
    try:
        yield statement(sql)
    except psycopg.Error as error:
        if error.sqlstate not in _MADE_BY_ANOTHER:
            raise


def inspection(table: str) -> Exchange[Facts]:
    """Look at server and table.

    Raises: StoreSetupError: the server or the table does not fit, or there is no table.
    """
    answer = yield statement(_LOOK)
    [(version, number, whole, encoding, *settings, pid, replicas)] = answer.rows
    _check_server(version, number, whole, encoding, settings[-1])
    if not (yield from _look_at_table(table)):
        raise misfit(f"there is no table {table}", CREATE_IT)
    notifies = pid == answer.backend_pid
    if not notifies:
        yield from _check_pooler()
    guarantees = _guarantees(version, settings, replicas, notifies=notifies)
    _, _, commit, standbys, _ = settings
    return Facts(guarantees, notifies, bool(standbys) and commit not in ("off", "local"))


def _check_server(version: str, number: int, whole: str, encoding: str, isolation: str) -> None:
    if number < _OLDEST * 10_000:
        raise misfit(f"the server is PostgreSQL {version}", f"update it to {_OLDEST} or newer")
    if not whole.startswith("PostgreSQL ") or "-YB-" in whole:
        raise misfit(f"the server is {whole.partition(',')[0]}", "use PostgreSQL itself; nothing else was tested")
    if encoding != "UTF8":
        raise misfit(f"the database is encoded in {encoding}", "use a database that was created with ENCODING 'UTF8'")
    if isolation != "read committed":
        raise misfit(
            f"transactions are {isolation}",
            "give the user its own: ALTER ROLE NAME SET default_transaction_isolation = 'read committed'",
        )


def _check_pooler() -> Exchange[None]:
    """Refuse a pooler that takes each statement by itself: no transaction there could hold the row of its lock."""
    try:
        yield statement("BEGIN")  # the link closes a connection that is in a transaction
    except psycopg.Error as error:
        if _NO_TRANSACTIONS in str(error):
            raise misfit("a pooler refuses transactions", "set its pool_mode to transaction or session") from error
        raise


def _look_at_table(table: str) -> Exchange[bool]:
    """Return whether the table is there."""
    schema, _, name = table.partition(".")
    answer = yield statement(_LOOK_AT_TABLE, schema, name)
    if not answer.rows:
        return False
    kind, persistence, filtered, columns, keyed = answer.rows[0]
    wanted, there = {f"{column} {of}" for column, of in {**COLUMNS, **_EXTRA}.items()}, set((columns or "").split(","))
    wrong = [f"it has no {each}" for each in sorted(wanted - there)]
    wrong += [f"{each} is not dlock's" for each in sorted(there - wanted)]
    if kind != "r":
        wrong = ["it is not a plain table"]
    elif not (wrong or keyed):
        wrong = ['its primary key is not key COLLATE "C"']
    if wrong:
        raise misfit(
            f"{table} is not a table of dlock's: {', '.join(wrong)}",
            "if programs keep locks in it, put that right, since in another table what they hold is free; "
            f"else name another one with table=SCHEMA.NAME, and {CREATE_IT}",
        )
    if persistence != "p":
        raise misfit(f"the table {table} is UNLOGGED, so a crash empties it", f"ALTER TABLE {quoted(table)} SET LOGGED")
    if filtered:
        raise misfit(
            f"the table {table} has row level security", f"ALTER TABLE {quoted(table)} DISABLE ROW LEVEL SECURITY"
        )
    return True


def _guarantees(version: str, settings: list[Any], replicas: int, *, notifies: bool) -> Guarantees:
    fsync, full_pages, commit, standbys, _ = settings
    durable = fsync == "on" and full_pages == "on" and commit != "off"
    confirmed = bool(standbys) and commit in ("on", "remote_apply")
    asynchronous = replicas > 0 and not confirmed
    unsafe = "its replicas follow behind the writes: if one is promoted, a held lock can be granted again"
    notes = [f"fsync: {fsync}", f"synchronous_commit: {commit}", f"replicas that stream, or have a slot: {replicas}"]
    notes.append("waiters are told by LISTEN/NOTIFY" if notifies else "a pooler stands between: waiters poll")
    if confirmed:
        notes.append(f"synchronous standbys ({standbys}): promote no other")
    if asynchronous:
        failover = "a promoted replica may lack acknowledged writes: a held lock can be granted again, until its old holder renews"
    elif confirmed and durable:
        failover = "a write counts when a synchronous standby has it on disk; promote only such a one, and stop the old primary first"
    elif durable:
        failover = "one server: while it is down nobody gets a lock; what it acknowledged it remembers, unless its disk is lost"
    else:
        failover = "the server may forget its last writes on a crash: a lock held then can be granted again, with a token given before"
    return Guarantees(
        store="postgres",
        version=version,
        grade=Grade.C if asynchronous or not durable else Grade.A if confirmed else Grade.B,
        token=TokenOrder.ORDERED,
        deletes=False,
        refusal_linearizable=not replicas,
        durable=durable,
        failover=failover,
        clock="none: the clients time the leases; with server_clock, and for waits below a lease, that of the server "
        "measures ages, and must not step ahead",
        notes=tuple(notes),
        unsafe=(("postgres-async-replica", unsafe),) if asynchronous else (),
    )
