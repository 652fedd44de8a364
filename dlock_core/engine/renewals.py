"""The renewals of a client: what is due, in batches, the most urgent first; and the performing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dlock_core import lease
from dlock_core.engine.driver import id_of, jitter, new_rvn, new_rvns
from dlock_core.engine.handle import Handle
from dlock_core.engine.membership import find_evicted
from dlock_core.engine.user_calls import guarded_logger
from dlock_core.errors import OutcomeUnknownError, StoreError
from dlock_core.health import health_of
from dlock_core.states import Due, Free, Held, LeaseState, Renew
from dlock_core.store import Capability, Replace, Reply
from dlock_core.timings import NANOS, NEVER

if TYPE_CHECKING:
    from collections.abc import MutableSequence, Sequence

    from dlock_core.engine.driver import Driver
    from dlock_core.engine.keeper import Keepers
    from dlock_core.health import Health

_log = guarded_logger("dlock.engine")


class Job(NamedTuple):
    """Requests that are due: one, or a batch of renewals.

    *urgent_at*: by when the first of them must be under way; *doubtful*: the one before failed, and this one may.
    """

    handles: Sequence[Handle]
    requests: Sequence[Any]
    timeout_ns: int
    urgent_at: int
    doubtful: bool


class Renewals:
    """The scheduler's side of a driver; who calls it, and on what thread or task, is the colour's business."""

    def __init__(self, driver: Driver, keepers: Keepers) -> None:
        self._driver = driver
        self._keepers = keepers
        store = driver.store
        batches = Capability.BATCH_RENEW in store.capabilities
        self._batch_limit: int = store.batch_limit if batches else 1  # type: ignore[attr-defined]  # the capability is declared

    def health(self, prefix: str) -> Health:
        """Return the health of the client, whose keys begin with *prefix*."""
        driver = self._driver
        with driver.runtime.mutex:
            held = list(driver.held.values())
        states = {each.key.removeprefix(prefix): _state_of(each) for each in held if each.keeps is None}
        sessions = [each.state for each in held if each.keeps is not None]
        store = getattr(driver.store, "store", driver.store)  # the one behind the face for threads
        return health_of(
            states,
            driver.runtime.now(),
            sessions=sessions,
            unresolved=len(driver.unresolved()),
            error=driver.last_error,
            connections=getattr(store, "connections", None),
        )

    def collect(self, due: MutableSequence[Job]) -> None:
        """Add to *due* the jobs that are due, the most urgent first. An interrupt before the caller has a returned list would lose them.

        Renewals that are due soon go along with those that are due, as far as a batch has room: it costs the store what one costs.
        """
        attended: dict[str, Handle] = {}  # by the RVN that it may have sent
        try:
            with self._driver.runtime.mutex:
                jobs, handles, requests = self._collect(attended)
            self._driver.tell()
            for start in range(0, len(handles), self._batch_limit):
                part = slice(start, start + self._batch_limit)
                jobs.append(_job(handles[part], requests[part]))
            # One beat keeps many locks: it goes before all else.
            due.extend(sorted(jobs, key=lambda job: (job.handles[0].keeps is None, job.urgent_at)))
        except BaseException:
            for rvn, handle in attended.items():
                self._driver.interrupted(handle, rvn)
            raise

    def _collect(self, attended: dict[str, Handle]) -> tuple[list[Job], list[Handle], list[Any]]:
        singles: list[tuple[Handle, Any]] = []
        handles: list[Handle] = []
        requests: list[Any] = []
        rvns = new_rvns()
        timers, now = self._driver.timers, self._driver.runtime.now()
        first = timers.first()
        any_due = first is not None and first.due <= now
        while any_due and (handle := timers.first()) is not None:
            state = handle.state
            # Where the lock ends at that instant, no renewal is due: a lease that nobody has in hand is put there again.
            renews = type(state) is Held and state.in_flight is None and handle.due == state.renew_at
            early = renews and lease.is_valid(state, handle.due)
            if handle.due > now + (state.timings.period_ns // 8 if early else 0):  # type: ignore[union-attr]  # early: it is held
                break
            if handle.due > now and handles and len(handles) % self._batch_limit == 0:
                break
            rvn = next(rvns)
            attended[rvn] = handle
            timers.put(handle, NEVER)
            effect = self._attend(handle, now, rvn, singles, early=early)
            if type(effect) is Replace and handle.keeps is None:
                handles.append(handle)
                requests.append(effect)
            elif effect is not None:
                singles.append((handle, effect))
        return [_job([handle], [request]) for handle, request in singles], handles, requests

    def drop(self, job: Job) -> None:
        """Tell the machine that *job* was interrupted."""
        for handle, request in zip(job.handles, job.requests, strict=True):
            self._driver.interrupted(handle, id_of(request))

    def _attend(self, handle: Handle, now: int, rvn: str, singles: list[tuple[Handle, Any]], *, early: bool) -> Any:
        state = handle.state
        if handle.keeps is not None:
            handle.keeps.end_if_empty(now)
        if type(state) is Held and not handle.is_in_hand():
            return self._attend_unheld(handle, state, now, rvn)
        if handle.watches:
            self._driver.fire_watches(handle, now)
        return self._keepers.attend(handle, Renew(rvn) if early else Due(rvn, jitter()), singles)

    def _attend_unheld(self, handle: Handle, state: Held, now: int, rvn: str) -> Any:
        """Renew nothing that nobody has in hand: a dropped lease lapses, what was never handed out or is being released is released."""
        if not lease.is_valid(state, now):
            self._driver.step(handle, Due(rvn))
            self._driver.forget(handle)
        elif handle.is_dropped:
            self._driver.timers.put(handle, min(state.deadline, state.hold_until, NEVER))
        else:
            return self._driver.step(handle, Free(rvn))
        return None

    async def run(self, job: Job) -> None:
        """Perform one job of :meth:`collect`; errors of a lock are events of that lock and never leave."""
        now = self._driver.runtime.now
        until = now() + job.timeout_ns

        def spare_s() -> float:
            # Looks are part of the job: while a store is slow, other locks must not wait for more than a request.
            left_ns = until - now()
            return left_ns / NANOS if left_ns >= job.timeout_ns // 2 else 0.0

        try:
            await self._perform(job)
            for handle in job.handles:
                if handle.keeps is not None:
                    await self._keepers.look_after(handle, spare_s)
            for handle in await find_evicted(self._driver, job.handles, spare_s):
                await self.run_one(handle, self._begin_renewal(handle))
        except BaseException:
            self.drop(job)
            raise

    def _begin_renewal(self, handle: Handle) -> Any:
        """Return the renewal of *handle*; None where it is held no more, or another renewal is under way, whose answer tells as much."""
        with self._driver.runtime.mutex:
            state = handle.state
            is_idle = type(state) is Held and state.in_flight is None
            request = self._driver.step(handle, Renew(new_rvn())) if is_idle else None
        self._driver.tell()
        return request

    async def _perform(self, job: Job) -> None:
        now = self._driver.runtime.now()
        if not any(
            lease.may_be_sent(handle.state, request, now)
            for handle, request in zip(job.handles, job.requests, strict=True)
        ):
            return
        if len(job.handles) == 1:
            await self.run_one(job.handles[0], job.requests[0])
            return
        results: Sequence[Reply | StoreError]
        try:
            results = await self._driver.store.replace_many(job.requests, timeout_s=job.timeout_ns / NANOS)  # type: ignore[attr-defined]
            _check_results(job, results)
        except StoreError as error:
            results = [error] * len(job.requests)
        except Exception as error:  # noqa: BLE001  # an adapter's mistake must not end the renewals of all other locks
            _log.warning("the batch renewal of %d locks failed: %r", len(job.requests), error)
            results = [OutcomeUnknownError(repr(error))] * len(job.requests)
        following: list[tuple[Handle, Any]] = []
        for handle, request, result, rvn in zip(job.handles, job.requests, results, new_rvns(), strict=False):
            event = self._driver.heard(handle, id_of(request), result, rvn)
            with self._driver.runtime.mutex:  # for a moment each: others want it, too
                effect = self._driver.step(handle, event)
            if effect is not None:
                following.append((handle, effect))
        self._driver.tell()
        # Once all are told: what follows for one lock may take its time, and no other may lapse over that with its answer unheard.
        for handle, effect in following:
            await self.run_one(handle, effect)

    async def run_one(self, handle: Handle, effect: Any) -> None:
        """Perform one request and what follows from it; log what is not the store's trouble."""
        try:
            await self._driver.drive(handle, effect)
        except Exception as error:  # noqa: BLE001  # as above; the machine has been told
            _log.warning("a request for lock %r failed: %r", handle.name, error)


def _state_of(handle: Handle) -> LeaseState:
    """Return the state of a lock as its user knows it: what ends, or puts at risk, the session that keeps it, does so to the lock."""
    state, session = handle.state, handle.renewal.state
    if type(state) is not Held:
        return state
    at_risk = state.at_risk or (type(session) is Held and session.at_risk)
    return state._replace(deadline=handle.deadline, at_risk=at_risk)


def _check_results(job: Job, results: Sequence[object]) -> None:
    if len(results) != len(job.requests) or not all(isinstance(result, (Reply, StoreError)) for result in results):
        raise TypeError(
            f"replace_many answered {len(job.requests)} requests with {len(results)} results, or with other things"
        )


def _job(handles: Sequence[Handle], requests: Sequence[Any]) -> Job:
    states = [handle.state for handle in handles]
    timeout_ns = min(lease.timings_of(state).timeout_ns for state in states)
    urgent_at = min(_urgent_at(state) for state in states)
    doubtful = all(type(state) is Held and state.at_risk for state in states)
    return Job(handles, requests, timeout_ns, urgent_at, doubtful)


def _urgent_at(state: LeaseState) -> int:
    """By when a renewal must be under way so that it can fail once and still be made in time."""
    if type(state) is not Held:
        return NEVER
    return state.deadline - 2 * state.timings.timeout_ns - state.timings.backoff_ns
