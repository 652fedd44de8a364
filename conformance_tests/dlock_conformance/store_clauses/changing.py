"""S5 to S8: when a replace and a release are applied, and what replies carry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dlock_conformance.needs import needs
from dlock_conformance.records import fresh, held, next_version, numeric, tombstone
from dlock_conformance.store_clauses.claiming import GREAT_TOKEN, OLD, prepare
from dlock_conformance.store_clauses.forms import changes, claims_of_held, releases, replaces, replaces_by
from dlock_conformance.trial import Trial
from dlock_core.errors import StoreError
from dlock_core.record import LockRecord, State, Version
from dlock_core.store import Claim, Expect, Release, Replace, Reply

__all__ = ["WRONG_VERSIONS", "ChangingClauses"]

Wrong = Callable[[Version], Version]
# So many writes of another are looked at in each way that can be refused.
HANDS = 5

WRONG_VERSIONS: dict[str, Wrong] = {
    "another_rvn": lambda version: version._replace(rvn=fresh()),
    "a_greater_token": lambda version: version._replace(fencing_token=version.fencing_token + 1),
    "a_smaller_token": lambda version: version._replace(fencing_token=version.fencing_token - 1),
    "a_token_with_the_same_32_bits": lambda version: version._replace(fencing_token=version.fencing_token + 2**32),
    "both_wrong": lambda version: Version(fresh(), version.fencing_token + 1),
    "an_rvn_in_other_case": lambda version: version._replace(rvn=version.rvn.upper()),
    "the_start_of_the_rvn": lambda version: version._replace(rvn=version.rvn[:-1]),
    "the_rvn_and_more": lambda version: version._replace(rvn=version.rvn + "0"),
    "the_rvn_and_a_space": lambda version: version._replace(rvn=version.rvn + " "),
    "an_rvn_that_is_the_same_number": lambda version: version._replace(rvn="0" + version.rvn),
}


def change(verb: str, record: LockRecord, expected: Version) -> Replace | Release:
    """Return a renewal or a release of *record* that expects *expected*."""
    if verb == "replace":
        return Replace(next_version(record), expected)
    return Release(tombstone(record), expected)


def refused_for_its_version(trial: Trial, forms: Callable[[LockRecord, Version], dict[str, Any]], wrong: str) -> None:
    """Fail unless a change is refused, in each of its *forms*, when it expects a version that is wrong in one way."""
    record = trial.hold(trial.key(), rvn=numeric(), token=GREAT_TOKEN)
    expected = WRONG_VERSIONS[wrong](record.version)

    for form, request in forms(record, expected).items():
        reply = trial.store.send(request)

        trial.refused(reply, f"{form} that expects {wrong.replace('_', ' ')}", record)
        trial.exactly(record, reply.record, f"the refusal of {form} shows another record than stands")


def creates_nothing(trial: Trial, forms: Callable[[LockRecord, Version], dict[str, Any]]) -> None:
    """Fail unless a change of an absent key is refused in each of its *forms*."""
    key = trial.key()
    for form, request in forms(held(key), Version(fresh(), 1)).items():
        trial.refused(trial.store.send(request), f"{form} of an absent key", None)
        stands = trial.store.read(key)
        trial.require(stands is None, f"{form} of an absent key created a record", came=stands)


class ChangingClauses:
    """Clauses of ``replace``, ``release`` and of replies."""

    @pytest.mark.parametrize("wrong", WRONG_VERSIONS)
    def test_s5_a_replace_that_expects_another_version_is_refused(self, trial: Trial, wrong: str) -> None:
        """State, RVN and token are compared, each of them exactly, whatever the replace is for."""
        refused_for_its_version(trial, replaces, wrong)

    @pytest.mark.parametrize("standing", ["free", "gone"])
    def test_s5_a_replace_of_a_record_that_is_not_held_is_refused(self, trial: Trial, standing: str) -> None:
        """A renewal that arrives after the release must not bring the lock back, even if it expects what stands now."""
        key, record = prepare(trial, standing, **OLD)
        assert record is not None

        for expected in (record.version, Version(fresh(), record.fencing_token)):
            for form, request in replaces(held(key, token=record.fencing_token), expected).items():
                trial.refused(trial.store.replace(request), f"{form} of a record that is {standing}", record)

    def test_s5_a_replace_of_an_absent_key_is_refused_and_creates_nothing(self, trial: Trial) -> None:
        """Only a claim creates."""
        creates_nothing(trial, replaces)

    def test_s5_a_late_duplicate_of_an_older_renewal_is_refused(self, trial: Trial) -> None:
        """A delayed copy of a renewal must not put an old RVN back."""
        record = trial.hold(trial.key())
        old = Replace(next_version(record), record.version)
        newest = trial.renew(trial.granted(trial.store.replace(old), "a renewal"))

        trial.refused(trial.store.replace(old), "a duplicate of an older renewal", newest)

    def test_s5_a_late_duplicate_of_a_renewal_does_not_undo_a_release(self, trial: Trial) -> None:
        """Nor does the copy bring back what was released meanwhile."""
        record = trial.hold(trial.key())
        old = Replace(next_version(record), record.version)
        free = trial.free(trial.granted(trial.store.replace(old), "a renewal"))

        trial.refused(trial.store.replace(old), "a duplicate of a renewal, after the release,", free)

    def test_s5_the_old_holder_renews_nothing_after_a_takeover(self, trial: Trial) -> None:
        """An expired holder's renewal is refused, whoever its owner says it is."""
        record = trial.hold(trial.key(), owner="one name for all")
        taken = trial.renew(record, fencing_token=record.fencing_token + 1)

        reply = trial.store.replace(Replace(next_version(record), record.version))

        trial.refused(reply, "a renewal by the holder before the takeover", taken)

    @pytest.mark.parametrize("rise", [0, 1, 1000])
    def test_s5_a_replace_writes_the_token_that_it_carries(self, trial: Trial, rise: int) -> None:
        """A renewal keeps the token, a takeover or a break raises it: the caller says which, and the store adds no more than its floor."""
        record = trial.hold(trial.key())

        request = Replace(next_version(record, fencing_token=record.fencing_token + rise), record.version)
        came = trial.granted(trial.store.replace(request), "a replace")

        right = trial.as_given(request, came)
        trial.exactly(right, came, "a replace must write its record as it is")
        trial.exactly(right, trial.store.read(record.key), "a replace must write its record as it is")

    def test_s5_a_replace_may_write_a_record_that_is_not_held(self, trial: Trial) -> None:
        """So an operator breaks a lock at once: held, compared, and free with a greater token in one step."""
        record = trial.hold(trial.key())
        broken = tombstone(record, fencing_token=record.fencing_token + 1)

        reply = trial.store.replace(Replace(broken, record.version))

        trial.exactly(broken, trial.granted(reply, "a replace"), "a replace must write its record as it is")
        trial.hold(record.key)

    @pytest.mark.parametrize("wrong", WRONG_VERSIONS)
    def test_s6_a_release_that_expects_another_version_is_refused(self, trial: Trial, wrong: str) -> None:
        """State, RVN and token are compared, each of them exactly, whatever the release leaves."""
        refused_for_its_version(trial, releases, wrong)

    def test_s6_a_late_release_by_an_expired_holder_frees_nobody_elses_lock(self, trial: Trial) -> None:
        """The first bug of lock libraries: the old holder wakes up, and its release frees the next holder."""
        record = trial.hold(trial.key(), owner="one name for all")
        taken = trial.renew(record, fencing_token=record.fencing_token + 1)

        reply = trial.other.release(Release(tombstone(record), record.version))

        trial.refused(reply, "a release by the holder before the takeover", taken)

    def test_s6_a_late_release_does_not_touch_the_next_grant(self, trial: Trial) -> None:
        """Nor after the key was released and claimed again."""
        record = trial.hold(trial.key())
        late = Release(tombstone(record), record.version)
        trial.granted(trial.store.release(late), "a release")
        again = trial.hold(record.key)

        trial.refused(trial.store.release(late), "a duplicate of a release, after the next grant,", again)

    @pytest.mark.parametrize("standing", ["free", "gone"])
    def test_s6_a_release_of_a_record_that_is_not_held_is_refused(self, trial: Trial, standing: str) -> None:
        """A second release changes nothing, not even the RVN, which others may expect."""
        _, record = prepare(trial, standing, **OLD)
        assert record is not None

        for form, request in releases(record, record.version).items():
            trial.refused(trial.store.release(request), f"{form} of a record that is {standing}", record)

    def test_s6_a_release_of_an_absent_key_is_refused_and_creates_nothing(self, trial: Trial) -> None:
        """There is no token to keep."""
        creates_nothing(trial, releases)

    @needs("plant_newer")
    def test_s16_no_change_touches_a_newer_format(self, trial: Trial) -> None:
        """Whatever it asks for, and though it expects the version that stands: nobody knows what the record means."""
        for form in changes(held(trial.key()), Version(fresh(), 1)):
            key = trial.plant(Version(fresh(), 7))
            newer = trial.store.read(key)
            assert newer is not None

            reply = trial.store.send(changes(held(key, token=7), newer.version)[form])

            trial.refused(reply, f"{form} of a record of a newer format", newer)

    @pytest.mark.parametrize("state", [State.FREE, State.GONE])
    def test_s6_a_release_leaves_the_tombstone_as_it_was_given(self, trial: Trial, state: State) -> None:
        """The record stays, with the token and the fresh RVN of the request."""
        record = trial.renew(trial.hold(trial.key()))
        request = Release(tombstone(record, state), record.version)

        reply = trial.store.release(request)

        trial.exactly(
            request.record, trial.granted(reply, "a release"), "a release must leave the tombstone that it was given"
        )
        trial.exactly(
            request.record, trial.store.read(record.key), "a release must leave the tombstone that it was given"
        )

    def test_s7_a_grant_carries_what_was_written(self, trial: Trial) -> None:
        """The reply of each verb shows the record that stands: with the minted token, and the payload that was kept."""
        first = trial.hold(trial.key(), data=b"kept", attributes=(("n", 1),))
        trial.exactly(first, trial.other.read(first.key), "the reply of a claim is not what was written")
        renewed = trial.renew(first, keep=True, data=None, attributes=())
        trial.exactly(renewed, trial.other.read(first.key), "the reply of a replace is not what was written")
        free = trial.free(renewed, keep=True)
        trial.exactly(free, trial.other.read(first.key), "the reply of a release is not what was written")
        reply = trial.store.claim(Claim(held(first.key), Expect.ANY, keep_payload=True))
        again = trial.granted(reply, "a claim of a tombstone")
        trial.exactly(again, trial.other.read(first.key), "the reply of a claim is not what was written")

        trial.require(
            again.fencing_token > first.fencing_token, "a grant must carry the token that was minted", came=again
        )
        trial.require(again.data == b"kept", "a grant must carry the payload that stands", came=again)

    @pytest.mark.parametrize("verb", ["claim", "replace", "release"])
    @pytest.mark.parametrize("standing", ["held", "free", "gone"])
    def test_s8_a_refusal_carries_the_record_that_refused(self, trial: Trial, verb: str, standing: str) -> None:
        """The caller learns in the same request who holds the key, or what stands there."""
        key, record = prepare(trial, standing, data=b"\x00data", attributes=(("flag", True), ("n", -1)))
        assert record is not None
        stale = Version(fresh(), record.fencing_token)
        request = Claim(held(key), stale) if verb == "claim" else change(verb, record, stale)

        came = trial.tried(lambda: trial.store.send(request))

        if isinstance(came, StoreError):
            trial.fail(
                f"a refused {verb} raised; a refusal is a value",
                expected=Reply(applied=False, record=record),
                came=came,
            )
        trial.require(not came.applied, f"a {verb} that expects a version that does not stand was applied", came=came)
        trial.exactly(record, came.record, f"the refusal of a {verb} must carry the record that stands")

    @pytest.mark.parametrize("verb", ["claim", "replace", "release"])
    def test_s8_a_refusal_by_an_absent_key_carries_none(self, trial: Trial, verb: str) -> None:
        """None means that the key is absent, and nothing else does."""
        key = trial.key()
        version = Version(fresh(), 1)
        request = Claim(held(key), version) if verb == "claim" else change(verb, held(key), version)

        came = trial.tried(lambda: trial.store.send(request))

        trial.require(
            came == Reply(applied=False, record=None),
            f"the refusal of a {verb} of an absent key must be Reply(False, None)",
            came=came,
        )

    def test_s8_a_refusal_shows_the_newest_record(self, trial: Trial) -> None:
        """Also where another connection wrote it just before."""
        record = trial.hold(trial.key())
        for number in range(20):
            newest = trial.renew(record, store=trial.other, attributes=(("number", number),))

            reply = trial.store.replace(Replace(next_version(record), record.version))

            shown: list[Any] = [reply]
            if number < HANDS:
                stale = Replace(next_version(record), record.version)
                shown += [ask(stale) for ask in replaces_by(trial).values()]
                shown += [ask() for ask in claims_of_held(trial, record.key).values()]
            for each in shown:
                wrong = "a refusal must show the record that stood in the same step, not an older one"
                trial.exactly(newest, each.record, wrong)
            record = newest
