"""P1 to P3: removal of records that are free and old, for stores that declare it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from dlock_conformance.faults import Fault
from dlock_conformance.needs import needs
from dlock_conformance.records import fresh, numeric, tombstone
from dlock_conformance.store_clauses.changing import WRONG_VERSIONS
from dlock_conformance.trial import SLACK_S, Trial
from dlock_core.errors import RecordError, StoreError
from dlock_core.record import LockRecord, State, Times, Version
from dlock_core.store import PRUNE_MAX, Claim, Expect, Replace

__all__ = ["OLD_MS", "PruneClauses", "grow_old"]

# The core asks for 25 hours and more; a store goes by what it is told.
OLD_MS = 40
# A minute, and weeks that 32 bits don't hold, with a sign or without.
LONG_MS = (60_000, 2**31 + 5, 2**32 + 5)
SOON_MS, SOON_MAX_MS = 100, 1600
BRIEF_S = 0.25
ABOVE_32_BITS = 2**40 + 5
LONG_AGO = Times(1, 2)

_CHANGES: dict[str, Callable[[Trial, LockRecord], LockRecord]] = {
    "claimed": lambda trial, free: trial.hold(free.key),
    "claimed and released": lambda trial, free: trial.free(trial.hold(free.key)),
    "claimed and hidden": lambda trial, free: trial.free(trial.hold(free.key), State.GONE),
}
_FREES: dict[str, Callable[[Trial, LockRecord], LockRecord]] = {
    "released": lambda trial, record: trial.free(record),
    "broken": lambda trial, record: trial.granted(
        trial.store.replace(Replace(tombstone(record, fencing_token=record.fencing_token + 1), record.version)),
        "a break",
    ),
}


_Came = TypeVar("_Came")


def grow_old() -> None:
    """Wait until what was written by now is old by :data:`OLD_MS`."""
    time.sleep(OLD_MS * 1.5 / 1000)  # a record gets older in real time only


def in_so_short_a_time(attempt: Callable[[int], _Came]) -> _Came:
    """Return what came of *attempt*, which waits a little longer than the ms that it is given, and then needs as long at the most.

    A machine or a server that is too slow for that is given more.
    """
    soon_ms = SOON_MS
    while True:
        began = time.monotonic()
        came = attempt(soon_ms)
        if (time.monotonic() - began) * 1000 < 2 * soon_ms or soon_ms >= SOON_MAX_MS:
            return came
        soon_ms *= 4


@needs("prune")
class PruneClauses:
    """Clauses of ``prune``."""

    @pytest.mark.parametrize("state", [State.FREE, State.GONE])
    def test_p1_what_is_free_and_old_goes(self, trial: Trial, state: State) -> None:
        """The key is absent then: a claim that expects that is applied."""
        free = [trial.free(trial.hold(trial.key()), state) for _ in range(3)]
        stays = trial.free(trial.hold(trial.key()), state)
        grow_old()

        counts = [trial.store.prune(free, older_than_ms=OLD_MS) for _ in range(2)]

        trial.require(counts == [3, 0], "prune must return how many records went: 3, and then none", came=counts)
        for record in free:
            trial.require(trial.other.read(record.key) is None, "a record that was pruned still stands")
            trial.hold(record.key, expect=Expect.ABSENT)
        trial.exactly(stays, trial.store.read(stays.key), "prune touched a record that it was not given")

    def test_p1_what_is_held_stays(self, trial: Trial) -> None:
        """Whatever its age: only its holder knows whether it works."""
        held = trial.hold(trial.key(), lease_ms=1)
        grow_old()

        self._stays(trial, held, held, OLD_MS, "a record that is held")

    @pytest.mark.parametrize("change", _CHANGES)
    def test_p1_what_has_changed_since_it_was_listed_stays(self, trial: Trial, change: str) -> None:
        """The list may be old; what stands now may carry what nobody has looked at."""
        listed = trial.free(trial.hold(trial.key()))
        stands = _CHANGES[change](trial, listed)
        grow_old()

        self._stays(trial, listed, stands, OLD_MS, f"a record that was {change} since it was listed")

    @pytest.mark.parametrize("state", [State.FREE, State.GONE])
    def test_p1_both_parts_of_the_version_are_compared(self, trial: Trial, state: State) -> None:
        """An RVN may stand under two tokens."""
        free = trial.free(trial.hold(trial.key(), token=ABOVE_32_BITS), state, rvn=numeric())
        grow_old()

        for name, wrong in WRONG_VERSIONS.items():
            listed = LockRecord(free.key, state, *wrong(free.version), free.owner, None)
            self._stays(trial, listed, free, OLD_MS, f"a record whose version is not the one that is given: {name}")

    def test_p1_what_is_younger_stays(self, trial: Trial) -> None:
        """The age counts from the last write, which here is a moment ago, whatever a wrong clock of the writer has said."""
        free = trial.free(trial.hold(trial.key()), times=LONG_AGO)
        grow_old()

        for older_than_ms in LONG_MS:
            self._stays(trial, free, free, older_than_ms, f"a record that is younger than {older_than_ms} ms")

    @pytest.mark.parametrize("change", _FREES)
    def test_p1_the_release_makes_it_young(self, trial: Trial, change: str) -> None:
        """A record that was written long ago, and released or broken now."""

        def attempt(soon_ms: int) -> tuple[LockRecord, int]:
            record = trial.hold(trial.key())
            time.sleep(soon_ms * 1.1 / 1000)
            free = _FREES[change](trial, record)
            return free, trial.store.prune([free], older_than_ms=soon_ms)

        free, count = in_so_short_a_time(attempt)

        trial.require(count == 0, f"prune counted a record that was {change} just now; it must stay", came=count)
        trial.exactly(free, trial.store.read(free.key), f"prune removed a record that was {change} just now")

    @pytest.mark.parametrize("place", [0, 2])
    def test_p1_each_of_a_page_is_judged_for_itself(self, trial: Trial, place: int) -> None:
        """One that is young keeps no other of its page, and goes with none."""

        def attempt(soon_ms: int) -> tuple[list[LockRecord], LockRecord, list[int]]:
            old = [trial.free(trial.hold(trial.key())) for _ in range(2)]
            time.sleep(soon_ms * 1.1 / 1000)
            young = trial.free(trial.hold(trial.key()))
            page = [*old[:place], young, *old[place:]]
            return (
                old,
                young,
                [trial.store.prune(page, older_than_ms=soon_ms, dry_run=dry_run) for dry_run in (True, False)],
            )

        old, young, counts = in_so_short_a_time(attempt)

        trial.require(counts == [2, 2], "of a page of three, of which one is young, two must go", came=counts)
        trial.exactly(young, trial.store.read(young.key), "prune removed what is young beside what is old")
        left = [record for record in old if trial.store.read(record.key) is not None]
        trial.require(not left, "prune left what is old beside what is young", came=left)

    @needs("plant_newer")
    def test_p1_a_newer_format_stays(self, trial: Trial) -> None:
        """It is held by everybody, whatever was listed."""
        version = Version(fresh(), 7)
        key = trial.plant(version)
        listed = LockRecord(key, State.FREE, version.rvn, version.fencing_token, "", None)
        grow_old()

        trial.tried(lambda: trial.store.prune([listed], older_than_ms=OLD_MS))

        trial.require(trial.store.read(key) is not None, "prune removed a record of a newer format")

    @needs("plant_foreign")
    def test_p1_what_cannot_be_read_stays(self, trial: Trial) -> None:
        """Nobody knows whether it is free (S16); whether the prune is an error then is the store's affair."""
        key = trial.plant()
        grow_old()

        trial.tried(lambda: trial.store.prune([LockRecord(key, State.FREE, "rvn", 1, "", None)], older_than_ms=OLD_MS))

        came = trial.tried(lambda: trial.store.read(key))
        trial.require(isinstance(came, RecordError), "prune removed what is not dlock's", came=came)

    @needs("busy")
    def test_s13_a_prune_ends_in_time_when_another_goes_on(self, trial: Trial) -> None:
        """As a step does: somebody else's write that does not end holds it no longer than its time-out."""
        store, free = trial.disturbed(Fault.BUSY), trial.free(trial.hold(trial.key()))
        grow_old()

        def took() -> float:
            with trial.fault(Fault.BUSY):
                began = time.monotonic()
                trial.ended(lambda: store.prune([free], older_than_ms=OLD_MS, timeout_s=BRIEF_S), BRIEF_S + 4 * SLACK_S)
                return time.monotonic() - began

        trial.in_time(f"a prune with timeout_s={BRIEF_S} beside a write of somebody else", BRIEF_S, took)

    def test_p1_a_scan_of_everything_shows_what_stands(self, trial: Trial) -> None:
        """Whatever a store keeps of what is gone is no record."""
        free, stays = trial.free(trial.hold(trial.key())), trial.hold(trial.key())
        grow_old()
        trial.store.prune([free], older_than_ms=OLD_MS)

        found = trial.tried(lambda: trial.store.scan(""))

        if isinstance(found, StoreError):
            trial.fail("a scan of everything fails after a prune", came=found)
        keys = [record.key for record in found]
        trial.require(stays.key in keys and free.key not in keys and "" not in keys, "a scan after a prune is wrong")

    def test_p1_a_dry_run_removes_nothing(self, trial: Trial) -> None:
        """It returns the same number."""
        free = trial.free(trial.hold(trial.key()))
        grow_old()

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
        other = trial.free(trial.hold(trial.key(), token=1, store=trial.other))
        grow_old()

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
        grow_old()

        trial.store.prune([free], older_than_ms=OLD_MS)

        again = trial.hold(free.key, token=1)
        trial.require(again.fencing_token > free.fencing_token, "a token went back after a prune", came=again)

    def test_p3_a_full_page_is_done(self, trial: Trial) -> None:
        """As many as the port allows, each with its token; and nothing to do is no error."""
        free = [trial.free(trial.hold(trial.key(), token=1 + place)) for place in range(PRUNE_MAX)]
        grow_old()

        trial.require(trial.store.prune([], older_than_ms=OLD_MS) == 0, "prune of no records must return 0")
        count = trial.store.prune(free, older_than_ms=OLD_MS)

        trial.require(count == len(free), f"of {len(free)} records all must go", came=count)
        stands = trial.store.read(free[-1].key)
        trial.require(stands is None, "the last of a full page was counted, and stands still", came=stands)
        again = trial.hold(free[-1].key, token=1)
        trial.require(
            again.fencing_token > free[-1].fencing_token, "the last of a full page has its token again", came=again
        )

    def _stays(self, trial: Trial, listed: LockRecord, stands: LockRecord, older_than_ms: int, what: str) -> None:
        for dry_run in (True, False):
            count = trial.store.prune([listed], older_than_ms=older_than_ms, dry_run=dry_run)
            trial.require(count == 0, f"prune counted {what}; it must stay", came=count)
            trial.exactly(stands, trial.store.read(stands.key), f"prune removed {what}")
