"""The engine: what a client does, performed on the machine in :mod:`dlock_core.lease`.

It is written once, as coroutines that await nothing but the store and a :class:`~dlock_core.engine.handle.Runtime`. The blocking client
runs the same coroutines on a runtime that never suspends. The engine takes no protocol decision: what to send, when to try again, what is
lost and what is ours is read off the machine's states.

A handle is driven by one party at a time: by the caller's acquire or release while *busy* is set, by the scheduler otherwise. While a
request of a held lock is under way, the machine's own state keeps a second one from being sent.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from dlock_core.engine.closing import release_all
from dlock_core.engine.driver import Driver, id_of, new_rvn
from dlock_core.engine.event_hook import note_event, note_wait
from dlock_core.engine.handle import Handle, Runtime, View, Watch
from dlock_core.engine.keeper import Keepers
from dlock_core.engine.membership import leave_members
from dlock_core.engine.observations import Observations
from dlock_core.engine.progress import tell_wait
from dlock_core.engine.raised import closed_error, given_back_error, lost_error, refused_error, unseen_error
from dlock_core.engine.renewals import Renewals
from dlock_core.engine.sessions import Sessions
from dlock_core.engine.user_calls import guarded_logger
from dlock_core.errors import (
    ConfigurationError,
    LockLostError,
    RecordError,
    StoreError,
    StoreSetupError,
    StoreUnavailableError,
)
from dlock_core.events import EventKind
from dlock_core.lease import due_at, is_applied
from dlock_core.members import kind_error
from dlock_core.record import LockRecord, State
from dlock_core.states import (
    Begin,
    Confirming,
    Due,
    Ended,
    Event,
    Failure,
    Free,
    Held,
    Lost,
    New,
    Observation,
    Payload,
    Probe,
    Progress,
    Releasing,
    Renew,
    Seeking,
    Terms,
    Wait,
)
from dlock_core.store import Claim, Reply, is_withdrawn
from dlock_core.timings import NANOS, NEVER, Timings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from dlock_core.engine.client_context import ClientContext
    from dlock_core.options import LockOptions
    from dlock_core.store import AsyncLockStore

    Look = Callable[[Handle], object]

_log = guarded_logger("dlock.engine")

_RENEWAL_TRIES = 2


class Engine:
    """Drives all locks of one client. *store* is the async face; the runtime decides the colour."""

    def __init__(self, store: AsyncLockStore, runtime: Runtime, context: ClientContext) -> None:
        self.store = store
        self.runtime = runtime
        self.driver = Driver(store, runtime)
        self.sessions = self.driver.sessions = Sessions(self)
        self.keepers = self.driver.keepers = Keepers(self, context)
        self.renewals = Renewals(self.driver, self.keepers)
        self.closed = False
        self._observations = Observations(runtime, context.observed_in)

    # ---- acquiring

    def acquire(
        self,
        key: str,
        options: LockOptions,
        timings: Timings,
        give_up_at: int | None = None,
        others: Sequence[str] = (),
        *,
        view: View,
        look: Look | None = None,
    ) -> Coroutine[Any, Any, Handle]:
        """Obtain *key* for *view*, or raise; cancelled at any point, it leaves nothing but a clean-up that the scheduler follows.

        *others* are keys that will be asked for next: if this one must be waited for, they are observed meanwhile, and looked at again
        when its holder has renewed: most likely the same one holds and renews them. *look* is called after each step, and ends the wait by
        raising.
        """
        handle = self._new_handle(key, options, timings, view)
        give_up_at = handle.asked_at + timings.wait_ns if give_up_at is None else give_up_at
        note_event(self.driver, EventKind.REQUESTED, handle, handle.asked_at)
        if timings.wait_ns and key in self.driver.lines:
            return self._acquire_in_line(handle, give_up_at, others, look)
        return self.pursue(handle, self._begin(handle, give_up_at), others, look)

    async def _acquire_in_line(
        self, handle: Handle, give_up_at: int, others: Sequence[str], look: Look | None
    ) -> Handle:
        """Begin the attempt when its turn has come: it must not pass those that wait already."""
        note_wait(self.driver, handle)
        try:
            shown = await self.driver.lines.enter(handle, give_up_at)
            effect = self._begin(handle, give_up_at)
            if shown is not None:
                # Refused by what the first in line was shown: a thousand that end together need not ask for it.
                reply = Reply(applied=False, record=shown)
                effect = self.driver.advance(handle, self.driver.heard(handle, id_of(effect), reply, new_rvn()))
            return await self.pursue(handle, effect, others, look)
        except BaseException as problem:
            if type(handle.state) is New:
                self._fail_acquire(handle, problem)
            raise
        finally:
            self.driver.lines.leave(handle, failed=False)

    def begin(
        self, key: str, options: LockOptions, timings: Timings, give_up_at: int, view: View
    ) -> tuple[Handle, Any]:
        """Begin an attempt at *key* for *view*; return it, and its first request, which is to be sent."""
        handle = self._new_handle(key, options, timings, view)
        return handle, self._begin(handle, give_up_at)

    def _new_handle(self, key: str, options: LockOptions, timings: Timings, view: View) -> Handle:
        started = self.runtime.now()
        wall_ns = self.runtime.wall_ms() * 1_000_000 - started
        ticket = new_rvn()  # names the attempt, and its first write
        state = New(Terms(key, ticket, timings, wall_ns))
        handle = Handle(key, options, state, asked_at=started, granted_at=started, tell_at=started + NANOS)
        handle.attach(view)
        return handle

    def _begin(self, handle: Handle, give_up_at: int) -> Any:
        handle.seen = self._observations.get(handle.key)
        return self.driver.advance(handle, Begin(handle.state.terms.ticket, give_up_at, handle.seen))

    async def pursue(
        self,
        handle: Handle,
        effect: Any,
        others: Sequence[str] = (),
        look: Look | None = None,
    ) -> Handle:
        """Go on with an attempt whose next request, if it needs one, is *effect*; see :meth:`acquire`."""
        attend = partial(self._attend, handle, others, look)
        error: StoreError | None = None
        try:
            if self.closed:
                await self._leave(handle, effect)
            error = await self.driver.drive(handle, effect, attend)
            if self.closed or error is not None:
                await attend(None, error)
        except BaseException as problem:
            self._fail_acquire(handle, problem)
            raise
        finally:
            if handle.line is not None:
                self.driver.lines.leave(handle, failed=error is not None)
        # What was granted a moment ago may be lost by now, if this process stood still meanwhile: its lease tells.
        if type(handle.state) in (Held, Lost):
            return handle
        raise self._refused(handle, error)

    def _fail_acquire(self, handle: Handle, problem: BaseException) -> None:
        """Have the scheduler clean up behind an acquire that *problem* ends."""
        note_event(
            self.driver, EventKind.REFUSED, handle, handle.asked_at, error=str(problem) or type(problem).__name__
        )
        sent = handle.state.in_flight if type(handle.state) is Seeking else None
        if sent is not None and is_withdrawn(problem, sent.rvn):
            self.driver.advance(handle, Failure(sent.rvn, unknown=False, new_rvn=new_rvn()))
        self.driver.give_up(handle)
        self._observations.save()

    def _refused(self, handle: Handle, error: StoreError | None) -> Exception:
        """End an acquire that was refused; return what it raises."""
        self.driver.settle(handle)
        holder = getattr(handle.state, "holder", None)
        self._observations.note(handle.key, holder)
        self._observations.save()
        waited_ns = self.runtime.now() - handle.asked_at
        held = self.driver.held.get(handle.key)
        refusal = kind_error(holder, "") or refused_error(handle, waited_ns, error, held, self.runtime)
        note_event(self.driver, EventKind.REFUSED, handle, handle.asked_at, record=holder, error=str(refusal))
        self.driver.tell()
        return refusal

    async def _attend(
        self, handle: Handle, others: Sequence[str], look: Look | None, effect: Any, error: StoreError | None
    ) -> None:
        """Do what belongs between two steps of an attempt, of which *effect* is the next; None ends it."""
        state = handle.state
        if type(state) is Seeking and state.seen is not None:
            handle.changes += handle.changes < 0 or handle.seen is None or handle.seen.version != state.seen.version
            handle.seen = state.seen
            self._observations.keep(handle.key, state.seen)
        shown = state.shown if type(state) is Seeking else None
        # The sessions of who has it are looked at first: the dead keep it in no way.
        if type(effect) is Wait and (wrong := kind_error(shown, "")) is not None:
            raise wrong
        if isinstance(error, (RecordError, StoreSetupError)):
            raise error
        if self.closed:
            await self._leave(handle, effect)
        if look is not None:
            look(handle)
        now = self.runtime.now()
        until = _waits_until(effect, now)
        if until is None:
            return
        note_wait(self.driver, handle)
        tell_wait(handle, until, now)
        if others and handle.looked_at != handle.changes:
            handle.looked_at = handle.changes
            await self._look_ahead(others, handle.state.terms.timings)
        if type(effect) is Wait and type(state) is Seeking and shown is not None and shown.held:
            await self.driver.lines.enter(handle, state.give_up_at)
            if self.closed:
                await self._leave(handle, effect)

    async def _leave(self, handle: Handle, effect: Any) -> None:
        """The client was closed meanwhile: nobody will get this lock, and *effect*, the next step, is not made."""
        if type(handle.state) in (Held, Confirming):
            try:
                await self.release(handle, None)
            except StoreError as error:
                raise closed_error(handle.name) from error
        elif type(effect) not in (Wait, Probe):
            # Said to be under way, it would be looked for until its lease ends.
            self.driver.fail(handle, effect, unknown=False)
        raise closed_error(handle.name)

    async def _look_ahead(self, keys: Sequence[str], timings: Timings) -> None:
        """Begin to observe *keys*: a dead holder of several then costs one lease, and not one lease for each."""
        for key in keys:
            try:
                record = await self.store.read(key, timeout_s=timings.acquire_timeout_ns / NANOS)
            except StoreError as error:
                _log.debug("looking ahead at lock %r failed: %s", key, error)
                return
            self._observations.note(key, record)

    def observed(self, key: str) -> Observation | None:
        """Return what this client has observed of *key* so far."""
        return self._observations.get(key)

    def begin_observing(self, record: LockRecord) -> Observation:
        """Return since when the held *record* is observed: from now on, unless that was begun."""
        self._observations.note(record.key, record)
        self._observations.save()
        seen = self._observations.get(record.key)
        assert seen is not None  # just noted
        return seen

    def discard(self, handle: Handle) -> None:
        """Have the scheduler release a lock whose caller was interrupted."""
        request = self.driver.advance_from((Held, Lost), handle, Free(new_rvn()))
        self.driver.fail(handle, request, unknown=False)

    def part(self, handle: Handle, view: View) -> bool:
        """Take *view* off *handle*; whether it was the last."""
        with self.runtime.mutex:
            self.keepers.notice_end(handle)
            last = handle.detach(view)
        self.driver.tell()
        return last

    # ---- giving back

    async def release(self, handle: Handle, payload: Payload | None, view: View | None = None) -> None:
        """Free the key; where *view* is given, take it off, and free the key if it was the last.

        Returns when the store acknowledged it, or the lock proved lost (see ``handle.loss``).

        Raises: the store's error, where one request time-out brought no answer; the scheduler then follows it up. LeaseStateError: a close
            of the client, made elsewhere, has given the lock back before.
        """
        event = Free(new_rvn(), payload)
        until = self.runtime.now() + handle.state.terms.timings.timeout_ns
        sent = [event.new_rvn]
        begins = True
        try:
            begins, effect = self._begin_release(handle, event, view)
            if not begins:
                if view is not None and handle.is_given_back:
                    raise given_back_error(handle)
                return
            # The use of a member has ended with that of its session, which need not be free for the place to be.
            has_left = handle.membership is not None and await leave_members(self.driver, handle, handle.membership)
            error = await self.driver.drive(handle, effect)
            while type(handle.state) is Releasing and due_at(handle.state) <= self.runtime.now() < until:
                sent.append(new_rvn())
                error = await self.driver.drive(handle, self.driver.advance(handle, Due(sent[-1])))
        except BaseException:
            self.driver.interrupted(handle, *sent)
            raise
        finally:
            if begins and type(handle.state) is not Ended:
                self.driver.settle(handle)
        if type(handle.state) is Releasing and handle.loss is None and not has_left:
            raise error or unseen_error(handle, "release")

    def _begin_release(self, handle: Handle, event: Event, view: View | None) -> tuple[bool, Any]:
        """Return whether a release begins, and its request.

        In one step with the parting: between the two, the scheduler would release what nobody has in hand any more, without the payload.
        """
        effect = None
        with self.runtime.mutex:
            if view is not None:
                handle.note_parting()
                view._closed = True
                self.keepers.notice_end(handle)
            last = view is None or handle.detach(view)
            begins = last and type(handle.state) in (Confirming, Held, Lost)
            if begins:
                handle.busy = True
                effect = self.driver.step(handle, event)
        self.driver.tell()
        return begins, effect

    # ---- renewing

    async def renew(self, handle: Handle, timings: Timings | None = None, payload: Payload | None = None) -> None:
        """Renew now, at most twice; waits for a renewal that is under way. A lock that a session keeps is renewed by a beat of that.

        Raises: LockLostError; the store's error where nothing was applied.
        """
        if handle.renewal is not handle and timings is None and payload is None:
            with suppress(LockLostError):
                await self.renew(handle.renewal)
            self.check(handle)
            return
        error: StoreError | None = None
        sent: list[str] = []
        since = self.runtime.now()
        for _ in range(_RENEWAL_TRIES):
            event = Renew(new_rvn(), timings, payload)
            sent.append(event.new_rvn)
            try:
                effect = await self._begin_renewal(handle, event)
                if effect is not None:
                    error = await self.driver.drive(handle, effect)
            except BaseException:
                self.driver.interrupted(handle, event.new_rvn)
                raise
            if type(handle.state) is not Held:
                raise lost_error(handle)
            if is_applied(handle.state, event, sent, since):
                return
        raise error or unseen_error(handle, "renewal")

    async def ensure(self, handle: Handle, min_remaining_ns: int, timings: Timings | None) -> int:
        """Return the token while the lock is held for so long at least; renews, under *timings*, if too little remains.

        Raises: LockLostError; LeaseStateError after the release; the store's error where the renewal failed and the lock still is held.
        """
        self.check(handle)
        self._check_bound(handle, min_remaining_ns)
        if self._remaining_ns(handle) < min_remaining_ns:
            await self.renew(handle, timings)
            if self._remaining_ns(handle) < min_remaining_ns:
                left, wanted = self._remaining_ns(handle) / NANOS, min_remaining_ns / NANOS
                raise StoreUnavailableError(
                    f"lock {handle.name!r} has {left:.2f} s left after a slow renewal, {wanted:.2f} s were asked for; ask again",
                    key=handle.name,
                )
        return handle.token

    def _check_bound(self, handle: Handle, min_remaining_ns: int) -> None:
        """Raise ConfigurationError where no renewal could give so much, since ``max_hold`` or ``stall_timeout`` ends before."""
        state = handle.state
        if type(state) is Held and state.hold_until - self.runtime.now() < min_remaining_ns:
            left = max(0.0, (state.hold_until - self.runtime.now()) / NANOS)
            raise ConfigurationError(
                f"lock {handle.name!r} can be held for {left:.2f} s more by its max_hold or stall_timeout, "
                f"{min_remaining_ns / NANOS:.2f} s were asked for"
            )

    def check(self, handle: Handle) -> None:
        """Raise if the lock is not held now, also where no thread has noticed yet."""
        if type(handle.state) is Held:
            if handle.is_valid(self.runtime.now()):
                return
            with self.runtime.mutex:
                self.keepers.notice_end(handle)
            self.driver.tell()
        if type(handle.state) is not Held:
            raise lost_error(handle)

    def progress(self, handle: Handle) -> None:
        """Note that the body works.

        Raises: LockLostError; LeaseStateError after the release.
        """
        self.driver.advance_from((Held,), handle, Progress())
        if type(handle.state) is not Held:
            raise lost_error(handle)

    def holds(self, key: str) -> bool:
        """Whether this client holds *key* now, also as a member of a shared lock."""
        with self.runtime.mutex:
            handle = self.driver.held.get(key)
            handles = list(self.driver.held.values()) if handle is None else [handle]
        return any(
            self.is_valid(each)
            for each in handles
            if each.key == key or (each.membership and each.membership.key == key)
        )

    def is_valid(self, handle: Handle) -> bool:
        """Whether the lock is held now."""
        return handle.is_valid(self.runtime.now())

    def watch(self, handle: Handle, watch: Watch) -> None:
        """Begin to watch for risk; at once where the lock is lost already."""
        with self.runtime.mutex:
            state = handle.state
            lost = handle.loss is not None
            if not lost:
                handle.watches = (*handle.watches, watch)
                renewing = handle.renewal.state
                if type(state) is Held and type(renewing) is Held and renewing.at_risk and watch.safe_ns is None:
                    self.driver.fire(watch)
                self.driver.schedule(handle)
        if lost:
            watch.fire(self.runtime)
        self.driver.tell()

    def _remaining_ns(self, handle: Handle) -> int:
        return max(0, handle.remaining_until - self.runtime.now())

    async def _begin_renewal(self, handle: Handle, event: Renew) -> Any:
        while True:
            with self.runtime.mutex:
                state = handle.state
                if type(state) is not Held:
                    return None
                if state.in_flight is None:
                    # Still under the mutex: the scheduler, or another thread, may begin one as well.
                    return self.driver.step(handle, event)
                signal = self.runtime.signal()
                handle.signals = (*handle.signals, signal)
            await signal.wait(state.timings.timeout_ns / NANOS)

    async def close(self, until: int = NEVER) -> list[Exception]:
        """Release everything by *until* and return the errors, see :func:`dlock_core.engine.closing.release_all`."""
        self.closed = True
        self.driver.lines.admit_all()
        return await release_all(self, until)

    # ---- others' locks

    async def read(self, key: str, timeout_s: float) -> LockRecord | None:
        """Return the record under *key*, hidden ones excepted."""
        record = await self.store.read(key, timeout_s=timeout_s)
        return None if record is None or record.state is State.GONE else record


def _waits_until(effect: Any, now: int) -> int | None:
    """Return until when *effect* waits, by itself or in the server; None if it does not."""
    if type(effect) is Wait:
        return effect.until
    return now + effect.wait_ns if type(effect) is Claim and effect.wait_ns else None
