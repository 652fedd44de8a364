"""Jobs over the store: each slot is run once, and a run that died is done again."""

from __future__ import annotations

import queue
import time
from functools import partial

import pytest

from dlock_conformance.parties import Parties, Party, Run
from dlock_core.errors import LockLostError

__all__ = ["JobScenarios"]

WORKERS, SLOTS = 4, 6
# What a busy machine may add to a moment that is stated to the second.
SLACK_S = 2.0


class JobScenarios:
    """Scenarios of ``client.once``."""

    def test_each_slot_of_a_job_is_run_once(self, parties: Parties) -> None:
        """Whoever comes first runs it, one at a time, in the order of the slots; the others find its result (I13)."""
        key, runs, running = parties.key("job"), list[tuple[int, int]](), list[int]()

        def body(slot: int, token: int) -> bytes:
            running.append(slot)
            time.sleep(0.002)  # here another run would come between
            assert running == [slot], f"slots {running} are run at once"
            runs.append((slot, token))
            running.remove(slot)
            return b"result of %d" % slot

        def work(party: Party) -> None:
            for slot in range(1, SLOTS + 1):
                run = party.once(key, slot, partial(body, slot), timeout=60)
                assert not run.busy
                assert isinstance(run.last_slot, int)
                assert run.last_slot >= slot
                assert run.result == b"result of %d" % run.last_slot

        works = [parties.meanwhile(partial(work, parties.join(lease_duration=10))) for _ in range(WORKERS)]
        for done in works:
            done.result(120)

        assert [slot for slot, _ in runs] == list(range(1, SLOTS + 1)), "a slot was not run, or was run again"
        tokens = [token for _, token in runs]
        assert tokens == sorted(set(tokens))

    def test_a_run_that_died_is_redone_and_its_late_finish_changes_nothing(self, parties: Parties) -> None:
        """The finish carries slot and result in one write, on the version of its own grant; what was finished before stays until then."""
        one, two, key = parties.join(auto_renew=False), parties.join(), parties.key("job")
        assert one.once(key, 1, lambda _: b"first").due
        told: queue.Queue[Run] = queue.Queue()

        def outlive_the_lease(_: int) -> bytes:
            told.put(two.once(key, 2, lambda _: b"second", timeout=3 * parties.harness.lease_s + 4 * SLACK_S))
            return b"late"

        with pytest.raises(LockLostError):
            one.once(key, 2, outlive_the_lease)

        assert told.get() == Run(due=True, busy=False, last_slot=2, result=b"second")
        assert two.once(key, 2, lambda _: b"again") == Run(due=False, busy=False, last_slot=2, result=b"second")
