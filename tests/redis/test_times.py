"""Records with times, renewed together; and tokens that are made of the server's clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import redis

from dlock_core.record import Broken, LockRecord, Members, Times, Version
from dlock_core.store import Claim, Expect, Replace
from dlock_redis._scripts import CLAIM, PUT
from dlock_redis._wire import claim_words, put_words
from tests.redis.support import Server, calls, claim, granted, held


def test_batch_of_mere_renewals_leaves_each_its_own_times_in_one_script(
    open_store: Callable[..., Any], server: Server, admin: Any, key: str
) -> None:
    """Locks that were granted in different seconds are still renewed together."""
    store = open_store(server.url)
    records = [granted(store, f"{key}/{n}") for n in range(6)]
    renewals = [
        Replace(held(each.key, each.fencing_token, times=Times(n // 2, 100)), each.version, keep_payload=True)
        for n, each in enumerate(records)
    ]
    store.replace_many([Replace(held("none"), Version("x", 1), keep_payload=True)], timeout_s=5.0)
    before = calls(admin, "evalsha", "eval")

    store.replace_many(renewals, timeout_s=5.0)

    assert calls(admin, "evalsha", "eval") == before + 1
    assert [store.read(each.key, timeout_s=5.0).times for each in records] == [Times(n // 2, 100) for n in range(6)]


def test_a_read_counts_those_who_wait(store: Any, raw: Any, key: str) -> None:
    """And not those whose wait is over, whose places are still there."""
    granted(store, key)
    seconds, _ = raw.time()
    ends = [seconds + 60, seconds + 60, seconds - 60]
    raw.hset(key, "queue", "".join(f"place{number}\x1f{end}000000\x1e" for number, end in enumerate(ends)))

    aged, _ = store.read_age(key, timeout_s=5)

    assert (store.read(key, timeout_s=5).waiters, aged.waiters) == (2, 2)
    refused = claim(store, key).record
    assert refused is not None
    assert refused.waiters == 2


@pytest.mark.parametrize(("bound", "other"), [(b"< 1704067200", b"< 7258118400"), (b">= 7258118400", b">= 1704067200")])
def test_a_clock_out_of_bounds_grants_nothing(raw: Any, key: str, bound: bytes, other: bytes) -> None:
    """Tokens that are made of it would not go back; here the bounds are set, since the clock cannot be."""
    assert CLAIM.text.count(bound) == 1

    with pytest.raises(redis.ResponseError, match=r"DLOCKCLOCK its clock shows [0-9]+ s since 1970"):
        raw.eval(CLAIM.text.replace(bound, other), 1, key, *claim_words(Claim(held(key), Expect.ANY), b""))

    assert not raw.exists(key)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("members", [None, Members("permits", (), ())])
def test_a_takeover_that_the_server_has_lost_leaves_its_token_to_nobody(
    store: Any, raw: Any, key: str, members: Members | None, *, keep: bool, batch: bool
) -> None:
    """As after a crash or a failover: the token before it is all that stands, and one more than that was given already."""
    dead = granted(store, key)
    before = raw.dump(key)
    lease_ms = 20000 if members is None else None
    request = Replace(held(key, dead.fencing_token + 1, members=members, lease_ms=lease_ms), dead.version, keep)

    def taken_over() -> LockRecord:
        [reply] = store.replace_many([request], timeout_s=5.0) if batch else [store.replace(request, timeout_s=5.0)]
        assert reply.applied
        assert reply.record == store.read(key, timeout_s=5.0)
        return cast("LockRecord", reply.record)

    first = taken_over()
    raw.restore(key, 0, before, replace=True)

    assert taken_over().fencing_token > first.fencing_token > dead.fencing_token


def test_a_break_raises_the_token_by_one(store: Any, key: str) -> None:
    """As ``dlock break`` says, with the statement that closes a resource to the holder."""
    record = granted(store, key)
    request = Replace(held(key, record.fencing_token + 1, broken=Broken("somebody", 0)), record.version)

    assert store.replace(request, timeout_s=5.0).record == request.record


def test_a_clock_that_is_far_ahead_adds_nothing_to_a_takeover(raw: Any, store: Any, key: str) -> None:
    """Its token would be the last one, or beyond; here the bound is set, since the clock cannot be."""
    dead, bound = granted(store, key), b"< 7258118400"
    assert PUT.text.count(bound) == 1

    request = Replace(held(key, dead.fencing_token + 1), dead.version)
    raw.eval(PUT.text.replace(bound, b"< 1704067200"), 1, key, *put_words([request]))

    assert store.read(key, timeout_s=5.0) == request.record
