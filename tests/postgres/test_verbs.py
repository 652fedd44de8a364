"""The exchanges of the verbs and their statements, with answers that a server seldom gives. What a statement does is tested on a server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psycopg
import pytest

from dlock_core.errors import OutcomeUnknownError, RecordError, StoreError, StoreUnavailableError
from dlock_core.kit import plain_of
from dlock_core.record import TOKEN_MAX, Member, Members, SessionRef
from dlock_core.store import Release, Replace, Reply
from dlock_postgres import PostgresStore
from dlock_postgres._session import Answer
from dlock_postgres._verbs import PostgresVerbs
from dlock_postgres._wire import change, changes_of
from tests.postgres.conftest import TABLE
from tests.postgres.support import TIMEOUT_S, any_claim, held, released, renewed

LOST = psycopg.OperationalError("the connection was lost")
PASSED_OVER = (True, *[None] * 11)
WRITTEN = (False, 1, b"", *[None] * 9)


def verbs() -> PostgresVerbs:
    """Return those of a store that has not asked its server yet."""
    return PostgresVerbs(TABLE, lambda _: None, lambda _: False)


def result(exchange: Any, *answers: list[tuple[Any, ...]] | Exception) -> Any:
    """Return the result of *exchange* when the server gives these *answers*, all of them: rows, or an error."""
    left = list(answers)
    try:
        exchange.send(None)
        while True:
            answer = left.pop(0)
            _ = exchange.throw(answer) if isinstance(answer, Exception) else exchange.send(Answer(answer, 1))
    except StopIteration as end:
        assert not left
        return end.value


def kinds(results: list[Reply | StoreError]) -> list[object]:
    """Return for each whether it was applied, or the class of its error."""
    return [each.applied if isinstance(each, Reply) else type(each) for each in results]


def test_a_row_that_was_passed_over_and_then_lost_is_of_unknown_outcome() -> None:
    """The others are renewed all the same."""
    requests = [renewed(held("a")), renewed(held("b"))]

    results = result(verbs().replace_many(requests), [(0, *WRITTEN), (1, *PASSED_OVER)], LOST)

    assert kinds(results) == [True, OutcomeUnknownError]
    assert results[1].key == "b"


def test_a_part_of_a_batch_that_was_lost_is_of_unknown_outcome() -> None:
    """It was sent by itself, since a row was damaged."""
    requests = [renewed(held(key)) for key in "abc"]
    damaged = psycopg.errors.NumericValueOutOfRange("a value")

    results = result(verbs().replace_many(requests), damaged, damaged, LOST)

    assert kinds(results) == [RecordError, OutcomeUnknownError, OutcomeUnknownError]


def test_a_write_that_was_lost_is_not_sent_again() -> None:
    """It may be applied, and would refuse the second one: the lock would look lost."""
    with pytest.raises(psycopg.OperationalError, match="the connection was lost"):
        result(verbs().replace(renewed(held("k"))), LOST)


def test_an_age_by_a_clock_that_was_set_back_is_none() -> None:
    """It is never below the truth by more than that clock was set."""
    record = held("k")

    assert result(verbs().read_age("k"), [(False, -5, *plain_of(record))]) == (record, 0)


def test_a_server_that_nobody_asked_is_taken_for_any() -> None:
    """It may wait for a standby, whose lack a cancellation would hide, and a pooler may stand before it."""
    statement = next(verbs().claim(any_claim("k")))

    assert not statement.cancels
    assert not statement.prepared


def test_what_keeps_a_lock_waits_for_no_claim() -> None:
    """A takeover, whose token is greater, is one more claim."""
    record = held("k")

    renewal, takeover = renewed(record), renewed(record, token=2)

    assert [change(TABLE, "", each).urgent for each in (renewal, takeover, released(record))] == [True, False, True]
    assert changes_of(TABLE, "", [(0, renewal)], waits=False).urgent


def test_who_joins_a_shared_lock_leaves_the_mark_for_who_leaves_it() -> None:
    """A waiter may have room then, and not before."""
    session = SessionRef("s", 1000, 1)
    shared = Members("rw", (session,), (Member("0123456789abcdef", "read", None, None, 1, 0),))
    joins = renewed(held("k"))._replace(record=replace(held("k"), lease_ms=None, members=shared))
    tells: list[Replace | Release] = [joins._replace(wakes=True), renewed(held("k")), released(held("k"))]

    assert change(TABLE, "channel", joins).values[-1] == b""
    assert [change(TABLE, "channel", each).values[-1] for each in tells] == [b"channel"] * 3


def test_a_channel_has_a_name_that_the_server_takes(admin: psycopg.Connection[Any]) -> None:
    """However long that of the table is: a renewal that could not notify would be refused."""
    channel = PostgresVerbs(f"{'s' * 63}.{'t' * 63}", lambda _: None, lambda _: False).channel

    assert admin.execute("SELECT pg_notify(%s, 'k') IS NULL", (channel,)).fetchone() == (False,)


@pytest.mark.parametrize("several", [False, True])
def test_the_last_token_is_not_passed(store: PostgresStore, key: str, several: bool) -> None:
    """Where the numbers end the key is never granted again, and the error says so."""
    request = any_claim(key)
    last = store.claim(
        request._replace(record=replace(request.record, fencing_token=TOKEN_MAX - 1)), timeout_s=TIMEOUT_S
    ).record
    for token in (TOKEN_MAX - 1, TOKEN_MAX):
        assert last is not None
        assert last.fencing_token == token
        store.release(released(last), timeout_s=TIMEOUT_S)
        if token < TOKEN_MAX:
            last = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record

    with pytest.raises(StoreUnavailableError, match="has reached its end"):
        store.claim_many([any_claim(key)], timeout_s=TIMEOUT_S) if several else store.claim(
            any_claim(key), timeout_s=TIMEOUT_S
        )
