"""Renewals that go in one statement: what is wrong with one of them is its own."""

from __future__ import annotations

from typing import Any

import psycopg

from dlock_core.errors import StoreSetupError
from dlock_core.store import Reply
from dlock_postgres import PostgresStore
from dlock_postgres._session import Answer
from dlock_postgres._verbs import PostgresVerbs
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
