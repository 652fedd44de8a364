"""What PostgreSQL's settings promise, and the making of the table beside another program, without a server."""

from __future__ import annotations

import psycopg
import pytest

from dlock_core.errors import StoreSetupError
from dlock_core.store import Grade
from dlock_postgres._session import Answer
from dlock_postgres._wire import COLUMNS
from dlock_postgres.provision import _EXTRA as EXTRA
from dlock_postgres.provision import Facts, inspection, provisioning

SETTINGS = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "standbys": "",
    "isolation": "read committed",
}
STANDBYS = {"standbys": "ANY 1 (*)"}
SERVER = ("12.0", 120_000, "PostgreSQL 12.0")
PID = 7


def promised(replicas: int, changes: dict[str, str], *, pid: int = PID, server: tuple[str, int, str] = SERVER) -> Facts:
    """Return what a server with these settings promises."""
    exchange = inspection("public.dlock")
    next(exchange)
    answer = Answer([(*server, "UTF8", *(SETTINGS | changes).values(), PID, replicas)], pid)
    columns = ",".join(f"{name} {kind}" for name, kind in (COLUMNS | EXTRA).items())
    try:
        while True:
            exchange.send(answer)
            answer = Answer([("r", "p", False, columns, True)], pid)
    except StopIteration as end:
        found: Facts = end.value
        return found


@pytest.mark.parametrize(
    ("changes", "replicas", "grade", "durable", "says"),
    [
        ({}, 0, Grade.B, True, "one server: "),
        ({"fsync": "off"}, 0, Grade.C, False, "may forget"),
        ({"full_page_writes": "off"}, 0, Grade.C, False, "may forget"),
        ({"synchronous_commit": "off"}, 0, Grade.C, False, "may forget"),
        ({}, 1, Grade.C, True, "may lack"),
        (STANDBYS, 1, Grade.A, True, "promote only"),
        (STANDBYS | {"fsync": "off"}, 1, Grade.C, False, "may forget"),
        (STANDBYS | {"synchronous_commit": "remote_apply"}, 1, Grade.A, True, "promote only"),
        (STANDBYS | {"synchronous_commit": "remote_write"}, 1, Grade.C, True, "may lack"),
        (STANDBYS | {"synchronous_commit": "local"}, 1, Grade.C, True, "may lack"),
        (STANDBYS | {"synchronous_commit": "off"}, 1, Grade.C, False, "may lack"),
    ],
)
def test_each_setting_has_its_grade(
    changes: dict[str, str], replicas: int, grade: Grade, durable: bool, says: str
) -> None:
    """A replica that may lack what was confirmed must be accepted by name; only a standby that has it on disk makes grade A."""
    told = promised(replicas, changes).guarantees

    assert (told.grade, told.durable, told.deletes, told.refusal_linearizable) == (grade, durable, False, not replicas)
    assert says in told.failover
    assert [name for name, _ in told.unsafe] == ["postgres-async-replica"] * (says == "may lack")


@pytest.mark.parametrize(
    ("changes", "waits"),
    [
        ({}, False),
        (STANDBYS, True),
        (STANDBYS | {"fsync": "off"}, True),
        (STANDBYS | {"full_page_writes": "off"}, True),
        (STANDBYS | {"synchronous_commit": "remote_write"}, True),
        (STANDBYS | {"synchronous_commit": "local"}, False),
        (STANDBYS | {"synchronous_commit": "off"}, False),
    ],
)
def test_commit_waits_for_a_standby_whatever_the_grade(changes: dict[str, str], waits: bool) -> None:
    """To cancel such a wait would show everybody what no standby has."""
    assert promised(1, changes).confirmed is waits


def test_a_pooler_is_seen_by_its_session() -> None:
    """It is another one than that of the connection, and a listener there would hear nothing."""
    assert promised(0, {}).notifies
    assert not promised(0, {}, pid=PID + 1).notifies


@pytest.mark.parametrize(
    "server",
    [
        ("11.22", 110_022, "PostgreSQL 11.22"),
        ("13.0", 130_000, "CockroachDB CCL v23.1"),
        ("15.2", 150_002, "PostgreSQL 15.2-YB-2.25"),
    ],
)
def test_what_is_no_postgresql_of_today_is_refused(server: tuple[str, int, str]) -> None:
    """An older one, and others that speak its language."""
    with pytest.raises(StoreSetupError, match="the server is "):
        promised(0, {}, server=server)


@pytest.mark.parametrize("code", ["23505", "42P06", "42P07"])
def test_what_another_program_makes_at_the_same_time_is_made(code: str) -> None:
    """Schema or table, by each of the errors that the server may have for it; any other is one."""
    for error in (code, "42501"):
        exchange = provisioning("public.dlock")
        next(exchange)
        exchange.send(Answer([(1,)], PID))  # the schema is there
        exchange.send(Answer([], PID))  # the table is not
        failure = psycopg.errors.lookup(error)()
        if error == code:
            assert "server_version" in exchange.throw(failure).sql
        else:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                exchange.throw(failure)
