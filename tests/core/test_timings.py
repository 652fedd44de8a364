"""What the options amount to: rounding, bounds, and the rule that a renewal fits its lease."""

from __future__ import annotations

from typing import Any

import pytest

from dlock_core.errors import ConfigurationError
from dlock_core.record import LEASE_MAX_MS
from dlock_core.timings import NEVER, nanoseconds
from tests.core.attempts import SECOND, timings


def test_lease_is_rounded_to_whole_milliseconds_once() -> None:
    """The record and the holder use the same number."""
    made = timings(lease_duration=1.00049)

    assert (made.lease_ms, made.lease_ns) == (1000, 1_000_000_000)
    assert timings(lease_duration=1.0005001).lease_ms == 1001


@pytest.mark.parametrize(("lease", "told"), [(0.0009, "give 0.001 seconds"), (LEASE_MAX_MS / 1000 + 0.001, "24 h")])
def test_lease_out_of_the_format_is_refused(lease: float, told: str) -> None:
    """1 ms to 24 h."""
    with pytest.raises(ConfigurationError, match=told):
        timings(lease_duration=lease, max_lease_duration=1e9)


@pytest.mark.parametrize("lease_ms", [1, LEASE_MAX_MS])
def test_lease_at_the_bounds_of_the_format_is_possible(lease_ms: int) -> None:
    """Both ends belong to it."""
    assert timings(lease_duration=lease_ms / 1000, max_lease_duration=1e9).lease_ms == lease_ms


def test_lease_beyond_the_clients_own_bound_is_refused() -> None:
    """The message names both numbers."""
    with pytest.raises(ConfigurationError, match=r"lease_duration=10.001 s exceeds max_lease_duration=10.0 s"):
        timings(lease_duration=10.001, max_lease_duration=10)

    assert timings(lease_duration=10, max_lease_duration=10).lease_ms == 10_000


@pytest.mark.parametrize(("drift", "usable"), [(0.0, 10.0), (0.01, 9.8), (0.0000001, 9.99998)])
def test_use_of_a_lease_ends_two_drift_bounds_early(drift: float, usable: float) -> None:
    """One for each clock, rounded to the safe side."""
    assert timings(drift_bound=drift).usable_ns == round(usable * SECOND)


def test_defaults_share_out_the_lease() -> None:
    """A quarter for the heartbeat, a sixth for a renewal, a half for an acquire, a twenty-fourth to back off."""
    made = timings()

    assert (made.period_ns, made.timeout_ns, made.acquire_timeout_ns, made.backoff_ns) == (
        2_500_000_000,
        1_666_666_666,
        5_000_000_000,
        416_666_666,
    )
    assert made.handout_min_ns == 4_900_000_000


@pytest.mark.parametrize("lease", [0.001, 0.05, 1, 20, 3600])
def test_rule_13_fits_every_lease_by_default(lease: float) -> None:
    """The defaults are parts of the lease, so no setting is needed beside it."""
    assert timings(lease_duration=lease).auto_renew


def test_rule_13_refuses_a_heartbeat_that_leaves_no_time_for_two_requests() -> None:
    """The message names the term that breaks it and the most that fits."""
    with pytest.raises(ConfigurationError, match=r"heartbeat_period is what breaks it: at most 5\.35 s"):
        timings(heartbeat_period=5.36)

    assert timings(heartbeat_period=5.34).period_ns == 5_340_000_000


def test_rule_13_refuses_a_drift_bound_that_leaves_too_little() -> None:
    """Where no heartbeat was given, the drift is what is left to blame."""
    with pytest.raises(ConfigurationError, match=r"drift_bound=0\.2 is what breaks it"):
        timings(drift_bound=0.2)


def test_rule_13_counts_two_requests_one_back_off_lateness_and_margin() -> None:
    """Each term is there: lateness 1/20, requests 2/6, back-off 1/24, margin 1/50."""
    rest = 10 * (1 / 20 + 2 / 6 + 1 / 24 + 1 / 50)

    assert timings(heartbeat_period=9.8 - rest - 0.001).auto_renew
    with pytest.raises(ConfigurationError):
        timings(heartbeat_period=9.8 - rest + 0.001)


def test_rule_13_counts_the_request_timeout_that_was_given() -> None:
    """A shorter one leaves room for a longer heartbeat."""
    assert timings(heartbeat_period=7, request_timeout=0.5).timeout_ns == 500_000_000


def test_rule_13_counts_the_stop_grace_and_names_the_most_that_fits() -> None:
    """A quarter of the lease fits beside the defaults; the error names the grace, and a heartbeat where that is what breaks the sum."""
    assert timings(stop_grace=2.5).stop_grace_ns == 2_500_000_000
    assert timings(stop_grace=2.85).stop_grace_ns == 2_850_000_000
    with pytest.raises(
        ConfigurationError, match=r"stop_grace 2\.86 s = .*stop_grace is what breaks it: at most 2\.85 s"
    ):
        timings(stop_grace=2.86)
    with pytest.raises(ConfigurationError, match=r"heartbeat_period is what breaks it: at most 2\.85 s"):
        timings(stop_grace=2.5, heartbeat_period=6)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"auto_renew": False, "stop_grace": 9.8},
            r"stop_grace=9\.8 s must be shorter than the usable part of lease_duration, 9\.8 s",
        ),
        ({"max_hold": 2, "stop_grace": 2}, r"stop_grace=2 s must be shorter than max_hold, 2 s"),
        ({"stall_timeout": 2, "stop_grace": 2}, r"stop_grace=2 s must be shorter than stall_timeout, 2 s"),
    ],
)
def test_stop_grace_that_begins_before_the_hold_is_refused(options: dict[str, Any], told: str) -> None:
    """The message names the option and what it exceeds."""
    with pytest.raises(ConfigurationError, match=told):
        timings(**options)

    assert timings(**options | {"stop_grace": 1.9}).stop_grace_ns == 1_900_000_000


def test_grant_is_handed_out_with_half_of_the_time_before_the_stop() -> None:
    """A grant that is handed out late must not be told to stop at once."""
    assert timings(stop_grace=2.8).handout_min_ns == 6_300_000_000


@pytest.mark.parametrize(("lease", "delay"), [(10, 5), (1, 0.25), (20, 60)])
def test_lock_delay_lengthens_the_lease_in_the_record_and_not_its_use(lease: float, delay: float) -> None:
    """Waiters wait for both; the clocks may drift during both (L1)."""
    made = timings(lease_duration=lease, lock_delay=delay)

    assert (made.lease_ms, made.delay_ms) == (round((lease + delay) * 1000), round(delay * 1000))
    assert made.usable_ns == pytest.approx(((lease + delay) * 0.98 - delay) * SECOND)
    assert made.own_lease_ns == lease * SECOND
    plain = timings(lease_duration=lease)
    assert (made.period_ns, made.timeout_ns, made.backoff_ns) == (plain.period_ns, plain.timeout_ns, plain.backoff_ns)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"lease_duration": 1, "lock_delay": 60}, "lock_delay=60 s is too long for lease_duration=1 s"),
        ({"lease_duration": 4, "lock_delay": 60}, r"lock_delay is what breaks it: at most 57 s"),
        ({"lease_duration": 86400, "max_lease_duration": 86400, "lock_delay": 1}, "together exceed 86400 s"),
    ],
)
def test_lock_delay_that_does_not_fit_is_refused(options: dict[str, Any], told: str) -> None:
    """The message names the option and its bound."""
    with pytest.raises(ConfigurationError, match=told):
        timings(**{"max_lease_duration": 86400, **options})


def test_lock_without_a_lease_has_no_delay() -> None:
    """Nobody waits for its end."""
    assert (timings(fail_closed=True, lock_delay=5).lease_ms, timings(fail_closed=True, lock_delay=5).delay_ms) == (
        None,
        0,
    )


def test_rule_13_does_not_bind_a_lease_that_is_renewed_by_hand() -> None:
    """There is no period."""
    assert not timings(auto_renew=False, drift_bound=0.3).auto_renew


@pytest.mark.parametrize("drift", [0.01, 0.1, 0.3, 0.45])
def test_grant_at_once_is_fresh_enough_under_any_drift_bound(drift: float) -> None:
    """Otherwise an acquire would renew for ever."""
    made = timings(auto_renew=False, drift_bound=drift)

    assert 0 < made.handout_min_ns < made.usable_ns


def test_fail_closed_lock_has_no_lease_and_is_not_renewed() -> None:
    """Its time-outs come from the lease that it would have."""
    made = timings(fail_closed=True)

    assert (made.lease_ms, made.lease_ns, made.usable_ns, made.auto_renew) == (None, NEVER, NEVER, False)
    assert made.timeout_ns == 1_666_666_666


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({"timeout": 0.0}, 10 / 6),
        ({"timeout": 1.0}, 10 / 6),
        ({"timeout": 3.0}, 3.0),
        ({"timeout": 60.0}, 5.0),
        ({"timeout": None}, 5.0),
        ({"timeout": 0.0, "request_timeout": 1.0}, 1.0),
    ],
    ids=str,
)
def test_request_of_an_acquire_takes_no_longer_than_its_wait_or_a_renewal(
    options: dict[str, Any], seconds: float
) -> None:
    """A single try of a server that hangs is not meant to take half of a lease; what is about no lock is not shortened."""
    made = timings(lease_duration=10, **options)

    assert made.acquire_timeout_ns == int(seconds * SECOND)
    assert made.idle_timeout_ns == int(min(5.0, options.get("request_timeout", 5.0)) * SECOND)


@pytest.mark.parametrize("request_timeout", [None, 30.0])
def test_requests_end_within_ten_seconds_whatever_the_lease(request_timeout: float | None) -> None:
    """Nobody waits a minute for one answer."""
    made = timings(lease_duration=3600, request_timeout=request_timeout)

    assert (made.timeout_ns, made.acquire_timeout_ns) == (10 * SECOND, 10 * SECOND)


def test_polls_grow_to_a_part_of_the_lease_or_half_a_second() -> None:
    """And the jitter takes off up to a half."""
    made = timings()

    assert [made.poll_ns(turn, 0.0) for turn in (0, 1, 2, 50)] == [10_000_000, 20_000_000, 40_000_000, 400_000_000]
    assert made.poll_ns(0, 0.5) == 7_500_000
    assert timings(lease_duration=1).poll_ns(50, 0.0) == 40_000_000


def test_store_that_notifies_is_polled_slowly() -> None:
    """A quarter of the lease, at most two seconds, in case a notification is lost."""
    assert timings(notify=True).poll_ns(0, 0.0) == 2 * SECOND
    assert timings(notify=True, lease_duration=4).poll_ns(9, 0.0) == 1 * SECOND


def test_no_timeout_is_for_ever_and_none_is_now() -> None:
    """None waits for ever, 0 not at all."""
    assert timings(timeout=None).wait_ns == NEVER
    assert timings(timeout=0).wait_ns == 0
    assert nanoseconds(0.1) == 100_000_000


def test_poll_period_is_the_longest_pause_between_two_polls() -> None:
    """Reached by doubling, and also where the store notifies."""
    made = timings(poll_period=40)

    assert [made.poll_ns(polls, 0.0) for polls in (0, 1, 11, 12, 13)] == [
        10_000_000,
        20_000_000,
        20_480_000_000,
        40_000_000_000,
        40_000_000_000,
    ]
    assert timings(poll_period=40, notify=True).poll_ns(0, 0.0) == 40_000_000_000


def test_poll_period_is_a_share_of_the_lease_by_default() -> None:
    """A twenty-fifth, half a second at most; where the store notifies a quarter, two seconds at most."""
    assert timings(lease_duration=1).poll_ns(24, 0.0) == 40_000_000
    assert timings(lease_duration=100).poll_ns(24, 0.0) == 500_000_000
    assert timings(lease_duration=1, notify=True).poll_ns(24, 0.0) == 250_000_000
    assert timings(lease_duration=100, notify=True).poll_ns(24, 0.0) == 2_000_000_000
    assert timings(fail_closed=True, notify=True).poll_ns(24, 0.0) == 2_000_000_000
