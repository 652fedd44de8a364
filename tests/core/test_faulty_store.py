"""The stores that misbehave on demand, on which the tests of a user's program stand."""

from __future__ import annotations

import asyncio

import pytest

from dlock_core import Claim, Expect, OutcomeUnknownError, Reply, StoreUnavailableError
from dlock_core.memory import AsyncMemoryStore, MemoryStore
from dlock_core.testing import AsyncFaultyStore, FaultyStore
from tests.core.memory_support import T, held


class _Counting(MemoryStore):
    """Counts the claims that reach it."""

    claims = 0

    def claim(self, request: Claim, *, timeout_s: float) -> Reply:
        self.claims += 1
        return super().claim(request, timeout_s=timeout_s)


def test_what_is_late_is_delivered_once() -> None:
    """A second delivery finds nothing."""
    inner = _Counting()
    store = FaultyStore(inner)
    store.delay("claim")
    with pytest.raises(OutcomeUnknownError):
        store.claim(Claim(held("a"), Expect.ANY), timeout_s=T)
    assert inner.claims == 0

    store.deliver()
    store.deliver()

    assert inner.claims == 1


def test_outage_leaves_the_faults_that_were_planned_for_later() -> None:
    """Nothing is sent while it lasts, so no reply can be lost."""
    store = FaultyStore()
    store.lose_reply("read")
    with store.outage(), pytest.raises(StoreUnavailableError):
        store.read("k", timeout_s=T)

    with pytest.raises(OutcomeUnknownError):
        store.read("k", timeout_s=T)
    assert store.read("k", timeout_s=T) is None


def test_outage_lasts_until_the_last_of_those_that_overlap_has_ended() -> None:
    """As where a helper of a test begins one within another, or two threads do."""
    store = FaultyStore()

    with store.outage():
        with store.outage():
            pass
        with pytest.raises(StoreUnavailableError):
            store.read("k", timeout_s=T)

    assert store.read("k", timeout_s=T) is None


def test_verb_that_has_no_faults_is_refused() -> None:
    """The message names those that have."""
    with pytest.raises(ValueError, match="unknown verb 'scan'; verbs: claim, replace, release, read"):
        FaultyStore().fail("scan")


def test_close_reaches_the_store_inside() -> None:
    """In both colours."""
    inner, another = MemoryStore(), AsyncMemoryStore()
    FaultyStore(inner).close()
    asyncio.run(AsyncFaultyStore(another).close())

    with pytest.raises(StoreUnavailableError, match="was closed"):
        inner.read("k", timeout_s=T)
    with pytest.raises(StoreUnavailableError, match="was closed"):
        asyncio.run(another.read("k", timeout_s=T))
