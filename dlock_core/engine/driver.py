"""Performs what the machine asks for: sends its requests, feeds back what came of them, and tells of risk and loss.

One driver serves one client. All that changes a handle goes through :meth:`Driver.step`, under the client's mutex.

The mutex keeps other threads out, but not a signal handler or a finalizer of the same thread, which may step the same handle in the
middle of a step: a step that was overtaken is computed again. Logging and whatever else may run code of the user is noted under the
mutex, and done by :meth:`Driver.tell` outside of it.
"""

from __future__ import annotations

import math
import os
import random
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

from dlock_core import lease
from dlock_core.early import stamped
from dlock_core.engine.event_hook import EventHook, note_event
from dlock_core.engine.lines import Lines
from dlock_core.engine.owner_probe import owner_of
from dlock_core.engine.progress import in_short, is_takeover, is_told, tell_grant, tell_loss, tell_release, tell_risk
from dlock_core.engine.timers import TimerQueue
from dlock_core.engine.turns import Turns
from dlock_core.engine.user_calls import guarded_logger
from dlock_core.errors import StoreError
from dlock_core.events import EventKind
from dlock_core.members import keeping_sessions
from dlock_core.record import Loss
from dlock_core.states import (
    Abandon,
    Answer,
    Cleaning,
    Confirming,
    Due,
    Effect,
    Ended,
    Event,
    Failure,
    GiveUp,
    Held,
    LeaseState,
    Lost,
    Noted,
    Outcome,
    Probe,
    Probed,
    Read,
    Releasing,
    Risk,
    Seeking,
    Stop,
    Wait,
    Woken,
)
from dlock_core.store import Claim, Release, Replace, Reply, wait_of
from dlock_core.timings import NANOS, NEVER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from dlock_core.engine.handle import Handle, Runtime, Watch
    from dlock_core.engine.keeper import Keepers
    from dlock_core.engine.sessions import Sessions
    from dlock_core.record import LockRecord
    from dlock_core.store import AsyncLockStore

    Attend = Callable[[Any, StoreError | None], Awaitable[None]]

_log = guarded_logger("dlock.engine")

ABANDONED_MAX = 4_096
_RVN_BYTES, _DRAWN_AT_ONCE = 16, 64
_LOOK_NS = NANOS // 4  # an attempt with less time than this may end with the look that follows its wait
_TOLD = frozenset({Risk, Stop, Abandon, Noted})
_MAY_BE_LATE = frozenset({Answer, Failure})
jitter = random.random  # spreads a herd; nothing is kept secret by it


class Driver:
    """What the handles of one client have in common, and how one is moved on."""

    def __init__(self, store: AsyncLockStore, runtime: Runtime) -> None:
        self.store = store
        self.runtime = runtime
        self.hook: EventHook | None = None
        self.sessions: Sessions  # of others
        self.keepers: Keepers  # our own sessions
        self.timers = TimerQueue()
        self.held: dict[str, Handle] = {}
        self.following: dict[Handle, None] = {}  # in the order in which they began
        self.shortest_lease_ns = NEVER
        self.last_error: tuple[str, int] | None = None
        self.lines = Lines(runtime, self.held)
        self.turns = Turns(runtime)
        self._abandoned: OrderedDict[str, None] = OrderedDict()
        self._untold: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._must_arm = False

    def advance(self, handle: Handle, event: Event) -> Any:
        """Feed *event* to the machine; return the request or the wait that it asks for."""
        with self.runtime.mutex:
            request = self.step(handle, event)
        self.tell()
        return request

    def advance_from(self, states: tuple[type, ...], handle: Handle, event: Event) -> Any:
        """Do what :meth:`advance` does if the state is one of *states*: another thread may have changed it since the caller looked."""
        with self.runtime.mutex:
            request = self.step(handle, event) if type(handle.state) in states else None
        self.tell()
        return request

    def step(self, handle: Handle, event: Event) -> Any:
        """Do what :meth:`advance` does; the caller holds the mutex, and calls :meth:`tell` when it has left it."""
        if handle.keeper is not None and type(event) in _MAY_BE_LATE:
            self.keepers.notice_end(handle)  # what ended before an answer stays ended
        while True:
            old = handle.state
            state, effects = lease.step(old, event, self.runtime.now())
            # Python runs handlers at calls and jumps back, so none can come from this comparison to the call in the try block.
            if handle.state is old:
                handle.state = state
                break
        try:
            return self._follow(handle, event, old, state, effects)
        except BaseException:
            self._follow(handle, event, old, state, effects)  # interrupted by a signal; nobody else would do it
            raise

    def _follow(
        self, handle: Handle, event: Event, old: LeaseState, state: LeaseState, effects: tuple[Effect, ...]
    ) -> Any:
        """Do what follows from a step; return the request or the wait that it asks for."""
        request: Any = None
        for effect in effects:
            if type(effect) in _TOLD:
                self._heed(handle, effect)
            elif (trusted := state.terms.timings.early).skew_ns is None:
                request = effect
            else:
                request = stamped(effect, trusted, self.runtime.wall_ms())
        if type(state) is not type(old):
            if type(old) is Held:
                self.keepers.note_end(handle)
            self._moved(handle, old, state)
        elif type(state) is Held and type(old) is Held:
            self._stayed(handle, event, old, state)
        if handle.signals:
            signals, handle.signals = handle.signals, ()
            for signal in signals:
                signal.set()
        self.schedule(handle)
        return request

    def _heed(self, handle: Handle, effect: Effect) -> None:
        """Do what *effect* asks for, which is neither a request nor a wait."""
        if type(effect) is Risk:
            self._tell_risk(handle, effect)
        elif type(effect) is Stop:
            self._tell_stop(handle, effect)
        elif type(effect) is Abandon:
            self._remember_abandoned(effect.rvns)
        elif type(effect) is Noted:
            assert handle.keeps is not None  # a beat was answered
            self.keepers.hear(handle.keeps, effect.notes)

    def _stayed(self, handle: Handle, event: Event, old: Held, state: Held) -> None:
        """Take note of a step within the hold."""
        handle.payload = state.payload
        if state.timings is not old.timings:
            self.shortest_lease_ns = min(self.shortest_lease_ns, state.timings.own_lease_ns)
        if (handle.watches or handle.keeps or self.hook is not None) and state.sent_at != old.sent_at:
            self._rearm_watches(handle)
            note_event(self, EventKind.RENEWED, handle, state.sent_at)
        if type(event) is Answer and event.reply.applied:
            # A lock that a session keeps is not renewed: nothing would ever tell that the waiter has left.
            handle.wanted = event.reply.wanted and state.timings.session is None
            for watch in handle.wanted_watches:
                if not handle.wanted:
                    watch.armed = True
                elif watch.armed:
                    self.fire(watch)
        if handle.keeper is not None and not lease.is_kept(state):
            handle.keeper.let_go(handle)

    def later(self, action: Callable[..., object], *arguments: Any) -> None:
        """Note an *action* that may run code of the user, for :meth:`tell`."""
        self._untold.append((action, arguments))

    def tell(self) -> None:
        """Do what was noted for when the mutex is left, and have the runtime look at the timer queue if it has changed."""
        if not (self._must_arm or self._untold) or self.runtime.is_inside():
            return
        if self._must_arm:
            self._must_arm = False
            try:
                self.runtime.arm()
            except BaseException:
                self._must_arm = True
                raise
        while self._untold:
            try:
                action, arguments = self._untold.popleft()
            except IndexError:  # another thread was faster
                return
            action(*arguments)

    def fail(self, handle: Handle, request: Any, *, unknown: bool) -> None:
        """Tell the machine that *request*, if there is one, was not performed, or that its outcome is *unknown*."""
        if request is not None:
            self.advance(handle, Failure(id_of(request), unknown, new_rvn()))

    def give_up(self, handle: Handle) -> None:
        """Nobody will get the lock that is sought or was just granted: the scheduler cleans up, or releases it."""
        request = self.advance_from((Seeking, Confirming, Held), handle, GiveUp(new_rvn()))
        self.fail(handle, request, unknown=False)
        self.settle(handle)

    def settle(self, handle: Handle) -> None:
        """Hand what is left to do over to the scheduler."""
        with self.runtime.mutex:
            handle.busy = False
            self.schedule(handle)
        self.tell()

    def interrupted(self, handle: Handle, *ids: str) -> None:
        """Tell the machine that one of the requests *ids* may be under way, and that nobody waits for its answer any more."""
        in_flight = getattr(handle.state, "in_flight", None)
        if in_flight is not None and in_flight.rvn in ids:
            self.advance(handle, Failure(in_flight.rvn, unknown=True, new_rvn=new_rvn()))
        with self.runtime.mutex:
            self.schedule(handle)
        self.tell()

    def unresolved(self) -> list[Handle]:
        """Return those of which something is on its way still, or has to be tried again."""
        with self.runtime.mutex:
            return list(self.following)  # other threads add to it and take away

    def _moved(self, handle: Handle, old: LeaseState, state: LeaseState) -> None:
        if type(state) is Held:
            self._granted(handle, old, state)
        elif type(state) is Lost:
            self._tell_loss(handle, state.loss)
        else:
            self.forget(handle)
        if type(state) is Releasing or type(state) is Cleaning:
            self.following[handle] = None
            if type(handle.state) is Ended:  # a handler has ended it meanwhile
                self.following.pop(handle, None)
        elif type(state) is Ended:
            self.following.pop(handle, None)
            if state.loss is not None and type(old) is Releasing and old.loss is None:
                self._tell_loss(handle, state.loss)
            elif state.outcome is Outcome.RELEASED:
                self.lines.note_release(handle)
                note_event(self, EventKind.RELEASED, handle, handle.granted_at)
                if is_told() and handle.keeps is None:
                    self.later(tell_release, handle, self.runtime.now())

    def forget(self, handle: Handle) -> None:
        """Take *handle* off those that hold their key."""
        if self.held.get(handle.key) is handle:
            self.held.pop(handle.key, None)

    def _granted(self, handle: Handle, old: LeaseState, state: Held) -> None:
        self.held[handle.key] = handle
        if type(handle.state) is not Held:  # a handler has released it meanwhile
            self.forget(handle)
        handle.busy = False
        handle.token = state.version.fencing_token
        handle.payload = state.payload
        self.shortest_lease_ns = min(self.shortest_lease_ns, state.timings.own_lease_ns)
        handle.granted_at = self.runtime.now()
        taken = is_takeover(old, self._abandoned)
        note_event(self, EventKind.TAKEN_OVER if taken else EventKind.GRANTED, handle, handle.asked_at)
        # Who gets a session only asks for a place: being a member is the grant, which is told then.
        if is_told(taken=taken) and not handle.is_session:
            self.later(tell_grant, handle, taken)

    def schedule(self, handle: Handle) -> None:
        """Put *handle* into the timer queue at the instant at which it next needs attention."""
        if handle.busy and handle.due == NEVER:
            return
        while True:
            state = handle.state
            due = NEVER if handle.busy else lease.due_at(state)
            if handle.watches and type(state) is Held:
                armed = [watch.safe_ns for watch in handle.watches if watch.armed and watch.safe_ns is not None]
                due = min([due, *(handle.renewed_at + safe_ns for safe_ns in armed)])
            if due != handle.due:
                if due != NEVER:
                    self._must_arm = True
                self.timers.put(handle, due)
            if handle.state is state:  # else a handler has stepped it meanwhile
                return

    def _remember_abandoned(self, rvns: tuple[str, ...]) -> None:
        for rvn in rvns:
            self._abandoned[rvn] = None
        while len(self._abandoned) > ABANDONED_MAX:
            self._abandoned.popitem(last=False)

    async def drive(self, handle: Handle, effect: Any, attend: Attend | None = None) -> StoreError | None:
        """Perform *effect* and all that follows from it; return the error of the last request, if that failed.

        *attend* is awaited with the next effect before that is performed. Interrupted, the request under way has an unknown outcome.
        """
        error: StoreError | None = None
        ids: list[str] = []
        try:
            while effect is not None:
                if type(effect) is Wait:
                    event = await self._wait(effect, handle)
                elif type(effect) is Probe:
                    event = await self._probe(effect, handle)
                else:
                    rvn = id_of(effect)
                    ids.append(rvn)
                    result = await self._send(effect, handle.state)
                    error = result if isinstance(result, StoreError) else None
                    event = self.heard(handle, rvn, result, new_rvn())
                ids.append(event.new_rvn)
                effect = self.advance(handle, event)
                if effect is not None and attend is not None:
                    await attend(effect, error)
        except BaseException:
            if type(handle.state) is not Seeking and type(handle.state) is not Confirming:
                self.interrupted(handle, *ids)
            raise
        return error

    async def _send(self, request: Any, state: LeaseState) -> Reply | StoreError:
        """Send one request; return the store's reply or its error."""
        timings, kind = lease.timings_of(state), type(request)
        seeks = type(state) is Seeking or type(state) is Confirming
        timeout_s = (timings.acquire_timeout_ns if seeks else timings.timeout_ns) / NANOS
        try:
            if kind is Claim and request.wait_ns:
                waits_s = request.wait_ns / NANOS
                return await self.store.claim_when_free(request, wait_s=waits_s, timeout_s=timeout_s)  # type: ignore[attr-defined, no-any-return]
            if kind is Claim:
                return await self.store.claim(request, timeout_s=timeout_s)
            if kind is Replace:
                return await self.store.replace(request, timeout_s=timeout_s)
            if kind is Release:
                return await self.store.release(request, timeout_s=timeout_s)
            if request.aged:
                found = await self.store.read_age(request.key, timeout_s=timeout_s)  # type: ignore[attr-defined]  # a capability
                record, age_ms = (None, None) if found is None else found
                return Reply(applied=False, record=record, age_ms=age_ms)
            return Reply(applied=False, record=await self.store.read(request.key, timeout_s=timeout_s))
        except StoreError as error:
            return error

    def heard(self, handle: Handle, rvn: str, result: Reply | StoreError, drawn: str) -> Answer | Failure:
        """Return the event that *result* of the request *rvn* is for the machine; *drawn* is the RVN of what may follow from it."""
        wall_ms: int | None = None
        if isinstance(result, StoreError):
            told = str(result)
            self.last_error = (told, self.runtime.now())
            _log.debug("a request for lock %r failed: %s", handle.name, result)
        elif not isinstance(result, Reply):
            raise TypeError(
                f"the store answered a request for lock {handle.name!r} with {result!r} in place of a Reply"
            )
        else:
            told, record = "" if result.applied else handle.older_in_words(result.record), result.record
            if record is None and result.applied:
                _log.warning("the store granted a request for lock %r without a record (clause S7)", handle.name)
            elif record is not None and record.stamp is not None:
                wall_ms = self.runtime.wall_ms()
        if handle.loss is None:  # else what its release meets says nothing of why it was lost
            handle.trouble = told
        return lease.heard(rvn, result, drawn, jitter(), self._abandoned, wall_ms=wall_ms, seen=handle.seen)

    async def _probe(self, effect: Probe, handle: Handle) -> Event:
        if sessions := keeping_sessions(effect.record):
            owner = await self.sessions.owner_of(sessions, handle)
            return Probed(effect.rvn, owner, new_rvn(), jitter())
        probe = handle.options.owner_probe
        assert probe is not None  # the timings say so
        owner = await owner_of(
            effect.record, probe, self.runtime, lease.timings_of(handle.state).acquire_timeout_ns / NANOS
        )
        return Probed(effect.rvn, owner, new_rvn(), jitter())

    async def _wait(self, effect: Wait, handle: Handle) -> Event:
        """Wait as *effect* says, and return the event that ended the wait."""
        seconds = (effect.until - self.runtime.now()) / NANOS
        state = handle.state
        # A back-off is no poll: nothing ends it early.
        line = handle.line if type(state) is Seeking and state.failing_since is None else None
        if seconds > 0:
            if effect.record is not None:
                returns = type(state) is Seeking and state.give_up_at - effect.until > _LOOK_NS
                await self.wait_for_notice(effect.record, state.terms.ticket, effect.until, returns=returns)
            elif line is not None:
                await line.pause(handle, seconds)
            else:
                await self.runtime.sleep(seconds)
        if line is not None and self.runtime.now() < effect.until:
            return Woken(new_rvn())
        return Due(new_rvn(), jitter())

    async def wait_for_notice(self, record: LockRecord, ticket: str, until: int, *, returns: bool = False) -> None:
        """Return when the store says that *record* stands no more, or at *until*; *returns* says that the attempt then waits on."""
        seconds = max(until - self.runtime.now(), 1) / NANOS
        try:
            await wait_of(self.store, returns=returns)(record, ticket=ticket, timeout_s=seconds)
        except StoreError as error:
            # Waiting is a convenience: without it the next poll finds out.
            _log.debug("waiting for lock %r failed: %s", record.key, error)
            await self.runtime.sleep((until - self.runtime.now()) / NANOS)

    def _tell_risk(self, handle: Handle, effect: Risk) -> None:
        now, end = self.runtime.now(), handle.deadline
        left = math.inf if end >= NEVER else (end - now) / NANOS
        if not effect.at_risk:
            self.later(_log.info, "%s is safe again, %.1f s left", in_short(handle), left)
            return
        note_event(self, EventKind.AT_RISK, handle, now, end, error=handle.trouble or None)
        self.later(tell_risk, handle, left, handle.trouble)
        for each in handle.with_kept:
            for watch in each.watches:
                if watch.armed and watch.safe_ns is None:
                    self.fire(watch)

    def fire_watches(self, handle: Handle, now: int) -> None:
        """Call the ``on_risk`` callbacks whose *safe_time* has passed without a renewal."""
        state = handle.state
        for watch in handle.watches:
            late = type(state) is Held and watch.safe_ns is not None and now >= handle.renewed_at + watch.safe_ns
            if watch.armed and late:
                self.fire(watch)

    def fire(self, watch: Watch) -> None:
        """Call the callback of *watch* when the mutex is left, and not again before the watch is armed again."""
        watch.armed = False
        self.later(watch.fire, self.runtime)

    def _rearm_watches(self, handle: Handle) -> None:
        for each in handle.with_kept:
            for watch in each.watches:
                watch.armed = True
            if each.watches:
                self.schedule(each)

    def _tell_stop(self, handle: Handle, effect: Stop) -> None:
        left = lease.timings_of(handle.state).stop_grace_ns / NANOS
        self.later(
            _log.warning,
            "%s ends in %.1f s (%s); its holder is told to stop",
            in_short(handle),
            left,
            effect.reason.value,
        )
        for each in handle.with_kept:
            each.stop_reason = effect.reason
            self._set_stop_signals(each)

    def tell_closing(self, handle: Handle) -> None:
        """Tell the holder to stop, since the client is being closed."""
        with self.runtime.mutex:
            handle.is_closing = True
            self.later(_log.info, "the client is being closed; the holder of lock %r is told to stop", handle.name)
            self._set_stop_signals(handle)
        self.tell()

    def _set_stop_signals(self, handle: Handle) -> None:
        signals, handle.stop_signals = handle.stop_signals, ()
        for signal in signals:
            self.later(signal.set)

    def _tell_loss(self, handle: Handle, loss: Loss) -> None:
        if handle.keeps is not None:
            return  # the locks that it keeps are lost, and told
        loss = handle.told(loss)
        # With a session thousands of locks may be lost: of those one record of the log tells.
        if handle.keeper is None or handle.keeper.is_valid(self.runtime.now()):
            self.later(tell_loss, handle, loss, self.runtime.now())
        note_event(self, EventKind.LOST, handle, handle.granted_at, record=loss.record, error=loss.reason.value)
        watches, handle.watches = handle.watches, ()
        for watch in watches:
            if watch.armed:
                self.fire(watch)
        self._set_stop_signals(handle)
        signals, handle.lost_signals = handle.lost_signals, ()
        for signal in signals:
            self.later(signal.set)
        callbacks, handle.lost_callbacks = handle.lost_callbacks, ()
        for callback in callbacks:
            self.later(self.runtime.post, callback, loss)


def new_rvn() -> str:
    """Return an RVN that was never used."""
    # Of the system, each time: a generator seeded before a fork would repeat itself in the child.
    return os.urandom(_RVN_BYTES).hex()


def new_rvns() -> Iterator[str]:
    """Yield RVNs as :func:`new_rvn` does, but ask the system for many at once; for one call only, which no fork divides."""
    while True:
        many = os.urandom(_DRAWN_AT_ONCE * _RVN_BYTES).hex()
        for at in range(0, len(many), 2 * _RVN_BYTES):
            yield many[at : at + 2 * _RVN_BYTES]


def id_of(effect: Any) -> str:
    """Return the id by which the answer to the request *effect* is known."""
    rvn: str = effect.rvn if type(effect) is Read else effect.record.rvn
    return rvn
