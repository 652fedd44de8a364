"""S13, S17, N1 and W1: waits that last, over what happens to the connection and the server meanwhile."""

from __future__ import annotations

import threading
import time

from dlock_conformance.faults import Fault
from dlock_conformance.needs import needs
from dlock_conformance.races import released_elsewhere
from dlock_conformance.records import fresh, held
from dlock_conformance.store_clauses.claim_waiting import waiting as ticketed
from dlock_conformance.store_clauses.waking import waiting
from dlock_conformance.trial import SLACK_S, Trial
from dlock_core.record import LockRecord
from dlock_core.store import Claim, Expect, Reply

__all__ = ["WaitingClauses"]

BRIEF_S, HOUR_S = 0.5, 3600.0
# The time-out of a request, which a slow server may need, and a wait beside it that is longer.
BESIDE = ((0.05, 0.15), (1.0, 2.0))


@needs("notify")
class WaitingClauses:
    """Clauses of ``wait`` and of ``claim_when_free``."""

    @needs("refuse")
    def test_n1_a_wait_goes_on_over_a_lost_connection_or_ends(self, trial: Trial) -> None:
        """The server was away for a moment: who waited then does not sleep on, and who waits later is woken as ever."""
        store = trial.disturbed(Fault.REFUSE)
        record = trial.hold(trial.key())
        with waiting(trial, record, store=store) as waiter:
            waiter.settle()
            with trial.fault(Fault.REFUSE):
                pass  # all connections are cut
            for each in (store, trial.store):
                trial.tried(lambda each=each: each.read(record.key))  # type: ignore[misc]  # the first may fail
            trial.free(record)
            wrong = f"a wait lost its connection, and had not ended {trial.harness.soon_s:g} s after the release"
            trial.require(waiter.ended(), wrong)

        again = trial.hold(trial.key())
        with waiting(trial, again, store=store) as waiter:
            woken_by_the_release(trial, waiter, again, "connections were lost once; a wait after that")

    @needs("several_processes", "sync")
    def test_n1_another_process_wakes_a_waiter(self, trial: Trial) -> None:
        """Who releases knows nothing of the queues that this process may have."""
        url, record = trial.hook("url"), trial.hold(trial.key())

        with released_elsewhere(url, record.key) as release, waiting(trial, record) as waiter:
            waiter.settle()
            release()

            soon = f"{trial.harness.soon_s:g} s"
            trial.require(waiter.ended(), f"a wait had not returned {soon} after another process released its key")

    def test_n1_a_ticket_may_wait_again(self, trial: Trial) -> None:
        """A waiter comes back under its ticket after each time-out: it is no other, and waits no less."""
        record, ticket = trial.hold(trial.key()), fresh()
        trial.other.wait(record, ticket=ticket, timeout_s=BRIEF_S)
        record = trial.renew(record)

        with waiting(trial, record, ticket=ticket) as waiter:
            woken_by_the_release(trial, waiter, record, "the second wait under one ticket")

    def test_n1_provisioning_loses_no_waiter(self, trial: Trial) -> None:
        """It may be repeated at any time (S21)."""
        record = trial.hold(trial.key())
        with waiting(trial, record) as waiter:
            waiter.settle()
            trial.store.provision()

            woken_by_the_release(trial, waiter, record, "provision() was called, and a wait that had begun before it")

    def test_s17_a_wait_may_be_long(self, trial: Trial) -> None:
        """Where the server allows less, the wait may end early; it does not complain."""
        record = trial.hold(trial.key())
        with waiting(trial, record, timeout_s=HOUR_S) as waiter:
            woken_by_the_release(trial, waiter, record, f"a wait with timeout_s={HOUR_S:g}")
        trial.require(waiter.error is None, f"a wait with timeout_s={HOUR_S:g} raised", came=waiter.error)

    @needs("claim_wait")
    def test_w1_the_wait_is_beside_the_time_out(self, trial: Trial) -> None:
        """The request may take its own time, however long the wait is."""
        record, came = trial.hold(trial.key()), list[object]()
        for timeout_s, wait_s in BESIDE:
            ask = ticketed(record.key)
            came.append(
                trial.tried(
                    lambda ask=ask, wait_s=wait_s, timeout_s=timeout_s: trial.store.claim_when_free(  # type: ignore[misc]
                        ask, wait_s=wait_s, timeout_s=timeout_s
                    )
                )
            )
            if isinstance(came[-1], Reply):
                return
        trial.fail(
            f"a claim with wait_s={wait_s:g} and timeout_s={timeout_s:g} of a held key must be refused", came=came[-1]
        )

    @needs("claim_wait")
    def test_s13_a_claim_that_waits_holds_up_no_other(self, trial: Trial) -> None:
        """Neither the release that it waits for, nor what is about other keys."""
        record, others = trial.hold(trial.key()), [trial.hold(trial.key()) for _ in range(2)]
        limit_s = max(trial.harness.soon_s, SLACK_S)
        thread = threading.Thread(
            target=trial.tried,
            args=(lambda: trial.store.claim_when_free(ticketed(record.key), wait_s=3 * limit_s),),
            daemon=True,
        )
        thread.start()
        thread.join(trial.settles_s)  # it waits now; there is no sign of it

        def steps() -> None:
            trial.store.claim(Claim(held(trial.key()), Expect.ANY))
            trial.renew(others[0])
            trial.free(others[1])
            trial.free(record)

        began = time.monotonic()
        came = trial.tried(steps)
        took = time.monotonic() - began
        thread.join()

        trial.require(came is None, "a step failed, while a claim waited on the same store", came=came)
        wrong = f"three other steps and the release took {took:.2f} s, while a claim waited on the same store"
        trial.require(took <= limit_s, wrong)


def woken_by_the_release(trial: Trial, waiter: waiting, record: LockRecord, what: str) -> None:
    """Release *record* when it waits; fail unless it returns soon."""
    waiter.settle()
    trial.free(record)
    trial.require(waiter.ended(), f"{what} had not returned {trial.harness.soon_s:g} s after the release of its key")
