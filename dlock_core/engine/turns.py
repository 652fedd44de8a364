"""The attempts of one client at one shared lock take turns: the first asks the store, the others wait here.

Each write of a shared lock's record is conditional on its version, so attempts that ask at the same time refuse each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

from dlock_core.engine.lines import STREAK_MAX
from dlock_core.timings import NANOS

if TYPE_CHECKING:
    from dlock_core.engine.handle import Runtime, Signal
    from dlock_core.engine.sharing import Attempt

_LOOK_S = 5.0

_Asked: TypeAlias = tuple[str, str, int, int]
"""The key, the mode, the permits and the weight. Where the first of those that ask for the same has no room, none of them has."""


class _Queue:
    """Those that ask for the same, first come, first served. *streak*: how often in a row the first was told of a place that came free."""

    def __init__(self) -> None:
        # Weak: an interrupt may end an attempt before it has left, and then nobody waits for it longer than for a look.
        self.waiting: WeakKeyDictionary[Attempt, Signal] = WeakKeyDictionary()
        self.streak = 0

    def tell(self, most: int | None = 1) -> None:
        """Have the first ones go on, so many at *most*; None: all."""
        for signal in list(self.waiting.values())[:most]:
            signal.set()


class Turns:
    """The queues of one client; its mutex guards them. Whoever has left a queue, or never was in one, may ask."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._queues: dict[_Asked, _Queue] = {}

    async def enter(self, attempt: Attempt, until: int) -> None:
        """Return when it is the turn of *attempt*, or at *until*."""
        with self._runtime.mutex:
            self._queues.setdefault(_asked(attempt), _Queue()).waiting[attempt] = self._runtime.turn()
        while (left_ns := until - self._runtime.now()) > 0 and not self._is_first(attempt):
            await self.pause(attempt, min(left_ns / NANOS, _LOOK_S))

    def _is_first(self, attempt: Attempt) -> bool:
        """Whether *attempt* may ask: it is the first, or in no queue any more."""
        with self._runtime.mutex:
            waiting = self._queue_of(attempt).waiting
            return attempt not in waiting or next(iter(waiting)) is attempt

    async def pause(self, attempt: Attempt, seconds: float) -> None:
        """Wait so long, or until *attempt* is told to go on, or was since its last pause."""
        runtime = self._runtime
        with runtime.mutex:
            queue = self._queue_of(attempt)
            turn = queue.waiting.get(attempt) or runtime.turn()
        await turn.wait(seconds)
        with runtime.mutex:
            if attempt in queue.waiting:
                queue.waiting[attempt] = runtime.turn()

    def leave(self, attempt: Attempt, *, failed: bool = False) -> None:
        """Let the next one ask in the place of *attempt*; all of them where its requests have *failed*."""
        with self._runtime.mutex:
            queue = self._queue_of(attempt)
            if queue.waiting.pop(attempt, None) is None:
                return
            queue.tell(None if failed else 1)
            if failed or not queue.waiting:
                del self._queues[_asked(attempt)]

    def note_leaving(self, key: str) -> None:
        """Tell the first in each queue that this client has given back a place of *key*; not always, since other clients wait, too."""
        with self._runtime.mutex:
            for asked, queue in list(self._queues.items()):  # a signal handler may enter one meanwhile
                if asked[0] == key:
                    queue.streak = (queue.streak + 1) % STREAK_MAX
                    if queue.streak:
                        queue.tell()

    def _queue_of(self, attempt: Attempt) -> _Queue:
        """Return the queue of those that ask for the same as *attempt*; an empty one if there is none."""
        return self._queues.get(_asked(attempt)) or _Queue()


def _asked(attempt: Attempt) -> _Asked:
    wish = attempt.wish
    return wish.key, wish.mode, wish.permits, wish.weight
