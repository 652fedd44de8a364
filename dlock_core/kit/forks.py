"""Forks: a store that keeps a connection, or a mutex that another thread may hold, is told before and after each fork of the process."""

from __future__ import annotations

import os
from functools import cache
from typing import Protocol
from weakref import WeakSet

from dlock_core.engine.process import members


class Forkable(Protocol):
    """An object that forks concern. The three are called in the thread that forks."""

    def before_fork(self) -> None:
        """Make the object fit to be copied: finish or hold what other threads do with it."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self) -> None:
        """Begin anew; no other thread is left that could release a mutex."""


class BeginsAnew:
    """Base of an object without a mutex, whose copy in a forked child begins anew: :meth:`after_fork_in_child` is all that it writes."""

    def before_fork(self) -> None:
        """Do nothing: there is no mutex."""

    def after_fork_in_parent(self) -> None:
        """Do nothing: the parent goes on with what it has."""


_watched: WeakSet[Forkable] = WeakSet()
_left_behind: list[object] = []


def watch_forks(store: Forkable) -> None:
    """Tell *store* of each fork for as long as it exists."""
    _register()
    _watched.add(store)


def leave_behind(*copies: object) -> None:
    """In a forked child: keep for ever what is the parent's. To free it may wait for a thread that is not there, or end what is in use."""
    _left_behind.extend(copies)


def watched() -> list[Forkable]:
    """Return every object that is told of forks; other threads may add to them at the same time."""
    return members(_watched)


@cache
def _register() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


def _before() -> None:
    for store in watched():
        store.before_fork()


def _in_parent() -> None:
    for store in watched():
        store.after_fork_in_parent()


def _in_child() -> None:
    for store in watched():
        store.after_fork_in_child()
