"""Records with times, renewed together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from dlock_core.record import Times, Version
from dlock_core.store import Claim, Expect, Replace
from dlock_redis._scripts import CLAIM
from dlock_redis._wire import claim_words
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
