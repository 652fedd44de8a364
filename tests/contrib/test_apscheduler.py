"""Jobs of APScheduler and of ``schedule`` that several hosts schedule, and one runs."""

from __future__ import annotations

import datetime as dt
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import schedule
from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MISSED,
    EVENT_JOB_REMOVED,
    EVENT_JOB_SUBMITTED,
)
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from dlock_contrib.apscheduler import OnceExecutor
from dlock_core import ConfigurationError, LockClient, LockLostError, aconnect, connect, shared_client
from dlock_core.memory import MemoryStore
from tests.backends import url_for

TIME = dt.datetime(2025, 11, 22, 2, tzinfo=dt.UTC)
LIMIT_S = 20


@pytest.fixture(params=["sqlite", "redis"])
def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[LockClient]]:
    """Return the clients of three hosts."""
    clients = [connect(url_for(request.param, tmp_path), prefix=f"{tmp_path}/", lease_duration=2) for _ in range(3)]
    yield clients
    for client in clients:
        client.close()


def run_on(hosts: list[LockClient], job: Callable[[], object], time: dt.datetime = TIME) -> None:
    """Let the scheduler of each host run *job* for one scheduled time, and wait until all are through."""
    schedulers = []
    for client in hosts:
        scheduler = BackgroundScheduler(executors={"default": OnceExecutor(client)}, timezone=dt.UTC)
        submitted = threading.Event()
        scheduler.add_listener(lambda _, submitted=submitted: submitted.set(), EVENT_JOB_SUBMITTED)
        scheduler.add_job(job, "date", run_date=time, id="report", misfire_grace_time=None)
        schedulers.append((scheduler, submitted))
    for scheduler, _ in schedulers:
        scheduler.start()
    for scheduler, submitted in schedulers:
        assert submitted.wait(LIMIT_S)
        scheduler.shutdown(wait=True)


@pytest.mark.parametrize(
    ("client", "options", "words"),
    [
        ("memory://x", {}, r"'memory://x' is not a client of threads; give OnceExecutor\(shared_client\(url\)\)"),
        (aconnect("memory://x"), {}, "is not a client of threads"),
        (shared_client("memory://x"), {"timeot": 5}, "perhaps 'timeout' is meant"),
        (shared_client("memory://x"), {"prefix": "jobs\n"}, "holds the control character"),
    ],
)
def test_mistake_is_told_when_the_executor_is_made(client: Any, options: dict[str, Any], words: str) -> None:
    """A scheduler would only log it, at each scheduled time."""
    with pytest.raises(ConfigurationError, match=words):
        OnceExecutor(client, **options)


def test_a_job_runs_on_one_host_for_each_time(hosts: list[LockClient]) -> None:
    """Three hosts schedule the same job for the same time; the next time is another run."""
    runs: list[int] = []
    run_on(hosts, lambda: runs.append(1))
    assert len(runs) == 1
    run_on(hosts, lambda: runs.append(1))
    assert len(runs) == 1
    run_on(hosts, lambda: runs.append(1), TIME.astimezone(dt.timezone(dt.timedelta(hours=9))))
    assert len(runs) == 1, "the same time of another zone is not another run"
    run_on(hosts, lambda: runs.append(1), TIME + dt.timedelta(days=1))
    assert len(runs) == 2


@pytest.mark.parametrize("hosts", ["sqlite"], indirect=True)
def test_a_job_that_raises_leaves_its_time_due(hosts: list[LockClient], caplog: pytest.LogCaptureFixture) -> None:
    """The next host that asks runs it again; the scheduler logs the error as always."""
    caplog.set_level(logging.CRITICAL, "apscheduler")
    runs: list[str] = []

    def fail() -> None:
        runs.append("failed")
        raise ValueError("no paper")

    run_on(hosts[:1], fail)
    run_on(hosts[1:2], lambda: runs.append("done"))
    run_on(hosts[2:], lambda: runs.append("again"))

    assert runs == ["failed", "done"]


def test_a_run_that_lost_its_lock_is_an_error_of_its_time_alone(caplog: pytest.LogCaptureFixture) -> None:
    """The times before and behind it have their events."""
    client, broken = LockClient(MemoryStore()), iter((False, True, False))
    times = [TIME + dt.timedelta(days=day) for day in range(3)]

    def run() -> None:
        record = client.get("jobs/report")
        if record is not None and next(broken):
            client.break_lock("jobs/report", fencing_token=record.fencing_token, now=True)

    scheduler = BackgroundScheduler(timezone=dt.UTC)
    job = scheduler.add_job(run, id="report", misfire_grace_time=None)
    with client:
        events = OnceExecutor(client)._run(job, times)

    assert [(event.code, event.scheduled_run_time) for event in events] == [
        (EVENT_JOB_EXECUTED, times[0]),
        (EVENT_JOB_ERROR, times[1]),
        (EVENT_JOB_EXECUTED, times[2]),
    ]
    assert isinstance(events[1].exception, LockLostError)
    assert "an operator broke it" in caplog.text


@pytest.mark.parametrize("hosts", ["sqlite"], indirect=True)
def test_a_host_that_takes_over_from_a_dead_one_is_not_late(hosts: list[LockClient]) -> None:
    """The time in which it watched the dead one is no part of the grace for misfires, which is a second by default."""
    runs: list[int] = []
    time = (dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1.5)).replace(microsecond=0)
    died = hosts[0].once("jobs/report", slot=time.isoformat(timespec="milliseconds"), auto_renew=False)
    assert died.__enter__().due
    scheduler = BackgroundScheduler(executors={"default": OnceExecutor(hosts[1])}, timezone=dt.UTC)
    executed = threading.Event()
    scheduler.add_listener(lambda _: executed.set(), EVENT_JOB_EXECUTED | EVENT_JOB_MISSED)
    scheduler.add_job(lambda: runs.append(1), "date", run_date=time, id="report")
    scheduler.start()
    assert executed.wait(LIMIT_S)
    scheduler.shutdown(wait=True)

    assert runs == [1]


DYING = """
import sys, threading
from dlock_core import connect
with connect(sys.argv[1], prefix=sys.argv[2], lease_duration=2) as client, client.once("jobs/report", slot=sys.argv[3]) as job:
    print("due" if job.due else "not due", flush=True)
    threading.Event().wait()
"""


@pytest.mark.parametrize("hosts", ["sqlite"], indirect=True)
def test_a_host_that_dies_after_it_was_seen_is_followed_by_one_that_waits(
    hosts: list[LockClient], tmp_path: Path
) -> None:
    """Without the time-out that the page names, the other host would have gone away at the first renewal that it saw."""
    runs: list[int] = []
    arguments = [url_for("sqlite", tmp_path), f"{tmp_path}/", TIME.isoformat(timespec="milliseconds")]
    scheduler = BackgroundScheduler(executors={"default": OnceExecutor(hosts[1], timeout=LIMIT_S)}, timezone=dt.UTC)
    submitted = threading.Event()
    scheduler.add_listener(lambda _: submitted.set(), EVENT_JOB_SUBMITTED)
    scheduler.add_job(lambda: runs.append(1), "date", run_date=TIME, id="report", misfire_grace_time=None)
    with subprocess.Popen([sys.executable, "-c", DYING, *arguments], stdout=subprocess.PIPE, text=True) as dying:
        try:
            assert dying.stdout is not None
            assert dying.stdout.readline() == "due\n"
            scheduler.start()
            assert submitted.wait(LIMIT_S)
            seen: set[str] = set()
            until = time.monotonic() + LIMIT_S
            while (
                len(seen) < 4 and time.monotonic() < until
            ):  # three renewals, of which the waiting host saw one at least
                record = hosts[2].get("jobs/report")
                assert record is not None
                seen.add(record.rvn)
        finally:
            dying.kill()
    scheduler.shutdown(wait=True)

    assert runs == [1]


def _job() -> None:
    pytest.fail("run")  # not in the lines below: a traceback shows the line, and so what is to be said


async def _coroutine() -> None:
    pytest.fail("run")


@pytest.mark.parametrize(
    ("job", "more", "said"),
    [
        (_job, {}, "give it one that all hosts know: add_job(…, id='report')"),
        (_coroutine, {"id": "report"}, "is a coroutine function, which no thread can run"),
        (_job, {"id": "report", "trigger": CronTrigger(end_date=TIME, jitter=5)}, "no jitter"),
        (_job, {"id": "report", "trigger": IntervalTrigger(end_date=TIME)}, "a start_date"),
        (_job, {"id": "report", "trigger": OrTrigger([IntervalTrigger(end_date=TIME)])}, "a start_date"),
        (_job, {"id": "report", "trigger": None}, "and a single run a run_date, both of whole seconds"),
    ],
    ids=["without an id", "coroutine", "jitter", "an interval that begins now", "one of several", "without a trigger"],
)
@pytest.mark.parametrize("hosts", ["sqlite"], indirect=True)
def test_a_job_that_cannot_run_once_is_refused(
    hosts: list[LockClient], caplog: pytest.LogCaptureFixture, job: Any, more: dict[str, Any], said: str
) -> None:
    """Without an id, or with other times, each host would draw another one, and all would run it."""
    scheduler = BackgroundScheduler(executors={"default": OnceExecutor(hosts[0])}, timezone=dt.UTC)
    over = threading.Event()
    scheduler.add_listener(lambda _: over.set(), EVENT_JOB_REMOVED)
    scheduler.add_job(job, **{"trigger": DateTrigger(TIME), "next_run_time": TIME, "misfire_grace_time": None, **more})
    scheduler.start()
    assert over.wait(LIMIT_S)
    scheduler.shutdown(wait=True)

    assert said in caplog.text


@pytest.mark.parametrize("hosts", ["sqlite"], indirect=True)
def test_a_job_of_schedule_runs_on_one_host(hosts: list[LockClient]) -> None:
    """With ``schedule`` the decorator of the client is all there is to it."""
    runs: list[Any] = []
    for number, client in enumerate(hosts):
        scheduler = schedule.Scheduler()
        scheduler.every().day.at("02:00").do(
            client.once("report", slot="2026-11-22")(lambda number=number: runs.append(number))
        )
        scheduler.run_all(delay_seconds=0)

    assert runs == [0]
