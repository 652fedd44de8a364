"""An interrupt inside of a request, at any point of our code or the driver's, takes nothing from the requests that follow."""

from __future__ import annotations

import gc
import threading
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import pytest

from dlock_core.backend import backend_for
from dlock_core.kit import Lane, Seats
from proof.interrupts.points import Tracer
from tests.backends import SERVED, url_for

if TYPE_CHECKING:
    from pathlib import Path

    from dlock_core.store import LockStore

TIMEOUT_S, PATIENCE_S = 20.0, 30.0
# Each of the first points is tried, where a request takes its seat; then every so many.
FIRST, APART, FEWEST = 60, 5, 40


class _InterruptError(BaseException):
    """What a signal handler raises."""


def _interrupt() -> None:
    raise _InterruptError


def _seats() -> list[Seats]:
    """Return those of every store, also of one that another test has left; not the places of idle threads."""
    objects = gc.get_objects()  # isinstance would wake the lazy objects of others
    places = [id(each._places) for each in objects if type(each) is Lane]
    return [each for each in objects if type(each) is Seats and id(each) not in places]


class _OtherThread:
    """Reads, again and again, on one thread, which does what the thread that renews would."""

    def __init__(self, store: LockStore) -> None:
        self._store = store
        self._asked: SimpleQueue[None] = SimpleQueue()
        self._answers: SimpleQueue[Exception | None] = SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            self._asked.get()
            try:
                self._store.read("k", timeout_s=TIMEOUT_S)
            except Exception as error:  # noqa: BLE001  # told to the test
                self._answers.put(error)
            else:
                self._answers.put(None)

    def reads(self, where: str) -> None:
        """Read, and say after which interrupt it could not."""
        self._asked.put(None)
        try:
            error = self._answers.get(timeout=PATIENCE_S)
        except Empty:
            pytest.fail(f"no other thread is answered after an interrupt at {where}")
        assert error is None, where


# A driver that is interrupted while it connects drops its socket, and Python reports an interrupt inside of a finalizer.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", [*SERVED, "etcd", "zookeeper"])
def test_an_interrupted_request_takes_nothing_from_the_next(name: str, tmp_path: Path) -> None:
    """Each trial interrupts a read at another point. No seat stays taken, another thread is answered, and the context is as it was.

    pymongo keeps a deadline in the context. gRPC has mutexes that Python implements, which an interrupt may leave held.
    """
    others, context = _seats(), dict(copy_context())
    url = url_for(name, tmp_path)
    backend = backend_for(url)
    store = backend.open(backend.options.from_url(url))
    store.read("k", timeout_s=TIMEOUT_S)
    other = _OtherThread(store)
    at, ended = 1, False

    while not ended:
        tracer = Tracer(_interrupt, at)
        try:
            tracer.watch()
            store.read("k", timeout_s=TIMEOUT_S)
            ended = True
        except _InterruptError:
            at += 1 if at < FIRST else APART
        finally:
            tracer.end()
        other.reads(tracer.where)
        assert dict(copy_context()) == context

    gc.collect()
    seats = [each for each in _seats() if each not in others]
    assert at > FEWEST
    assert bool(seats) == (name in (*SERVED, "etcd"))
    assert [each.taken for each in seats] == [0] * len(seats)
    assert store.read("k", timeout_s=TIMEOUT_S) is None
    store.close()
    gc.collect()
