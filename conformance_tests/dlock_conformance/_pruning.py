"""P1 to P3: removal of records that are free and old, for stores that declare it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from dlock_conformance.needs import needs
from dlock_conformance.records import fresh
from dlock_conformance.trial import Trial
from dlock_core.record import LockRecord, State, Version
from dlock_core.store import Claim, Expect

__all__ = ["PruneClauses"]

# The core asks for 25 hours and more; a store goes by what it is told.
OLD_MS = 80
LONG_MS = 60_000
# A record is younger than this for as long as it takes to ask; a machine or a server that is too slow for one gets the next.
SOON_MS = (100, 400, 1600)

_CHANGES: dict[str, Callable[[Trial, LockRecord], LockRecord]] = {
    "claimed": lambda trial, free: trial.hold(free.key),
    "claimed and released": lambda trial, free: trial.free(trial.hold(free.key)),
    "claimed and hidden": lambda trial, free: trial.free(trial.hold(free.key), State.GONE),
}


@needs("prune")
class PruneClauses:
    """Clauses of ``prune``."""

    @pytest.mark.parametrize("state", [State.FREE, State.GONE])
    def test_p1_what_is_free_and_old_goes(self, trial: Trial, state: State) -> None:
        """The key is absent then: a claim that expects that is applied."""
        free = [trial.free(trial.hold(trial.key()), state) for _ in range(3)]
        stays = trial.free(trial.hold(trial.key()), state)
        self._wait()

        count = trial.store.prune(free, older_than_ms=OLD_MS)

        trial.require(count == len(free), "prune must return how many records went, here 3", came=count)
        for record in free:
            trial.require(trial.other.read(record.key) is None, "a record that was pruned still stands")
            trial.hold(record.key, expect=Expect.ABSENT)
        trial.exactly(stays, trial.store.read(stays.key), "prune touched a record that it was not given")

    def test_p1_what_is_held_stays(self, trial: Trial) -> None:
        """Whatever its age: only its holder knows whether it works."""
        held = trial.hold(trial.key(), lease_ms=1)
        self._wait()

        self._stays(trial, held, held, OLD_MS, "a record that is held")

    @pytest.mark.parametrize("change", _CHANGES)
    def test_p1_what_has_changed_since_it_was_listed_stays(self, trial: Trial, change: str) -> None:
        """The list may be old; what stands now may carry what nobody has looked at."""
        listed = trial.free(trial.hold(trial.key()))
        stands = _CHANGES[change](trial, listed)
        self._wait()

        self._stays(trial, listed, stands, OLD_MS, f"a record that was {change} since it was listed")

    def test_p1_both_parts_of_the_version_are_compared(self, trial: Trial) -> None:
        """An RVN may stand under two tokens."""
        free = trial.free(trial.hold(trial.key(), token=7))
        self._wait()

        for wrong in (Version(fresh(), free.fencing_token), Version(free.rvn, free.fencing_token - 1)):
            listed = LockRecord(free.key, State.FREE, wrong.rvn, wrong.fencing_token, free.owner, None)
            self._stays(trial, listed, free, OLD_MS, "a record whose version is another than the one that is given")

    def test_p1_what_is_younger_stays(self, trial: Trial) -> None:
        """The age counts from the last write, which here is a moment ago."""
        free = trial.free(trial.hold(trial.key()))
        self._wait()

        self._stays(trial, free, free, LONG_MS, "a record that is younger")

    def test_p1_the_release_makes_it_young(self, trial: Trial) -> None:
        """A record that was written long ago, and released now."""
        for soon_ms in SOON_MS:
            record = trial.hold(trial.key())
            time.sleep(soon_ms * 1.1 / 1000)
            released = time.monotonic()
            free = trial.free(record)
            count = trial.store.prune([free], older_than_ms=soon_ms)
            if (time.monotonic() - released) * 1000 < soon_ms:
                break

        trial.require(count == 0, "prune counted a record that was released just now; it must stay", came=count)
        trial.exactly(free, trial.store.read(free.key), "prune removed a record that was released just now")

    def test_p1_a_dry_run_removes_nothing(self, trial: Trial) -> None:
        """It returns the same number."""
        free = trial.free(trial.hold(trial.key()))
        self._wait()

        count = trial.store.prune([free], older_than_ms=OLD_MS, dry_run=True)

        trial.require(count == 1, "a dry run must count what would go", came=count)
        trial.exactly(free, trial.store.read(free.key), "a dry run removed a record")

    @pytest.mark.parametrize("expect", [Expect.ANY, Expect.ABSENT])
    def test_p2_the_next_token_is_greater(self, trial: Trial, expect: Expect) -> None:
        """Of a key that was locked often, by whichever client and however it claims."""
        record = trial.hold(trial.key(), token=1)
        for _ in range(3):
            record = trial.hold(trial.free(record).key)
        free = trial.free(record)
        other = trial.free(trial.hold(trial.key(), token=1))
        self._wait()

        trial.store.prune([free], older_than_ms=OLD_MS)
        trial.store.prune([other], older_than_ms=OLD_MS)

        again = trial.granted(
            trial.other.claim(Claim(LockRecord(free.key, State.HELD, fresh(), 1, "o", 1000), expect)),
            "a claim of a key whose record was pruned",
        )
        wrong = f"the last token of the key was {free.fencing_token}, and after a prune it got {again.fencing_token}"
        trial.require(again.fencing_token > free.fencing_token, wrong, came=again)

    def test_p2_a_token_above_the_clock_stays_above(self, trial: Trial) -> None:
        """A token that was asked for may be far above the floor: then the record stays, or the floor rises above it."""
        free = trial.free(trial.hold(trial.key(), token=2**52))
        self._wait()

        trial.store.prune([free], older_than_ms=OLD_MS)

        again = trial.hold(free.key, token=1)
        trial.require(again.fencing_token > free.fencing_token, "a token went back after a prune", came=again)

    def test_p3_a_full_page_is_done(self, trial: Trial) -> None:
        """More than one page of a scan, as the core sends it; and nothing to do is no error."""
        free = [trial.free(trial.hold(trial.key())) for _ in range(60)]
        self._wait()

        trial.require(trial.store.prune([], older_than_ms=OLD_MS) == 0, "prune of no records must return 0")
        count = trial.store.prune(free, older_than_ms=OLD_MS)

        trial.require(count == len(free), f"of {len(free)} records all must go", came=count)

    def _wait(self) -> None:
        time.sleep(OLD_MS * 1.5 / 1000)  # a record gets older in real time only

    def _stays(self, trial: Trial, listed: LockRecord, stands: LockRecord, older_than_ms: int, what: str) -> None:
        for dry_run in (True, False):
            count = trial.store.prune([listed], older_than_ms=older_than_ms, dry_run=dry_run)
            trial.require(count == 0, f"prune counted {what}; it must stay", came=count)
            trial.exactly(stands, trial.store.read(stands.key), f"prune removed {what}")
