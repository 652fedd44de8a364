"""Threads whose start a signal handler interrupts."""

from __future__ import annotations

import sys
import threading
import weakref
from functools import partial

import pytest

from dlock_core.engine.process import DaemonThread
from proof.interrupts.points import Tracer

# A finalizer of another test's that was interrupted would be told to nobody.
pytestmark = pytest.mark.usefixtures("no_collector")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_interrupts_the_start_of_a_thread_comes_out_as_it_is(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every point, and then the function is either called or dropped."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # CPython tells there of a thread that it has forgotten
    points = max(_begun(kind, 0) for _ in range(5))  # fewer where the thread runs before it is waited for

    assert points > 20
    for at in range(2, points + 1):  # at its entry, nothing is begun
        _begun(kind, at)


def _begun(kind: type[BaseException], at: int) -> int:
    """Begin a thread, interrupted at point *at*; return how many there were."""
    interrupt, came = kind(), list[BaseException | None]()
    called, kept = threading.Event(), list[weakref.ref[object]]()

    def act() -> None:
        raise interrupt

    def begin() -> None:
        function = partial(called.set)
        kept.append(weakref.ref(function))
        thread = DaemonThread("begun", function)
        del function
        tracer.watch()
        try:
            thread.begin()
            came.append(None)
        except BaseException as error:  # noqa: BLE001  # compared below
            came.append(error)
        finally:
            tracer.end()

    tracer = Tracer(act, at)
    beginner = threading.Thread(target=begin)
    beginner.start()
    beginner.join()

    assert came == [interrupt if tracer.where else None], tracer.where
    assert kept[0]() is None or called.wait(10), tracer.where
    return tracer.count
