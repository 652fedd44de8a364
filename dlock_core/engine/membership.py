"""What a client has of a shared lock: its place among the members, which is looked after, and left in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dlock_core.engine.breaking import break_grant
from dlock_core.engine.driver import new_rvn
from dlock_core.engine.user_calls import guarded_logger
from dlock_core.errors import ConfigurationError, StoreError
from dlock_core.members import leave, member_of
from dlock_core.record import Broken, NewerRecord
from dlock_core.states import Break, Held
from dlock_core.store import Claim, Release
from dlock_core.timings import NANOS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dlock_core.engine.driver import Driver
    from dlock_core.engine.handle import Handle
    from dlock_core.options import LockOptions
    from dlock_core.record import LockRecord, Member
    from dlock_core.store import AsyncLockStore, Replace, Reply

_log = guarded_logger("dlock.engine")

_AUDITS_MAX = 16  # between two renewals of a batch: other locks' renewals wait for them
_LEAVES_MAX = 16


class Membership(NamedTuple):
    """What a handle is for, where it is the session of a member: the shared lock, the member, and the record as it was last *seen_at*."""

    key: str
    member: Member
    record: LockRecord
    seen_at: int


def check_exclusive(options: LockOptions, what: str) -> None:
    """Raise ConfigurationError where *options* ask for a shared lock: *what* needs an exclusive one."""
    if options.is_shared:
        asked = f"mode={options.mode!r}" if options.permits is None else f"permits={options.permits}"
        raise ConfigurationError(f"{what} takes exclusive locks, and {asked} asks for a shared one; leave that out")


def check_shared(options: LockOptions) -> None:
    """Refuse what a shared lock cannot have.

    Raises: ConfigurationError: options that don't go together; the message names them.
    """
    permits, mode = options.permits, options.mode
    if permits is not None and mode != "exclusive":
        raise ConfigurationError(
            f"permits={permits} makes a semaphore, and mode={mode!r} a read/write lock; give one of them"
        )
    if permits is None and options.weight > 1:
        raise ConfigurationError(f"weight={options.weight} is a number of permits; say with permits how many there are")
    if permits is not None and options.weight > permits:
        raise ConfigurationError(f"weight={options.weight} can never be had of permits={permits}")
    asked = f"permits={permits}" if permits is not None else f"mode={mode!r}"
    given = {
        "fail_closed": options.fail_closed,
        "auto_renew": not options.auto_renew,
        "reentrant": options.reentrant,
        "data": options.data is not None,
        "attributes": options.attributes,
        "only_if_exists": options.only_if_exists,
        "timeout_after_lease": options.timeout_after_lease,
    }
    if wrong := next((name for name, is_given in given.items() if is_given), None):
        raise ConfigurationError(
            f"{wrong}={getattr(options, wrong)!r} does not go with {asked}: a shared lock is renewed, has several holders and no data; "
            f"leave {wrong} out"
        )


async def find_evicted(driver: Driver, handles: Sequence[Handle], spare_s: Callable[[], float]) -> list[Handle]:
    """Return those of *handles* that are no members any more: a failover lost their joining, or somebody removed or restored the record.

    Nothing else tells them, since their renewals don't touch it. The session of each is broken, so its next renewal says that it is lost.
    *spare_s* says how long the next look may take; 0 ends them.
    """
    members = [
        (handle, handle.membership)
        for handle in handles
        if handle.membership is not None and type(handle.state) is Held  # what the renewal has lost is not asked for
    ]
    members.sort(key=lambda pair: pair[1].seen_at)
    evicted = []
    for handle, membership in members[:_AUDITS_MAX]:
        if not (timeout_s := spare_s()):
            break
        try:
            if await _is_evicted(driver, handle, membership, timeout_s):
                evicted.append(handle)
        except Exception as error:  # noqa: BLE001  # an adapter's mistake must not end the renewals of all other locks
            _log.debug("lock %r could not be looked at: %r", handle.name, error)
    return evicted


async def _is_evicted(driver: Driver, handle: Handle, membership: Membership, timeout_s: float) -> bool:
    timings = handle.state.terms.timings
    now = driver.runtime.now()
    record = await driver.store.read(membership.key, timeout_s=timeout_s)
    state = handle.state
    if isinstance(record, NewerRecord) or type(state) is not Held or handle.is_converting:  # or was released meanwhile
        return False
    if record is not None and member_of(record, membership.member.member_id) is not None:
        handle.membership = membership._replace(record=record, seen_at=now)
        return False
    _log.warning(
        "lock %r has lost its holder %r: its record was rolled back, or changed by hand", handle.name, timings.owner
    )
    by = Broken(timings.owner, driver.runtime.wall_ms())
    await break_grant(driver.store, Break(handle.key, state.version.fencing_token, by), timings.timeout_ns / NANOS)
    return True


async def leave_members(driver: Driver, handle: Handle, membership: Membership) -> bool:
    """Take the member out of the record, after its use has ended; whether it certainly is out.

    Where that fails, the end of its session, which comes next, does it.
    """
    store, timings = driver.store, handle.state.terms.timings
    timeout_s = timings.timeout_ns / NANOS
    record: LockRecord | None = membership.record
    until = driver.runtime.now() + timings.timeout_ns
    for _ in range(_LEAVES_MAX):
        request = leave(record, membership.member.member_id, new_rvn(), hides=handle.options.delete_on_release)
        if request is None:
            driver.turns.note_leaving(membership.key)
            return True
        try:
            reply = await send_step(store, request, timeout_s)
            record = reply.record
            if not reply.applied and not timings.refusals_linearizable:
                record = await store.read(membership.key, timeout_s=timeout_s)
        except StoreError as error:  # the next try tells what became of this one
            _log.debug("lock %r was not left: %s", membership.key, error)
        if driver.runtime.now() >= until:
            break
    return False


async def send_step(store: AsyncLockStore, request: Claim | Replace | Release, timeout_s: float) -> Reply:
    """Send a write by which a member joins or leaves."""
    if isinstance(request, Claim):
        return await store.claim(request, timeout_s=timeout_s)
    if isinstance(request, Release):
        return await store.release(request, timeout_s=timeout_s)
    return await store.replace(request, timeout_s=timeout_s)
