"""What the options of a lock amount to: whole numbers that the protocol works with, checked against each other once.

All durations are nanoseconds, but for the lease in the record, which is whole milliseconds, rounded once and used by both sides.
"""

import math
from typing import Any, NamedTuple

from dlock_core.errors import ConfigurationError
from dlock_core.record import LEASE_MAX_MS, Attributes, ProcessIdentity, SessionRef

__all__ = [
    "NANOS",
    "NEVER",
    "Early",
    "Limits",
    "Timings",
    "Traits",
    "Waiting",
    "derive_timings",
    "nanoseconds",
    "slow_poll_ns",
]

NANOS = 1_000_000_000

NEVER = 1 << 62
"""An instant or a duration beyond all others: 146 years."""

_MILLI = 1_000_000
_PPM = 1_000_000
_REQUEST_MAX_NS = 10 * NANOS
# How the lease of a healthy holder is shared out (rule 13): a heartbeat, being woken late, two requests with a back-off between
# them, and a margin must end before the use of the lease does. Each is a part of the lease: 1/20 means a twentieth.
_HEARTBEAT, _LATENESS, _RENEWAL, _ACQUIRE, _BACKOFF, _MARGIN = 4, 20, 6, 2, 24, 50
_ATTEMPTS = 2
# A renewal is seen so much of a lease late at most, and a dead holder is replaced so much late.
_POLL = 25
_POLL_FIRST_NS = 10 * _MILLI
_POLL_MAX_NS = NANOS // 2
_SLOW_POLL, _SLOW_POLL_MAX_NS = 4, 2 * NANOS
# A poll after so many doublings comes a day after the one before it; no lease is longer.
_DOUBLINGS_MAX = 24


class Waiting(NamedTuple):
    """How a wait goes, beside its timeout: whether that counts after the first holder's lease, how many polls, how far apart (seconds).

    *in_server*: claims may wait in the server, where the store can.
    """

    after_lease: bool = False
    retries: int | None = None
    poll_period: float | None = None
    in_server: bool = False


WAITING = Waiting()


class Limits(NamedTuple):
    """What bounds a hold beside its lease, in seconds; the options of these names say what each means."""

    max_hold: float | None = None
    stop_grace: float = 0.0
    stall_timeout: float | None = None
    lock_delay: float = 0.0


LIMITS = Limits()


class Early(NamedTuple):
    """What a waiter takes for the end of a holder's lease, beside one unchanged for a lease; all of it opt-in.

    *process* is what our own records say of us. *skew_ns* bounds how far two wall clocks are apart, *drift_ppm* their rates.
    """

    process: ProcessIdentity | None = None
    probes: bool = False
    server_clock: bool = False
    skew_ns: int | None = None
    drift_ppm: int = 0


EARLY = Early()


class Traits(NamedTuple):
    """What the records of a store are like: whether a grant has a fencing token, and whether a key that exists may be absent again."""

    has_tokens: bool = True
    deletes: bool = False


TRAITS = Traits()


class Timings(NamedTuple):
    """The numbers of one lock; shared by all locks of a client with the same options.

    *lease_ms* and *lease_ns* are the lease in the record: that of the options plus *delay_ms*, in which the holder no longer uses the lock.
    *session*: the lock has no lease of its own, and lasts as long as that session does.
    """

    owner: str
    lease_ms: int | None
    lease_ns: int
    delay_ms: int
    usable_ns: int
    handout_min_ns: int
    period_ns: int
    timeout_ns: int
    acquire_timeout_ns: int
    backoff_ns: int
    patience_ns: int
    poll_max_ns: int
    fallback_ns: int
    wait_ns: int
    auto_renew: bool
    max_hold_ns: int | None
    stall_ns: int | None
    stop_grace_ns: int
    data: bytes | None
    attributes: Attributes
    keep_payload: bool
    must_exist: bool
    hide_on_release: bool
    notify: bool
    refusals_linearizable: bool
    wait_after_lease: bool
    server_wait: bool
    retries_max: int
    early: Early
    token_floor: int = 1
    has_tokens: bool = True
    deletes: bool = False
    session: SessionRef | None = None

    def under(self, session: SessionRef) -> "Timings":
        """Return these timings for a lock that *session* keeps: it is not renewed, and only its session bounds it."""
        return self._replace(
            lease_ms=None, lease_ns=NEVER, usable_ns=NEVER, handout_min_ns=0, auto_renew=False, session=session
        )

    def of_session(self) -> "Timings":
        """Return these timings for a session's record: asked for once, without an end or data of its own, and left behind for nobody."""
        return self._replace(
            wait_ns=0,
            retries_max=0,
            server_wait=False,
            max_hold_ns=None,
            stall_ns=None,
            data=None,
            attributes=(),
            keep_payload=False,
            must_exist=False,
            hide_on_release=True,
        )

    def opening_session(self, wall_ms: int) -> "Timings":
        """Return these timings for one claim of a session: behind a row that was deleted, it gets no token that was granted there."""
        floor = max(self.token_floor, wall_ms)
        return self._replace(wait_ns=0, retries_max=0, server_wait=False, must_exist=False, token_floor=floor)

    @property
    def own_lease_ns(self) -> int:
        """The lease that the options say: without the lock delay."""
        return self.lease_ns - self.delay_ms * _MILLI

    @property
    def lateness_ns(self) -> int:
        """How late a renewal may be begun."""
        return self.own_lease_ns // _LATENESS

    def poll_ns(self, polls: int, jitter: float) -> int:
        """Return how long to wait before poll number *polls* (from 0); *jitter* in [0, 1) spreads a herd.

        A store that notifies is polled slowly, in case a notification is lost; any other with growing steps.
        """
        longest = min(_POLL_FIRST_NS << min(polls, _DOUBLINGS_MAX), self.poll_max_ns)
        if self.notify:
            longest = self.fallback_ns
        return longest - int(jitter * longest / 2)


def slow_poll_ns(lease_ns: int) -> int:
    """Return how often somebody looks who is not in a hurry: a waiter that the store wakes, an observer of an election."""
    return min(lease_ns // _SLOW_POLL, _SLOW_POLL_MAX_NS)


def nanoseconds(seconds: float) -> int:
    """Return *seconds* as whole nanoseconds."""
    return round(seconds * NANOS)


def derive_timings(  # the one place where all options meet
    *,
    owner: str,
    lease_duration: float,
    heartbeat_period: float | None,
    timeout: float | None,
    request_timeout: float | None,
    drift_bound: float,
    max_lease_duration: float,
    fail_closed: bool,
    auto_renew: bool,
    data: bytes | None,
    attributes: Attributes,
    replace_data: bool,
    only_if_exists: bool,
    delete_on_release: bool,
    notify: bool,
    refusals_linearizable: bool,
    waiting: Waiting = WAITING,
    limits: Limits = LIMITS,
    early: Early = EARLY,
    token_floor: int = 1,
    traits: Traits = TRAITS,
) -> Timings:
    """Return the timings of these options (seconds).

    Raises: ConfigurationError: they do not fit together; the message names the numbers and the option that breaks the rule.
    """
    lease_ms = _lease_ms(lease_duration, limits.lock_delay, max_lease_duration)
    timings = Timings(
        **_durations(lease_ms, heartbeat_period, request_timeout, drift_bound, limits, fail_closed=fail_closed),
        **_polling(lease_ms, timeout, waiting, fail_closed=fail_closed),
        owner=owner,
        auto_renew=auto_renew and not fail_closed,
        data=data,
        attributes=attributes,
        keep_payload=not replace_data,
        must_exist=only_if_exists,
        hide_on_release=delete_on_release,
        notify=notify,
        refusals_linearizable=refusals_linearizable,
        early=early,
        token_floor=token_floor,
        **traits._asdict(),
    )
    _check_limits_fit(timings)
    if timings.auto_renew:
        _check_renewal_fits(timings, lease_duration, drift_bound, heartbeat_given=heartbeat_period is not None)
    return timings


def _durations(
    lease_ms: int,
    heartbeat_period: float | None,
    request_timeout: float | None,
    drift_bound: float,
    limits: Limits,
    *,
    fail_closed: bool,
) -> dict[str, Any]:
    """Return the fields that follow from the lease; a fail-closed lock takes its time-outs from the lease that it would have.

    Waiters of any version wait for the whole of the lease that the record has, so a lock delay makes that longer, and not its use.
    """
    lease_ns, delay_ms = lease_ms * _MILLI, 0 if fail_closed else _milliseconds(limits.lock_delay)
    whole_ns = lease_ns + delay_ms * _MILLI
    usable_ns = whole_ns * (_PPM - 2 * math.ceil(drift_bound * _PPM)) // _PPM - delay_ms * _MILLI
    stop_grace_ns = nanoseconds(limits.stop_grace)
    cap_ns = _REQUEST_MAX_NS if request_timeout is None else min(_REQUEST_MAX_NS, nanoseconds(request_timeout))
    return {
        "lease_ms": None if fail_closed else lease_ms + delay_ms,
        "lease_ns": NEVER if fail_closed else whole_ns,
        "delay_ms": delay_ms,
        "usable_ns": NEVER if fail_closed else usable_ns,
        # Half of the time in which the holder may work before it is told to stop.
        "handout_min_ns": 0 if fail_closed else (usable_ns + stop_grace_ns) // 2,
        "stop_grace_ns": stop_grace_ns,
        "max_hold_ns": _optional_ns(limits.max_hold),
        "stall_ns": _optional_ns(limits.stall_timeout),
        "period_ns": lease_ns // _HEARTBEAT if heartbeat_period is None else nanoseconds(heartbeat_period),
        "timeout_ns": min(lease_ns // _RENEWAL, cap_ns),
        "acquire_timeout_ns": min(lease_ns // _ACQUIRE, cap_ns),
        "backoff_ns": lease_ns // _BACKOFF,
        "patience_ns": min(lease_ns, _REQUEST_MAX_NS),
    }


def _polling(lease_ms: int, timeout: float | None, waiting: Waiting, *, fail_closed: bool) -> dict[str, Any]:
    """Return the fields that say how a wait goes."""
    lease_ns = lease_ms * _MILLI
    poll_ns = None if waiting.poll_period is None else nanoseconds(waiting.poll_period)
    return {
        "poll_max_ns": poll_ns or min(lease_ns // _POLL, _POLL_MAX_NS),
        "fallback_ns": poll_ns or slow_poll_ns(NEVER if fail_closed else lease_ns),
        "wait_ns": NEVER if timeout is None else nanoseconds(timeout),
        "wait_after_lease": waiting.after_lease,
        # Each poll of a number that the options give is a request of its own.
        "server_wait": waiting.in_server and waiting.retries is None and not fail_closed,
        "retries_max": NEVER if waiting.retries is None else waiting.retries,
    }


def _lease_ms(lease_duration: float, lock_delay: float, max_lease_duration: float) -> int:
    """Return the lease in milliseconds, without the delay; what the record says is both together."""
    lease_ms, delay_ms = _milliseconds(lease_duration), _milliseconds(lock_delay)
    if not 0 < lease_ms <= LEASE_MAX_MS:
        bounds = f"1 ms to {LEASE_MAX_MS} ms (24 h) are possible"
        raise ConfigurationError(f"lease_duration={lease_duration} s is {lease_ms} ms; {bounds}")
    if lease_ms > max_lease_duration * 1000:
        raise ConfigurationError(f"lease_duration={lease_duration} s exceeds max_lease_duration={max_lease_duration} s")
    if lease_ms + delay_ms > LEASE_MAX_MS:
        raise ConfigurationError(
            f"lease_duration={lease_duration:g} s and lock_delay={lock_delay:g} s together exceed {LEASE_MAX_MS // 1000} s (24 h)"
        )
    return lease_ms


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _optional_ns(seconds: float | None) -> int | None:
    return None if seconds is None else nanoseconds(seconds)


def _check_limits_fit(timings: Timings) -> None:
    """Refuse a lock delay that leaves nothing of the lease to use, and a stop grace that would begin before the lock is held.

    Raises: ConfigurationError: the message names the option and what it exceeds.
    """
    if timings.usable_ns <= 0:
        raise ConfigurationError(
            f"lock_delay={timings.delay_ms / 1000:g} s is too long for lease_duration={timings.own_lease_ns / NANOS:g} s: "
            "the drift of the clocks during both uses the lease up; give a longer lease_duration"
        )
    grace_ns = timings.stop_grace_ns
    bounds = {
        "the usable part of lease_duration": timings.usable_ns,
        "max_hold": timings.max_hold_ns or NEVER,
        "stall_timeout": timings.stall_ns or NEVER,
    }
    for name, bound_ns in bounds.items():
        if grace_ns >= bound_ns:
            raise ConfigurationError(
                f"stop_grace={grace_ns / NANOS:g} s must be shorter than {name}, {bound_ns / NANOS:g} s; "
                "otherwise the holder would have to stop before it begins"
            )


def _check_renewal_fits(timings: Timings, lease_duration: float, drift_bound: float, *, heartbeat_given: bool) -> None:
    lease_ns = timings.own_lease_ns
    rest = (
        timings.lateness_ns
        + _ATTEMPTS * timings.timeout_ns
        + (_ATTEMPTS - 1) * timings.backoff_ns
        + lease_ns // _MARGIN
        + timings.stop_grace_ns
    )
    if timings.period_ns + rest <= timings.usable_ns:
        return
    terms = (
        f"heartbeat_period {timings.period_ns / NANOS:g} s + lateness {timings.lateness_ns / NANOS:g} s + {_ATTEMPTS} requests of "
        f"{timings.timeout_ns / NANOS:g} s + back-off {timings.backoff_ns / NANOS:g} s + margin {lease_ns / _MARGIN / NANOS:g} s"
        + (f" + stop_grace {timings.stop_grace_ns / NANOS:g} s" if timings.stop_grace_ns else "")
    )
    room = timings.usable_ns - rest
    room_for_grace = room - timings.period_ns + timings.stop_grace_ns
    usable_without_delay = lease_ns * (_PPM - 2 * math.ceil(drift_bound * _PPM)) // _PPM
    if timings.delay_ms and timings.period_ns + rest <= usable_without_delay:
        longest_s = (usable_without_delay - timings.period_ns - rest) / (2 * drift_bound) / NANOS
        advice = f"lock_delay is what breaks it: at most {longest_s:g} s, or a longer lease_duration"
    elif room_for_grace >= 0 and timings.stop_grace_ns:
        advice = f"stop_grace is what breaks it: at most {room_for_grace / NANOS:g} s, or a longer lease_duration"
    elif heartbeat_given and room > 0:
        advice = f"heartbeat_period is what breaks it: at most {room / NANOS:g} s, or a longer lease_duration"
    else:
        advice = (
            f"drift_bound={drift_bound:g} is what breaks it: it leaves {timings.usable_ns / NANOS:g} s of the lease"
        )
    raise ConfigurationError(
        f"the renewal does not fit lease_duration={lease_duration:g} s: {terms} = {(timings.period_ns + rest) / NANOS:g} s, "
        f"and {timings.usable_ns / NANOS:g} s can be used; {advice}"
    )
