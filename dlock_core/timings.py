"""What the options of a lock amount to: whole numbers that the protocol works with, checked against each other once.

All durations are nanoseconds, but for the lease in the record, which is whole milliseconds, rounded once and used by both sides.
"""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from dlock_core.errors import ConfigurationError
from dlock_core.record import LEASE_MAX_MS, Attributes, ProcessIdentity, SessionRef

if TYPE_CHECKING:
    from dlock_core.options import ClientOptions

__all__ = ["NANOS", "NEVER", "Early", "Timings", "Traits", "derive_timings", "nanoseconds", "slow_poll_ns"]

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
    """What timings need to know of the store.

    Whether a grant has a fencing token, whether a key that exists may be absent again, whether waiters are notified of a release, whether
    the record that refuses a request is the newest one, and whether a claim may wait in the server.
    """

    has_tokens: bool = True
    deletes: bool = False
    notify: bool = False
    refusals_linearizable: bool = True
    server_wait: bool = False


TRAITS = Traits()


# One try, which waits for nobody.
_ONCE: dict[str, Any] = {"wait_ns": 0, "retries_max": 0, "server_wait": False, "must_exist": False}


class Timings(NamedTuple):
    """The numbers of one lock; shared by all locks of a client with the same options.

    *lease_ms* and *lease_ns* are the lease in the record: that of the options plus *delay_ms*, in which the holder no longer uses the lock.
    *acquire_timeout_ns* is for a request of an acquire, *idle_timeout_ns* for one about no lock that this client asks for or holds.
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
    idle_timeout_ns: int
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
        """Return these timings for a lock that *session* keeps: it is not renewed, and only its session, delay included, bounds it."""
        return self._replace(
            lease_ms=None,
            lease_ns=NEVER,
            delay_ms=0,
            usable_ns=NEVER,
            handout_min_ns=0,
            auto_renew=False,
            session=session,
        )

    def of_session(self) -> "Timings":
        """Return these timings for a session's record: asked for once, without an end or data of its own, and left behind for nobody."""
        return self._replace(
            **_ONCE,
            max_hold_ns=None,
            stall_ns=None,
            data=None,
            attributes=(),
            keep_payload=False,
            hide_on_release=True,
        )

    def opening_session(self, wall_ms: int) -> "Timings":
        """Return these timings for one claim of a session: behind a row that was deleted, it gets no token that was granted there."""
        floor = max(self.token_floor, wall_ms)
        return self._replace(**_ONCE, token_floor=floor)

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


def derive_timings(options: "ClientOptions", owner: str, traits: Traits = TRAITS, early: Early = EARLY) -> Timings:
    """Return the timings of a lock with these *options*, on a store with these *traits*.

    Raises: ConfigurationError: they do not fit together; the message names the numbers and the option that breaks the rule.
    """
    lease_ms = _lease_ms(options.lease_duration, options.lock_delay, options.max_lease_duration)
    derived = _durations(lease_ms, options) | _polling(lease_ms, options, traits)
    timings = Timings(
        **traits._asdict() | derived,
        # Who waits for a short time does not mean to wait longer for a server that hangs; a renewal has to do with no more time, either.
        acquire_timeout_ns=min(derived["idle_timeout_ns"], max(derived["wait_ns"], derived["timeout_ns"])),
        owner=owner,
        auto_renew=options.auto_renew and not options.fail_closed,
        data=options.data,
        attributes=tuple(sorted(options.attributes.items())),
        keep_payload=not options.replace_data,
        must_exist=options.only_if_exists,
        hide_on_release=options.delete_on_release,
        early=early,
        token_floor=options.token_floor,
    )
    _check_limits_fit(timings)
    if timings.auto_renew:
        _check_renewal_fits(timings, options)
    return timings


def _durations(lease_ms: int, options: "ClientOptions") -> dict[str, Any]:
    """Return the fields that follow from the lease; a fail-closed lock takes its time-outs from the lease that it would have.

    Waiters of any version wait for the whole of the lease that the record has, so a lock delay makes that longer, and not its use.
    """
    fail_closed, drift_bound = options.fail_closed, options.drift_bound
    lease_ns, delay_ms = lease_ms * _MILLI, 0 if fail_closed else _milliseconds(options.lock_delay)
    whole_ns = lease_ns + delay_ms * _MILLI
    usable_ns = whole_ns * (_PPM - 2 * math.ceil(drift_bound * _PPM)) // _PPM - delay_ms * _MILLI
    stop_grace_ns = _optional_ns(options.stop_grace) or 0
    cap_ns = min(_REQUEST_MAX_NS, _optional_ns(options.request_timeout) or _REQUEST_MAX_NS)
    return {
        "lease_ms": None if fail_closed else lease_ms + delay_ms,
        "lease_ns": NEVER if fail_closed else whole_ns,
        "delay_ms": delay_ms,
        "usable_ns": NEVER if fail_closed else usable_ns,
        # Half of the time in which the holder may work before it is told to stop.
        "handout_min_ns": 0 if fail_closed else (usable_ns + stop_grace_ns) // 2,
        "stop_grace_ns": stop_grace_ns,
        "max_hold_ns": _optional_ns(options.max_hold),
        "stall_ns": _optional_ns(options.stall_timeout),
        "period_ns": _optional_ns(options.heartbeat_period) or lease_ns // _HEARTBEAT,
        "timeout_ns": min(lease_ns // _RENEWAL, cap_ns),
        "idle_timeout_ns": min(lease_ns // _ACQUIRE, cap_ns),
        "backoff_ns": lease_ns // _BACKOFF,
        "patience_ns": min(lease_ns, _REQUEST_MAX_NS),
    }


def _polling(lease_ms: int, options: "ClientOptions", traits: Traits) -> dict[str, Any]:
    """Return the fields that say how a wait goes."""
    lease_ns = lease_ms * _MILLI
    poll_ns, wait_ns = _optional_ns(options.poll_period), _optional_ns(options.timeout)
    return {
        "poll_max_ns": poll_ns or min(lease_ns // _POLL, _POLL_MAX_NS),
        "fallback_ns": poll_ns or slow_poll_ns(NEVER if options.fail_closed else lease_ns),
        "wait_ns": NEVER if wait_ns is None else wait_ns,
        "wait_after_lease": options.timeout_after_lease,
        # Each poll of a number that the options give is a request of its own.
        "server_wait": (
            traits.server_wait and options.server_wait and options.retries is None and not options.fail_closed
        ),
        "retries_max": NEVER if options.retries is None else options.retries,
    }


# Any: the durations of checked options are numbers, though their type says that they may be given as a timedelta.
def _lease_ms(lease_duration: Any, lock_delay: Any, max_lease_duration: Any) -> int:
    """Return the lease in milliseconds, without the delay; what the record says is both together."""
    lease_ms, delay_ms = _milliseconds(lease_duration), _milliseconds(lock_delay)
    if lease_ms > LEASE_MAX_MS:
        bounds = f"1 ms to {LEASE_MAX_MS} ms (24 h) are possible"
        raise ConfigurationError(f"lease_duration={lease_duration} s is {lease_ms} ms; {bounds}")
    if lease_ms > max_lease_duration * 1000:
        raise ConfigurationError(f"lease_duration={lease_duration} s exceeds max_lease_duration={max_lease_duration} s")
    if lease_ms + delay_ms > LEASE_MAX_MS:
        raise ConfigurationError(
            f"lease_duration={lease_duration:g} s and lock_delay={lock_delay:g} s together exceed {LEASE_MAX_MS // 1000} s (24 h)"
        )
    return lease_ms


def _milliseconds(seconds: Any) -> int:
    return round(float(seconds) * 1000)


def _optional_ns(seconds: Any) -> int | None:
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


def _check_renewal_fits(timings: Timings, options: "ClientOptions") -> None:
    lease_ns, drift_bound = timings.own_lease_ns, options.drift_bound
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
    elif options.heartbeat_period is not None and room > 0:
        advice = f"heartbeat_period is what breaks it: at most {room / NANOS:g} s, or a longer lease_duration"
    else:
        advice = (
            f"drift_bound={drift_bound:g} is what breaks it: it leaves {timings.usable_ns / NANOS:g} s of the lease"
        )
    raise ConfigurationError(
        f"the renewal does not fit lease_duration={options.lease_duration:g} s: {terms} = {(timings.period_ns + rest) / NANOS:g} s, "
        f"and {timings.usable_ns / NANOS:g} s can be used; {advice}"
    )
