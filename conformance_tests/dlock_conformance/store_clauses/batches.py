"""B1 to B3: batch renewal, for stores that declare it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dlock_conformance.faults import Fault
from dlock_conformance.needs import needs
from dlock_conformance.records import fresh, held, next_version, numeric, tombstone
from dlock_conformance.store_clauses.changing import WRONG_VERSIONS
from dlock_conformance.store_clauses.claiming import GREAT_TOKEN, LARGE, NONE, OLD, OTHER_FIELDS, kept_whole, prepare
from dlock_conformance.store_clauses.forms import replaces
from dlock_conformance.store_clauses.reading import ENDS, EXACT, alike
from dlock_conformance.trial import Trial, batch_size
from dlock_core.errors import OutcomeUnknownError, RecordError, StoreError
from dlock_core.record import DATA_MAX_BYTES, LockRecord, State, Version
from dlock_core.store import Replace, Reply

__all__ = ["BatchClauses"]

# Above the limits of all stores of ours but the one in memory.
BATCH_MOST = 600
LARGE_MOST = 20


@needs("batch_renew")
class BatchClauses:
    """Clauses of ``replace_many``."""

    def test_b1_results_come_in_the_order_of_the_requests(self, trial: Trial) -> None:
        """Each is the reply that ``replace`` would give, with the record as written."""
        records = [trial.hold(trial.key(), data=bytes([number])) for number in range(batch_size(trial, 7))]
        order = [records[place] for place in sorted(range(len(records)), key=lambda place: place * 3 % 7)]

        requests = [
            Replace(next_version(record, attributes=(("n", number),)), record.version)
            for number, record in enumerate(order)
        ]
        results = trial.store.replace_many(requests)

        for request, result in zip(requests, results, strict=True):
            if not isinstance(result, Reply) or not result.applied:
                trial.fail("one of a batch of renewals that all expect what stands was not applied", came=result)
            trial.exactly(
                request.record,
                result.record,
                "the results of a batch are not in the order of its requests, or not what was written",
            )
            trial.exactly(request.record, trial.store.read(request.record.key), "a batch wrote something else")

    def test_b1_a_batch_keeps_payloads_and_tokens_as_a_replace_does(self, trial: Trial) -> None:
        """S4 and S5 hold for each, also for one that frees its key."""
        old, new = trial.hold(trial.key(), **OLD), trial.hold(trial.key(), **OLD)
        large, broken = trial.hold(trial.key(), **LARGE), trial.hold(trial.key(), **OLD)
        kept = Replace(next_version(old, data=b"new"), old.version, keep_payload=True)
        taken = Replace(next_version(new, data=b"new", fencing_token=new.fencing_token + 3), new.version)

        freed = Replace(tombstone(broken, fencing_token=broken.fencing_token + 1), broken.version, keep_payload=True)

        asked = [kept, taken, Replace(next_version(large, **NONE), large.version, keep_payload=True), freed]
        for at in range(0, len(asked), step := batch_size(trial, len(asked))):
            some = asked[at : at + step]
            for request, result in zip(some, trial.store.replace_many(some), strict=True):
                granted = trial.granted(result, "a replace in a batch that expects the version that stands")
                shown: dict[str, Any] = {"data": granted.data, "attributes": granted.attributes}  # either may be
                right = trial.as_given(request, granted)
                trial.exactly(replace(right, **shown), granted, "a batch answered with another record")
                if request is taken:
                    stands = trial.store.read(new.key)
                    trial.exactly(right, stands, "a batch must write the record, and its token, as it is")

        trial.exactly(
            next_version(kept.record, rvn=kept.record.rvn, **OLD),
            trial.store.read(old.key),
            "keep_payload in a batch",
        )
        trial.exactly(
            tombstone(broken, rvn=freed.record.rvn, fencing_token=freed.record.fencing_token, **OLD),
            trial.store.read(broken.key),
            "a replace in a batch that frees the key",
        )
        kept_whole(trial, trial.granted(Reply(True, trial.store.read(large.key)), "a read"))

    @pytest.mark.parametrize("wrong", WRONG_VERSIONS)
    def test_b1_a_batch_compares_versions_as_a_replace_does(self, trial: Trial, wrong: str) -> None:
        """State, RVN and token, each exactly, wherever in the batch it stands, and whatever the replace is for."""
        count = batch_size(trial, 3)
        records = [trial.hold(trial.key(), rvn=numeric(), token=GREAT_TOKEN + place) for place in range(count)]
        for place in range(count):
            stands = records[place]
            for form, refused in replaces(stands, WRONG_VERSIONS[wrong](stands.version)).items():
                asked = [Replace(next_version(record), record.version) for record in records]
                asked[place] = refused

                for at, result in enumerate(trial.store.replace_many(asked)):
                    if at == place:
                        trial.refused(result, f"{form} in a batch that expects {wrong.replace('_', ' ')}", stands)
                        shown_by = f"the refusal of {form} in a batch shows another record than stands"
                        trial.exactly(stands, getattr(result, "record", None), shown_by)
                    else:
                        records[at] = trial.granted(result, "a renewal in a batch that expects the version that stands")

    @pytest.mark.parametrize("standing", ["free", "gone", "absent"])
    def test_b1_a_batch_changes_only_what_is_held(self, trial: Trial, standing: str) -> None:
        """As a replace does, whatever it is for, and though it expects the version that stands."""
        key, record = prepare(trial, standing, **OLD)
        expected = Version(fresh(), 1) if record is None else record.version

        for form, request in replaces(held(key, token=expected.fencing_token), expected).items():
            [result] = trial.store.replace_many([request])
            trial.refused(result, f"{form} in a batch, of a key that is {standing},", record)
            stands = trial.store.read(key)
            trial.require(record is not None or stands is None, f"{form} in a batch created a record", came=stands)

    def test_b1_each_of_a_batch_has_its_own_fields(self, trial: Trial) -> None:
        """The fields of one request are not written for the others, whatever they are."""
        records = [
            trial.hold(trial.key(), owner="one name for all", lease_ms=1000) for _ in range(batch_size(trial, 3))
        ]
        plain = [{"owner": "another", "lease_ms": 2000}, OTHER_FIELDS, {"data": b"\x00", "attributes": (("n", 7),)}]

        changed = [next_version(record, **fields) for record, fields in zip(records, plain, strict=False)]
        asked = [Replace(new, old.version) for new, old in zip(changed, records, strict=False) if trial.carries(new)]
        results = trial.store.replace_many(asked)

        for request, result in zip(asked, results, strict=True):
            right = trial.granted(result, "a renewal in a batch that expects the version that stands")
            trial.exactly(request.record, right, "one of a batch has another's fields")
            trial.exactly(
                request.record, trial.store.read(right.key), "one of a batch was written with another's fields"
            )

    def test_b1_a_batch_writes_exactly_what_was_asked_for(self, trial: Trial) -> None:
        """S11 holds for each: what is written comes back, and what the next write leaves out is removed."""
        cases = [case for case in EXACT.values() if trial.carries(next_version(held(trial.key()), **case))]
        standing = [trial.hold(trial.key()) for _ in cases]
        for written in (cases, [NONE] * len(cases)):
            after = [
                next_version(held(old.key, token=old.fencing_token), **new)
                for old, new in zip(standing, written, strict=True)
            ]
            for at in range(0, len(after), step := batch_size(trial, 20)):
                pairs = zip(after[at : at + step], standing[at : at + step], strict=True)
                asked = [Replace(new, old.version) for new, old in pairs]
                for place, result in enumerate(trial.store.replace_many(asked)):
                    came = trial.granted(result, "a replace in a batch that expects the version that stands")
                    new = after[at + place] = trial.as_given(asked[place], came)
                    trial.exactly(new, came, "one of a batch was granted with another record")
                    trial.exactly(new, trial.store.read(new.key), "one of a batch was written in another form")
            standing = after

    def test_b1_keys_that_are_alike_are_told_apart_in_a_batch(self, trial: Trial) -> None:
        """S12 holds for each: whatever would make one key of two, each has its own result."""
        prefix = alike(trial)
        records = [trial.hold(f"{prefix}{end}") for end in ENDS]
        for at in range(0, len(records), step := batch_size(trial, 30)):
            some = records[at : at + step]
            stale = [Version(fresh(), 1) if place % 2 else record.version for place, record in enumerate(some)]
            asked = [Replace(next_version(old), version) for old, version in zip(some, stale, strict=True)]

            results = trial.store.replace_many(asked)

            for place, (request, result) in enumerate(zip(asked, results, strict=True)):
                if place % 2:
                    trial.refused(result, "a renewal in a batch that expects another version", some[place])
                else:
                    right = trial.granted(result, "a renewal in a batch that expects the version that stands")
                    trial.exactly(request.record, right, "one of a batch of keys that are alike has another's result")

    @pytest.mark.parametrize("late", [0, 1])
    def test_b1_results_are_matched_by_position_alone(self, trial: Trial, late: int) -> None:
        """Two records may have one RVN, one token, one owner: what is alike in two requests tells nothing of their results."""
        rvn, start = fresh(), fresh()[:-1]
        records = [trial.hold(trial.key(), rvn=rvn, token=GREAT_TOKEN) for _ in range(batch_size(trial, 2))]
        asked = [
            Replace(next_version(old, rvn=f"{start}{place}", owner=f"{place}"), old.version)
            for place, old in enumerate(records)
        ]
        stolen = records[late % len(records)]
        thief = trial.renew(stolen, fencing_token=stolen.fencing_token + 1)

        results = trial.store.replace_many(asked)

        for request, result, old in zip(asked, results, records, strict=True):
            if old is stolen:
                trial.refused(result, "a renewal in a batch, by the holder before a takeover,", thief)
                shown = getattr(result, "record", None)
                trial.exactly(thief, shown, "a refusal in a batch shows another record than stands")
            else:
                trial.exactly(request.record, trial.granted(result, "a renewal in a batch"), "it shows another record")
                trial.exactly(request.record, trial.store.read(old.key), "a renewal in a batch was told, and not done")

    def test_b3_a_batch_of_large_records_is_done(self, trial: Trial) -> None:
        """Twenty times the most data that a record may have: more than some drivers and servers take at once."""
        records = [trial.hold(trial.key()) for _ in range(batch_size(trial, LARGE_MOST))]
        data = [bytes([place]) * DATA_MAX_BYTES for place in range(len(records))]
        asked = [Replace(next_version(old, data=new), old.version) for old, new in zip(records, data, strict=True)]

        for request, result in zip(asked, trial.store.replace_many(asked), strict=True):
            trial.granted(result, f"one of a batch of {len(asked)} with {DATA_MAX_BYTES} bytes of data each")
            wrong = (
                f"one of a batch of {len(asked)} with {DATA_MAX_BYTES} bytes of data each was told as done, and is not"
            )
            trial.exactly(request.record, trial.store.read(request.record.key), wrong)

    def test_b1_an_empty_batch_has_no_results(self, trial: Trial) -> None:
        """Nothing to do is not an error."""
        trial.require(trial.store.replace_many([]) == [], "replace_many([]) must return no results")

    def test_b1_each_of_a_batch_is_atomic_against_a_race(self, trial: Trial) -> None:
        """Of batches and single replaces that renew the same records at once, for each record one wins."""
        records = [trial.hold(trial.key()) for _ in range(batch_size(trial, 5))]
        with trial.crowd() as crowd:
            for number in range(max(10, trial.harness.race_rounds // 20)):
                asks: list[tuple[str, Any]] = []
                for place in range(crowd.size):
                    batch = [Replace(next_version(record), record.version) for record in records]
                    alone = (number + place) % len(records)
                    asks.append(("replace", batch[alone]) if place % 2 else ("replace_many", batch))

                came = crowd.round(asks)

                for (verb, _), results in zip(asks, came, strict=True):
                    good = verb == "replace" or (isinstance(results, Sequence) and len(results) == len(records))
                    trial.require(
                        good, f"a batch of {len(records)} in a race got no list of {len(records)} results", came=results
                    )
                records = [
                    won_by_one(
                        trial,
                        [of_record(ask, results, record.key, at) for ask, results in zip(asks, came, strict=True)],
                    )
                    for at, record in enumerate(records)
                ]

    def test_b2_a_refusal_touches_no_other(self, trial: Trial) -> None:
        """One lock that was lost must not cost the others theirs, nor be told as renewed."""
        good = [trial.hold(trial.key()) for _ in range(3)]
        stolen = trial.hold(trial.key(), **OLD)
        thief = trial.renew(stolen, fencing_token=stolen.fencing_token + 1)
        free = trial.free(trial.hold(trial.key(), **OLD), keep=True)
        gone = trial.free(trial.hold(trial.key(), **OLD), State.GONE, keep=True)
        absent = held(trial.key())
        expected: list[tuple[LockRecord, bool, LockRecord | None]] = [
            (good[0], True, None),
            (stolen, False, thief),
            (good[1], True, None),
            (free, False, free),
            (absent, False, None),
            (gone, False, gone),
            (good[2], True, None),
        ]
        if batch_size(trial, len(expected)) < len(expected):
            expected = expected[:2]

        requests = [Replace(held(record.key, token=record.fencing_token), record.version) for record, _, _ in expected]
        results = trial.store.replace_many(requests)

        for request, result, (_, applied, standing) in zip(requests, results, expected, strict=True):
            right = request.record if applied else standing
            if not isinstance(result, Reply) or result.applied is not applied:
                trial.fail("a result in a mixed batch is wrong", expected=Reply(applied, right), came=result)
            if right is None:
                trial.require(result.record is None, "the refusal by an absent key must carry None", came=result)
                trial.require(trial.store.read(request.record.key) is None, "a batch created a record")
            else:
                trial.exactly(right, result.record, "a result in a mixed batch carries the wrong record")
                trial.exactly(right, trial.store.read(right.key), "a mixed batch wrote something else")

    @needs("plant_foreign")
    def test_b2_an_error_of_one_is_its_own_result(self, trial: Trial) -> None:
        """A record that cannot be read is one RecordError among the results, not an exception that hides the others."""
        key = trial.plant()
        first, lost, last = (trial.hold(trial.key()) for _ in range(3))

        requests = [
            Replace(next_version(first), first.version),
            Replace(held(key), Version("another", 1)),
            Replace(next_version(last), last.version),
            Replace(next_version(lost), Version(fresh(), lost.fencing_token)),
        ][: batch_size(trial, 4)]
        came = trial.tried(lambda: trial.store.replace_many(requests))

        trial.require(isinstance(came, list), "one bad record in a batch made the whole call raise", came=came)
        trial.require(
            isinstance(came[1], RecordError),
            "the result for a record that is not dlock's must be a RecordError",
            came=came[1],
        )
        for place in (0, 2):
            trial.require(
                isinstance(came[place], Reply) and came[place].applied,
                "a bad record cost another its renewal",
                came=came[place],
            )
            right = requests[place].record
            trial.exactly(right, trial.store.read(right.key), "beside a bad record a renewal was told, and not written")
        for result in came[3:]:
            trial.refused(result, "a renewal in a batch that expects another version, beside a bad record,", lost)

    @needs("plant_newer")
    def test_b2_a_newer_format_is_the_result_of_its_own_request(self, trial: Trial) -> None:
        """It is held by somebody else, and the others of the batch are renewed."""
        key = trial.plant(Version(fresh(), 7))
        newer, record = trial.store.read(key), trial.hold(trial.key())
        assert newer is not None
        asked = [Replace(held(key, token=7), newer.version), Replace(next_version(record), record.version)]

        came = trial.tried(lambda: trial.store.replace_many(asked))

        if isinstance(came, StoreError):
            trial.fail("a newer format under one key of a batch made the whole batch fail", came=came)
        trial.refused(came[0], "a renewal in a batch of a record of a newer format", newer)
        trial.granted(came[1], "a renewal in a batch beside a record of a newer format")

    @needs("lose_reply")
    def test_b2_an_exception_stands_for_all_of_them(self, trial: Trial) -> None:
        """A batch whose reply is lost is unknown as a whole, or for each; nothing is made up."""
        store = trial.disturbed(Fault.LOSE_REPLY)
        records = [trial.hold(trial.key()) for _ in range(batch_size(trial, 3))]
        requests = [Replace(next_version(record), record.version) for record in records]

        with trial.fault(Fault.LOSE_REPLY):
            came = trial.ended(lambda: store.replace_many(requests, timeout_s=2.0), 10.0)

        each = came if isinstance(came, list) else [came]
        wrong = (
            "a batch was applied and its reply lost: replace_many must raise OutcomeUnknownError, or give it for each"
        )
        trial.require(all(isinstance(result, OutcomeUnknownError) for result in each), wrong, came=came)

    def test_b3_a_full_batch_is_done(self, trial: Trial) -> None:
        """Every request up to ``batch_limit`` counts, and has its result: each third is late, the others and the last keep theirs."""
        limit = getattr(trial.store.raw, "batch_limit", None)
        trial.require(
            isinstance(limit, int) and limit >= 1, f"batch_limit must be an integer of 1 or more; it is {limit!r}"
        )
        records = [trial.hold(trial.key(), data=b"stays") for _ in range(batch_size(trial, BATCH_MOST))]

        late = [(len(records) - place) % 3 == 2 for place in range(len(records))]
        requests = [
            Replace(next_version(old, data=None), old.version._replace(rvn=fresh()) if is_late else old.version, True)
            for old, is_late in zip(records, late, strict=True)
        ]
        results = trial.store.replace_many(requests)

        what = f"one of a batch of {len(requests)}, where batch_limit is {limit},"
        for request, result, old, is_late in zip(requests, results, records, late, strict=True):
            if is_late:
                trial.refused(result, f"{what} that expects another version", old)
                continue
            trial.granted(result, f"{what} that expects the version that stands")
            right = replace(request.record, data=old.data)
            trial.exactly(right, trial.store.read(old.key), f"{what} was told as done, and is not")

    @pytest.mark.parametrize("size", [1, 2])
    def test_b3_a_small_batch_is_done(self, trial: Trial, size: int) -> None:
        """One is a batch too."""
        records = [trial.hold(trial.key()) for _ in range(batch_size(trial, size))]

        results = trial.store.replace_many([Replace(next_version(record), record.version) for record in records])

        trial.require(
            all(isinstance(result, Reply) and result.applied for result in results),
            f"a batch of {len(records)}",
            came=results,
        )


def of_record(ask: tuple[str, Any], came: Any, key: str, place: int) -> Any:
    """Return what came to *ask* for *key*, whose *place* it is in a batch; None if it was not asked for."""
    verb, request = ask
    if verb == "replace_many":
        return came[place]
    return came if request.record.key == key else None


def won_by_one(trial: Trial, came: Any) -> LockRecord:
    """Return the record of the one grant among what *came* for one key."""
    results = [result for result in came if result is not None]
    for result in results:
        if not isinstance(result, Reply):
            trial.fail("a result of a batch in a race is no Reply", came=result)
    granted: list[LockRecord | None] = [result.record for result in results if result.applied]
    if len(granted) != 1 or granted[0] is None:
        trial.fail(
            f"of {len(results)} batches and replaces that expect one version of a record, {len(granted)} renewed it; exactly one must",
            came=list(results),
        )
    for result in results:
        if result.record != granted[0]:
            trial.fail("the loser of a race was not shown the winner's record", expected=granted[0], came=result)
    return granted[0]
