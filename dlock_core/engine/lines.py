"""The waiters of one client for one key stand in line: the first asks the store, the others wait here for their turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlock_core.states import Confirming, Held, New, Seeking
from dlock_core.timings import NANOS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dlock_core.engine.handle import Handle, Runtime, Signal
    from dlock_core.record import LockRecord

STREAK_MAX = 8
_ASKING_MAX = 1
_OURS_S = 0.05
_LOOK_S = 5.0


class Line:
    """The waiters of one client for one key, first come, first served.

    Even while nothing happens, a waiter that asks costs the server a few requests a lease, and each release wakes it: a thousand of one
    client would keep a server too busy to grant. Where this client itself holds the key, the first in line does not even ask, but waits
    for its release, though not for long, and for *STREAK_MAX* grants in a row at most: then it asks while the key is held, as the waiters
    of other clients do.

    The client's mutex guards it. *holder* is who has the key, where the first in line waits for its release.
    """

    def __init__(self, runtime: Runtime, holder: Handle | None) -> None:
        self._runtime = runtime
        self._asking: set[Handle] = set()
        self._behind: dict[Handle, Signal] = {}
        self._pauses: dict[Handle, Signal] = {}
        self._streak = 0
        self.holder = holder

    @property
    def is_empty(self) -> bool:
        """Whether nobody stands in line."""
        return not self._asking

    def join(self, handle: Handle) -> bool:
        """Stand in line; whether *handle* may ask, since it is the first."""
        if handle not in self._asking:
            self._behind[handle] = self._runtime.turn()
            self._admit(_ASKING_MAX)
        return handle in self._asking

    @property
    def shown(self) -> LockRecord | None:
        """What the first in line has seen last."""
        return next((handle.state.shown for handle in self._asking if type(handle.state) is Seeking), None)

    async def stand(self, handle: Handle, until: int) -> LockRecord | None:
        """Return when *handle*, which has joined, may ask. Where it is *until* before, return what the first has seen, if anything."""
        runtime = self._runtime
        while (left_ns := until - runtime.now()) > 0:
            with runtime.mutex:
                self._admit(_ASKING_MAX)  # who was interrupted may have left without a word
                if handle not in self._behind:
                    break
                turn = self._behind[handle] = runtime.turn()
            await turn.wait(min(left_ns / NANOS, _LOOK_S))
        with runtime.mutex:
            shown = self.shown if handle in self._behind else None
        await self.pause(handle, min(left_ns / NANOS, _OURS_S), for_holder=True)
        return shown

    async def pause(self, handle: Handle, seconds: float, *, for_holder: bool = False) -> None:
        """Wait so long, or until *holder* has released the key; not at all *for_holder* where there is none."""
        with self._runtime.mutex:
            if for_holder and self.holder is None:
                return
            turn = self._pauses[handle] = self._runtime.turn()
        try:
            await turn.wait(seconds)
        finally:
            self._pauses.pop(handle, None)

    def end_pauses(self) -> None:
        """Have those that pause go on: the key is free."""
        self.holder = None
        for turn in list(self._pauses.values()):
            turn.set()

    def leave(self, handle: Handle) -> None:
        """Let the next one ask, in the place of *handle*."""
        self._behind.pop(handle, None)
        self._asking.discard(handle)
        if type(handle.state) is Held:
            self._streak = (self._streak + 1) % STREAK_MAX
            self.holder = handle if self._streak else None
        self._admit(_ASKING_MAX)

    def admit_all(self) -> None:
        """Have all ask now, since each has to find out for itself what has happened."""
        self._admit(len(self._asking) + len(self._behind))

    def _admit(self, most: int) -> None:
        self._asking = {handle for handle in self._asking if type(handle.state) in (New, Seeking, Confirming)}
        while self._behind and len(self._asking) < most:
            handle = next(iter(self._behind))
            self._asking.add(handle)
            self._behind.pop(handle).set()


class Lines:
    """The lines of one client, by key; *held* is who holds each key."""

    def __init__(self, runtime: Runtime, held: Mapping[str, Handle]) -> None:
        self._runtime = runtime
        self._held = held
        self._lines: dict[str, Line] = {}

    def __contains__(self, key: str) -> bool:
        """Whether anybody waits for *key*."""
        return key in self._lines

    async def enter(self, handle: Handle, until: int) -> LockRecord | None:
        """Return when *handle* may ask, or what stands there now, see :meth:`Line.stand`."""
        with self._runtime.mutex:
            line = self._lines.get(handle.key)
            if line is None:
                line = self._lines[handle.key] = Line(self._runtime, self._held.get(handle.key))
            handle.line = line
            if line.join(handle):
                return None
        return await line.stand(handle, until)

    def leave(self, handle: Handle, *, failed: bool) -> None:
        """Let the next one ask in the place of *handle*; all of them where its last request *failed*."""
        with self._runtime.mutex:
            line, handle.line = handle.line, None
            if line is None:
                return
            line.leave(handle)
            if failed:
                line.admit_all()
            if line.is_empty and self._lines.get(handle.key) is line:
                del self._lines[handle.key]

    def note_release(self, handle: Handle) -> None:
        """Tell the first one in line that *handle*, which it waits for, has released the key; the caller holds the mutex."""
        line = self._lines.get(handle.key)
        if line is not None and line.holder is handle:
            line.end_pauses()

    def admit_all(self) -> None:
        """Have all of them ask, since the client is being closed."""
        with self._runtime.mutex:
            for line in self._lines.values():
                line.admit_all()
