"""Shared locks on the engine: obtains a place among the members of a record, under a session that is a lock like any other.

What may be written is decided by :mod:`dlock_core.members`; whether a session is over, by the machine, which takes it over as it would any
lock. A lease of a shared lock is that of its session: its renewals, its risk and its loss are those of a lock.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import TYPE_CHECKING

from dlock_core.engine.driver import jitter, new_rvn
from dlock_core.engine.event_hook import note_shared
from dlock_core.engine.membership import Membership, find_evicted, send_step
from dlock_core.engine.progress import holder_in_words, tell_grant
from dlock_core.engine.raised import closed_error, waiting_time, waits_for_itself_error
from dlock_core.engine.sessions import Looking
from dlock_core.engine.user_calls import guarded_logger
from dlock_core.errors import (
    AcquireTimeoutError,
    ConfigurationError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
)
from dlock_core.events import EventKind
from dlock_core.members import (
    PERMIT,
    READ,
    WANT,
    WRITE,
    Wish,
    in_the_way,
    join,
    kind_error,
    leave,
    member_of,
    pass_on,
    session_key,
    token_of,
)
from dlock_core.record import KEY_MAX_BYTES, MEMBERS_MAX, SessionRef
from dlock_core.store import Claim
from dlock_core.timings import NANOS

if TYPE_CHECKING:
    from dlock_core.engine.engine import Engine
    from dlock_core.engine.handle import Handle, View
    from dlock_core.options import LockOptions
    from dlock_core.record import LockRecord
    from dlock_core.store import Replace
    from dlock_core.timings import Timings

_log = guarded_logger("dlock.engine")

# The keys of the sessions of its members are longer than its own.
_KEY_MAX_BYTES = KEY_MAX_BYTES - len(session_key("", MEMBERS_MAX))
_AT_ONCE_MAX = 16
"""How often a write is decided anew at once, where another client's came in between."""
# How a waiter that was woken for nothing makes room for others, see :meth:`Attempt._hold_back`.
_WAKES_ROUND = 4
_WRITER_YIELDS = 0.25


async def share(engine: Engine, view: View, key: str, options: LockOptions, timings: Timings) -> None:
    """Obtain a place among the members of the shared lock *key* for *view*.

    Raises: as an acquire does; RecordError: the key is held as another kind of lock; LeaseStateError: the thread or task of *view* waits
        for itself.
    """
    if len(key.encode()) > _KEY_MAX_BYTES:
        raise ConfigurationError(f"key {key[:40]!r} is too long for a shared lock; {_KEY_MAX_BYTES} bytes are possible")
    await Attempt(engine, view, key, options, timings).begin()


class Attempt:
    """One attempt at a place. Ended by an error, it leaves its session to the scheduler: a member whose session is over is no member."""

    def __init__(
        self,
        engine: Engine,
        view: View,
        key: str,
        options: LockOptions,
        timings: Timings,
        *,
        own: Handle | None = None,
    ) -> None:
        mode = PERMIT if options.permits is not None else READ if options.mode == "read" else WRITE
        self.wish = Wish(
            key, mode, new_rvn()[:16], timings.owner, options.permits or 0, options.weight, timings.token_floor
        )
        self._engine, self._view, self._options, self._own = engine, view, options, own
        self._ticket = self.wish.member_id
        self._wakes = 0
        waits = timings.wait_ns > 0 < timings.retries_max and own is None
        mine = {place.member.mode for place, _ in self._places()}
        # A reader must not wait behind a writer that waits for it, and whoever has a place not behind those that wait for that.
        self.wish = self.wish._replace(reads_already=READ in mine)
        self._takes_turns = waits and not mine
        # The session's record is no lock that anybody asks for by its name: nobody shall see what is left of it.
        self._timings = timings._replace(hide_on_release=True)
        self._began = engine.runtime.now()
        self._give_up_at = self._began + timings.wait_ns
        self._session: Handle | None = None
        self._over: set[str] = set()
        self._failing_since: int | None = None
        # Whether it stands in the record, or may do so by a write without an answer, which expects this version.
        self.may_stand = False
        self._expected: object = None
        if own is not None and own.membership is not None:
            self._replaces = own.membership.member.member_id
            if mode == WRITE:
                self._over.add(self._replaces)
            else:
                self.wish = self.wish._replace(beside=self._replaces, reads_already=True)

    def _places(self) -> list[tuple[Membership, View]]:
        """Return the places that the thread or task that asks has, in any mode, each with its lease."""
        engine = self._engine
        with engine.runtime.mutex:
            handles = list(engine.driver.held.values())
        return [
            (each.membership, lease)
            for each in handles
            if each.membership is not None
            and each.membership.key == self.wish.key
            and (lease := each.lease_of(self._view._caller)) is not None
            and engine.is_valid(each)
        ]

    def note(
        self, kind: EventKind, *, token: int = 0, record: LockRecord | None = None, error: str | None = None
    ) -> None:
        """Note an event of the attempt for the event hook."""
        driver, wish = self._engine.driver, self.wish
        duration = driver.runtime.now() - self._began
        note_shared(driver, kind, wish.key, wish.member_id, duration, token=token, record=record, error=error)

    async def begin(self) -> None:
        """Join, or raise; and note so for the event hook."""
        note_shared(self._engine.driver, EventKind.REQUESTED, self.wish.key, self.wish.member_id, 0)
        turns = self._engine.driver.turns
        try:
            if self._takes_turns:
                await turns.enter(self, self._give_up_at)
            await self._run()
            turns.leave(self)
        except BaseException as error:
            turns.leave(self, failed=isinstance(error, StoreError))
            self.note(EventKind.REFUSED, error=str(error) or type(error).__name__)
            raise

    async def _run(self) -> None:
        record, refs, knows, tries, waits = None, None, False, 0, 0
        while True:
            if self._engine.closed:
                raise closed_error(self.wish.key)
            try:
                if not knows:
                    record = await self._read(self.wish.key)
                self._failing_since, knows = None, False
                if await self._is_in(record):
                    return
                refs = in_the_way(self.wish, record, self._over)
                if refs is None and await self._open(record):
                    # By the session that it has now: another client may have the one that it had before, and be the member under it.
                    refs = in_the_way(self.wish, record, self._over)
                if refs is None and self._session is not None:
                    record = await self._join(record, waits)
                    knows, tries = True, tries + 1
                    if tries % _AT_ONCE_MAX:
                        continue
                elif record is not None and refs is not None and await self._find_over(record, refs):
                    continue
            except (StoreUnavailableError, OutcomeUnknownError) as error:
                self._bear(error)
            await self._wait(record, refs, waits)
            knows, waits = False, waits + 1

    async def _join(self, record: LockRecord | None, waits: int) -> LockRecord | None:
        """Send the write by which it joins *record*; return what stands after it. Who has waited wakes the next, if there is room."""
        request = join(self.wish, record, self._over, new_rvn())
        stands = await self._send(request)
        claimed = waits and self.may_stand and type(request) is Claim
        if claimed and (more := pass_on(self.wish, stands, new_rvn())) is not None:
            with suppress(StoreError):  # others look for themselves, a little later
                return await self._send(more)
        return stands

    async def _is_in(self, record: LockRecord | None) -> bool:
        """Whether *record* shows that this attempt is a member; then the view has its lease.

        Raises: LockLostError: it goes on from a member that *record* does not show.
        """
        joined = self._has_joined(record)
        self.may_stand = joined or (self.may_stand and (record is None or record.version == self._expected))
        if joined:
            return True
        if self._own is not None:
            await self._check_stands(self._own, record)
        return False

    # ---- requests

    async def _read(self, key: str) -> LockRecord | None:
        return await self._engine.store.read(key, timeout_s=self._timings.acquire_timeout_ns / NANOS)

    async def _send(self, request: Claim | Replace) -> LockRecord | None:
        """Send a write of the record, and return what stands after it, by an answer that shows the newest version."""
        before, self.may_stand = self.may_stand, True
        self._expected = request.expect if isinstance(request, Claim) else request.expected
        try:
            reply = await send_step(self._engine.store, request, self._timings.acquire_timeout_ns / NANOS)
        except StoreUnavailableError:  # certainly not applied
            self.may_stand = before
            raise
        self.may_stand = reply.applied
        if reply.applied or self._timings.refusals_linearizable:
            return reply.record
        return await self._read(self.wish.key)

    def _has_joined(self, record: LockRecord | None) -> bool:
        member = None if record is None else member_of(record, self.wish.member_id)
        handle = self._session
        if record is None or member is None or member.mode != self.wish.mode or handle is None:
            return False
        now = self._engine.runtime.now()
        handle.membership = Membership(self.wish.key, member, record, now)
        handle.token = token_of(record, member)
        handle.asked_at, handle.granted_at = self._began, now
        self.note(EventKind.GRANTED, token=handle.token)
        self._engine.driver.later(tell_grant, handle, False)  # noqa: FBT003  # called by position
        self._engine.driver.tell()
        return True

    # ---- the own session

    async def _open(self, record: LockRecord | None) -> bool:
        """Have a session that is valid, of the lowest number that is free; False where others have all that were tried."""
        if self._session is not None:
            # One that was told to stop while it waited would tell its holder so from the beginning, and never again.
            if self._engine.is_valid(self._session) and not self._session.must_stop:
                return True
            # The place that was kept by it is lost, and so is whatever may stand in the record.
            self._close()
        members = None if record is None else record.members
        kept = () if members is None else (each for each in members.members if each.member_id not in self._over)
        taken = set() if members is None else {members.sessions[each.session].key for each in kept}
        taken |= set() if self._own is None else {self._own.key}
        numbers = (number for number in range(2 * MEMBERS_MAX) if session_key(self.wish.key, number) not in taken)
        at_once = self._timings.opening_session(self._engine.runtime.wall_ms())
        # Who has one and isn't a member is about to be one, has just left, or has died before.
        for number in itertools.islice(numbers, _AT_ONCE_MAX):
            key = session_key(self.wish.key, number)
            with suppress(AcquireTimeoutError):
                self._session = await self._engine.acquire(key, self._options, at_once, view=self._view)
                session = SessionRef(key, self._timings.lease_ms or 1, self._session.token)
                self.wish = self.wish._replace(session=session)
                return True
        return False

    def _close(self) -> None:
        """Give the session up; whoever stands in the record by it is no member any more."""
        handle, self._session = self._session, None
        if handle is not None:
            self._engine.part(handle, self._view)
            self._engine.discard(handle)
            self._over.add(self.wish.member_id)
            self.wish = self.wish._replace(member_id=new_rvn()[:16], session=None)

    # ---- the sessions of others

    async def _find_over(self, record: LockRecord, refs: tuple[SessionRef, ...]) -> bool:
        """Look at the sessions *refs* that keep *record* and are due for a look, or at its own lease; whether one of them is over.

        Raises: RecordError: none is, and the key is held as a lock of another kind.
        """
        over: set[str] = set()
        if not refs:
            seen = self._engine.begin_observing(record)
            over |= {record.rvn} if self._engine.runtime.now() >= seen.seen_at + seen.lease_ns else set()
        elif self._own is None:
            self._check_own(refs)
        looking = Looking(self._options, self._timings, self._began)
        for ref in refs:
            if await self._engine.sessions.is_over(ref, looking):
                over |= _kept_by(record, ref)
        if not over and (wrong := kind_error(record, self.wish.kind)) is not None:
            raise wrong
        self._over |= over
        return bool(over)

    def _check_own(self, refs: tuple[SessionRef, ...]) -> None:
        """Raise LeaseStateError if the thread or task that asks is itself what it would wait for."""
        if self._timings.wait_ns == 0:
            return
        keys = {ref.key for ref in refs}
        own = [(place.member.mode, lease) for place, lease in self._places() if lease._handle.key in keys]
        mine = [(mode, lease) for mode, lease in own if not lease._handle.options.handover]
        if mine and (self.wish.mode != PERMIT or len(mine) == len(refs)):
            held, lease = mine[0]
            kind, modes = self._engine.runtime.caller_kind, (held, self.wish.mode)
            raise waits_for_itself_error(self.wish.key, lease, self._view, kind, modes=modes)

    async def _check_stands(self, own: Handle, record: LockRecord | None) -> None:
        """Raise unless the member of *own* stands in *record*: others have had the lock since, or may have.

        Raises: LockLostError; AcquireTimeoutError: nobody can tell, since the record is of a newer format.
        """
        if record is None or member_of(record, self._replaces) is None:
            own.is_converting = False  # it is settled: this member was taken out by others
            await find_evicted(self._engine.driver, [own], lambda: self._timings.timeout_ns / NANOS)
            await self._engine.renew(own)
            raise await self._refusal(record, self._engine.runtime.now())

    # ---- waiting

    def _bear(self, error: StoreError) -> None:
        """Go on after *error*, unless the store has been silent for too long."""
        now = self._engine.runtime.now()
        if self._failing_since is None:
            self._failing_since = now
        if now >= min(self._failing_since + self._timings.patience_ns, self._give_up_at):
            raise error
        _log.debug("a request for lock %r failed: %s", self.wish.key, error)

    async def _wait(self, record: LockRecord | None, refs: tuple[SessionRef, ...] | None, waits: int) -> None:
        """Wait until it is time to look again: at *record*, which changes, or at the sessions *refs*, for which it waits.

        Raises: AcquireTimeoutError: there is no time, or no try, left.
        """
        engine, timings = self._engine, self._timings
        now = engine.runtime.now()
        asks_once = self._own is not None and self._failing_since is None
        if asks_once or now >= self._give_up_at or waits >= timings.retries_max:
            raise await self._refusal(record, now)
        if not waits:
            self.note(EventKind.WAITING, record=record)
        if self._own is None:
            record = await self._announce(record)
        notify = timings.notify and bool(refs) and self._failing_since is None
        until = min(now + timings._replace(notify=notify).poll_ns(waits, jitter()), self._give_up_at)
        if notify and refs and record is not None:
            until = min(until, engine.sessions.due_at(refs))
            await engine.driver.wait_for_notice(record, self._ticket, until)
            await self._hold_back(record, until)
        else:
            await engine.driver.turns.pause(self, (until - now) / NANOS)

    async def _hold_back(self, record: LockRecord, until: int) -> None:
        """Look at once for the first of each four times that the store has woken it, and a little later for the others, 40 ms at most.

        A store without a queue (it shows no *waiters*) wakes one waiter of each client, and a herd would leave no time for those who hold.
        But if it were slow each time, those who come anew would always be faster. A writer that waits has its session already, and so is
        faster than a reader: now and then it is slow the first time, too.
        """
        left_ns = until - self._engine.runtime.now()
        if left_ns > 0 and record.waiters is None:
            if self._wakes or (self.wish.mode == WRITE and jitter() < _WRITER_YIELDS):
                pause_ns = self._timings._replace(notify=False).poll_ns(max(self._wakes - 1, 0), jitter())
                await self._engine.runtime.sleep(min(pause_ns, left_ns) / NANOS)
            self._wakes = (self._wakes + 1) % _WAKES_ROUND

    async def _announce(self, record: LockRecord | None) -> LockRecord | None:
        """Say that a writer waits, and return what stands then. One whose hold is bounded doesn't: its session must begin with its work.

        Who waits without a place has no session: somebody who died may stand in the record under that, and would be waited for.
        """
        is_bounded = self._timings.max_hold_ns is not None or self._timings.stall_ns is not None
        if self.wish.mode != WRITE or is_bounded or record is None or record.members is None:
            self._close()
        elif member_of(record, self.wish.member_id) is None:
            try:
                if await self._open(record):
                    return await self._send(join(self.wish._replace(mode=WANT), record, self._over, new_rvn()))
            except StoreError as error:
                _log.debug("that a writer waits for lock %r could not be said: %s", self.wish.key, error)
                self._close()
        return record

    async def _refusal(self, record: LockRecord | None, now: int) -> AcquireTimeoutError:
        """Return what says that there was no room in time."""
        record = await self._withdraw(record)
        who = "nobody holds it, but it could not be had in time"
        if record is not None and record.held:
            who = holder_in_words(record)
        if self.wish.mode == PERMIT:
            who += f"; asked for {self.wish.weight} of {self.wish.permits}"
        timeout, within = waiting_time(self._timings, now - self._began)
        message = f"could not acquire lock {self.wish.key!r} {within}: {who}"
        return AcquireTimeoutError(
            message, key=self.wish.key, timeout=timeout, holder=record, outcome_unknown=self.may_stand
        )

    async def _withdraw(self, record: LockRecord | None) -> LockRecord | None:
        """Take back that a writer waits, so that readers don't wait for it; where that fails, the end of the session does it.

        Return *record* without it.
        """
        request = leave(record, self.wish.member_id, new_rvn(), hides=False)
        if request is None:
            return record
        try:
            await send_step(self._engine.store, request, self._timings.timeout_ns / NANOS)
        except StoreError as error:
            _log.debug("lock %r was not left: %s", self.wish.key, error)
        return request.record


def _kept_by(record: LockRecord, ref: SessionRef) -> set[str]:
    """Return what doesn't count any more once the session *ref* is over: the ids of its members of *record*, or the RVN of a lock."""
    members = record.members
    if members is None:
        return {record.rvn}
    return {each.member_id for each in members.members if members.sessions[each.session] == ref}
