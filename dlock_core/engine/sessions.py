"""Sessions of others: whether one is over. Shared by all that a client waits for.

A session is a lock of its own, so the machine decides: one that is not held, or was granted anew, is over; one whose lease has run out is
taken over, and given back at once. Whoever waits for its locks and members may then have them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dlock_core import lease
from dlock_core.engine.user_calls import guarded_logger
from dlock_core.errors import AcquireTimeoutError, OutcomeUnknownError, StoreError, StoreUnavailableError
from dlock_core.record import NewerRecord, OwnerState
from dlock_core.timings import NANOS, Timings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dlock_core.engine.callers import Place
    from dlock_core.engine.engine import Engine
    from dlock_core.engine.handle import Handle
    from dlock_core.options import LockOptions
    from dlock_core.record import LockRecord, SessionRef

_log = guarded_logger("dlock.engine")

_LOOKS = 8  # at one session, in one of its leases
_KNOWN_MAX = 4_096


class Errand:
    """The view of a lock that is held for no caller: one that is taken over and given back, or that keeps others."""

    _handle: Handle

    def __init__(self) -> None:
        self._closed = self._is_job = False
        self._caller: object = None
        self._place: Place | None = None


class Looking(NamedTuple):
    """On whose behalf a session is looked at: an attempt with these options and timings, which *began* then."""

    options: LockOptions
    timings: Timings
    began: int


class Sessions:
    """What a client knows of the sessions of others. Its threads look at them at once: each step on what is known is one of a dict."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._over: dict[SessionRef, int] = {}
        self._looked: dict[SessionRef, int] = {}
        self._absent: dict[SessionRef, int] = {}

    async def owner_of(self, refs: Iterable[SessionRef], handle: Handle) -> OwnerState:
        """Return what the attempt of *handle* knows of the sessions *refs*, any of which keeps the lock that it asks for.

        Raises: StoreSetupError, RecordError: the record of one can never be read.
        """
        looking = Looking(handle.options, handle.state.terms.timings, handle.asked_at)
        try:
            for ref in refs:
                if not await self.is_over(ref, looking):
                    return OwnerState.ALIVE
        except (StoreUnavailableError, OutcomeUnknownError) as error:
            _log.debug("a session that keeps lock %r could not be looked at: %s", handle.name, error)
            return OwnerState.UNKNOWN
        return OwnerState.DEAD

    async def is_over(self, ref: SessionRef, looking: Looking) -> bool:
        """Whether the session *ref* is over, by an answer to a read that began now, or by what this client has seen of it before.

        Each attempt looks for itself once; all of them together look eight times in a lease.

        Raises: StoreError: it cannot be known now.
        """
        if ref in self._over:
            return True
        now = self._engine.runtime.now()
        looked = self._looked.get(ref)
        if looked is not None and looked >= looking.began and now < looked + ref.lease_ms * 1_000_000 // _LOOKS:
            return False
        _keep(self._looked, ref, now)
        return await self._look(ref, looking)

    def due_at(self, refs: Iterable[SessionRef]) -> int:
        """Return when one of the sessions *refs* is to be looked at again."""
        now = self._engine.runtime.now()
        return min(self._looked.get(ref, now) + ref.lease_ms * 1_000_000 // _LOOKS for ref in refs)

    async def _look(self, ref: SessionRef, looking: Looking) -> bool:
        runtime = self._engine.runtime
        began = runtime.now()
        record = await self._engine.store.read(ref.key, timeout_s=looking.timings.acquire_timeout_ns / NANOS)
        if record is not None:
            self._absent.pop(ref, None)
        elif ref not in self._absent:
            _keep(self._absent, ref, runtime.now())
        is_over = lease.is_session_over(ref, record, began, self._absent.get(ref))
        if is_over is None and record is not None:
            is_over = await self._is_dead(record, ref, looking)
        # For ever: a grant that has ended does not come back, nor does its token, even where the row is deleted (``opening_session``). That
        # the record was absent is no such proof, and is not kept (Q4).
        if is_over and record is not None:
            _keep(self._over, ref, began)
        return bool(is_over)

    async def _is_dead(self, record: LockRecord, ref: SessionRef, looking: Looking) -> bool:
        """Whether the machine takes the session over, its lease being over."""
        if isinstance(record, NewerRecord):
            return False  # no lease is known
        seen = self._engine.begin_observing(record)
        early = looking.timings.early
        may_be_early = early.probes or early.server_clock or early.skew_ns is not None
        if not may_be_early and self._engine.runtime.now() < seen.seen_at + seen.lease_ns:
            return False
        timings, errand = _errand_timings(looking.timings, ref), Errand()
        try:
            handle = await self._engine.acquire(ref.key, looking.options, timings, view=errand)
        except AcquireTimeoutError:
            return False
        _log.info("the holder %r has died; its session %r is taken over, and ended", record.owner, ref.key)
        try:
            await self._engine.release(handle, None)
        except StoreError as error:
            _log.debug("the release of session %r was not confirmed, it is followed up: %s", ref.key, error)
        except BaseException:
            self._engine.discard(handle)
            raise
        return True


def _errand_timings(timings: Timings, ref: SessionRef) -> Timings:
    """Return the timings of who takes the session *ref* over: its lease, one try, and nothing is left to be seen."""
    lease_ns = ref.lease_ms * 1_000_000
    return timings.of_session()._replace(
        lease_ms=ref.lease_ms,
        lease_ns=lease_ns,
        delay_ms=0,
        usable_ns=lease_ns // 2,
        handout_min_ns=0,
        must_exist=True,
    )


def _keep(known: dict[SessionRef, int], ref: SessionRef, at: int) -> None:
    known.pop(ref, None)
    known[ref] = at
    if len(known) > _KNOWN_MAX:
        for oldest in list(known)[:1]:
            known.pop(oldest, None)
