"""Random users of the asyncio client, in virtual time: ``python -m proof.simulate.users --count N``.

Explorations and walks know the machine; here are those who call it. Users obtain locks of all kinds with options drawn by chance, work
under them, are cancelled, fail, and drop their leases; they run jobs, lead, and hold several keys at once; clients are closed; operators
break locks; replies are lost, late or doubled. Whatever happens, no two who exclude each other hold a lock at once, tokens rise, a loss is
told, a slot that was finished is not run again, nobody sees an error that is not dlock's or a cancellation that nobody asked for, no call
hangs, and in the end each lock can be had. What a seed finds can be seen again with ``--first SEED --count 1``.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import gc
import logging
import random
import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from dlock_core.errors import DLockError
from dlock_core.memory import AsyncMemoryStore, MemorySpace
from dlock_core.once import finished_in
from dlock_core.testing import VERBS, FakeClock
from proof.simulate.layers import JOB, LEADER, SEVERAL, lead, lock_several, run_job
from proof.simulate.travelling import AbleStore, TravellingStore, VirtualLoop
from proof.simulate.wishes import PERMITS, drawn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from dlock_core import AsyncLease, AsyncLockClient

__all__ = ["Run", "main", "ran"]

USERS, CLIENTS, STEPS = 5, 3, 200
_TURNS_MAX = 30
# So many rounds of the event loop, and a little time in each, are enough for whatever may end to end.
_ROUNDS_MAX, _ROUND_S = 4_000, 0.05
_STUCK_S, _STDERR = 60, 2
_FAULTS = ("lose_reply", "lose_request", "fail", "delay", "duplicate")
_PAUSES_S = (0.1, 1, 3, 8)
_KINDS = {
    "mutex": SEVERAL,
    "shared": ("rw",),
    "permits": ("permits",),
    "closed": ("closed",),
    JOB: (JOB,),
    LEADER: (LEADER,),
}
_LAYERS = {JOB: run_job, LEADER: lead, "several": lock_several}
# So many looks after its end a loss must have been told.
_LOOKS_MAX = 60


class Hold(NamedTuple):
    """A lease that a user has, and what it excludes: as many permits of so many."""

    key: str
    lease: AsyncLease
    weight: int
    permits: int


class Run:
    """One run, of the users and their world; *seed* gives all that is drawn."""

    class BodyError(Exception):
        """What a user's own work raises."""

    def __init__(self, seed: int) -> None:
        self.violation: str | None = None
        self.way: list[str] = []
        self.grants = 0
        self.chance = random.Random(f"users {seed}")
        random.seed(seed)  # the spread of waits
        self.clock = FakeClock()
        self._memory = AsyncMemoryStore(MemorySpace(self.clock.now))
        self.finished, self.draining = 0, False
        self._stores: list[TravellingStore] = []
        self._clients: list[AsyncLockClient] = []
        self._users: list[asyncio.Task[None]] = []
        self._holds: dict[AsyncLease, Hold] = {}
        self._tokens: dict[str, int] = {}
        self._ended_looks: dict[AsyncLease, int] = {}
        self._stopped: set[asyncio.Task[None] | None] = set()

    async def run(self) -> None:
        """Let users and trouble go on for some steps, and then see that everything ends."""
        asyncio.get_running_loop().set_exception_handler(lambda _, said: self.fail(f"the loop was told: {said}"))
        for _ in range(CLIENTS):
            await self._open()
        self._users = [asyncio.create_task(self._use()) for _ in range(USERS)]
        for _ in range(STEPS):
            for _ in range(self.chance.randrange(1, _TURNS_MAX)):
                await asyncio.sleep(0)
                self._look()
            await self._happen()
            if self.violation is not None:
                return
        await self._end()

    def let_go(self) -> None:
        """Drop what users have left, which then lapses: what a task has raised keeps that, too."""
        for left in (self._holds, self._users, self._stopped):
            left.clear()
        gc.collect()

    # ---- what must hold

    def fail(self, violation: str) -> None:
        """Take note of *violation*; the first one counts."""
        self.violation = self.violation or violation

    def _look(self) -> None:
        by_key: dict[str, list[Hold]] = {}
        for hold in self._holds.values():
            if hold.lease.is_valid:
                by_key.setdefault(hold.key, []).append(hold)
            else:
                self._look_at_loss(hold)
        for key, holds in by_key.items():
            if sum(hold.weight for hold in holds) > min(hold.permits for hold in holds):
                self.fail(f"{key!r} is held by {[hold.lease for hold in holds]} at once")

    def _look_at_loss(self, hold: Hold) -> None:
        """See that the loss of what is not valid was told, and that no term or job was given back under its body."""
        lease = hold.lease
        is_given_back = lease._closed or lease._handle.is_given_back
        if is_given_back and not lease._closed and hold.key in (JOB, LEADER):
            self.fail(f"{lease!r} was given back under its body")
        if is_given_back or lease._engine.closed:
            return
        self._ended_looks[lease] = looks = self._ended_looks.get(lease, 0) + 1
        if looks > _LOOKS_MAX and not (lease.lost.is_set() and lease.stopping.is_set()):
            self.fail(f"the loss of {lease!r} was not told")

    def mark(self) -> int:
        """Return the slot of the job that was finished last, as its record has it."""
        return int(finished_in(JOB, self._memory.space.records.get(JOB)).slot or 0)

    async def _ended(self, what: str, work: Awaitable[object]) -> None:
        """Wait for *work*, in virtual time; only an error of dlock's may come out."""
        task = asyncio.ensure_future(work)
        for _ in range(_ROUNDS_MAX):
            await asyncio.sleep(0)
            if task.done():
                break
            self.clock.advance(_ROUND_S)
        else:
            self.fail(f"{what} hangs")
            task.cancel()
            return
        error = None if task.cancelled() else task.exception()
        if isinstance(error, BaseExceptionGroup):
            _, error = error.split(DLockError)
        if error is not None and not isinstance(error, DLockError):
            self.fail(f"{what} raised {error!r}")

    async def _end(self) -> None:
        """See that everybody comes to an end or can be stopped, that each lock can be had, and that nothing is left."""
        self.draining = self.chance.random() < 0.5
        self._stopped.clear()
        gc.collect()
        if self.draining:
            await self._ended("a user", asyncio.wait(self._users))
        for user in self._users:
            self._stop(user)
        await self._ended("a user", asyncio.wait(self._users))
        del user  # what it has raised keeps leases
        self.let_go()
        client = await self._open()
        for store in self._stores:
            store.ways = (1.0, 1.0)
            await store.deliver()
        for key, options in self._obtained():
            await self._ended(f"acquire({key!r})", self._obtain(client, key, options))
        for client in self._clients:
            await self._ended("close", client.close())
        for _ in range(_TURNS_MAX):
            await asyncio.sleep(0)
        if left := asyncio.all_tasks() - {asyncio.current_task()}:
            self.fail(f"tasks are left: {left}")

    def _obtained(self) -> list[tuple[str, dict[str, Any]]]:
        whole: dict[str, dict[str, Any]] = {
            "shared": {"mode": "write"},
            "permits": {"permits": PERMITS, "weight": PERMITS},
            JOB: {"replace_data": False},
        }
        return [(key, whole.get(kind, {})) for kind, keys in _KINDS.items() if kind != "closed" for key in keys]

    async def _obtain(self, client: AsyncLockClient, key: str, options: dict[str, Any]) -> None:
        try:
            lease = await client.acquire(key, timeout=100, **options)
        except DLockError as error:
            self.fail(f"{key!r} cannot be had in the end: {error}")
        else:
            await lease.release()

    # ---- what happens

    async def _open(self) -> AsyncLockClient:
        store = self.chance.choice([TravellingStore, AbleStore])(self._memory, self.chance)
        options: dict[str, Any] = {
            "lease_duration": self.chance.choice([4, 10]),
            "renewal": self.chance.choice(["lock", "lock", "session", "auto"]),
            "token_floor": self.chance.choice([1, 1, 50]),
        }
        client = self.clock.aclient(store, request_timeout=0.5, **options)
        self._stores.append(store)
        self._clients.append(client)
        return await client.__aenter__()

    async def _happen(self) -> None:
        events = (self._pass, self._meet_fault, self._deliver, self._cancel, self._break, self._close)
        [event] = self.chance.choices(events, (63, 15, 5, 7, 7, 3))
        self.way.append(event.__name__.strip("_"))
        await event()

    async def _pass(self) -> None:
        self.clock.advance(self.chance.choice([0.05, 0.2, 0.5, 1, 1, 2, 2, 15]))

    async def _meet_fault(self) -> None:
        plan: Callable[[str, int], None] = getattr(self.chance.choice(self._stores), self.chance.choice(_FAULTS))
        plan(self.chance.choice(VERBS), self.chance.choice([1, 1, 2, 5]))

    async def _deliver(self) -> None:
        for store in self._stores:
            await store.deliver()

    async def _cancel(self) -> None:
        number = self.chance.randrange(USERS)
        self._stop(self._users[number])
        await self._ended("a user", asyncio.wait([self._users[number]]))
        self._users[number] = asyncio.create_task(self._use())

    def _stop(self, user: asyncio.Task[None]) -> None:
        self._stopped.add(user)
        user.cancel()

    async def _break(self) -> None:
        key = self.chance.choice([key for key, _ in self._obtained()])  # not of a lock that has no lease to wait for
        client = self.chance.choice(self._clients)

        async def broken() -> None:
            record = await client.get(key)
            if record is not None and record.held:
                await client.break_lock(key, fencing_token=record.fencing_token)

        await self._ended("a break", broken())

    async def _close(self) -> None:
        client = self._clients.pop(self.chance.randrange(len(self._clients)))
        await self._ended("close", client.close())
        await self._open()

    # ---- users

    async def _use(self) -> None:
        while not self.draining:
            try:
                await self._hold_once()
            except (self.BodyError, DLockError) as error:
                self.way.append(f"{type(error).__name__}: {error}")
            except asyncio.CancelledError:
                if asyncio.current_task() not in self._stopped:
                    self.fail("a user was cancelled, and nobody asked for that")
                raise
            except Exception as error:  # noqa: BLE001  # this is what is looked for
                self.fail(f"a user met {error!r}")
            await asyncio.sleep(self.chance.random())

    async def _hold_once(self) -> None:
        chance, client = self.chance, self.chance.choice(self._clients)
        kind = chance.choice([*_KINDS, "several", "mutex", "shared"])
        if kind in _LAYERS:
            self.way.append(kind)
            await _LAYERS[kind](self, client)
            return
        key, options = chance.choice(_KINDS[kind]), drawn(chance, kind)
        self.way.append(f"acquire {key} {options}")
        lease = await client.acquire(key, **options)
        self._note(kind, key, lease, options)
        try:
            if chance.random() < 0.7:
                async with lease:
                    await self.work(kind, key, lease)
            else:
                await asyncio.sleep(chance.choice(_PAUSES_S))
                if kind == "closed" or chance.random() < 0.7:  # else it is dropped
                    await lease.release()
        finally:
            self._holds.pop(lease, None)

    def _note(self, kind: str, key: str, lease: AsyncLease, options: dict[str, Any]) -> None:
        self.grants += 1
        self.way.append(f"granted {key} {lease.fencing_token}")
        if kind in ("mutex", "closed"):
            if lease.fencing_token <= self._tokens.get(key, 0):
                self.fail(f"{key!r}: token {lease.fencing_token} after {self._tokens[key]}")
            self._tokens[key] = lease.fencing_token
        self._note_mode(key, lease, options.get("mode", "write"), options)
        self._look()

    def _note_mode(self, key: str, lease: AsyncLease, mode: str, options: dict[str, Any]) -> None:
        """Say what *lease* excludes: who reads has one of many permits, who writes, or has a mutex, all."""
        permits = options.get("permits", USERS)
        weight = options.get("weight", 1 if mode == "read" else permits)
        self._holds[lease] = Hold(key, lease, weight, permits)

    @contextmanager
    def noting(self, key: str, lease: AsyncLease) -> Iterator[None]:
        """Look at *lease*, which excludes all others from *key*, for as long as its user has it."""
        self._note("mutex", key, lease, {})
        try:
            yield
        finally:
            self._holds.pop(lease, None)

    async def work(self, kind: str, key: str, lease: AsyncLease) -> None:
        """Do this and that under *lease*; an error of dlock's ends it, or one of the user's own."""
        chance = self.chance
        for _ in range(chance.randrange(4)):
            act = chance.choice(["pause", "pause", "ensure", "renew", "look", "raise", "convert"])
            self.way.append(f"{act} {key}")
            if act == "pause":
                await asyncio.sleep(chance.choice(_PAUSES_S))
                lease.progress()
            elif act == "ensure":
                await lease.ensure(chance.choice([0, 1, 3]))
            elif act == "renew":
                await lease.renew(lease_duration=None if kind == "closed" else chance.choice([2, 4, 9]))
            elif act == "look":
                repr((lease, lease.remaining, lease.data, lease.slot, lease.wanted, lease.loss))
            elif act == "raise":
                raise self.BodyError
            elif kind == "shared":
                await self._convert(key, lease)

    async def _convert(self, key: str, lease: AsyncLease) -> None:
        if self._holds[lease].weight > 1:
            await lease.downgrade()
            self._note_mode(key, lease, "read", {})
        elif await lease.try_upgrade() is not None:
            self._note_mode(key, lease, "write", {})
        self._look()


def ran(seed: int) -> Run:
    """Return a run of its own event loop; one that stands still is ended with all threads' stacks."""
    faulthandler.dump_traceback_later(_STUCK_S, exit=True, file=_STDERR)
    run = Run(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # of leases that users drop
            with asyncio.Runner(loop_factory=lambda: VirtualLoop(run.clock)) as runner:
                runner.run(run.run())
            run.let_go()
    finally:
        faulthandler.cancel_dump_traceback_later()
    return run


def main(argv: Sequence[str] | None = None) -> int:
    """Run, and print what was found; return 1 if something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m proof.simulate.users", description=__doc__)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--count", type=int, default=2_000)
    options = parser.parse_args(argv)
    logging.getLogger("dlock").addHandler(logging.NullHandler())  # locks are lost all the time
    grants = wrong = 0
    for seed in range(options.first, options.first + options.count):
        run = ran(seed)
        grants += run.grants
        if run.violation is not None:
            wrong += 1
            print(f"seed {seed}: {run.violation}", *run.way, sep="\n    ")
    print(f"users: {options.count:,} runs, {grants:,} grants, {wrong} wrong", flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
