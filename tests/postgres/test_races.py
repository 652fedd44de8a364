"""Under race every refusal shows a record that stood there while the refused request was under way."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import psycopg
import pytest

from dlock_core.kit import outcome
from dlock_core.record import LockRecord, Version
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from dlock_postgres import PostgresStore, _wire
from dlock_postgres.options import quoted
from tests.postgres.conftest import TABLE
from tests.postgres.support import TIMEOUT_S, any_claim, held, released, renewed

THREADS = 6
STEPS = 150
REFUSALS_MIN = 50


class Step(NamedTuple):
    """A request, its reply, and the time that it took."""

    request: Claim | Replace | Release
    reply: Reply
    sent: float
    answered: float


def do(store: PostgresStore, request: Claim | Replace | Release) -> Step:
    """Send *request*."""
    sent = time.monotonic()
    if isinstance(request, Claim):
        reply = store.claim(request, timeout_s=TIMEOUT_S)
    elif isinstance(request, Replace):
        reply = store.replace(request, timeout_s=TIMEOUT_S)
    else:
        reply = store.release(request, timeout_s=TIMEOUT_S)
    return Step(request, reply, sent, time.monotonic())


def some_request(key: str, standing: LockRecord | None, chance: random.Random) -> Claim | Replace | Release:
    """Return a request that fits *standing*, which may be of yesterday."""
    if standing is None or chance.random() < 0.2:
        return any_claim(key)
    if not standing.held:
        return Claim(held(key), chance.choice([standing.version, any_claim(key).expect]))
    kinds: list[Callable[[LockRecord], Replace | Release]] = [renewed, released]
    return chance.choice(kinds)(standing)


def hammer(store: PostgresStore, key: str, seed: int, steps: list[Step]) -> None:
    """Send requests as fast as they come, each after what the reply before it showed."""
    chance, standing = random.Random(seed), None
    for _ in range(STEPS):
        step = do(store, some_request(key, standing, chance))
        steps.append(step)
        standing = step.reply.record


@pytest.mark.timeout(120)
def test_a_refusal_shows_what_stood_while_it_was_asked(store: PostgresStore, key: str) -> None:
    """It was written before the answer came, its successor had not been confirmed before the request was sent, and it refuses."""
    steps: list[Step] = []
    threads = [threading.Thread(target=hammer, args=(store, key, seed, steps)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    applied = sorted((step for step in steps if step.reply.applied), key=lambda step: step.sent)
    written = {step.reply.record.version: step for step in applied if step.reply.record is not None}
    replaced: dict[Version, Step] = {
        step.request.expected: step for step in applied if isinstance(step.request, Replace | Release)
    }
    refused = [step for step in steps if not step.reply.applied]

    assert len(refused) >= REFUSALS_MIN
    assert len(written) == len(applied)
    for step in refused:
        shown = step.reply.record
        assert shown is not None or step is steps[0] or isinstance(step.request, Claim)
        if shown is None:
            continue
        assert written[shown.version].sent <= step.answered
        successor = replaced.get(shown.version)
        assert successor is None or successor.answered >= step.sent
        if isinstance(step.request, Replace | Release):
            assert not outcome(shown, step.request).applied


def test_of_racing_claims_one_is_granted_and_all_others_see_it(store: PostgresStore, key: str) -> None:
    """Also those whose snapshot is older than the row."""
    for number in range(60):
        steps: list[Step] = []
        start = threading.Barrier(THREADS)

        def claim(name: str = f"{key}/{number}", steps: list[Step] = steps, start: threading.Barrier = start) -> None:
            start.wait()
            steps.append(do(store, any_claim(name)))

        threads = [threading.Thread(target=claim) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        [granted] = [step.reply.record for step in steps if step.reply.applied]
        assert [step.reply.record for step in steps if step.reply.record != granted] == []


def test_of_those_who_mark_a_row_at_the_same_time_one_writes(
    store: PostgresStore, admin: psycopg.Connection[Any], server_url: str, key: str
) -> None:
    """Each write is synced, and would hold up the next one; the others see the mark, and ask once more."""
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None
    table, told = quoted(TABLE), list[Any]()
    waiting = "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%sought%'"

    def mark() -> None:
        told.append(store._link.send(_wire.mark(table, record), TIMEOUT_S).rows[0][0])

    with psycopg.connect(server_url) as other:
        other.execute(f"SELECT FROM {TABLE} WHERE key = %s FOR UPDATE", (key,))  # all are to begin before one writes
        threads = [threading.Thread(target=mark) for _ in range(3)]
        for thread in threads:
            thread.start()
        while admin.execute(f"SELECT count(*) {waiting}").fetchone() != (3,):
            admin.execute("SELECT pg_sleep(0.01)")
        other.rollback()
        for thread in threads:
            thread.join()

    assert sorted(told, key=str) == [False, None, None]
    assert store._link.send(_wire.mark(table, record), TIMEOUT_S).rows == [(False,)]


@pytest.mark.parametrize("expect", [Expect.ANY, Expect.ABSENT])
def test_a_refused_claim_carries_the_age_of_the_record(store: PostgresStore, key: str, expect: Expect) -> None:
    """By the server's clock, in the same request: who tries once learns of a dead holder without a second one."""
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record

    reply = store.claim(Claim(held(key), expect), timeout_s=TIMEOUT_S)

    assert reply.record == record
    assert reply.age_ms is not None
    assert 0 <= reply.age_ms < TIMEOUT_S * 1000
