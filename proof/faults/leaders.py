"""Parties that lead: on each key a candidate of an election, whose body has effects while its term lasts.

``leader``: in threads, ``aleader``: in tasks. ``deaf`` is a negative control: its bodies do not look at the end of their term.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from dlock_core import aconnect, connect
from dlock_core.errors import DLockError, LockLostError
from proof.faults.party import in_threads, now, opened, told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dlock_core import AsyncLockClient, AsyncTerm, LockClient, Term
    from proof.faults.book_line import Line
    from proof.faults.party import Scene

__all__ = ["GRACE", "Looks", "effects", "lead", "lead_in_tasks"]

_DEAF_LEASES = 6.0
GRACE = 4
"""The part of a lease for which a body is told to stop before its end: that of an election by default."""
# A body looks at its term often enough to end within the stop grace, a quarter of the lease.
_LOOKS = 12


def lead(scene: Scene) -> None:
    """Be a leader now and then, in a thread for each key."""
    with connect(scene.order.url, **opened(scene.order)) as client:
        in_threads(scene, _lead_key, client)


def _lead_key(scene: Scene, key: str, client: LockClient) -> None:
    line, election = scene.line(), client.election(key)

    def body(term: Term) -> None:
        for pause_s in effects(scene, line, key, term, deaf=scene.order.kind == "deaf"):
            if scene.order.kind == "deaf":
                time.sleep(pause_s)
            elif term.stopping.wait(pause_s):
                break

    while True:
        line.tell("wait", key, now())
        try:
            election.run(body, rejoin=False)
        except LockLostError:
            continue
        except DLockError as error:
            told(line, error)
        time.sleep(scene.computes_s())  # the others have their turn


async def lead_in_tasks(scene: Scene) -> None:
    """Do as :func:`lead`, in a task for each key."""
    async with aconnect(scene.order.url, **opened(scene.order)) as client, asyncio.TaskGroup() as tasks:
        for key in scene.order.keys:
            tasks.create_task(_lead_key_in_task(scene, key, client))


async def _lead_key_in_task(scene: Scene, key: str, client: AsyncLockClient) -> None:
    line, election = scene.line(), client.election(key)

    async def body(term: AsyncTerm) -> None:
        for pause_s in effects(scene, line, key, term):
            await asyncio.sleep(pause_s)

    while True:
        line.tell("wait", key, now())
        try:
            await election.run(body, rejoin=False)
        except LockLostError:
            continue
        except DLockError as error:
            told(line, error)
        await asyncio.sleep(scene.computes_s())


class Looks:
    """The looks of a body at the clock. A body that does not look for longer than its grace cannot learn in time that it has to stop.

    It begins at the instant *at*, with *left_s* of its lease. A grant is handed out with more than its grace left: where less is left, the
    process stood still between the grant and the body.
    """

    def __init__(self, lease_ns: int, at: int, left_s: float) -> None:
        self._lease_ns, self._last = lease_ns, at
        self._resumed = at if left_s * 1e9 <= lease_ns // GRACE else at - 2 * lease_ns

    def look(self, at: int) -> None:
        """Take note of a look at the instant *at*."""
        if at - self._last > self._lease_ns // GRACE:
            self._resumed = at
        self._last = at

    def has_just_paused(self, at: int) -> bool:
        """Whether the body, which ends at the instant *at*, had paused for longer than the grace, and has run for a lease at most since.

        In that time the threads of a process that stood still, each in its turn, notice that their time is over.
        """
        self.look(at)
        return at - self._resumed <= self._lease_ns


def effects(scene: Scene, line: Line, key: str, lease: Any, *, deaf: bool = False) -> Iterator[float]:
    """Have effects until the body has run for long enough; yield how long to pause between two. The caller ends it with the lease.

    One that is *deaf* runs for longer than a lease. Each look at the clock shows for how long the body paused before it.
    """
    token, looks = lease.fencing_token, Looks(int(scene.order.lease_s * 1e9), now(), lease.remaining)
    line.ask("grant", key, token, now())
    until = now() + int(_DEAF_LEASES * scene.order.lease_s * 1e9) if deaf else scene.holds_until()
    try:
        while (at := now()) < until:
            looks.look(at)
            left_s = lease.remaining  # 0 once lost, which only a deaf body does not mind
            deadline = at + int(left_s * 1e9) if left_s else 0
            seen = line.ask("fence", key, token)
            yield scene.order.lease_s / _LOOKS / 2
            line.tell("use", key, token, at, deadline, seen)
    finally:
        over = now()
        line.tell("over", key, token, over, looks.has_just_paused(over))
        line.tell("end", key, token, "released" if lease.is_valid else "lost", now())
