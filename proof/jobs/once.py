"""A small world of a job that several processes run once per slot.

Nothing of the job is modelled: each process is :meth:`AsyncLockClient.once`, slot by slot. Its requests and the ends of its bodies wait
for the world, which lets one go on at a time. Chances decide which; whether its reply is lost, or the request, or whether it is applied
later or twice; when time passes meanwhile; who is cut off, and who dies. What is checked at each step: no slot is begun after it was
finished (I13); at most one body runs; the mark in the record never falls; a slot that was told as finished has its mark. In the end every
slot is finished.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from dlock_core.errors import DLockError, OutcomeUnknownError, StoreUnavailableError
from dlock_core.memory import AsyncMemoryStore
from dlock_core.once import finished_in
from dlock_core.testing import AsyncFaultyStore
from proof.jobs.virtual import KEY, World, play

if TYPE_CHECKING:
    from dlock_core import AsyncLease, AsyncOnce
    from proof.jobs.chances import Chances, Outcome

__all__ = ["EXPLORED", "SIMULATED", "Jobs", "play_jobs"]

LEASE_S = 4.0
GRACE_S = LEASE_S / 4
STEP_S = LEASE_S / 8
# What is delivered late has all the time it needs.
_LATE_S = 10.0
# Long enough for another process to take over.
_CUT_S = 2 * LEASE_S
_STEPS_MAX = 3_000
_FATES = ("reply lost", "not sent", "late", "twice")


class Jobs(NamedTuple):
    """How large a world is, and how much may go wrong in it.

    Two negative controls: *deaf* bodies do not stop when they are told to; *forgetful* jobs release without the mark of their slot.
    """

    parties: int
    slots: int
    faults: int
    deaths: int
    failures: int
    waits: int
    cuts: int
    deaf: bool = False
    forgetful: bool = False


SIMULATED = Jobs(parties=3, slots=5, faults=8, deaths=3, failures=3, waits=60, cuts=3)
EXPLORED = Jobs(parties=2, slots=1, faults=2, deaths=1, failures=1, waits=24, cuts=1)


class _BodyFailedError(Exception):
    """The body raises: its slot stays due."""


class _Event:
    """Something that waits for the world: a request, or the end of a body where *verb* is empty."""

    def __init__(self, party: _Party, verb: str = "", request: Any = None, gives_up_at: int | None = None) -> None:
        self.party, self.verb, self.request, self.gives_up_at = party, verb, request, gives_up_at
        self.fate: asyncio.Future[str] = asyncio.get_running_loop().create_future()


class _Store(AsyncFaultyStore):
    """A process's way to the store: each request waits until the world lets it go on."""

    def __init__(self, world: _World, party: _Party) -> None:
        super().__init__(AsyncMemoryStore(world.space))
        self._world, self._party = world, party

    async def _do(self, verb: str, call: Any, request: Any, timeout_s: float) -> Any:
        world = self._world
        fate = await world.wait_for(_Event(self._party, verb, request, world.clock.now() + round(timeout_s * 1e9)))
        if fate == "not sent":
            raise StoreUnavailableError("not sent")
        if fate in ("late", "twice") and verb != "read":
            world.late.append((verb, request))
        if fate == "late":
            raise OutcomeUnknownError("no answer in time")
        answer = await super()._do(verb, call, request, timeout_s)
        if fate == "reply lost":
            raise OutcomeUnknownError("the reply was lost")
        return answer


class _Party:
    """A process that runs all slots, one after the other, until it dies."""

    def __init__(self, world: _World) -> None:
        self.world = world
        self.dead = False
        self.cut_until = 0
        self.running: AsyncLease | None = None
        self.client = world.client(_Store(world, self), f"party {len(world.clients)}")
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        slot = 1
        async with self.client:
            while slot <= self.world.size.slots:
                try:
                    slot = await self._try(slot)
                except (DLockError, _BodyFailedError) as error:
                    self.world.counts[type(error).__name__] += 1
                    await self.world.sleep(STEP_S)

    async def _try(self, slot: int) -> int:
        """Enter once; return the slot to go on with."""
        world = self.world
        async with self.client.once(KEY, slot=slot, stop_grace=GRACE_S) as job:
            if job.lease is None:
                world.counts["busy" if job.busy else "done"] += 1
                if job.busy:
                    await world.sleep(STEP_S)
                return slot if job.busy else slot + 1
            world.begins(slot)
            self.running = job.lease
            try:
                await world.wait_for_end(self)
            finally:
                self.running = None
            await self._finish(job, slot)
        return slot + 1

    async def _finish(self, job: AsyncOnce, slot: int) -> None:
        world = self.world
        if world.size.forgetful and job.lease is not None:
            await job.lease.release()
            world.finished = max(world.finished, slot)
            return
        await job.finish(b"%d" % slot)
        if world.mark() < slot:
            world.violate(f"slot {slot} was told as finished, and the record says {world.mark()}")

    def die(self) -> None:
        """End the process: what it has sent may still arrive, and nothing else of it is heard any more."""
        self.dead, self.running = True, None
        self.world.counts["deaths"] += 1


class _World(World):
    def __init__(self, chances: Chances, size: Jobs) -> None:
        super().__init__(chances, LEASE_S)
        self.size = size
        self.pending: list[_Event] = []
        self.late: list[tuple[str, Any]] = []
        self.parties: list[_Party] = []
        # What the dead wait for.
        self.unheard: list[_Event] = []
        self.ends = False
        self.finished = 0
        self.left = dict(size._asdict())
        self.late_store = AsyncMemoryStore(self.space)

    def mark(self) -> int:
        """Return the slot that was finished last, as the record has it."""
        return int(finished_in(KEY, self.space.records.get(KEY)).slot or 0)

    def begins(self, slot: int) -> None:
        """Check that *slot*, whose body begins, was not finished before (I13)."""
        self.counts["bodies"] += 1
        if slot <= max(self.finished, self.mark()):
            self.violate(f"I13: slot {slot} is begun after it was finished")

    async def wait_for(self, event: _Event) -> str:
        """Wait until the world decides on *event*; for one of the dead, until the end of the world."""
        if self.ends:
            return "not sent"
        (self.unheard if event.party.dead else self.pending).append(event)
        try:
            return await event.fate
        except asyncio.CancelledError:
            self._drop(event)
            raise

    async def wait_for_end(self, party: _Party) -> None:
        """Wait until the body of *party* ends; it stops when it is told to, unless it is deaf.

        Raises: _BodyFailedError: it has stopped, or failed.
        """
        if await self.wait_for(_Event(party)) != "applied":
            raise _BodyFailedError

    def _drop(self, event: _Event) -> None:
        """Forget an event whose process waits no more; a request may have been sent."""
        if event in self.pending:
            self.pending.remove(event)
            self.unheard.append(event)
            if event.verb not in ("", "read"):
                self.late.append((event.verb, event.request))

    async def play(self) -> None:
        """Let the processes live until all slots are done."""
        self.parties = [_Party(self) for _ in range(self.size.parties)]
        tasks = [party.task for party in self.parties]
        await self.turn()
        for _ in range(_STEPS_MAX):
            await self._step(tasks)
            self._check(tasks)
            if self.violation is not None or all(party.dead or party.task.done() for party in self.parties):
                break
        else:
            self.violate("the processes did not come to an end")
        if self.violation is None and self.mark() != self.size.slots and not self.size.forgetful:
            self.violate(f"the last slot that was finished is {self.mark()}, of {self.size.slots}")
        self.ends = True
        for event in [*self.pending, *self.unheard]:
            if not event.fate.done():
                event.fate.set_result("not sent")
        await self.end(tasks)

    async def _step(self, tasks: list[asyncio.Task[None]]) -> None:
        """Let one thing happen: the usual one is that the event that has waited longest goes on, or that time passes."""
        options: list[tuple[float, str, Any]] = []
        possible = [event for event in self.pending if event.party.cut_until <= self.clock.now()]
        if possible:
            options += [(10 if event.verb else 2, "applied", event) for event in possible]
            first = possible[0]
            if first.verb and self.left["faults"]:
                options += [(0.3, fate, first) for fate in _FATES]
            if not first.verb and self.left["failures"]:
                options.append((0.4, "failed", first))
        if not possible or self.left["waits"]:
            options.append((8, "time", None))
        if self.late:
            options.append((2, "delivery", None))
        alive = [party for party in self.parties if not (party.dead or party.task.done())]
        options += [(0.4, what, party) for what in ("death", "cut") if self.left[f"{what}s"] for party in alive]
        await self._do(*options[self.chances.pick([weight for weight, *_ in options])][1:], tasks)

    async def _do(self, what: str, subject: Any, tasks: list[asyncio.Task[None]]) -> None:
        if what == "time":
            self.left["waits"] -= any(event.party.cut_until <= self.clock.now() for event in self.pending)
            await self.pass_time(STEP_S)
        elif what == "delivery":
            verb, request = self.late.pop(0)
            self.counts["late deliveries"] += 1
            await getattr(self.late_store, verb)(request, timeout_s=_LATE_S)
        elif what == "cut":
            self.left["cuts"] -= 1
            self.counts["cuts"] += 1
            subject.cut_until = self.clock.now() + round(_CUT_S * 1e9)
        elif what == "death":
            self.left["deaths"] -= 1
            subject.die()
            for event in [event for event in self.pending if event.party is subject]:
                self._drop(event)
            self.parties.append(_Party(self))
            tasks.append(self.parties[-1].task)
        else:
            self.left["faults"] -= what in _FATES
            self.left["failures"] -= what == "failed"
            self._decide(subject, what)
        await self.turn()

    def _decide(self, event: _Event, fate: str) -> None:
        self.pending.remove(event)
        self.counts[fate] += 1
        event.fate.set_result(fate)

    def _check(self, tasks: list[asyncio.Task[None]]) -> None:
        for event in list(self.pending):
            lease = event.party.running
            if event.gives_up_at is not None and event.gives_up_at <= self.clock.now():
                self._decide(event, "late")
            elif not event.verb and lease is not None and lease.stopping.is_set() and not self.size.deaf:
                self._decide(event, "stopped")
        running = [party for party in self.parties if party.running is not None]
        if len(running) > 1:
            self.violate("two bodies run")
        mark = self.mark()
        if mark < self.finished and not self.size.forgetful:
            self.violate(f"the mark fell from {self.finished} to {mark}")
        self.finished = max(self.finished, mark)
        self.find_errors(tasks)


def play_jobs(chances: Chances, size: Jobs = SIMULATED) -> Outcome:
    """Play a world of this size."""
    return play(_World(chances, size))
