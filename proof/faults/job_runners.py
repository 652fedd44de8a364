"""Parties that run jobs: on each key the slot that is due, again and again; the book knows which one that is.

``runner``: in threads, ``arunner``: in tasks. Two negative controls: ``deaf-runner``, whose bodies do not look at the end of their lease,
and ``forgetful``, which releases a finished job without the mark of the slot.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from dlock_core import aconnect, connect
from dlock_core.errors import DLockError, LockLostError
from proof.faults.leaders import GRACE, effects
from proof.faults.party import in_threads, now, opened, told

if TYPE_CHECKING:
    from dlock_core import AsyncLockClient, LockClient
    from proof.faults.book_line import Line
    from proof.faults.party import Scene

__all__ = ["run_in_tasks", "run_jobs"]

_WAITS_S = 20


def run_jobs(scene: Scene) -> None:
    """Run jobs, in a thread for each key."""
    with connect(scene.order.url, **opened(scene.order)) as client:
        in_threads(scene, _run_key, client)


def _run_key(scene: Scene, key: str, client: LockClient) -> None:
    line = scene.line()
    while True:
        try:
            _run_slot(scene, line, key, client)
        except LockLostError:
            continue
        except DLockError as error:
            told(line, error)
        time.sleep(scene.computes_s())  # the others have their turn


def _run_slot(scene: Scene, line: Line, key: str, client: LockClient) -> None:
    deaf = scene.order.kind == "deaf-runner"
    slot = _next_slot(line, key)
    with client.once(key, slot=slot, timeout=_WAITS_S, stop_grace=scene.order.lease_s / GRACE) as job:
        lease = job.lease
        if lease is None:
            line.tell("done", key, job.last_slot or 0)
            return
        line.tell("begun", key, slot, lease.fencing_token)
        for pause_s in effects(scene, line, key, lease, deaf=deaf):
            if deaf:
                time.sleep(pause_s)
            elif lease.stopping.wait(pause_s):
                break
        if scene.order.kind == "forgetful":
            lease.release()
        else:
            job.finish()
        line.tell("finished", key, slot, lease.fencing_token)


async def run_in_tasks(scene: Scene) -> None:
    """Do as :func:`run_jobs`, in a task for each key."""
    async with aconnect(scene.order.url, **opened(scene.order)) as client, asyncio.TaskGroup() as tasks:
        for key in scene.order.keys:
            tasks.create_task(_run_key_in_task(scene, key, client))


async def _run_key_in_task(scene: Scene, key: str, client: AsyncLockClient) -> None:
    line = scene.line()
    while True:
        try:
            await _run_slot_in_task(scene, line, key, client)
        except LockLostError:
            continue
        except DLockError as error:
            told(line, error)
        await asyncio.sleep(scene.computes_s())


async def _run_slot_in_task(scene: Scene, line: Line, key: str, client: AsyncLockClient) -> None:
    slot = _next_slot(line, key)
    async with client.once(key, slot=slot, timeout=_WAITS_S, stop_grace=scene.order.lease_s / GRACE) as job:
        lease = job.lease
        if lease is None:
            line.tell("done", key, job.last_slot or 0)
            return
        line.tell("begun", key, slot, lease.fencing_token)
        for pause_s in effects(scene, line, key, lease):
            await asyncio.sleep(pause_s)
            if lease.stopping.is_set():
                break
        await job.finish()
        line.tell("finished", key, slot, lease.fencing_token)


def _next_slot(line: Line, key: str) -> int:
    slot: int = line.ask("slot", key)
    line.tell("wait", key, now())
    return slot
