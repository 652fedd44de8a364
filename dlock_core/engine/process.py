"""Process-wide state: fork detection, open objects, and how threads are made."""

from __future__ import annotations

import os
import threading
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeVar

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


def daemon_thread(name: str, function: Callable[..., object], *arguments: Any) -> threading.Thread:
    """Return a daemon thread, not started yet, that calls *function* without the context variables of whoever starts it.

    Free-threaded builds let threads inherit them, and a time limit that a driver keeps in one must not bind later renewals.
    """
    return threading.Thread(target=Context().run, args=(function, *arguments), name=name, daemon=True)


# A mutex may be held, in the child for ever, by a thread that only the parent has: no check may need one, nor a system call.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
