"""The Redis store keeps every clause, on a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from dlock_conformance import (
    WAYS,
    LockClientConformance,
    LockStoreConformance,
    StoreHarness,
)
from dlock_conformance.servers import Server
from redis_servers import NUDGE, is_command, redis_harness_on


@pytest.fixture(scope="module")
def redis_harness(dlock_server: Callable[[str], Server]) -> Iterator[StoreHarness]:
    """Find the server."""
    with redis_harness_on(dlock_server("redis")) as harness:
        yield harness


class TestRedisStore(LockStoreConformance):
    """``redis://``, both colours."""

    lacks = ("busy", "unprovisioned")

    @pytest.fixture
    def harness(self, redis_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the server."""
        return redis_harness


class TestRedisClient(LockClientConformance):
    """Both clients over ``redis://``."""

    ways = WAYS

    @pytest.fixture
    def harness(self, redis_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the server."""
        return redis_harness


@pytest.mark.parametrize(("said", "counts"), [(NUDGE, False), (2 * NUDGE, False), (NUDGE + b"*1", True)])
def test_nudges_are_no_requests(said: bytes, counts: bool) -> None:  # a parameter
    """A busy machine reads several at once: a claim that waited counted as two requests."""
    assert is_command(said) is counts
