"""The program of the worker that the tests start: ``celery -A tests.contrib.celery_app worker``."""

from __future__ import annotations

import os
import time

import redis
from celery import Celery

from dlock_contrib.celery import LockedTask
from dlock_core import shared_client

BROKER = os.environ["DLOCK_TEST_BROKER"]
PREFIX = os.environ["DLOCK_TEST_PREFIX"]
PERIOD_S = 0.05

app = Celery("tasks", broker=BROKER, backend=BROKER)
app.conf.update(
    task_default_queue=PREFIX,
    result_expires=60,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"global_keyprefix": PREFIX},
    result_backend_transport_options={"global_keyprefix": PREFIX},
)
locks = shared_client(BROKER, prefix=PREFIX, lease_duration=10)
events = redis.Redis.from_url(BROKER, decode_responses=True, socket_timeout=None)

# The worker that is forked inherits an open client.
with locks.lock("import"):
    pass


def mark(name: str) -> None:
    """Say to the tests that *name* has happened."""
    events.rpush(f"{PREFIX}events", name)


def wait_for_go(name: str) -> None:
    """Wait until the test says that the task may end."""
    assert events.blpop([f"{PREFIX}go-{name}"], timeout=60), f"{name} got no sign"


@app.task(base=LockedTask, bind=True, lock_client=locks, lock_key="ignored/{customer}", when_held="ignore")
def ignored(self: LockedTask, customer: str, name: str = "") -> int:
    """Run at most once at a time for each customer; a second one is dropped."""
    mark(f"in {name}")
    wait_for_go(name)
    return self.lease.ensure()


@app.task(
    base=LockedTask, lock_client=locks, lock_key="retried/{customer}", default_retry_delay=PERIOD_S, max_retries=None
)
def retried(customer: str, name: str) -> str:
    """Run at most once at a time for each customer; a second one comes back later."""
    mark(f"in {name}")
    wait_for_go(name)
    mark(f"out {name}")
    return name


@app.task(base=LockedTask, lock_client=locks, lock_key="failed", default_retry_delay=PERIOD_S, max_retries=1)
def failed() -> None:
    """Fail where the lock stays held."""


@app.task(base=LockedTask, lock_client=locks, lock_key="once more", max_retries=2)
def raises() -> None:
    """Fail by itself."""
    time.perf_counter()
    raise ValueError("the body failed")
