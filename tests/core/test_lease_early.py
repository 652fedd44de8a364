"""Early takeover, stepped by hand: what each opt-in takes for proof, and what not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from dlock_core import early
from dlock_core.record import NO_TOKEN, LockRecord, OwnerState, ProcessIdentity, Stamp, State, Version
from dlock_core.states import Answer, Ended, Held, Observation, Outcome, Probe, Probed, Read
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from dlock_core.timings import NEVER, Early
from tests.core.attempts import LEASE, SECOND, Attempt, broken, free, held, timings

WALL_MS = 1_700_000_000_000
SKEW = Early(skew_ns=2 * SECOND, drift_ppm=10_000)
SERVER = Early(server_clock=True)
PROBES = Early(probes=True)


def stamped(record: LockRecord, age_s: float, rvn: str | None = None) -> LockRecord:
    """Return *record* with the stamp of a write *age_s* before the present."""
    return replace(record, stamp=Stamp(WALL_MS - round(age_s * 1000), record.rvn if rvn is None else rvn))


def seeking(trusted: Early, **options: Any) -> Attempt:
    """Return an attempt that has claimed, at 100 s."""
    return Attempt(timings(trusted, **options)).at(100.0).begin(give_up=200.0)


def shown(attempt: Attempt, record: LockRecord | None, **clocks: Any) -> Attempt:
    """Refuse what was asked with *record*, as seen by these clocks."""
    return attempt.send(Answer(attempt.in_flight, Reply(applied=False, record=record), attempt.new_rvn, **clocks))


# ---- bounded wall clock


def test_stamp_older_than_lease_drift_and_skew_is_taken_over_at_once() -> None:
    """10 s of lease, 1 % of it, 2 s of skew: 12.1 s, and a millisecond of rounding."""
    attempt = shown(seeking(SKEW), stamped(held("x", 7), 12.101), wall_ms=WALL_MS)

    assert attempt.asks is Replace
    assert attempt.request.expected == Version("x", 7)
    assert attempt.request.record.fencing_token == 8


def test_stamp_younger_than_that_is_waited_for_until_it_is_not() -> None:
    """And no longer: the wait ends when the sum is reached, on one's own clock."""
    attempt = shown(seeking(SKEW, timeout=60.0), stamped(held("x"), 12.0), wall_ms=WALL_MS)
    assert attempt.wait_s is not None

    attempt.at(100.1).due()
    assert attempt.asks is Read
    shown(attempt, stamped(held("x"), 12.0), wall_ms=WALL_MS + 100)
    attempt.at(100.102).due()

    assert attempt.asks is Replace


def test_f17_stamp_of_another_write_is_ignored() -> None:
    """A writer without the option keeps what stood there: a live lock would look old."""
    attempt = shown(seeking(SKEW), stamped(held("x"), 1000.0, rvn="an earlier one"), wall_ms=WALL_MS)

    assert attempt.seeking.ends_at == NEVER


def test_stamp_of_the_future_is_ignored() -> None:
    """A clock that is wrong once is not to be trusted: it is observed as ever."""
    attempt = shown(seeking(SKEW), stamped(held("x"), -0.001), wall_ms=WALL_MS)

    assert attempt.seeking.ends_at == NEVER
    assert attempt.seeking.seen == Observation(Version("x", 1), 10 * SECOND, 100 * SECOND)


def test_record_without_a_stamp_is_observed() -> None:
    """The Node client stole such a lock at once."""
    attempt = shown(seeking(SKEW), held("x"), wall_ms=WALL_MS)

    assert attempt.seeking.ends_at == NEVER


def test_stamp_is_not_looked_at_without_the_option() -> None:
    """The default is observation, whatever stands in the record."""
    attempt = shown(seeking(Early()), stamped(held("x"), 1000.0), wall_ms=WALL_MS, age_ms=1_000_000)

    assert attempt.seeking.ends_at == NEVER


def test_early_end_of_one_version_is_not_that_of_the_next() -> None:
    """A renewal begins everything anew."""
    attempt = shown(seeking(SKEW, timeout=60.0), stamped(held("x"), 12.0), wall_ms=WALL_MS)
    attempt.at(100.05).due()

    shown(attempt, held("y"), wall_ms=WALL_MS + 50)

    assert attempt.seeking.ends_at == NEVER
    attempt.at(101.0).due()
    assert attempt.asks is not Replace


def test_what_is_written_under_the_option_is_stamped_with_its_own_rvn() -> None:
    """Claims, renewals and takeovers; never a tombstone, a lock without a lease, or a read."""
    record, tombstone, endless = held("x"), free("x"), held("x", lease=None)
    claim, renewal = Claim(record, Expect.ANY), Replace(record, Version("w", 1))

    for request in (claim, renewal):
        assert early.stamped(request, SKEW, 5).record == replace(record, stamp=Stamp(5, "x"))
        assert early.stamped(request, Early(), 5) is request
    for other in (Release(tombstone, Version("w", 1)), Claim(endless, Expect.ANY), Replace(tombstone, Version("w", 1))):
        assert early.stamped(other, SKEW, 5) is other
    assert early.stamped(Read("k", "id"), SKEW, 5) == Read("k", "id")


# ---- the store's clock


def test_refused_claim_is_followed_by_a_read_of_the_age() -> None:
    """The one request more that a takeover at once costs."""
    attempt = shown(seeking(SERVER, timeout=0.0), held("x"))

    assert attempt.request == Read("k", "f2", aged=True)


@pytest.mark.parametrize(("age_ms", "taken"), [(10_999, False), (11_000, True)])
def test_age_of_a_lease_and_a_step_is_the_end(age_ms: int, taken: bool) -> None:
    """The server's clock may have made a step of a second."""
    attempt = shown(shown(seeking(SERVER, timeout=60.0), held("x", 3)), held("x", 3), age_ms=age_ms)

    assert (attempt.wait_s is None) == taken
    if taken:
        assert attempt.request.record.fencing_token == 4
    else:
        assert attempt.seeking.ends_at == round(100.001 * SECOND)


def test_polls_ask_for_the_age_too() -> None:
    """One request each."""
    attempt = shown(shown(seeking(SERVER, timeout=60.0), held("x")), held("x"), age_ms=0)

    attempt.at(100.5).due()

    assert attempt.request.aged


def test_lock_without_a_lease_has_no_age_to_reach() -> None:
    """Fail-closed, and of a format that this version does not know."""
    attempt = shown(seeking(SERVER, timeout=60.0), held("x", lease=None))

    assert attempt.wait_s is not None
    assert early.ends_at(held("x", lease=None), SERVER, 0, wall_ms=None, age_ms=10**12) == NEVER


def test_key_that_was_free_a_moment_ago_is_not_asked_for_its_age() -> None:
    """Another one was faster, or it is kept for the first who waits: asking again and again would only cost requests."""
    attempt = shown(shown(seeking(SERVER, timeout=60.0), held("x")), free("y"), age_ms=0)
    assert attempt.asks is Claim

    shown(attempt, held("z"))

    assert attempt.wait_s is not None


# ---- owner probe


def probed(attempt: Attempt, owner: OwnerState) -> Attempt:
    """Answer the probe."""
    return attempt.send(Probed(attempt.in_flight, owner, attempt.new_rvn))


def test_dead_owner_is_taken_over_from_at_once() -> None:
    """On the version that was judged, with a greater token."""
    attempt = shown(seeking(PROBES, timeout=0.0), held("x", 7))
    assert attempt.effects == (Probe(held("x", 7), "f2"),)

    probed(attempt, OwnerState.DEAD)

    assert attempt.request.expected == Version("x", 7)
    assert attempt.grant().holder.version.fencing_token == 8


@pytest.mark.parametrize("owner", [OwnerState.ALIVE, OwnerState.UNKNOWN])
def test_owner_that_may_be_alive_is_waited_for(owner: OwnerState) -> None:
    """Only dead is dead."""
    attempt = probed(shown(seeking(PROBES, timeout=60.0), held("x")), owner)

    assert attempt.wait_s is not None
    assert attempt.seeking.seen is not None
    attempt.at(100 + LEASE).due()
    assert attempt.asks is Replace


def test_single_try_ends_where_the_owner_is_not_dead() -> None:
    """Nothing was left behind."""
    attempt = Attempt(timings(PROBES, timeout=0.0)).begin(give_up=0.0)

    probed(shown(attempt, held("x")), OwnerState.UNKNOWN)

    assert isinstance(attempt.state, Ended)
    assert attempt.state.outcome is Outcome.DENIED


def test_dead_owners_lock_with_a_delay_is_taken_over_the_delay_later() -> None:
    """What the owner sent before it died may still be at work; the delay is there for that (L1)."""
    record = replace(held("x", 7), delay_ms=3000)
    attempt = probed(shown(seeking(PROBES, timeout=60.0), record), OwnerState.DEAD)
    assert attempt.wait_s is not None

    attempt.at(102.999).due()
    assert attempt.asks is Read
    probed(shown(attempt, record), OwnerState.DEAD)
    assert attempt.wait_s == pytest.approx(103)
    attempt.at(103).due()

    assert attempt.request.expected == Version("x", 7)


def test_delay_counts_anew_from_another_version() -> None:
    """The owner that died was another one."""
    attempt = probed(shown(seeking(PROBES, timeout=60.0), replace(held("x", 7), delay_ms=3000)), OwnerState.DEAD)
    attempt.at(102).due()

    probed(shown(attempt, replace(held("y", 8), delay_ms=3000)), OwnerState.DEAD)

    attempt.at(104.9).due()
    assert attempt.asks is Read


@pytest.mark.parametrize("record", [held("x", lease=None), broken("x", 2)], ids=["fail-closed", "quarantine"])
def test_owner_whose_death_ends_no_lease_is_not_asked_for(record: LockRecord) -> None:
    """A lock without a lease is for the operator; a quarantine is of the one before, who is not named any more."""
    attempt = shown(seeking(PROBES, timeout=60.0), record)

    assert attempt.wait_s is not None


def test_takeover_that_another_was_faster_with_asks_again() -> None:
    """The next owner lives, so it is waited for."""
    attempt = probed(shown(seeking(PROBES, timeout=60.0), held("x")), OwnerState.DEAD)

    shown(attempt, held("y", 2))

    assert attempt.effects == (Probe(held("y", 2), "f4"),)


def test_attempt_given_up_while_the_owner_is_asked_for_leaves_nothing() -> None:
    """A question writes nothing."""
    attempt = shown(seeking(PROBES, timeout=60.0), held("x")).give_up()

    assert isinstance(attempt.state, Ended)


def test_who_probes_tells_who_it_is() -> None:
    """Others can judge only what the record says."""
    process = ProcessIdentity("boot", 1, 2, 3, 4)
    attempt = seeking(Early(process=process, probes=True))

    assert attempt.request.record.process == process


# ---- resumed observations


SEEN = Observation(Version("x", 3), 10 * SECOND, 50 * SECOND)


def test_observation_is_resumed_in_the_same_boot() -> None:
    """As if this process had seen it."""
    text = early.saved({"k": SEEN}, "boot")

    assert early.resumed(text, "boot", 50 * SECOND) == {"k": SEEN}


def test_observation_of_a_record_without_a_token_is_resumed() -> None:
    """Rows that are shared with other clients have none: the RVN is the version."""
    text = json.loads(json.dumps(early.saved({"k": SEEN._replace(version=Version("x", NO_TOKEN))}, "boot")))

    assert early.resumed(text, "boot", 50 * SECOND)["k"].version.fencing_token is NO_TOKEN


def test_observation_of_another_boot_is_dropped() -> None:
    """Its clock began anew."""
    assert early.resumed(early.saved({"k": SEEN}, "boot"), "other", 90 * SECOND) == {}


def test_observation_of_the_future_is_dropped() -> None:
    """A machine that was put back to an earlier state."""
    assert early.resumed(early.saved({"k": SEEN}, "boot"), "boot", 50 * SECOND - 1) == {}


def test_observation_of_a_lock_without_a_lease_is_not_kept() -> None:
    """It never ends."""
    assert early.saved({"k": Observation(Version("x", 3), NEVER, 0)}, "boot")["seen"] == {}


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        {},
        {"format": 2, "boot": "boot", "seen": {}},
        {"format": 1, "boot": "boot", "seen": []},
        {"format": 1, "boot": "boot", "seen": {"k": None}},
        {"format": 1, "boot": "boot", "seen": {"k": ["x", 3, 10_000]}},
        {"format": 1, "boot": "boot", "seen": {"k": ["x", True, 10_000, 0]}},
        {"format": 1, "boot": "boot", "seen": {"k": ["x", -1, 10_000, 0]}},
        {"format": 1, "boot": "boot", "seen": {"k": ["x", 3, 0, 0]}},
        {"format": 1, "boot": "boot", "seen": {"k": ["x", 3, 10_000, 0.5]}},
        {"format": 1, "boot": "boot", "seen": {"k": [3, 3, 10_000, 0]}},
    ],
    ids=repr,
)
def test_damaged_observations_are_dropped(found: object) -> None:
    """They only delay."""
    assert early.resumed(found, "boot", 90 * SECOND) == {}


def test_resumed_observation_takes_over_at_its_end() -> None:
    """One try, and the process before has seen the record a lease ago."""
    attempt = Attempt(timings(timeout=0.0)).at(60.0).begin(give_up=60.0, seen=SEEN)

    attempt.answer(held("x", 3))

    assert attempt.request.record.fencing_token == 4
    assert isinstance(attempt.grant().state, Held)
    assert attempt.holder.version.fencing_token == 4


def test_states_of_the_record_that_are_free_need_no_proof() -> None:
    """Whatever is opted in to, a free key is claimed."""
    attempt = shown(seeking(PROBES, timeout=60.0, fail_closed=True), free("x", 4))

    assert attempt.asks is Claim
    assert attempt.request.record.state is State.HELD
