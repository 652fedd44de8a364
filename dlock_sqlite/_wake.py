"""How a release in one process wakes a waiter in another: a named pipe for each waiter, in a directory beside the database.

A waiter makes ``<database>-wake/<hash of the key>/<since>-<random>``, a FIFO, and polls its reading end. After its commit a releaser looks
whether there is any waiter at all, which is what an uncontended release pays, lists the directory of the key, opens the oldest FIFO for
writing, removes its name and closes it: the hang-up wakes the waiter. Nothing is written, so no SIGPIPE can come.

- Removing the name is the decision: either the releaser does it, and the waiter owes a wake-up to somebody, or the waiter does it, and the
  releaser goes on to the next. So no wake-up is lost between a waiter that leaves and a releaser that chose it.
- A FIFO that nobody reads (ENXIO) belonged to a process that was killed; it is removed.
- The pipes and directories may be used by whoever may write the database, whose mode they have, as SQLite gives it to its log.
- A FIFO gets its name after it was opened, so a living waiter is never taken for a dead one.
"""

# The calls of os are the cost of a release: one system call each, and no object.
# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH108, PTH116, PTH120, PTH208

from __future__ import annotations

import errno
import os
import secrets
import sys
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING

from dlock_core.clock import now_ns
from dlock_core.kit import is_ready

if TYPE_CHECKING:
    from collections.abc import Callable

# A poll takes its time in ms as a C integer; returning early is allowed.
_POLL_MAX_S = 86_400.0
_TRIES_MAX = 100
_PLACES_MAX = 4096


class WakeUps:
    """The waiters for the keys of the database *path*. The directory beside it is made by the first of them."""

    def __init__(self, path: str) -> None:
        self._path, self._directory = path, f"{path}-wake"
        # When the attempt behind a ticket first waited: it keeps its place when it waits again.
        self._places: dict[str, int] = {}
        self._pipes: set[int] = set()

    def wait(self, key: str, ticket: str, timeout_s: float, worth_it: Callable[[], bool]) -> bool:
        """Wait for a wake-up; return at once if *worth_it()*, asked after the subscription, is true.

        Returns: False if this process cannot subscribe here, and has not waited.
        """
        try:
            name, pipe = self._enter(key, ticket)
        except OSError:
            return False
        woken = False
        try:
            if not worth_it():
                woken = is_ready(pipe, min(timeout_s, _POLL_MAX_S))  # a releaser has hung up
        finally:
            self._leave(key, name, pipe, woken=woken)
        return True

    def wake(self, key: str) -> bool:
        """Wake the one that has waited longest for *key*; whether there was one. What goes wrong here is not the releaser's concern."""
        # The cheapest answer comes first, and costs no exception: nobody waits for any key.
        if not os.access(self._directory, os.F_OK):
            return False
        directory = self._of(key)
        try:
            names = os.listdir(directory)
        except OSError:
            return False
        # Each name is tried once: the loop ends with the list.
        return any(not name.startswith(".") and _hang_up(f"{directory}/{name}") for name in sorted(names))

    def count(self, key: str) -> int:
        """Return how many wait for *key*, with those that have died since the last release."""
        with suppress(OSError):
            return sum(not name.startswith(".") for name in os.listdir(self._of(key)))
        return 0

    def forget(self, ticket: str | None) -> None:
        """Give up the place of *ticket*: its attempt was granted."""
        if ticket is not None:
            self._places.pop(ticket, None)

    def forked(self) -> None:
        """Close the child's copies of the parent's pipes: they would make a dead waiter look alive."""
        for pipe in self._pipes:
            with suppress(OSError):
                os.close(pipe)
        self._pipes = set()

    def _of(self, key: str) -> str:
        return f"{self._directory}/{blake2b(key.encode(), digest_size=12).hexdigest()}"

    def _enter(self, key: str, ticket: str) -> tuple[str, int]:
        if sys.platform != "linux":  # pragma: no cover  # elsewhere a pipe without a writer may hang up at once
            raise OSError
        directory = self._of(key)
        shared = os.stat(self._path).st_mode & 0o066
        unique = f"{self._since(ticket):020d}-{secrets.token_hex(8)}"
        for _ in range(_TRIES_MAX):
            # The last waiter to leave removes the directory, perhaps between two of these lines.
            with suppress(FileNotFoundError):
                for made in (self._directory, directory):
                    with suppress(FileExistsError):
                        os.mkdir(made, 0o700)
                        if shared:  # with the group of the folder for what is made in it
                            os.chmod(made, 0o2700 | shared | (shared & 0o044) >> 2)
                os.mkfifo(f"{directory}/.{unique}", 0o600)
                if shared:
                    os.chmod(f"{directory}/.{unique}", 0o600 | shared)  # a umask would keep the releaser out
                break
        hidden, name = f"{directory}/.{unique}", f"{directory}/{unique}"
        pipe = -1
        try:
            pipe = os.open(hidden, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.rename(hidden, name)
        except BaseException:
            if pipe >= 0:
                os.close(pipe)
            with suppress(OSError):
                os.unlink(hidden)
            raise
        self._pipes.add(pipe)
        return name, pipe

    def _since(self, ticket: str) -> int:
        since = self._places.setdefault(ticket, now_ns())
        if len(self._places) > _PLACES_MAX:
            for oldest in list(self._places)[:1]:
                self._places.pop(oldest, None)
        return since

    def _leave(self, key: str, name: str, pipe: int, *, woken: bool) -> None:
        try:
            os.unlink(name)
            chosen = False
        except OSError:
            chosen = True
        self._pipes.discard(pipe)
        os.close(pipe)
        if chosen and not woken:
            self.wake(key)
        with suppress(OSError):
            os.rmdir(os.path.dirname(name))
            os.rmdir(self._directory)


def _hang_up(name: str) -> bool:
    """Wake the waiter behind *name*; False if it is dead, or left by itself."""
    try:
        pipe = os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            with suppress(OSError):
                os.unlink(name)
        return False
    try:
        os.unlink(name)
    except OSError:
        return False
    finally:
        os.close(pipe)
    return True
