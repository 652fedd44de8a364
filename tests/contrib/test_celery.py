"""Tasks of Celery under a lock, in a real worker with forked processes on a real Redis."""

from __future__ import annotations

import importlib
import inspect
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import redis
from celery import Celery, _state
from celery.exceptions import Retry

from dlock_contrib.celery import LockedTask
from dlock_core import (
    AcquireTimeoutError,
    ConfigurationError,
    LeaseStateError,
    LockLostError,
    StoreError,
    connect,
    shared_client,
)
from tests.backends import url_for

ROOT = Path(__file__).parents[2]
LIMIT_S = 60


class Worker:
    """A worker of three processes, and what its tasks say."""

    def __init__(self, url: str, folder: Path) -> None:
        self.prefix = f"celery-{secrets.token_hex(4)}/"
        environment = {"DLOCK_TEST_BROKER": url, "DLOCK_TEST_PREFIX": self.prefix}
        os.environ.update(environment)
        self.app: ModuleType = importlib.import_module("tests.contrib.celery_app")
        self.redis = redis.Redis.from_url(url, decode_responses=True, socket_timeout=None)
        self.log = folder / "worker.log"
        command = ["celery", "-A", "tests.contrib.celery_app", "worker", "--pool=prefork", "--concurrency=3"]
        quick = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=INFO"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command, *quick], cwd=ROOT, env=os.environ, stdout=log, stderr=log
            )
        for name in environment:
            del os.environ[name]

    def event(self) -> str:
        """Return what a task has said next."""
        said = self.redis.blpop([f"{self.prefix}events"], timeout=LIMIT_S)
        assert said is not None, self.log.read_text()
        return str(said[1])

    def let_go(self, name: str) -> None:
        """Let the task *name* end."""
        self.redis.rpush(f"{self.prefix}go-{name}", "go")

    def close(self) -> None:
        """End the worker."""
        self.process.terminate()
        self.process.wait(LIMIT_S)
        self.app.app.close()
        self.app.locks.close()
        self.app.events.close()
        self.redis.close()


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """Start a worker that the tests share."""
    folder = tmp_path_factory.mktemp("celery")
    started = Worker(url_for("redis", folder), folder)
    yield started
    started.close()


def test_a_second_run_is_dropped_and_other_keys_run(worker: Worker) -> None:
    """With "ignore" the second task of a customer returns None at once, and another customer's runs beside the first."""
    first = worker.app.ignored.delay("anna", "first")
    assert worker.event() == "in first"
    assert worker.app.ignored.delay("anna", name="second").get(timeout=LIMIT_S) is None
    other = worker.app.ignored.delay("boris", name="other")
    assert worker.event() == "in other"
    worker.let_go("other")
    worker.let_go("first")

    assert other.get(timeout=LIMIT_S) >= 1
    assert first.get(timeout=LIMIT_S) >= 1
    assert "is dropped: " in worker.log.read_text()


def test_a_second_run_comes_back_when_the_first_is_over(worker: Worker) -> None:
    """With "retry" both run, one after the other."""
    names = ("one", "two")
    results = [worker.app.retried.delay("anna", name) for name in names]
    first = worker.event().removeprefix("in ")
    for name in names:
        worker.let_go(name)

    second = next(name for name in names if name != first)
    assert [worker.event() for _ in range(3)] == [f"out {first}", f"in {second}", f"out {second}"]
    assert [result.get(timeout=LIMIT_S) for result in results] == list(names)


def test_a_task_whose_lock_stays_held_fails_with_the_holder(worker: Worker) -> None:
    """When its retries are used up, the caller gets the error."""
    with worker.app.locks.lock("failed"):
        result = worker.app.failed.delay()
        error = result.get(timeout=LIMIT_S, propagate=False)

    # JSON keeps the class and the message of an error.
    assert isinstance(error, AcquireTimeoutError)
    assert f"could not acquire lock '{worker.prefix}failed'" in str(error)


def test_a_task_that_fails_gives_its_lock_back(worker: Worker) -> None:
    """The error of the body is the task's, and the key is free."""
    error = worker.app.raises.delay().get(timeout=LIMIT_S, propagate=False)

    assert isinstance(error, ValueError)
    with worker.app.locks.lock("once more", timeout=0) as lease:
        assert lease.is_valid


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """Return an app of which no worker runs, and which has no tasks of other apps of this process, as those of the documentation."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set())
    with Celery("alone", broker="memory://", set_as_current=False) as made:
        yield made


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"task .*report has no lock_key; write @app.task\(base=LockedTask, lock_key='report/\{customer\}'\)"),
        ({"lock_key": "report/{custmer}"}, r"names 'custmer', which is not an argument of the task; it has customer$"),
        ({"lock_key": "report", "when_held": "drop"}, r"when_held='drop' of task .*report must be 'retry' or 'ignore'"),
        (
            {"lock_key": "report"},
            r"task .*report has no lock_client=shared_client\(url\), and no store is named; .*DLOCK_URL",
        ),
        (
            {"lock_key": "report/{customer"},
            r"lock_key 'report/\{customer' of task .*report cannot be read: .*; write \{\{",
        ),
        ({"lock_key": 17}, r"lock_key of task .*report must be a str with names of arguments in braces, not 17$"),
        ({"lock_key": "report", "lock_client": "memory://"}, r"must be a client: lock_client=shared_client\(url\)$"),
        (
            {"lock_key": "report", "lock_client": shared_client("memory://"), "lock_options": {"lease": 5}},
            r"lock_options of task .*report: unknown option 'lease': lease_duration is ",
        ),
        (
            {"lock_key": "report", "lock_client": shared_client("memory://"), "lock_options": None},
            r"lock_options=None of task .*report must be a dict of options, as \{'timeout': 5\}$",
        ),
    ],
)
def test_wrong_settings_are_one_plain_line(app: Celery, options: dict[str, Any], message: str) -> None:
    """The worker does not start, and the error says what to write."""

    @app.task(base=LockedTask, shared=False, **options)
    def report(customer: str) -> None: ...

    with pytest.raises(ConfigurationError, match=message) as raised:
        app.finalize()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", ["coroutine", "generator"])
def test_a_task_that_runs_after_it_has_returned_is_refused(app: Celery, kind: str) -> None:
    """A pool that awaits coroutines would run it without the lock."""
    options = {"base": LockedTask, "shared": False, "lock_client": shared_client("memory://"), "lock_key": "report"}
    if kind == "coroutine":

        @app.task(**options)
        async def report() -> None: ...
    else:

        @app.task(**options)
        def rows() -> Iterator[int]:
            yield 1

    with pytest.raises(ConfigurationError, match=rf"^task .* is a {kind} function"):
        app.finalize()


def test_a_key_that_does_not_fit_the_arguments_fails_the_task_in_one_line(app: Celery) -> None:
    """The argument has not what the key names of it."""

    @app.task(base=LockedTask, shared=False, lock_client=shared_client("memory://"), lock_key="report/{customer.id}")
    def report(customer: str) -> None: ...

    with pytest.raises(ConfigurationError, match=r"lock_key .* of task .*report does not fit its arguments: .*'id'$"):
        report("anna")


def test_a_key_is_suggested_that_a_task_without_arguments_can_have(app: Celery) -> None:
    """What the error says to write works."""

    @app.task(base=LockedTask, shared=False)
    def report() -> None: ...

    with pytest.raises(ConfigurationError, match=r"lock_key='report'\)$"):
        app.finalize()


def test_a_task_that_is_called_directly_is_locked_too(app: Celery) -> None:
    """Called as a function, there is nobody to try again: the error is the caller's. Fields of arguments may be part of the key."""
    locks = shared_client("memory://celery-direct")

    @app.task(base=LockedTask, shared=False, bind=True, lock_client=locks, lock_key="order/{order[number]}/{kind}")
    def pay(self: LockedTask, order: dict[str, int], kind: str = "card") -> int:
        assert locks.holds(f"order/{order['number']}/card")
        return self.lease.fencing_token

    assert pay({"number": 7}) == 1
    with locks.lock("order/7/card"), pytest.raises((AcquireTimeoutError, Retry)):
        pay({"number": 7})
    with pytest.raises(LeaseStateError, match="does not run here"):
        _ = pay.lease
    locks.close()


@pytest.mark.parametrize(
    ("settings", "raised"),
    [({}, StoreError), ({"autoretry_for": (Exception,), "retry_kwargs": {"countdown": 60}}, Retry)],
)
def test_a_store_that_is_away_is_asked_again_where_the_task_is_retried_for_such_errors(
    app: Celery, settings: dict[str, Any], raised: type[Exception]
) -> None:
    """Though the error comes before the body, which is all that Celery's autoretry sees."""
    locks = shared_client("redis://127.0.0.1:9/0")

    @app.task(base=LockedTask, shared=False, lock_client=locks, lock_key="k", **settings)
    def report() -> None: ...

    report.push_request(id="1", args=(), kwargs={}, called_directly=False)
    with pytest.raises(raised) as caught:
        report()
    assert getattr(caught.value, "when", 60) == 60
    locks.close()


def test_an_eager_task_whose_lock_is_held_fails_at_once(app: Celery) -> None:
    """Celery's retry would run it again inside of the call, without a pause and, with max_retries=None, without an end."""
    locks = shared_client("memory://celery-eager")

    @app.task(base=LockedTask, shared=False, lock_client=locks, lock_key="report", max_retries=None)
    def report() -> str:
        return "made"

    app.conf.task_always_eager = True
    with locks.lock("report"), pytest.raises(AcquireTimeoutError, match="held by"):
        report.delay().get()
    assert report.delay().get() == "made"
    locks.close()


def test_the_lease_of_a_task_is_not_that_of_the_task_which_calls_it(app: Celery) -> None:
    """The token of the one fences nothing that the other writes."""
    locks = shared_client("memory://celery-nested")
    options = {"base": LockedTask, "shared": False, "bind": True, "lock_client": locks}

    @app.task(lock_key="inner", **options)
    def inner(self: LockedTask) -> tuple[str, str]:
        return self.lease.key, outer.lease.key

    @app.task(lock_key="outer", **options)
    def outer(self: LockedTask) -> tuple[str, str]:
        keys: tuple[str, str] = inner()
        with pytest.raises(LeaseStateError, match="does not run here"):
            _ = inner.lease
        return keys

    assert outer() == ("inner", "outer")
    locks.close()


def test_permits_let_several_tasks_of_a_key_run(app: Celery) -> None:
    """As many as there are permits, each in a slot of its own."""
    locks = shared_client("memory://celery-permits")
    slots = []

    @app.task(base=LockedTask, shared=False, bind=True, lock_client=locks, lock_key="k", lock_options={"permits": 2})
    def work(self: LockedTask) -> None:
        slots.append(self.lease.slot)
        work()  # a second one, beside this one; the third finds no room

    with pytest.raises((AcquireTimeoutError, Retry)):
        work()
    assert slots == [0, 1]
    locks.close()


def test_a_call_does_not_look_at_the_signature_again(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signature is read once, when the app registers the task; a task that Celery wraps for autoretry has the same key."""
    locks = shared_client("memory://celery-signature")

    @app.task(
        base=LockedTask, shared=False, lock_client=locks, autoretry_for=(OSError,), lock_key="report/{customer}/{kind}"
    )
    def report(customer: str, kind: str = "short") -> bool:
        return locks.holds(f"report/{customer}/{kind}")

    app.finalize()
    monkeypatch.delattr(inspect, "signature")

    assert report("anna", kind="long") is True
    assert report("anna") is True
    locks.close()


def test_a_lock_that_was_lost_fails_the_task(app: Celery) -> None:
    """A body that ended after the loss may have worked beside another one."""
    locks = shared_client("memory://celery-lost")

    @app.task(base=LockedTask, shared=False, bind=True, lock_client=locks, lock_key="k")
    def work(self: LockedTask) -> None:
        with connect("memory://celery-lost") as operator:
            assert operator.break_lock("k", fencing_token=self.lease.fencing_token, now=True)
        with pytest.raises(LockLostError):
            self.lease.renew()

    with pytest.raises(LockLostError):
        work()
    locks.close()
