"""Fail-closed locks over the store: nothing but a release or an operator frees them, and nothing that gets lost or comes late holds one."""

from __future__ import annotations

from contextlib import suppress

import pytest

from dlock_conformance.parties import Hold, Parties
from dlock_core.errors import AcquireTimeoutError, OutcomeUnknownError, StoreError

__all__ = ["EndlessScenarios"]

# Request time-outs follow from the lease, also where the lock has none: these are long enough for a busy machine.
LEASE_S, LATE_LEASE_S = 10.0, 4.0
SLACK_S = 10.0


class EndlessScenarios:
    """Scenarios of ``fail_closed``."""

    def test_a_fail_closed_lock_is_freed_by_an_operator(self, parties: Parties) -> None:
        """It has no lease that could end; breaking it frees it at once."""
        one, two, key = parties.join(lease_duration=LEASE_S), parties.join(lease_duration=LEASE_S), parties.key()
        dead = one.acquire(key, fail_closed=True)

        record = two.get(key)
        assert record is not None
        assert (record.held, record.lease_ms) == (True, None)
        with pytest.raises(AcquireTimeoutError):
            two.acquire(key, timeout=0)
        assert two.break_lock(key, fencing_token=dead.token)

        assert two.acquire(key, timeout=parties.harness.soon_s + SLACK_S).token > dead.token

    @pytest.mark.parametrize("verb", ["claim", "release"])
    def test_lost_replies_never_hold_a_fail_closed_lock(self, parties: Parties, verb: str) -> None:
        """On a fresh key and on a tombstone: what was applied is found, and what was not is made again."""
        one, two = parties.join(faulty=True, lease_duration=LEASE_S), parties.join(lease_duration=LEASE_S)
        key = parties.key()
        for fault in (one.faults.lose_reply, one.faults.lose_request) * 2:
            fault(verb)
            hold = one.acquire(key, fail_closed=True, timeout=SLACK_S)
            assert two.try_acquire(key) is None
            give_back(hold)

            next_hold = two.acquire(key, fail_closed=True, timeout=parties.harness.soon_s + SLACK_S)
            assert next_hold.token > hold.token
            give_back(next_hold)

    def test_late_copies_never_hold_a_fail_closed_lock(self, parties: Parties) -> None:
        """A claim that arrives once more after its release would hold the key for nobody, and for ever."""
        one, two = parties.join(faulty=True, lease_duration=LEASE_S), parties.join(lease_duration=LEASE_S)
        key = parties.key()
        for _ in range(2):
            one.faults.duplicate("claim")
            hold = one.acquire(key, fail_closed=True, timeout=SLACK_S)
            hold.release()

            one.deliver()

            record = two.get(key)
            assert record is not None
            assert not record.held, (
                "a late copy of a claim holds a lock without a lease, which nobody will ever give back"
            )
            give_back(two.acquire(key, fail_closed=True, timeout=parties.harness.soon_s + SLACK_S))

    def test_a_fail_closed_claim_that_was_given_up_and_arrives_late_is_given_back(self, parties: Parties) -> None:
        """It is found, and freed: no lease would end it."""
        one, two = parties.join(faulty=True, lease_duration=LATE_LEASE_S), parties.join(lease_duration=LEASE_S)
        key = parties.key()
        one.faults.delay("claim", times=20)
        with pytest.raises((AcquireTimeoutError, OutcomeUnknownError)):
            one.acquire(key, fail_closed=True, timeout=0.1)

        one.deliver()

        assert two.acquire(key, timeout=4 * LATE_LEASE_S + SLACK_S).is_valid


def give_back(hold: Hold) -> None:
    """Release; without an answer in time it is followed up, and the next acquire finds out."""
    with suppress(StoreError):
        hold.release()
