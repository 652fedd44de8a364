"""Sessions of this client: locks of its own, each renewed in place of the many that it keeps.

A lock is claimed with a lease of its own. Its first renewal *moves* it: the same conditional write, which names a session instead of a
lease. From then on only the session is renewed, by its *beat*, and a lock is valid while its session is. What a renewal of the lock itself
would have shown comes in other ways: a break by a note in the record of the session, anything else by an audit, which reads some of the
locks after each beat.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

from dlock_core import lease
from dlock_core.engine.driver import jitter, new_rvn
from dlock_core.engine.sessions import Errand
from dlock_core.engine.user_calls import guarded_logger
from dlock_core.errors import ConfigurationError, StoreError, UnsafeStoreError
from dlock_core.members import session_key
from dlock_core.record import KEY_MAX_BYTES, LossReason, NewerRecord, SessionRef
from dlock_core.states import Cease, Due, Held, Lost, Renew
from dlock_core.timings import NEVER, Timings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dlock_core.engine.client_context import ClientContext
    from dlock_core.engine.driver import Driver
    from dlock_core.engine.engine import Engine
    from dlock_core.engine.handle import Handle
    from dlock_core.options import ClientOptions
    from dlock_core.record import BeatNote, LockRecord

_log = guarded_logger("dlock.engine")

KEEPERS_MAX = 8
_ROLLBACK = "session-rollback"
AUTO_MIN = 16  # a client that holds so many locks gains by a session
_NUMBERS, _NUMBERS_GROW, _TRIES_MAX = 8, 4, 12
_PREFIX_MAX_BYTES = KEY_MAX_BYTES - len(session_key("", _NUMBERS * _NUMBERS_GROW**_TRIES_MAX))
_SLICE = 100  # so many locks are told of the end of their session before others have the mutex
_HELD_MIN = {"lock": NEVER, "session": 0, "auto": AUTO_MIN}


def check_kept(options: ClientOptions, prefix: str, *, may_lose_grants: bool) -> None:
    """Refuse what a session, whose key begins with *prefix*, cannot keep.

    Raises: ConfigurationError: the lock has no lease, or is not renewed, or *prefix* is too long. UnsafeStoreError: a failover may bring
        old records back.
    """
    asked = f"renewal={options.renewal!r}"
    if options.fail_closed or not options.auto_renew:
        other = "fail_closed=True" if options.fail_closed else "auto_renew=False"
        raise ConfigurationError(
            f"{asked} does not go with {other}: a session renews the lease of the lock; leave one of them out, or give renewal='lock'"
        )
    if len(prefix.encode()) > _PREFIX_MAX_BYTES:
        raise ConfigurationError(
            f"prefix {prefix[:40]!r} is too long for {asked}: keys of sessions begin with it, too; {_PREFIX_MAX_BYTES} bytes are possible"
        )
    if may_lose_grants and _ROLLBACK not in options.allow_unsafe:
        raise UnsafeStoreError(
            f"{asked} is refused by this store: a failover or restart may bring an older record back, and a lock that a session keeps "
            f"would then have a second holder until the next audit; to accept that, put {_ROLLBACK!r} into allow_unsafe",
            name=_ROLLBACK,
        )


class Keeper(Errand):
    """A session: the handle of its lock, and of those that it keeps."""

    def __init__(self, timings: Timings) -> None:
        super().__init__()
        self.timings = timings
        self.kept: dict[Handle, None] = {}  # those that were audited longest ago come first
        self.parted: deque[Handle] = deque()  # somebody has, or is about to, let go of these
        self._ref: SessionRef | None = None
        self._leaves_at = 0  # when the last is given back of those that were lost while the session went on
        self._empty_beats = 0

    @property
    def handle(self) -> Handle:
        """The handle of the session's own lock."""
        return self._handle

    @property
    def ref(self) -> SessionRef:
        """How a record names this session."""
        if self._ref is None:
            assert self.timings.lease_ms is not None  # a fail-closed lock is moved under no session
            self._ref = SessionRef(self.handle.key, self.timings.lease_ms, self.handle.token)
        return self._ref

    def is_valid(self, now: int) -> bool:
        """Whether the session lasts."""
        return lease.is_valid(self.handle.state, now)

    def is_sound(self, now: int) -> bool:
        """Whether locks may be moved under it: more than half of its use is left, and it may still tell of a risk, and of its end.

        Their holders would not hear of what was told before, and a session tells its holders to stop only once.
        """
        state = self.handle.state
        is_calm = type(state) is Held and not state.at_risk and state.stopping is None
        return is_calm and self.deadline - now > self.timings.usable_ns // 2

    @property
    def deadline(self) -> int:
        """When the session ends, if no beat comes."""
        state = self.handle.state
        return state.deadline if type(state) is Held else 0

    def let_go(self, handle: Handle) -> None:
        """Keep *handle* no more: it has a lease of its own again."""
        self.kept.pop(handle, None)
        handle.keeper = None

    def note_end(self, handle: Handle) -> None:
        """Take note that *handle* is held no more. One that was lost alone stays closed for others until it is given back."""
        self.kept.pop(handle, None)
        if type(handle.state) is Lost and handle.state.leaves_at != NEVER:
            self._leaves_at = max(self._leaves_at, handle.state.leaves_at)

    def end_if_empty(self, now: int) -> None:
        """Let the session go that has kept no lock since the beat before: a new one was opened for locks that are about to be moved."""
        self._empty_beats = 0 if self.kept or now < self._leaves_at else self._empty_beats + 1
        self._closed = self._empty_beats > 1

    def loss_reason(self) -> LossReason:
        """Why a lock is lost that this session has kept."""
        state = self.handle.state
        return state.loss.reason if type(state) is Lost else LossReason.EXPIRED


class Keepers:
    """All sessions of a client. Private calls are made under the engine's mutex, but for those that await."""

    def __init__(self, engine: Engine, context: ClientContext) -> None:
        self._engine = engine
        self._driver: Driver = engine.driver
        self._prefix = context.prefix
        self._locks_max = context.options.session_locks_max
        self._audit_ns = context.audit_ns  # in which each lock is read once
        self._keepers: list[Keeper] = []
        # By what a session is for: when one may be opened next, and the tries.
        self._opening: dict[Timings, tuple[int, int]] = {}

    def attend(self, handle: Handle, event: Due | Renew, singles: list[tuple[Handle, Any]]) -> Any:
        """Renew the held *handle* by *event*, or move it under a session; what opens a session, where there is none, goes to *singles*."""
        state = handle.state
        may_be_kept = len(self._driver.held) >= _HELD_MIN[handle.options.renewal]
        if may_be_kept and type(state) is Held and self._may_move(handle, state):
            now = self._engine.runtime.now()
            keeper = self._find(state.timings, now)
            if keeper is not None:
                # Before the send: until the move is resolved, both ends count (Q2).
                handle.keeper = keeper
                keeper.kept[handle] = None
                return self._driver.step(handle, Renew(event.new_rvn, state.timings.under(keeper.ref)))
            self._open(handle, state.timings, now, singles)
        return self._driver.step(handle, event)

    def _may_move(self, handle: Handle, state: Held) -> bool:
        """Whether a renewal may be a move. None is sent in doubt: what is unresolved is to be one write, of one kind."""
        return (
            not handle.is_session
            and state.timings.session is None
            and state.timings.lease_ms is not None
            and state.in_flight is None
            and not state.at_risk
        )

    def _find(self, timings: Timings, now: int) -> Keeper | None:
        """Return a sound session for locks of these *timings* that has room."""
        wanted = _session_timings(timings)
        for keeper in self._keepers:
            fits = keeper.timings == wanted and len(keeper.kept) < self._locks_max
            if fits and keeper.is_sound(now):
                return keeper
        return None

    def _open(self, handle: Handle, timings: Timings, now: int, singles: list[tuple[Handle, Any]]) -> None:
        """Ask for a session, unless that was done a moment ago, or there are as many as there may be."""
        wanted = _session_timings(timings)
        opens_at, tries = self._opening.get(wanted, (0, 0))
        if now < opens_at:
            return
        self._keepers = [each for each in self._keepers if each.is_valid(now)]
        if len(self._keepers) >= KEEPERS_MAX:
            return
        self._opening[wanted] = now + wanted.backoff_ns, tries + 1
        keeper = Keeper(wanted)
        # One of a few numbers, of more where they were taken: the keys are used again, and so their records stay few.
        number = int(jitter() * _NUMBERS * _NUMBERS_GROW ** min(tries, _TRIES_MAX))
        options = handle.options
        key = session_key(self._prefix, number)
        opening = wanted.opening_session(self._engine.runtime.wall_ms())
        session, claim = self._engine.begin(key, options, opening, now, keeper)
        session.keeps = keeper
        singles.append((session, claim))

    async def look_after(self, session: Handle, spare_s: Callable[[], float]) -> None:
        """Do what is due after a request of *session*: settle an attempt to open one, lose what was dropped, and audit, in *spare_s*."""
        keeper = session.keeps
        assert keeper is not None  # asked for sessions only
        if type(session.state) is not Held:
            self._driver.settle(session)
            return
        if keeper not in self._keepers:
            self._keepers.append(keeper)
            self._opening.pop(keeper.timings, None)
        while (handle := self._next_parted(keeper)) is not None:
            self._end_unheld(handle)
        await self._audit(keeper, spare_s)

    def _end_unheld(self, handle: Handle) -> None:
        """End a lock that nobody has in hand any more, as the scheduler does where it renews: what was dropped lapses."""
        with self._engine.runtime.mutex:
            is_unheld = type(handle.state) is Held and not handle.is_in_hand()
        if is_unheld and handle.is_dropped:
            self.end(handle, LossReason.EXPIRED)
        elif is_unheld:
            self._engine.discard(handle)

    def end(self, handle: Handle, reason: LossReason, record: LockRecord | None = None) -> None:
        """Lose one lock while its session goes on."""
        with self._engine.runtime.mutex:
            if type(handle.state) is Held:
                self._driver.step(handle, Cease(reason, record, alone=True))
        self._driver.tell()

    def hear(self, keeper: Keeper, notes: Sequence[BeatNote]) -> None:
        """Lose the locks that others have broken by *notes*, under the mutex: before the next beat is sent, which ends the notes (Q6)."""
        for note in notes:
            handle = self._driver.held.get(note.key)
            kept = handle is not None and handle.keeper is keeper and type(handle.state) is Held
            if note.kind == "break" and handle is not None and kept and handle.token == note.fencing_token:
                self._driver.later(_log.warning, "lock %r was broken by %r", handle.name, note.by)
                self._driver.step(handle, Cease(LossReason.BROKEN, alone=True))

    def notice_end(self, handle: Handle) -> None:
        """Lose a lock whose lease has run out, or its session, where no thread has noticed yet; the caller holds the mutex."""
        state, now = handle.state, self._engine.runtime.now()
        if type(state) is Held and not lease.is_valid(state, now):
            self._driver.step(handle, Due(new_rvn()))
        elif type(state) is Held and handle.keeper is not None and not handle.keeper.is_valid(now):
            self.notice_end(handle.keeper.handle)
            _end_with_session(self._driver, handle)

    def note_end(self, handle: Handle) -> None:
        """Take note that *handle*, which was held, is so no more."""
        if handle.keeper is not None:
            handle.keeper.note_end(handle)
        if handle.keeps is not None:
            self._driver.later(self.end_all, handle.keeps)

    def end_all(self, keeper: Keeper) -> None:
        """Lose all locks of a session that is over; called outside of the mutex. A client that was closed tells nobody: it ended them."""
        with self._engine.runtime.mutex:
            reason, kept = keeper.loss_reason(), [] if self._engine.closed else list(keeper.kept)
        if kept:
            _log.warning("%d locks are lost with their session %r (%s)", len(kept), keeper.handle.key, reason.value)
        for start in range(0, len(kept), _SLICE):
            with self._engine.runtime.mutex:
                for handle in kept[start : start + _SLICE]:
                    _end_with_session(self._driver, handle)
            self._driver.tell()

    async def _audit(self, keeper: Keeper, spare_s: Callable[[], float]) -> None:
        """Read the next few locks: one that a failover has rolled back, or that somebody has changed, is lost (Q8)."""
        period_ns = min(keeper.timings.period_ns, self._audit_ns)
        for _ in range(math.ceil(len(keeper.kept) * period_ns / self._audit_ns)):
            timeout_s = spare_s()
            if not timeout_s or (handle := self._next_kept(keeper)) is None:
                return
            self._end_unheld(handle)
            state = handle.state
            if type(state) is not Held or state.in_flight is not None or state.pending:
                continue
            try:
                record = await self._engine.store.read(handle.key, timeout_s=timeout_s)
            except StoreError as error:
                _log.debug("lock %r could not be audited: %s", handle.name, error)
                return
            # What was written meanwhile tells by itself.
            if handle.state is state and not isinstance(record, NewerRecord) and not _stands(record, state):
                is_broken = record is not None and record.broken is not None
                self.end(handle, LossReason.BROKEN if is_broken else LossReason.STOLEN, record)

    def _next_parted(self, keeper: Keeper) -> Handle | None:
        with self._engine.runtime.mutex:
            return keeper.parted.popleft() if keeper.parted else None

    def _next_kept(self, keeper: Keeper) -> Handle | None:
        """Return the lock that was audited longest ago, and take note that it is now."""
        with self._engine.runtime.mutex:
            handle = next(iter(keeper.kept), None)
            if handle is not None:
                keeper.kept[handle] = keeper.kept.pop(handle)  # the last one from now on
            return handle


def _end_with_session(driver: Driver, handle: Handle) -> None:
    """Lose the lock of *handle*, whose session is over; under the mutex."""
    if type(handle.state) is Held and handle.keeper is not None:
        driver.step(handle, Cease(handle.keeper.loss_reason()))


def _stands(record: LockRecord | None, state: Held) -> bool:
    return record is not None and record.held and record.version == state.version


def _session_timings(timings: Timings) -> Timings:
    """Return the timings of the session for a lock of these: what its own record carries, and how long it is held, is the lock's alone."""
    # The thread that opens it renews.
    return timings.of_session()._replace(wait_after_lease=False, acquire_timeout_ns=timings.timeout_ns)
