"""The Redis store keeps every clause on the oldest Redis that it supports, and on Valkey; the other colour sends the same words."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from dlock_conformance import LockStoreConformance, StoreHarness
from dlock_conformance.servers import Server
from redis_servers import redis_harness_on


@pytest.fixture(scope="module")
def redis6_harness(dlock_server: Callable[[str], Server]) -> Iterator[StoreHarness]:
    """Find the server."""
    with redis_harness_on(dlock_server("redis6"), name="redis6") as harness:
        yield harness


@pytest.fixture(scope="module")
def valkey_harness(dlock_server: Callable[[str], Server]) -> Iterator[StoreHarness]:
    """Find the server."""
    with redis_harness_on(dlock_server("valkey")) as harness:
        yield harness


class TestRedis6Store(LockStoreConformance):
    """Redis 6.2."""

    colours = ("sync",)
    lacks = ("busy", "unprovisioned")

    @pytest.fixture
    def harness(self, redis6_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the server."""
        return redis6_harness


class TestValkeyStore(LockStoreConformance):
    """Valkey 9."""

    colours = ("sync",)
    lacks = ("busy", "unprovisioned")

    @pytest.fixture
    def harness(self, valkey_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the server."""
        return valkey_harness
