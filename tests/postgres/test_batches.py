"""Renewals that go in one statement: what is wrong with one of them is its own. And the marks of those who wait."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from dlock_core.errors import StoreSetupError
from dlock_core.store import Replace, Reply
from dlock_postgres import PostgresStore
from dlock_postgres._errors import is_of_one
from dlock_postgres._session import Answer
from dlock_postgres._verbs import PostgresVerbs
from dlock_postgres._wire import change, changes_of
from tests.postgres.conftest import TABLE
from tests.postgres.support import TIMEOUT_S, any_claim, held, refused_by_a_trigger, renewed


def test_a_row_that_refuses_costs_no_other_its_renewal(
    store: PostgresStore, admin: psycopg.Connection[Any], key: str
) -> None:
    """By a trigger, as by a constraint or a damaged page: the statement fails whole, and with it all locks of the client would be lost."""
    records = [store.claim(any_claim(f"{key}/{number}"), timeout_s=TIMEOUT_S).record for number in range(5)]

    with refused_by_a_trigger(admin, TABLE, "UPDATE", f"{key}/3"):
        results = store.replace_many([renewed(record) for record in records if record is not None], timeout_s=TIMEOUT_S)

    assert [getattr(result, "applied", None) for result in results] == [True, True, True, None, True]
    assert type(results[3]) is StoreSetupError
    assert results[3].key == f"{key}/3"


def test_a_payload_that_stays_is_not_sent() -> None:
    """64 locks with 64 KiB of data are renewed with some kilobytes, not with 8 MiB of JSON, which take longer than a short lease allows."""
    record = held("k", data=b"x" * 50_000)
    renewal = Replace(record, record.version, keep_payload=True)

    for statement in (change(TABLE, "", renewal), changes_of(TABLE, "", [(0, renewal)], waits=True)):
        assert sum(len(value or b"") for value in statement.values) < 1_000


def test_a_second_statement_that_is_not_sent_undoes_no_first_one() -> None:
    """It is for the rows that other transactions had locked. Renewals that stand must not be told as such that do not."""
    verbs = PostgresVerbs(TABLE, lambda _: None, lambda _: False)
    requests = [renewed(held("a")), renewed(held("b"))]
    exchange = verbs.replace_many(requests)
    next(exchange)
    passed_over = (1, True, *[None] * 11)
    exchange.send(Answer([(0, False, 1, b"", *[None] * 9), passed_over], 1))
    refused = StoreSetupError("PostgreSQL refuses the connection")

    results: list[Any] = []
    try:
        exchange.throw(refused)
    except StopIteration as end:
        results = end.value

    assert isinstance(results[0], Reply)
    assert results[0].applied
    assert results[1] is refused


def test_a_damaged_page_is_of_one_row() -> None:
    """The server calls it an internal error."""
    assert is_of_one(psycopg.errors.DataCorrupted())
    assert not is_of_one(psycopg.errors.AdminShutdown())


@pytest.mark.parametrize("batch", [False, True], ids=["alone", "in_a_batch"])
def test_a_mark_goes_with_the_write_that_tells(
    store: PostgresStore, admin: psycopg.Connection[Any], key: str, *, batch: bool
) -> None:
    """Nobody is told a second time."""
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None
    admin.execute(f"UPDATE {TABLE} SET sought = true WHERE key = %s", (key,))  # noqa: S608  # a name of ours

    renewal = renewed(record)
    store.replace_many([renewal], timeout_s=TIMEOUT_S) if batch else store.replace(renewal, timeout_s=TIMEOUT_S)

    assert admin.execute(f"SELECT sought FROM {TABLE} WHERE key = %s", (key,)).fetchone() == (False,)  # noqa: S608  # a name of ours


def test_claims_of_several_mark_the_rows_that_others_wait_for() -> None:
    """The release that woke the one who claims has dropped the mark of those behind it."""
    exchange = PostgresVerbs(TABLE, lambda _: None, lambda key: key == "b").claim_many([any_claim("a"), any_claim("b")])

    [asked, *_] = next(exchange).values

    assert [(row["key"], row["sought"]) for row in json.loads(asked)] == [("a", False), ("b", True)]


def test_a_waiter_whose_mark_was_overtaken_asks_again() -> None:
    """Else nobody would tell it of the next write."""
    exchange = PostgresVerbs(TABLE, lambda _: None, lambda _: False).moved_on("k", held("k"))
    next(exchange)
    exchange.send(Answer([(None,)], 1))

    with pytest.raises(StopIteration) as end:
        exchange.send(Answer([(True,)], 1))

    assert end.value.value is True


def test_a_waiter_hears_of_a_table_that_is_gone() -> None:
    """And waits on without a mark where its row is locked."""
    verbs = PostgresVerbs(TABLE, lambda _: None, lambda _: False)
    exchanges = [verbs.moved_on("k", held("k")) for _ in range(2)]
    for exchange in exchanges:
        next(exchange)

    with pytest.raises(StoreSetupError):
        exchanges[0].throw(psycopg.errors.UndefinedTable())
    with pytest.raises(StopIteration) as end:
        exchanges[1].throw(psycopg.errors.LockNotAvailable())
    assert end.value.value is False


def test_a_second_inspection_leaves_the_listener(store: PostgresStore) -> None:
    """Those who wait are on it."""
    store.guarantees()
    watch = store._link.watch

    store.guarantees()

    assert watch is not None
    assert store._link.watch is watch
