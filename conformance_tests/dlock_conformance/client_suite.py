"""The client over the store: what users see of a lock, with short leases in real time. Needs a store that passes the other suite."""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any, ClassVar

import pytest

from dlock_conformance.client_clauses.endless import EndlessScenarios
from dlock_conformance.client_clauses.jobs import JobScenarios
from dlock_conformance.client_clauses.sharing import SharedScenarios
from dlock_conformance.faults import Fault
from dlock_conformance.harness import Colour, StoreHarness, missing_harness
from dlock_conformance.holder_process import holder
from dlock_conformance.needs import name_of, needs
from dlock_conformance.parties import Parties, Party, Way
from dlock_conformance.report import PROPERTY
from dlock_conformance.suite import overridden, skip_inapplicable, story_of
from dlock_core.errors import AcquireTimeoutError, LockLostError, OutcomeUnknownError
from dlock_core.record import Loss, LossReason

__all__ = ["LockClientConformance"]

WORKERS, ROUNDS = 4, 10
# What a busy machine may add to a moment that is stated to the second.
SLACK_S = 2.0
CANCELLED_AFTER_S = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05)


class LockClientConformance(EndlessScenarios, JobScenarios, SharedScenarios):
    """The scenarios of the lock API over a store, for both clients, from one text.

    A subclass gives *lacks* and the fixture ``harness`` as for :class:`LockStoreConformance`; *lease_s* in it says how short leases may be.
    *ways* say how locks are had: a term of an election has to do all that a lease does, and so has the run of a job, but for what
    :data:`~dlock_conformance.parties.NOT_PROMISED` names.
    """

    colours: ClassVar[tuple[str, ...]] = tuple(Colour)
    lacks: ClassVar[Collection[str]] = ()
    ways: ClassVar[Collection[Way]] = (Way.LOCK,)

    @pytest.fixture
    def harness(self) -> StoreHarness:
        """To be overridden: how to open the store."""
        raise missing_harness(type(self))

    @pytest.fixture
    def parties(
        self, harness: StoreHarness, colour: str, way: Way, request: pytest.FixtureRequest
    ) -> Iterator[Parties]:
        """The clients of one test."""
        suite = name_of(type(self), {"way": way})
        facts: dict[str, Any] = {"suite": suite, "colour": colour, "test": request.function.__name__}
        request.node.user_properties.append(
            (PROPERTY, {**facts, "found": harness.found, **story_of(type(self), harness)})
        )
        skip_inapplicable(self, harness, request)
        if harness.reset is not None:
            harness.reset()
        with Parties(harness, Colour(colour), way=way) as parties:
            yield parties

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run every test once for each colour and each way."""
        if "parties" in metafunc.fixturenames:
            metafunc.parametrize("way", self.ways, ids=str)
            metafunc.parametrize("colour", [str(Colour(colour)) for colour in self.colours])

    def test_no_overrides(self) -> None:
        """A subclass that replaces a test would pass without keeping the promise."""
        found = overridden(type(self), LockClientConformance)
        assert not found, (
            f"{type(self).__name__} overrides {', '.join(found)}; mark each xfail(strict=True, reason=...) or remove it"
        )

    # ---- one holder after the other

    def test_a_lock_is_held_by_one_and_then_by_the_next(self, parties: Parties) -> None:
        """Acquire, be refused, release, acquire: with a greater token each time."""
        one, two, key = parties.join(), parties.join(), parties.key()

        first = one.acquire(key, data=b"first")
        assert first.is_valid
        assert two.try_acquire(key) is None, "a second client was given a lock that the first holds"
        record = two.get(key)
        assert record is not None
        assert (record.held, record.fencing_token, record.data) == (True, first.token, b"first")
        first.release()
        second = two.try_acquire(key)

        assert second is not None, "the lock was released, and the next client did not get it at once"
        assert second.token > first.token, f"token {second.token} was granted after {first.token}"
        assert not first.is_valid

    def test_a_released_lock_goes_to_who_waits(self, parties: Parties) -> None:
        """The waiter has it long before a lease has passed."""
        one, two, key = parties.join(lease_duration=10), parties.join(lease_duration=10), parties.key()
        first = one.acquire(key)
        waiter = parties.meanwhile(lambda: two.acquire(key, timeout=30))
        until_waiting(waiter)

        began = time.monotonic()
        first.release()
        second = waiter.result(30)
        took = time.monotonic() - began

        assert second.token > first.token
        assert took < parties.harness.soon_s + SLACK_S, f"the waiter had the released lock only after {took:.1f} s"

    def test_a_wait_ends_at_its_time_out(self, parties: Parties) -> None:
        """And says who holds the lock, whose lease leaves a busy machine time to release; afterwards nothing is left behind."""
        one, two, three, key = parties.join(lease_duration=10), parties.join(), parties.join(), parties.key()
        first = one.acquire(key)

        began = time.monotonic()
        with pytest.raises(AcquireTimeoutError) as caught:
            two.acquire(key, timeout=0.3)
        took = time.monotonic() - began
        first.release()

        assert took < 0.3 + parties.harness.lease_s / 2 + SLACK_S
        assert caught.value.holder is not None
        assert caught.value.holder.fencing_token == first.token
        assert not caught.value.outcome_unknown
        three.acquire(key, timeout=SLACK_S + parties.harness.soon_s)

    def test_contenders_never_hold_at_once(self, parties: Parties) -> None:
        """A counter that is read and written in two steps loses nothing, and no token comes twice."""
        key, counter, tokens = parties.key(), [0], list[int]()

        def work(party: Party) -> None:
            for _ in range(ROUNDS):
                hold = party.acquire(key, timeout=60)
                seen = counter[0]
                tokens.append(hold.token)
                time.sleep(0.001)  # here another holder would come between
                counter[0] = seen + 1
                hold.release()

        works = [parties.meanwhile(partial(work, parties.join(lease_duration=30))) for _ in range(WORKERS)]
        for done in works:
            done.result(120)

        assert counter[0] == WORKERS * ROUNDS, (
            f"{WORKERS * ROUNDS - counter[0]} of {WORKERS * ROUNDS} updates were lost: two held at once"
        )
        assert tokens == sorted(set(tokens)), "tokens were repeated, or granted out of order"

    def test_a_lock_is_renewed_as_long_as_it_is_held(self, parties: Parties) -> None:
        """For three leases nobody else gets it."""
        one, two, key = parties.join(), parties.join(), parties.key()
        hold = one.acquire(key)
        until = time.monotonic() + 3 * parties.harness.lease_s

        while time.monotonic() < until:
            assert hold.is_valid, f"the lock was lost though the store answers: {hold.loss}"
            assert two.try_acquire(key) is None, "a lock that is renewed was given away"
            time.sleep(parties.harness.lease_s / 10)  # a lease has to pass in real time

        assert hold.ensure() == hold.token

    # ---- holders that are no more

    @needs("several_processes")
    def test_the_lock_of_a_killed_process_is_taken_over(self, parties: Parties) -> None:
        """After SIGKILL, one lease after it was last seen alive, and not before."""
        assert parties.harness.url is not None, "several_processes needs the url that other processes open"
        key, lease_s = parties.key(), parties.harness.lease_s
        one = parties.join()
        with holder(parties.harness.url, key, lease_s=lease_s, colour=parties.colour) as (process, token):
            assert one.try_acquire(key) is None, "the lock that a process holds was given to another"
            process.send_signal(signal.SIGKILL)
            process.wait()

            began = time.monotonic()
            hold = one.acquire(key, timeout=3 * lease_s + 4 * SLACK_S)
            took = time.monotonic() - began

        assert hold.token > token, f"token {hold.token} was granted by a takeover from {token}"
        assert took < lease_s + parties.harness.soon_s + SLACK_S, (
            f"the lock of a dead process was free only after {took:.1f} s"
        )

    def test_an_abandoned_lock_is_taken_over_after_its_lease(self, parties: Parties) -> None:
        """Who does not renew loses the lock by its own clock before another has it, and finds out."""
        one, two, key = parties.join(), parties.join(), parties.key()
        lease_s = parties.harness.lease_s
        first = one.acquire(key, auto_renew=False)
        began = time.monotonic()

        second = two.acquire(key, timeout=3 * lease_s + 4 * SLACK_S)
        took = time.monotonic() - began

        assert not first.is_valid, "two leases of one lock are valid at once"
        assert second.token > first.token
        assert took >= lease_s * 0.9, f"a lock with a lease of {lease_s} s was taken over after {took:.2f} s"
        with pytest.raises(LockLostError):
            first.ensure()
        with pytest.raises(LockLostError):
            first.release()
        assert second.is_valid, "the late release of the old holder ended the new one's lease"
        assert second.ensure(lease_s / 2) == second.token

    # ---- losses

    def test_a_holder_that_is_cut_off_is_told_in_time(self, parties: Parties) -> None:
        """It is told before anybody else can hold the lock."""
        one, two, key = parties.join(faulty=True), parties.join(), parties.key()
        told: queue.Queue[tuple[float, Loss]] = queue.Queue()
        first = one.acquire(key)
        first.on_lost(lambda loss: told.put((time.monotonic(), loss)))

        with one.faults.outage():
            second = two.acquire(key, timeout=4 * parties.harness.lease_s + 4 * SLACK_S)
            taken_at = time.monotonic()
            assert not first.is_valid, "two leases of one lock are valid at once"
            told_at, loss = told.get(timeout=SLACK_S)

        assert loss.reason in (LossReason.EXPIRED, LossReason.UNREACHABLE)
        assert told_at <= taken_at + 0.1, f"the holder was told {told_at - taken_at:.2f} s after another had the lock"
        assert second.token > first.token
        with pytest.raises(LockLostError):
            first.ensure()

    def test_an_outage_shorter_than_the_lease_costs_nothing(self, parties: Parties) -> None:
        """Renewals fail, are tried again, and the lock is kept."""
        one, two, key = parties.join(faulty=True), parties.join(), parties.key()
        hold = one.acquire(key)

        with one.faults.outage():
            time.sleep(parties.harness.lease_s * 0.3)  # a renewal comes due meanwhile
        time.sleep(parties.harness.lease_s)  # without the retries the lease would have ended by now

        assert hold.is_valid, f"the lock was lost by an outage of a third of its lease: {hold.loss}"
        assert two.try_acquire(key) is None

    @pytest.mark.parametrize("now", [False, True], ids=["quarantine", "now"])
    def test_an_operator_breaks_a_lock(self, parties: Parties, *, now: bool) -> None:
        """The holder is told that it was broken, and by a greater token the next one is ahead of it."""
        one, two, key = parties.join(), parties.join(), parties.key()
        told: queue.Queue[Loss] = queue.Queue()
        first = one.acquire(key)
        first.on_lost(told.put)

        assert two.break_lock(key, fencing_token=first.token, now=now)
        loss = told.get(timeout=parties.harness.lease_s + SLACK_S)
        second = two.acquire(key, timeout=3 * parties.harness.lease_s + 2 * SLACK_S)

        assert loss.reason is LossReason.BROKEN
        assert not first.is_valid
        assert second.token > first.token + 1, "breaking must raise the token by itself"
        assert not two.break_lock(key, fencing_token=first.token), "a grant that does not stand any more was broken"

    # ---- replies that are lost

    def test_a_claim_whose_reply_is_lost_is_found_again(self, parties: Parties) -> None:
        """The lock is ours, at once, and not a stranger's for a lease."""
        one, key = parties.join(faulty=True), parties.key()
        one.faults.lose_reply("claim")

        began = time.monotonic()
        hold = one.acquire(key, timeout=4 * parties.harness.lease_s)
        took = time.monotonic() - began

        record = one.get(key)
        assert record is not None
        assert (record.held, record.fencing_token) == (True, hold.token), "the lease is not the record that stands"
        assert took < parties.harness.lease_s * 0.9 + SLACK_S / 2, (
            f"a claim that was applied was found after {took:.1f} s"
        )

    def test_renewals_whose_replies_are_lost_lose_no_lock(self, parties: Parties) -> None:
        """Each is found applied by the next; over two leases nothing is lost, and nothing given away."""
        one, two, key = parties.join(faulty=True), parties.join(), parties.key()
        hold = one.acquire(key)
        until = time.monotonic() + 2 * parties.harness.lease_s

        while time.monotonic() < until:
            one.faults.lose_reply("replace")
            time.sleep(parties.harness.lease_s / 3)  # the time of a renewal and its repetition
            assert hold.is_valid, f"a lost reply cost the lock: {hold.loss}"
            assert two.try_acquire(key) is None

        assert hold.ensure() == hold.token

    def test_a_release_whose_reply_is_lost_frees_the_lock(self, parties: Parties) -> None:
        """The next one need not wait for the lease to end."""
        one, two, key = parties.join(faulty=True, lease_duration=10), parties.join(lease_duration=10), parties.key()
        first = one.acquire(key)

        one.faults.lose_reply("release")
        first.release()
        second = two.acquire(key, timeout=parties.harness.soon_s + 2 * SLACK_S)

        assert second.token > first.token

    @needs("lose_reply")
    def test_replies_that_are_cut_on_the_wire_cost_no_lock(self, parties: Parties) -> None:
        """The server applied what the client has no answer to: a claim, and then renewals, through a real proxy."""
        faults, lease_s = parties.harness.faults, parties.harness.lease_s
        assert faults is not None
        one, two, key = parties.join(), parties.join(), parties.key()
        one.acquire(parties.key("warm")).release()

        faults.begin(Fault.LOSE_REPLY)
        asked = parties.meanwhile(lambda: one.acquire(key, timeout=4 * lease_s))
        time.sleep(lease_s / 10)  # the claim is applied meanwhile, and its reply is lost
        faults.heal()
        hold = asked.result(4 * lease_s + SLACK_S)
        for _ in range(3):
            faults.begin(Fault.LOSE_REPLY)
            time.sleep(lease_s * 0.3)  # a renewal comes due meanwhile
            faults.heal()
            time.sleep(lease_s * 0.4)  # and is tried again
            assert hold.is_valid, f"replies that were cut cost the lock: {hold.loss}"
            assert two.try_acquire(key) is None, "a lock whose holder got no reply was given away"

        record = two.get(key)
        assert record is not None
        assert record.fencing_token == hold.ensure(), "the lease is not the record that stands"

    def test_a_claim_that_arrives_late_holds_for_nobody(self, parties: Parties) -> None:
        """It was given up, and applied afterwards: the lock comes free, at the latest when its lease has passed."""
        one, two, key = parties.join(faulty=True), parties.join(), parties.key()
        one.faults.delay("claim", times=200)
        with pytest.raises((AcquireTimeoutError, OutcomeUnknownError)) as caught:
            one.acquire(key, timeout=0.2)

        one.deliver()
        hold = two.acquire(key, timeout=3 * parties.harness.lease_s + 2 * SLACK_S)

        told = getattr(caught.value, "outcome_unknown", isinstance(caught.value, OutcomeUnknownError))
        assert told, "the claim got no answer, and the error does not say so"
        assert hold.is_valid

    def test_late_duplicates_change_nothing(self, parties: Parties) -> None:
        """Copies of a renewal and of a release arrive after the release, and after the next grant."""
        one, two, key = parties.join(faulty=True), parties.join(), parties.key()
        first = one.acquire(key)
        one.faults.duplicate("replace")
        first.renew()
        one.faults.duplicate("release")
        first.release()

        second = two.try_acquire(key)
        one.deliver()

        assert second is not None, "the lock was released, and the next client did not get it at once"
        assert two.get(key) is not None
        assert two.try_acquire(key) is None, "a copy of an old release freed the next holder's lock"
        assert second.ensure(parties.harness.lease_s / 2) == second.token

    # ---- waits that are given up

    @needs("async")
    def test_a_cancelled_acquire_leaves_nothing_behind(self, parties: Parties) -> None:
        """At whichever moment it comes: the lock can be had afterwards."""
        one, two = parties.join(), parties.join()
        for number, after_s in enumerate(CANCELLED_AFTER_S):
            key = parties.key(f"cancelled-{number}")
            one.cancelled_acquire(key, after_s=after_s)

            hold = two.acquire(key, timeout=2 * parties.harness.lease_s + 2 * SLACK_S)

            hold.release()

    @needs("async")
    def test_a_cancelled_waiter_takes_nothing_with_it(self, parties: Parties) -> None:
        """It waited for a held lock; the release after that goes to the next."""
        one, two, three, key = parties.join(), parties.join(), parties.join(), parties.key()
        first = one.acquire(key)
        assert two.cancelled_acquire(key, after_s=0.2), "a lock that is held was given to a waiter"

        first.release()

        assert three.acquire(key, timeout=parties.harness.soon_s + 2 * SLACK_S).is_valid

    # ---- what is written with a lock

    def test_data_goes_from_holder_to_holder(self, parties: Parties) -> None:
        """Kept where it is asked for, replaced where it is given, and exact."""
        one, two, key = parties.join(), parties.join(), parties.key()
        data = bytes(range(256))
        first = one.acquire(key, data=data)
        first.release()

        second = two.acquire(key, replace_data=False)
        assert second.data == data
        second.renew(data=b"")
        record = one.get(key)
        assert record is not None
        assert record.data == b""
        second.release(data=b"left")
        third = one.acquire(key, replace_data=False)

        assert third.data == b"left"


def until_waiting(waiter: Any) -> None:
    """Let *waiter* come as far as to wait; there is no sign of it but that it is not done."""
    time.sleep(0.3)
    assert not waiter.done(), (
        f"the lock was given to a waiter while it was held: {waiter.result() if not waiter.exception() else waiter}"
    )
