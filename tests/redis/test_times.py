"""Records with times, renewed together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlock_core.record import Times, Version
from dlock_core.store import Replace
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
