"""What random users do above single locks: jobs that run once, elections, and several keys at once."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from dlock_core.errors import DLockError
from dlock_core.slots import every
from proof.simulate.wishes import drawn

if TYPE_CHECKING:
    from dlock_core import AsyncLockClient, AsyncTerm
    from proof.simulate.users import Run

__all__ = ["JOB", "LEADER", "SEVERAL", "lead", "lock_several", "run_job"]

JOB, LEADER, SEVERAL = "job", "leader", ("a", "b", "c")
_SLOT_S = 5


async def run_job(run: Run, client: AsyncLockClient) -> None:
    """Run a job where it is due: what was told as finished is marked, and is not run again."""
    options = drawn(run.chance, JOB)
    options.pop("max_hold", None)
    if run.chance.random() < 0.5:
        del options["timeout"]
    job = client.once(JOB, slot=every(_SLOT_S), **options)
    async with job:
        if job.lease is None:
            return
        slot = int(job.slot)
        if slot <= run.finished:
            run.fail(f"slot {slot} is run after {run.finished} was finished")
        with run.noting(JOB, job.lease):
            await run.work(JOB, JOB, job.lease)
            if run.chance.random() < 0.5:
                await job.finish(b"done")
    if job.last_slot == slot:
        run.finished = slot
        if run.mark() < slot:
            run.fail(f"slot {slot} was told as finished, and the record says {run.mark()}")


async def lead(run: Run, client: AsyncLockClient) -> None:
    """Lead for a term or some."""
    options = drawn(run.chance, LEADER)
    options.pop("stop_grace", None)
    election = client.election(LEADER, value=b"me", **options)

    async def body(term: AsyncTerm) -> None:
        with run.noting(LEADER, term):
            await run.work(LEADER, LEADER, term)
        if run.draining or run.chance.random() < 0.5:
            await term.resign()
            raise run.BodyError

    if run.chance.random() < 0.5:
        await election.run(body)
    async with await election.campaign() as term:
        try:
            await election.try_campaign()
        except DLockError:
            await body(term)
        else:
            run.fail("an election campaigns while it leads")


async def lock_several(run: Run, client: AsyncLockClient) -> None:
    """Hold some keys at once."""
    keys = run.chance.sample(SEVERAL, run.chance.randint(1, len(SEVERAL)))
    async with client.lock_all(keys, **drawn(run.chance, "several")) as leases:
        with ExitStack() as noted:
            for key, lease in leases.items():
                noted.enter_context(run.noting(key, lease))
            for key, lease in leases.items():
                await run.work("several", key, lease)
