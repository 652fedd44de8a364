"""The memory store keeps every clause."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from dlock_conformance import (
    LockClientConformance,
    LockStoreConformance,
    StoreHarness,
    Way,
)
from dlock_conformance.wire.socketed import socket_harness
from dlock_conformance.wire.wired import Wire, wired_harness
from thorough import rounds

_SPACES = itertools.count()


class TestMemoryStore(LockStoreConformance):
    """``memory://`` in both colours."""

    lacks = (
        *(
            "several_processes",
            "restart",
            "count_requests",
            "plant_foreign",
            "plant_newer",
            "unprovisioned",
            "own_client",
            "expires",
        ),
        *("lose_reply", "hang", "refuse", "busy", "trickle", "cut", "drop", "slow_connect"),
    )

    @pytest.fixture
    def harness(self) -> StoreHarness:
        """Give each test a space of its own."""
        return StoreHarness(
            f"memory://conformance-{next(_SPACES)}",
            capabilities={"batch_renew", "notify", "server_clock", "prune", "claim_wait", "atomic_multi"},
            tells_wanted=True,
            race_rounds=rounds(300),
            soon_s=1.0,
        )


class TestWiredMemoryStore(LockStoreConformance):
    """The memory store behind a pretended wire: it leaves out no clause, only races of processes, waits for a writer, answers in pieces."""

    lacks = ("several_processes", "busy", "trickle")

    @pytest.fixture
    def harness(self) -> StoreHarness:
        """Give each test a server of its own."""
        return wired_harness(Wire(), race_rounds=200, soon_s=0.5)


class TestSocketStore(LockStoreConformance):
    """The same behind a real socket, with connections that are lost, hang and are shared."""

    lacks = ("several_processes", "busy", "slow_connect")

    @pytest.fixture
    def harness(self) -> Iterator[StoreHarness]:
        """Give each test a server of its own."""
        with socket_harness(Wire(), race_rounds=100, soon_s=1.0) as harness:
            yield harness


class TestMemoryClient(LockClientConformance):
    """Both clients over ``memory://``."""

    lacks = ("several_processes", "lose_reply")
    ways = tuple(Way)

    @pytest.fixture
    def harness(self) -> StoreHarness:
        """Give each test a space of its own."""
        return StoreHarness(
            f"memory://conformance-{next(_SPACES)}",
            capabilities={"batch_renew", "notify", "server_clock", "prune", "claim_wait", "atomic_multi"},
            lease_s=0.6,
        )
