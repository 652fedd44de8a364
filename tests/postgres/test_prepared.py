"""Each session plans a statement once, where no pooler stands between, and a plan that is gone or no longer fits costs no answer."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.pq import ConnStatus

from dlock_postgres import PostgresStore
from dlock_postgres._wire import statement
from tests.postgres.conftest import TABLE
from tests.postgres.support import TIMEOUT_S, any_claim, released, renewed


def planned(store: PostgresStore) -> list[str]:
    """Return what the session has prepared: with one request at a time there is one."""
    asked = statement("SELECT statement FROM pg_prepared_statements ORDER BY 1")
    return [text for (text,) in store._link.send(asked, TIMEOUT_S).rows]


def cycle(store: PostgresStore, key: str) -> int:
    """Claim, renew and release *key*; return the token."""
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None
    renewal = renewed(record)
    assert store.replace(renewal, timeout_s=TIMEOUT_S).applied
    assert store.release(released(renewal.record), timeout_s=TIMEOUT_S).applied
    return record.fencing_token


def test_each_statement_is_planned_once_by_a_session(store: PostgresStore, key: str) -> None:
    """However often it runs."""
    store.guarantees()

    for _ in range(3):
        cycle(store, key)

    assert len(planned(store)) == 3  # the claim, the renewal, which keeps the payload, and the release, which does not
    assert len(store._link.pools[False].shelf.take().prepared) == 3


@pytest.mark.parametrize(
    "meanwhile",
    ["DEALLOCATE ALL", f"ALTER TABLE {TABLE} ALTER COLUMN lease_ms TYPE bigint"],
    ids=["forgotten", "changed"],
)
def test_a_plan_that_is_gone_costs_no_answer(
    store: PostgresStore, key: str, meanwhile: str, admin: psycopg.Connection[Any]
) -> None:
    """The session runs the statement anew, as it did before it prepared any."""
    store.guarantees()
    first = cycle(store, key)
    store._link.send(statement(meanwhile), TIMEOUT_S)

    tokens = [cycle(store, key), cycle(store, key)]

    admin.execute(f"ALTER TABLE {TABLE} ALTER COLUMN lease_ms TYPE integer")
    assert tokens == [first + 1, first + 2]
    assert store._link.pools[False].shelf.take().prepared is None  # one wasted round trip is enough


def test_a_name_that_the_session_has_already_costs_no_answer(store: PostgresStore, key: str) -> None:
    """As where a pooler would give a session of somebody else."""
    store.guarantees()
    first = cycle(store, key)
    pool = store._link.pools[False]
    session = pool.shelf.take()
    session.prepared = set()  # the client believes that it has prepared nothing
    pool.shelf.put(session)

    assert cycle(store, key) == first + 1


def test_a_session_that_was_interrupted_while_it_prepared_is_not_used_again(
    store: PostgresStore, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was sent yet; what came next would wait for an answer that is never asked for."""
    store.guarantees()
    session = store._link.pools[False].shelf.take()
    monkeypatch.setattr("dlock_postgres._session.prepared", lambda *_: (b"", 0))  # libpq has no such name
    store._link.pools[False].shelf.put(session)

    with pytest.raises(TypeError):
        store.claim(any_claim(key), timeout_s=TIMEOUT_S)
    monkeypatch.undo()

    assert session.pg.status == ConnStatus.BAD  # closed
    assert store.claim(any_claim(key), timeout_s=TIMEOUT_S).applied


def test_a_statement_that_the_server_refuses_is_sent_once(store: PostgresStore) -> None:
    """Only one that was not run, for want of its plan, is sent again."""
    store.guarantees()
    wrong = statement("SELECT 1 / $1", 0)._replace(prepared=True)

    with pytest.raises(psycopg.errors.DivisionByZero):
        store._link.send(wrong, TIMEOUT_S)

    assert store._link.pools[False].shelf.take().prepared is not None  # else it was sent without a plan
