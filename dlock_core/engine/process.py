"""Process-wide state: fork detection, open objects, and how threads are made."""

from __future__ import annotations

import os
import threading
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dlock_core.errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from weakref import WeakSet

_T = TypeVar("_T")

_generation = 0


def _forked() -> None:
    global _generation  # noqa: PLW0603  # the one fact about the process; reading a variable is what makes the check free
    _generation += 1


def generation() -> int:
    """Return a number that differs between a process and its forked children; read before any mutex is touched."""
    return _generation


def members(weak: WeakSet[_T]) -> list[_T]:
    """Return what is in *weak*, to which other threads may add meanwhile. Without a mutex: it is asked for around a fork, too."""
    while True:
        try:
            return list(weak)
        except RuntimeError:  # it grew while it was read
            continue


class DaemonThread(threading.Thread):
    """A daemon thread that calls *function* without the context variables of whoever starts it.

    Free-threaded builds let threads inherit them, and a time limit that a driver keeps in one must not bind later renewals.
    """

    def __init__(self, name: str, function: Callable[..., object], *arguments: Any) -> None:
        super().__init__(name=name, daemon=True)
        self._calls = [partial(Context().run, function, *arguments)]  # who takes it out decides

    def run(self) -> None:
        """Call the function, unless :meth:`begin` has said that it is not called."""
        if call := self._taken():
            call()

    def begin(self) -> None:
        """Start the thread. Where that fails the function is called only if that has begun, and else dropped, with its arguments.

        Raises: StoreUnavailableError: the process gets no more threads. What a signal handler raises is raised as it is: in
            ``Thread.start()`` it may come out as an error of CPython, with the thread hanging, or running all the same.
        """
        try:
            self.start()
        except BaseException as error:
            self._taken()
            if isinstance(error, RuntimeError) and str(error).startswith("can't "):
                raise StoreUnavailableError(f"the process gets no more threads: {error}") from error
            is_disguise = str(error) == "release unlocked lock" or error.args == (self,)
            if is_disguise and error.__context__ is not None:
                error.__traceback__ = None  # its frames keep what it names alive, and so the caller's
                raise error.__context__ from None
            raise

    def _taken(self) -> Callable[[], object] | None:
        try:
            return self._calls.pop()
        except IndexError:
            return None


# A mutex may be held, in the child for ever, by a thread that only the parent has: no check may need one, nor a system call.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
