"""Jobs that run once per slot: what both colours do, written once as coroutines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from dlock_core.engine.client_context import EXCLUSIVE, check_bytes, check_seconds
from dlock_core.engine.hints import naming, warn
from dlock_core.engine.joining import obtain
from dlock_core.engine.process import generation
from dlock_core.engine.raised import lost_error
from dlock_core.engine.user_calls import guarded_logger
from dlock_core.errors import (
    AcquireTimeoutError,
    ConfigurationError,
    DLockError,
    LeaseStateError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
)
from dlock_core.lease import quarantine_ms
from dlock_core.members import keeping_sessions
from dlock_core.once import NOTHING, Finished, SlotSource, check_slot, finished_in, is_due, later_slot, mark
from dlock_core.options import SHORTEST_S
from dlock_core.record import Loss, LossReason
from dlock_core.states import Held, Lost, Outcome, Seeking
from dlock_core.timings import NANOS

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlock_core.engine.client_context import ClientContext
    from dlock_core.engine.engine import Engine
    from dlock_core.engine.handle import Handle
    from dlock_core.engine.lease_view import LeaseView
    from dlock_core.once import Slot
    from dlock_core.record import LockRecord, Version
    from dlock_core.states import Payload

_log = guarded_logger("dlock.client")

# The record carries the mark of the job and nothing else, and it must stay.
_OWN: dict[str, Any] = {
    "data": None,
    "attributes": {},
    "replace_data": False,
    "only_if_exists": False,
    "delete_on_release": False,
    "fail_closed": False,
    **EXCLUSIVE,
}
_REASONS = {
    "max_hold": "at_most_for bounds the run",
    **dict.fromkeys(EXCLUSIVE, "one process runs a job, by one call"),
    "renewal": "others tell by the job's own record whether who runs it is alive",
}


class _HolderLivesError(Exception):
    """The holder was seen to renew: waiting is over, for who does not wait for the end of its run."""


class JobRun:
    """One try of one process to run a job: what the record said, and the lease while this process runs it."""

    _with = "with"

    def __init__(  # noqa: PLR0917  # called by the clients' once() alone
        self,
        context: ClientContext,
        key: str,
        slot: SlotSource,
        at_least_for: Any,
        at_most_for: Any,
        options: dict[str, Any],
    ) -> None:
        self.key = key
        self._context = context
        self._full_key = context.full_key(key)
        self._source = slot
        # A callable is asked when the run begins; the body of the run reads here what it said.
        self.slot: Slot = "" if callable(slot) else check_slot(key, slot)
        refused = sorted(options.keys() & (_OWN.keys() | {"max_hold"}))
        if refused:
            why = _REASONS.get(refused[0], "the record of a job keeps its last slot and result")
            raise ConfigurationError(f"once() takes no {refused[0]}: {why}")
        context.check_supported("attributes", "data", "replace_data")
        at_least_s = check_seconds(at_least_for, "at_least_for")
        at_most_s = None if at_most_for is None else check_seconds(at_most_for, "at_most_for", least=SHORTEST_S)
        if at_most_s is not None and at_least_s > at_most_s:
            raise ConfigurationError(f"at_least_for={at_least_s:g} s exceeds at_most_for={at_most_s:g} s")
        self._at_least_ms = round(at_least_s * 1000)
        given = {"timeout": options.get("timeout")} | ({} if at_most_s is None else {"max_hold": at_most_s})
        self._until_renewed = "timeout" not in options
        with naming("max_hold", None if at_most_s is None else "at_most_for"):
            self._call = context.resolve({**options, **_OWN, **given})
        self._began_ms: int
        self._finished: Finished = NOTHING
        self._holder: LockRecord | None = None  # who is at it, where it is busy
        self._lease: LeaseView | None = None
        self._used = False
        self.due = False
        self.busy = False
        self._is_idle = True

    @property
    def result(self) -> bytes | None:
        """The result of the slot that was finished last."""
        return self._finished.result

    @property
    def last_slot(self) -> Slot | None:
        """The slot that was finished last; None if there is none."""
        return self._finished.slot

    def _runs(self, lease: LeaseView) -> bool:
        """Whether this process runs the job still: it was not finished, and neither the body nor a close of the client gave it back."""
        return self._context.generation == generation() and type(lease._handle.state) in (Held, Lost)  # its other half

    def __del__(self) -> None:
        """Warn if the job was neither entered nor used as a decorator."""
        if getattr(self, "_is_idle", False):  # it is not set where an option was refused
            warn(
                f"once({self.key!r}) was never entered, so nothing was run; write: {self._with} client.once({self.key!r}, slot=…) as job",
                RuntimeWarning,
            )

    def __bool__(self) -> NoReturn:
        """Refuse: ``if job:`` would run the job on every host, also where it is not due."""
        self._is_idle = False  # the program is told
        raise LeaseStateError(
            f"once({self.key!r}) is neither true nor false; to run the job where it is due, write: if job.due"
        )

    def __repr__(self) -> str:
        """Name the job, the slot and what came of it."""
        state = "due" if self.due else "busy" if self.busy else "not due"
        return f"<{type(self).__name__} {self.key!r} slot {self.slot!r} {state}>"

    async def _decide(self, engine: Engine, new_lease: Callable[[], LeaseView]) -> None:
        """Find out whether the slot is due, and take the job if it is.

        Raises: as an acquire does; RecordError: the record carries what no job has left there; ConfigurationError: the slot is of another
            type than the last.
        """
        if self._used:
            raise LeaseStateError(f"this once({self.key!r}) was used before; call once() anew for each run")
        self._used = True
        self.slot = check_slot(self.key, self._source, engine.runtime.wall_ms())
        try:
            record = await engine.read(self._full_key, self._call.timings.acquire_timeout_ns / NANOS)
        except (StoreUnavailableError, OutcomeUnknownError):
            record = None  # the acquire that follows asks for as long as a lease, and the payload of its grant decides
        if not self._is_due(engine, record):
            return
        lease = new_lease()
        lease._is_job = True  # its other half
        try:
            await self._take(engine, lease, record)
        except BaseException:
            lease._leave_to_scheduler()  # its other half
            raise

    def _leave_to_scheduler(self) -> None:
        """Have the job given back; the caller was interrupted before the block."""
        if self._lease is not None:
            self._lease._leave_to_scheduler()  # its other half

    async def _take(self, engine: Engine, lease: LeaseView, record: LockRecord | None) -> None:
        call = self._call
        if record is not None and record.held and quarantine_ms(record) is None and self._until_renewed:
            self.busy, self._holder = True, record  # a lock that shows no sign of life
            return
        try:
            if self._until_renewed:
                look = _watch_holder(engine)
                await engine.acquire(self._full_key, call.options, call.timings, view=lease, look=look)
            else:  # a thread or task that runs it already would wait for its own end
                await obtain(engine, lease, self._full_key, call.options, call.timings)
        except (AcquireTimeoutError, _HolderLivesError):
            self.busy, self._holder = True, getattr(lease._handle.state, "holder", None)  # its other half
            return
        # Another process may have finished the slot since the read: the payload of the grant decides.
        handle = lease._handle  # its other half
        try:
            due = self._is_due(engine, handle.payload)
        except DLockError:
            await self._give_back(engine, lease)
            raise
        if due:
            lease._begin_body()
            self._began_ms = engine.runtime.wall_ms()
            self._lease, self.due = lease, True
        else:
            await self._give_back(engine, lease)

    def _is_due(self, engine: Engine, payload: Payload | LockRecord | None) -> bool:
        self._finished = finished_in(self._full_key, payload)
        last = self._finished.slot
        due = is_due(self.key, self._finished, self.slot, engine.runtime.wall_ms())
        if not due and last > self.slot:  # type: ignore[operator]  # of one type
            _log.warning(
                "slot %r of job %r lies before %r, which was finished, so it is not run; slots must grow",
                self.slot,
                self._full_key,
                last,
            )
        return due

    async def _give_back(self, engine: Engine, lease: LeaseView) -> None:
        """Release with the payload kept; what was found out stands, even where the store does not answer."""
        try:
            await engine.release(lease._handle, None, lease)  # its other half
        except StoreError as error:
            lease._leaving(None, error)

    async def _finish(self, result: bytes | None) -> None:
        """Release with the slot and its *result*, in one write."""
        self._context.check_process()
        lease = self._lease
        if lease is None or not self._runs(lease):
            raise LeaseStateError(
                f"job {self.key!r} is not running here: it was not due, or it was finished or released before"
            )
        lease._alive()  # its other half
        check_bytes(result, f"the result of job {self.key!r}")
        # Its other half. The client is not asked for its engine: a shared one that was closed meanwhile would open another.
        engine, handle = lease._engine, lease._handle
        not_before_ms = self._at_least_ms and self._began_ms + self._at_least_ms
        payload = mark(self.slot, result, at_ms=engine.runtime.wall_ms(), not_before_ms=not_before_ms)
        await engine.release(handle, payload, lease)
        self._check_written(handle, payload)
        self._finished = Finished(self.slot, result, not_before_ms)

    async def _end(self, lease: LeaseView) -> Exception | None:
        """Finish the slot after a body that ended well; return what leaves the block."""
        try:
            await self._finish(None)
        except DLockError as error:
            return lease._leaving(None, error)
        except BaseException:
            self._leave_to_scheduler()  # of a signal's handler, perhaps from before the release has begun
            raise
        return None

    def _check_written(self, handle: Handle, written: Payload) -> None:
        """Check that the release has left *written*. For a plain lock a release that finds another's record may have done its work.

        Raises: LockLostError: another process took the job over before the release arrived. OutcomeUnknownError: nobody can tell.
        """
        if handle.loss is not None:
            raise lost_error(handle)
        record = getattr(handle.state, "holder", None)
        released = getattr(handle.state, "outcome", None) is Outcome.RELEASED
        if released and (record is None or (record.data, record.attributes) == written):
            return
        later = None if record is None else later_slot(self._full_key, record, self.slot)
        if record is not None and later is None:
            raise lost_error(handle, Loss(record.key, handle.token, LossReason.STOLEN, record))
        why = "the store did not answer in time" if record is None else f"slot {later!r} was finished meanwhile"
        raise OutcomeUnknownError(
            f"it is not known whether slot {self.slot!r} of job {self._full_key!r} was finished by this run: {why}",
            key=self._full_key,
        )


def _watch_holder(engine: Engine) -> Callable[[Handle], None]:
    """Return what ends a wait, by _HolderLivesError, when the holder is seen to live: its record, or the session of that, has changed."""
    first: dict[str, Version] = {}

    def look(handle: Handle) -> None:
        state = handle.state
        if type(state) is not Seeking or state.seen is None or state.shown is None:
            return
        seen = {handle.key: state.seen}
        for ref in keeping_sessions(state.shown):
            known = engine.observed(ref.key)
            # What was seen before this try may have changed long ago, and the holder have died since.
            if known is not None and known.seen_at >= handle.asked_at:
                seen[ref.key] = known
        if any(first.setdefault(key, each.version) != each.version for key, each in seen.items()):
            raise _HolderLivesError

    return look
