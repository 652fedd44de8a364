"""An interrupt inside of a request, at any point of our code or the driver's, takes no seat from the requests that follow."""

from __future__ import annotations

import gc
from contextvars import copy_context
from typing import TYPE_CHECKING

import pytest

from dlock_core.backend import backend_for
from dlock_core.kit import Seats
from proof.interrupts.points import Tracer
from tests.backends import url_for

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 20.0
# Each of the first points is tried, where a request takes its seat; then every so many.
FIRST, APART = 60, 5


class _InterruptError(BaseException):
    """What a signal handler raises."""


def _interrupt() -> None:
    raise _InterruptError


def _seats() -> list[Seats]:
    """Return those of every store, also of one that another test has left."""
    return [
        each for each in gc.get_objects() if type(each) is Seats
    ]  # isinstance would wake the lazy objects of others


# A driver that is interrupted while it connects drops its socket, and Python reports an interrupt inside of a finalizer.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ["redis", "mysql", "postgres", "mongodb"])
def test_an_interrupted_request_leaves_its_seat_free(name: str, tmp_path: Path) -> None:
    """Each trial interrupts a read at another point. It leaves the context of its caller as it was, too: pymongo keeps a deadline there."""
    others, context = _seats(), dict(copy_context())
    url = url_for(name, tmp_path)
    backend = backend_for(url)
    store = backend.open(backend.options.from_url(url))
    store.read("k", timeout_s=TIMEOUT_S)
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
        assert dict(copy_context()) == context

    gc.collect()
    seats = [each for each in _seats() if each not in others]
    assert at > FIRST
    assert seats
    assert [each.taken for each in seats] == [0] * len(seats)
    assert store.read("k", timeout_s=TIMEOUT_S) is None
    store.close()
    gc.collect()
