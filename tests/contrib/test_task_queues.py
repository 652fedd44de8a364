"""The pages of RQ and Dramatiq: what they show runs in real workers."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from redis import Redis
from rq import Queue
from rq.job import Job

from dlock_core import LockClient, connect
from tests.backends import url_for
from tests.documentation import Names, shown

LIMIT_S = 60
SHOWN_URL = "redis://host/0"
STUCK = """

def stuck(customer: str) -> None:
    import time

    with locks.lock(f"report/{customer}", timeout=0):
        time.sleep(600)
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a Redis that has everything."""
    return url_for("redis", tmp_path)


@pytest.fixture
def client(url: str) -> Iterator[LockClient]:
    """Return a client of another program."""
    with connect(url, lease_duration=30) as client:
        yield client


@pytest.fixture
def jobs(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of the module of jobs that the page shows, which a worker of RQ runs."""
    text = shown("docs/howto/rq-dramatiq.md", "def report(customer: str) -> int:").text
    (tmp_path / "jobs.py").write_text(text.replace(SHOWN_URL, url) + STUCK)
    monkeypatch.syspath_prepend(str(tmp_path))
    command = [sys.executable, "-c", "from rq.cli import main; main()", "worker", "--with-scheduler", "--url", url]
    with (tmp_path / "worker.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": "."}, stdout=log, stderr=log)
    yield tmp_path
    process.terminate()
    process.wait(LIMIT_S)
    sys.modules.pop("jobs", None)


def eventually(fact: Callable[[], bool], log: Path) -> None:
    """Wait for *fact*."""
    until = time.monotonic() + LIMIT_S
    while not fact():
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.05)


def enqueued(url: str, customer: str) -> Job:
    """Enqueue the report of *customer* as the page does, with quick retries, and return the job."""
    text = shown("docs/howto/rq-dramatiq.md", "queue.enqueue(report").text
    names: Names = {}
    quick = text.replace(SHOWN_URL, url).replace("interval=30", "interval=1").replace('"anna"', repr(customer))
    exec(quick.replace("\nqueue.enqueue", "\njob = queue.enqueue"), names)  # noqa: S102  # the documentation is ours
    job = names["job"]
    assert isinstance(job, Job)
    return job


def test_a_job_of_rq_comes_back_when_the_lock_is_free(jobs: Path, url: str, client: LockClient) -> None:
    """It finds the lock held, is scheduled again, and runs after the release; its worker leaves no lock behind."""
    customer = secrets.token_hex(4)
    with client.lock(f"report/{customer}") as held:
        job = enqueued(url, customer)
        eventually(lambda: job.get_status() == "scheduled", jobs / "worker.log")
    eventually(lambda: bool(job.is_finished), jobs / "worker.log")

    assert (job.return_value() or 0) > held.fencing_token
    with client.lock(f"report/{customer}", timeout=0):
        pass


def test_a_job_that_rq_ends_gives_its_lock_back(jobs: Path, url: str, client: LockClient) -> None:
    """The end of its time is an exception in the block."""
    customer = secrets.token_hex(4)
    job = Queue(connection=Redis.from_url(url)).enqueue("jobs.stuck", customer, job_timeout=1)
    eventually(lambda: bool(job.is_failed), jobs / "worker.log")

    assert "JobTimeoutException" in (jobs / "worker.log").read_text()
    with client.lock(f"report/{customer}", timeout=0):
        pass


def test_a_message_of_dramatiq_comes_back_when_the_lock_is_free(
    url: str, client: LockClient, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Each try that finds the lock held is repeated after the delay, and is told as no failure."""
    customer, names = secrets.token_hex(4), Names()
    dramatiq.set_broker(broker := StubBroker())
    refused: list[object] = []
    broker.add_middleware(Seen(refused))
    shown("docs/howto/rq-dramatiq.md", "@dramatiq.actor").run(names, {SHOWN_URL: url, "10_000": "50"})
    worker = dramatiq.Worker(broker, worker_timeout=50)
    worker.start()
    try:
        with client.lock(f"report/{customer}"):
            names["report"].send(customer)
            until = time.monotonic() + LIMIT_S
            while len(refused) < 2:
                assert time.monotonic() < until, caplog.text
                time.sleep(0.05)
        broker.join("default", timeout=LIMIT_S * 1000)
        worker.join()
    finally:
        worker.stop()
        names["locks"].close()
        broker.close()

    assert f"report of {customer} fenced by" in capsys.readouterr().out
    assert all(type(error) is dramatiq.Retry for error in refused)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


class Seen(dramatiq.Middleware):
    """Keeps what messages have raised."""

    def __init__(self, raised: list[object]) -> None:
        self._raised = raised

    def after_process_message(
        self, broker: object, message: object, *, result: object = None, exception: object = None
    ) -> None:
        """Keep *exception*."""
        if exception is not None:
            self._raised.append(exception)
