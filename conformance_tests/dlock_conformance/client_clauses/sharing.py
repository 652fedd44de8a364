"""Shared locks over the store: never more holders than there are permits, readers together, a writer alone."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from dlock_conformance.parties import Hold, Parties, Party
from dlock_core.errors import AcquireTimeoutError, RecordError
from dlock_core.record import LossReason

__all__ = ["SharedScenarios"]

WORKERS, ROUNDS, PERMITS = 5, 6, 2
# What a busy machine may add to a moment that is stated to the second.
SLACK_S = 2.0


class _Together:
    """Counts who holds at once, and for whom that is wrong."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._held: list[tuple[str, int | None]] = []
        self.most = 0
        self.tokens = list[int]()

    def hold(self, mode: str, hold: Hold) -> None:
        """Be a holder for a moment."""
        me = (mode, hold.slot)
        with self._mutex:
            assert mode == "read" or mode not in [other for other, _ in self._held if other == "write"], self._held
            assert not (mode == "read" and any(other == "write" for other, _ in self._held)), "a reader beside a writer"
            assert not (mode == "write" and self._held), f"a writer beside {self._held}"
            assert hold.slot is None or me not in self._held, f"two holders of slot {hold.slot}"
            self._held.append(me)
            self.most = max(self.most, len(self._held))
            self.tokens.append(hold.token)
        time.sleep(0.003)  # here another holder would come between
        with self._mutex:
            self._held.remove(me)


class SharedScenarios:
    """Scenarios of semaphores and read/write locks."""

    def test_shared_permits_are_never_exceeded(self, parties: Parties) -> None:
        """Each permit has a slot that no other holder has, and a token that never comes twice."""
        key, together = parties.key("permits"), _Together()

        def work(party: Party) -> None:
            for _ in range(ROUNDS):
                hold = party.acquire(key, permits=PERMITS, timeout=60)
                together.hold("permit", hold)
                hold.release()

        works = [parties.meanwhile(partial(work, parties.join(lease_duration=30))) for _ in range(WORKERS)]
        for done in works:
            done.result(120)

        assert together.most <= PERMITS, f"{together.most} held {PERMITS} permits at once"
        assert len(set(together.tokens)) == WORKERS * ROUNDS

    def test_shared_readers_are_together_and_a_writer_is_alone(self, parties: Parties) -> None:
        """Whoever comes, and in whatever order."""
        key, together = parties.key("rw"), _Together()

        def work(party: Party, mode: str) -> None:
            for _ in range(ROUNDS):
                hold = party.acquire(key, mode=mode, timeout=60)
                together.hold(mode, hold)
                hold.release()

        modes = ["read", "read", "read", "write", "write"]
        works = [parties.meanwhile(partial(work, parties.join(lease_duration=30), mode)) for mode in modes]
        for done in works:
            done.result(120)

    def test_shared_readers_have_one_token_and_a_writer_a_greater_one(self, parties: Parties) -> None:
        """A resource that keeps the greatest token lets all readers of one phase through, and no writer of an earlier one."""
        one, two, key = parties.join(), parties.join(), parties.key("rw")
        first = one.acquire(key, mode="read")
        second = two.acquire(key, mode="read")
        assert first.token == second.token
        assert two.try_acquire(key, mode="write") is None
        first.release()
        second.release()

        writer = one.acquire(key, mode="write", timeout=SLACK_S + parties.harness.soon_s)
        assert two.try_acquire(key, mode="read") is None
        assert writer.token > first.token
        writer.release()
        later = two.acquire(key, mode="read", timeout=SLACK_S + parties.harness.soon_s)

        assert later.token > writer.token

    def test_shared_lock_changes_its_mode_and_nobody_comes_between(self, parties: Parties) -> None:
        """A sole reader becomes the writer, and a writer a reader; a lost answer is found. Each time with a greater token."""
        one, two, key = parties.join(faulty=True), parties.join(), parties.key("rw")
        hold, other = one.acquire(key, mode="read"), two.acquire(key, mode="read")
        assert hold.try_upgrade() is None
        assert hold.is_valid
        other.release()
        tokens = [hold.token]
        for _ in range(2):
            one.faults.lose_reply("replace")
            writer = hold.try_upgrade()
            assert writer is not None
            assert two.try_acquire(key, mode="read") is None, "a reader beside a writer"
            one.faults.lose_reply("replace")
            hold = writer.downgrade()
            assert two.try_acquire(key, mode="write") is None, "a writer beside a reader"
            tokens += [writer.token, hold.token]
        other = two.acquire(key, mode="read", timeout=SLACK_S + parties.harness.soon_s)

        assert other.token == hold.token
        assert tokens == sorted(set(tokens))
        hold.release()
        other.release()

    def test_shared_permit_of_a_holder_that_is_cut_off_comes_free_after_its_lease(self, parties: Parties) -> None:
        """It is told before anybody else can have it; the other permit stays with its holder."""
        one, two, three, key = parties.join(faulty=True), parties.join(), parties.join(), parties.key("permits")
        first, second = one.acquire(key, permits=2), two.acquire(key, permits=2)
        assert three.try_acquire(key, permits=2) is None

        with one.faults.outage():
            third = three.acquire(key, permits=2, timeout=4 * parties.harness.lease_s + 4 * SLACK_S)
            assert not first.is_valid, "three holders of two permits are valid at once"

        assert (third.slot, second.is_valid) == (first.slot, True)
        assert third.token > first.token

    def test_shared_lock_whose_replies_are_lost_has_no_holder_too_many(self, parties: Parties) -> None:
        """A place that was taken without an answer is found by its id, and one that was left is free."""
        one, two, key = parties.join(faulty=True), parties.join(), parties.key("permits")
        for verb in ("claim", "replace", "release"):
            one.faults.lose_reply(verb, times=2)
            kept = two.acquire(key, permits=2, timeout=60)
            hold = one.acquire(key, permits=2, timeout=60)

            assert two.try_acquire(key, permits=2) is None, "three holders of two permits"
            assert {kept.slot, hold.slot} == {0, 1}
            hold.release()
            kept.release()
            again = [two.acquire(key, permits=2, timeout=4 * parties.harness.lease_s + 2 * SLACK_S) for _ in range(2)]
            for each in again:
                each.release()

    def test_shared_lock_that_is_broken_is_lost_for_all_its_holders(self, parties: Parties) -> None:
        """Each of them is told, and before that nobody else has it."""
        one, two, three, key = parties.join(), parties.join(), parties.join(), parties.key("rw")
        readers = [one.acquire(key, mode="read"), two.acquire(key, mode="read")]

        assert three.break_lock(key, fencing_token=readers[0].token)
        writer = three.acquire(key, mode="write", timeout=4 * parties.harness.lease_s + 2 * SLACK_S)

        assert [reader.is_valid for reader in readers] == [False, False]
        assert {reader.loss.reason for reader in readers if reader.loss is not None} == {LossReason.BROKEN}
        assert writer.token > readers[0].token + 1

    def test_shared_key_is_used_in_one_way(self, parties: Parties) -> None:
        """Asked for in another way, it is refused, not waited for."""
        one, two, key = parties.join(), parties.join(), parties.key("permits")
        hold = one.acquire(key, permits=2)

        for other in ({}, {"mode": "read"}):
            with pytest.raises(RecordError, match="a semaphore"):
                two.acquire(key, timeout=5, **other)
        hold.release()
        exclusive = two.acquire(key)
        with pytest.raises(RecordError, match="an exclusive lock"):
            one.acquire(key, permits=2, timeout=5)

        assert exclusive.is_valid

    def test_shared_wait_ends_at_its_time_out(self, parties: Parties) -> None:
        """And says what is taken; a writer that gives up keeps no reader out."""
        one, two, key = parties.join(lease_duration=10), parties.join(lease_duration=10), parties.key("rw")
        first = one.acquire(key, mode="read")

        with pytest.raises(AcquireTimeoutError, match="held by 1 reader"):
            two.acquire(key, mode="write", timeout=0.3)

        second = two.acquire(key, mode="read", timeout=SLACK_S)
        assert second.token == first.token
