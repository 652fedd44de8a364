"""How many requests a job and an election cost: the figures of the benchmarks are promises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.bench_jobs import counted
from dlock_core import LockClient
from dlock_core.engine import elections
from dlock_core.memory import MemoryStore
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    import pytest

    from tests.core.worlds import World


def test_jobs_and_elections_cost_no_more_requests_than_the_page_says() -> None:
    """Done already: one read. A run: a read and two writes. A campaign and a resignation are those of a lock."""
    assert counted() == {
        "once: a run": {"read": 1, "claim": 1, "release": 1},
        "once: done already": {"read": 1},
        "election: a campaign and a resignation": {"claim": 1, "release": 1},
        "election: leader()": {"read": 1},
        "election: an observer's look": {"read": 1},
    }


def test_first_look_of_a_job_takes_no_longer_than_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single try gives a server that hangs a sixth of the job's lease, where the client's own requests may take 10 s."""
    store, read, waits = MemoryStore(), MemoryStore.read, []

    def timed(key: str, *, timeout_s: float) -> Any:
        waits.append(timeout_s)
        return read(store, key, timeout_s=timeout_s)

    monkeypatch.setattr(store, "read", timed)
    with LockClient(store) as client, client.once("k", slot="1", lease_duration=6, timeout=0) as job:
        assert job.due

    assert waits == [1.0]


@both_colours
async def test_observer_reads_once_a_poll(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And sends nothing else."""
    monkeypatch.setattr(elections, "jitter", lambda: 0.0)
    store = world.another_store()

    async def watch(client: Any) -> None:
        async for _ in client.election("k").observe(poll_period=1):
            pass

    async with world.client(store) as client:
        watching = world.spawn(watch(client))
        await world.until(lambda: bool(store.requests))
        await world.live(10)
        assert store.requests == {"read": 11}

        await client.close()
        await watching.result()
