"""The turn that a free key is kept for, and the place of who waits: those who leave, come back, or wait for what is held."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from dlock_core.store import Claim, Expect
from dlock_redis._scripts import LEAVE
from tests.redis.support import granted, held, release
from tests.redis.test_server_wait import entry
from tests.redis.test_waiting import LONG_S, SOON_S


def test_waiter_that_leaves_after_its_turn_came_was_there(store: Any, raw: Any, key: str) -> None:
    """So its claim, which was not applied, never will be."""
    release(store, granted(store, key))
    raw.hset(key, "turn", entry(raw, "mine", 0.04).rstrip("\x1e"))

    assert raw.eval(LEAVE.text, 1, key, "mine") == 1


def test_waiter_that_leaves_a_held_key_gives_nobody_a_turn(store: Any, raw: Any, key: str) -> None:
    """The others wait on."""
    granted(store, key)
    other = entry(raw, "other", 60)
    raw.hset(key, "queue", entry(raw, "mine", 60) + other)

    raw.eval(LEAVE.text, 1, key, "mine")

    assert raw.hmget(key, "queue", "turn") == [other.encode(), None]


def test_turn_in_a_held_record_ends_no_wait(store: Any, raw: Any, key: str) -> None:
    """Who makes room in a shared lock gives one: where there is none for who has it, that one would ask again and again."""
    record = granted(store, key)
    place = store._verbs.place("t").decode()
    raw.hset(key, "turn", entry(raw, place, 0.04).rstrip("\x1e"))

    store.wait(record, ticket="t", timeout_s=0.03)

    assert raw.hget(key, "queue").startswith(place.encode())


def test_waiter_whose_turn_it_is_already_waits_for_nothing(store: Any, raw: Any, key: str) -> None:
    """It comes back after the release; in the other way it claims at once as well."""
    release(store, granted(store, key))
    request = Claim(held(key), Expect.ANY, ticket="t")
    place = store._verbs.waiting_place(request).decode()
    raw.hset(key, "turn", entry(raw, place, 0.04).rstrip("\x1e"))

    began = time.monotonic()
    assert store.claim_when_free(request, wait_s=LONG_S, timeout_s=SOON_S).applied

    assert time.monotonic() - began < SOON_S


def test_waiter_stands_in_the_queue_almost_to_the_end_of_its_wait(store: Any, raw: Any, key: str) -> None:
    """A release in its last quarter woke nobody else."""
    record = granted(store, key)
    began_s, micros = raw.time()

    store.wait(record, ticket="t", timeout_s=0.4)

    till = int(raw.hget(key, "queue").rstrip(b"\x1e").rpartition(b"\x1f")[2])
    assert till - began_s * 1_000_000 - micros > 350_000


@pytest.mark.parametrize("ticket", ["t", None])
def test_claim_that_cannot_wait_in_the_server_is_woken_with_its_turn(
    open_store: Callable[..., Any], store: Any, url: str, key: str, ticket: str | None
) -> None:
    """Beside a key with such braces there is no place for its list; without a ticket there is no turn, and nothing else is different."""
    holder, key = open_store(url), f"{key}}}"
    record = granted(holder, key)
    freeing = threading.Timer(0.1, release, (holder, record))
    freeing.start()

    reply = store.claim_when_free(Claim(held(key), Expect.ANY, ticket=ticket), wait_s=SOON_S, timeout_s=SOON_S)

    freeing.join()
    assert reply.applied
