"""From each client to our own rows with no stop of the fleet: the steps of ``docs/dialects.md``, each overlapping the next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from dlock_core import LockClient
from tests.interop.support import Speaker, count_up, java, node

# Nobody is taken over by mistake on a busy machine. But a waiting Node client sleeps the whole lease that it reads.
LEASE_S, NODE_LEASE_S = 60.0, 3.0
LEAST = 3

Connect = Callable[..., LockClient]
Section = Callable[[Path], None]


class Worker:
    """A process of the fleet, here a thread: counts up in the section that it was deployed with, until it is retired."""

    def __init__(self, pool: ThreadPoolExecutor, section: Section, counter: Path) -> None:
        self._retired = threading.Event()
        self.seasoned = threading.Event()
        self.done: Future[int] = pool.submit(self._work, section, counter)

    def _work(self, section: Section, counter: Path) -> int:
        done = 0
        while not self._retired.is_set():
            section(counter)
            done += 1
            if done == LEAST:
                self.seasoned.set()
            self._retired.wait(0.02)  # so that who polls gets a turn
        return done

    def retire(self) -> None:
        """Have it end after its section."""
        self._retired.set()


class Fleet:
    """The workers that are deployed; on leaving, all are retired."""

    def __init__(self, pool: ThreadPoolExecutor, counter: Path) -> None:
        self._pool, self._counter = pool, counter
        self._workers: list[Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self._workers:
            worker.retire()

    def deploy(self, section: Section) -> None:
        """Add a worker beside those that there are, and wait until it has had its turns."""
        self._workers.append(Worker(self._pool, section, self._counter))
        assert self._workers[-1].seasoned.wait(60), "the new worker had too few turns"

    def retire_oldest(self) -> int:
        """End the oldest worker; return how often it has counted."""
        worker = self._workers.pop(0)
        worker.retire()
        return worker.done.result(60)


@contextmanager
def old_fleet(kind: str, endpoint: str, table: str) -> Iterator[Speaker]:
    """Run a client of another language."""
    if kind == "java":
        with java(endpoint, table, lease_s=LEASE_S) as speaker:
            yield speaker
    else:
        with node(
            endpoint, table, "closed" if kind == "node-fail-closed" else "open", lease_s=2, heartbeat_s=0.5
        ) as speaker:
            yield speaker


DIALECTS = {"java": "awslabs", "node-fail-open": "node-fail-open", "node-fail-closed": "node-fail-closed"}
OPTIONS: dict[str, dict[str, Any]] = {
    "java": {"lease_duration": LEASE_S},
    "node-fail-open": {"lease_duration": NODE_LEASE_S},
    "node-fail-closed": {"fail_closed": True},
}


@pytest.mark.parametrize("kind", DIALECTS)
def test_a_fleet_moves_without_a_stop(
    kind: str, endpoint: str, url: Callable[..., str], join: Connect, counter: Path
) -> None:
    """Old clients; beside them ours in their rows; then ours in both; at last ours alone. One counter, exact throughout."""
    table, dialect = f"move-{kind}", DIALECTS[kind]
    url(table, dialect)
    old = join(table, dialect, **OPTIONS[kind])
    new = join("move-new", "dlock", lease_duration=LEASE_S)

    def in_their_rows(counter: Path) -> None:
        with old.lock(kind):
            count_up(counter)

    def in_both(counter: Path) -> None:
        with old.lock(kind), new.lock(kind) as lease:
            lease.ensure()
            count_up(counter)

    def in_our_rows(counter: Path) -> None:
        with new.lock(kind):
            count_up(counter)

    counted: list[int] = []
    with ThreadPoolExecutor(4) as pool, Fleet(pool, counter) as fleet:
        with old_fleet(kind, endpoint, table) as speaker:
            speaker.tell("hammer", kind, counter, *(["mark"] if kind == "java" else []), 1, LEAST)
            fleet.deploy(in_their_rows)
            counted.append(int(speaker.answer()))
        for section in (in_both, in_our_rows):
            fleet.deploy(section)
            counted.append(fleet.retire_oldest())
        counted.append(fleet.retire_oldest())

    assert int(counter.read_text()) == sum(counted)
    assert min(counted) >= LEAST


def test_a_step_that_is_left_out_loses_updates(url: Callable[..., str], join: Connect, counter: Path) -> None:
    """From their rows straight to ours: the two fleets exclude each other in nothing, so the scenario above can fail."""
    url("move-wrong", "awslabs")
    old, new = join("move-wrong", "awslabs", lease_duration=LEASE_S), join("move-new", "dlock", lease_duration=LEASE_S)
    met = threading.Barrier(2, timeout=60)

    def hold(client: LockClient) -> bool:
        with client.lock("wrong"):
            met.wait()  # both are inside
            return True

    with ThreadPoolExecutor(2) as pool:
        assert [done.result(60) for done in [pool.submit(hold, client) for client in (old, new)]] == [True, True]
