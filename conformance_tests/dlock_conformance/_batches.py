"""B1 to B3: batch renewal, for stores that declare it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dlock_conformance._changing import WRONG_VERSIONS
from dlock_conformance._claiming import OLD, OTHER_FIELDS
from dlock_conformance.faults import Fault
from dlock_conformance.needs import needs
from dlock_conformance.records import fresh, held, next_version
from dlock_conformance.trial import Trial
from dlock_core.errors import OutcomeUnknownError, RecordError
from dlock_core.record import LockRecord, State, Version
from dlock_core.store import Replace, Reply

__all__ = ["BatchClauses", "batch_size"]

# Above the limits of all stores of ours but the one in memory.
BATCH_MOST = 600


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
        """S4 and S5 hold for each."""
        old, new = trial.hold(trial.key(), **OLD), trial.hold(trial.key(), **OLD)
        kept = Replace(next_version(old, data=b"new"), old.version, keep_payload=True)
        taken = Replace(next_version(new, data=b"new", fencing_token=new.fencing_token + 3), new.version)

        trial.store.replace_many([kept][: batch_size(trial, 1)])
        trial.store.replace_many([taken])

        trial.exactly(
            next_version(kept.record, rvn=kept.record.rvn, **OLD),
            trial.store.read(old.key),
            "keep_payload in a batch",
        )
        trial.exactly(taken.record, trial.store.read(new.key), "a batch must write the record, and its token, as it is")

    @pytest.mark.parametrize("wrong", WRONG_VERSIONS)
    def test_b1_a_batch_compares_versions_as_a_replace_does(self, trial: Trial, wrong: str) -> None:
        """State, RVN and token, each exactly, wherever in the batch it stands."""
        records = [trial.hold(trial.key(), rvn=fresh()[:-1] + "f", token=5 + place) for place in range(3)]
        for place in range(batch_size(trial, len(records))):
            asked = [Replace(next_version(record), record.version) for record in records[: batch_size(trial, 3)]]
            asked[place] = asked[place]._replace(expected=WRONG_VERSIONS[wrong](records[place].version))

            for at, result in enumerate(trial.store.replace_many(asked)):
                if at == place:
                    what = f"a renewal in a batch that expects {wrong.replace('_', ' ')}"
                    trial.refused(result, what, records[at])
                else:
                    records[at] = trial.granted(result, "a renewal in a batch that expects the version that stands")

    def test_b1_each_of_a_batch_has_its_own_fields(self, trial: Trial) -> None:
        """The fields of one request are not written for the others, whatever they are."""
        records = [
            trial.hold(trial.key(), owner="one name for all", lease_ms=1000) for _ in range(batch_size(trial, 3))
        ]
        plain = [{"owner": "another", "lease_ms": 2000}, OTHER_FIELDS, {"data": b"\x00", "attributes": (("n", 7),)}]

        asked = [
            Replace(next_version(record, **fields), record.version)
            for record, fields in zip(records, plain, strict=False)
        ]
        results = trial.store.replace_many(asked)

        for request, result in zip(asked, results, strict=True):
            right = trial.granted(result, "a renewal in a batch that expects the version that stands")
            trial.exactly(request.record, right, "one of a batch has another's fields")
            trial.exactly(
                request.record, trial.store.read(right.key), "one of a batch was written with another's fields"
            )

    def test_b1_an_empty_batch_has_no_results(self, trial: Trial) -> None:
        """Nothing to do is not an error."""
        trial.require(trial.store.replace_many([]) == [], "replace_many([]) must return no results")

    def test_b1_each_of_a_batch_is_atomic_against_a_race(self, trial: Trial) -> None:
        """Of two batches that renew the same records at once, for each record one wins."""
        records = [trial.hold(trial.key()) for _ in range(batch_size(trial, 5))]
        with trial.crowd() as crowd:
            for _ in range(max(10, trial.harness.race_rounds // 20)):
                batches = [
                    [Replace(next_version(record), record.version) for record in records] for _ in range(crowd.size)
                ]
                columns = crowd.round([("replace_many", batch) for batch in batches])
                for results in columns:
                    good = isinstance(results, Sequence) and len(results) == len(records)
                    trial.require(
                        good, f"a batch of {len(records)} in a race got no list of {len(records)} results", came=results
                    )
                records = [won_by_one(trial, results) for results in zip(*columns, strict=True)]

    def test_b2_a_refusal_touches_no_other(self, trial: Trial) -> None:
        """One lock that was lost must not cost the others theirs, nor be told as renewed."""
        good = [trial.hold(trial.key()) for _ in range(3)]
        stolen = trial.hold(trial.key())
        thief = trial.renew(stolen, fencing_token=stolen.fencing_token + 1)
        free = trial.free(trial.hold(trial.key()))
        gone = trial.free(trial.hold(trial.key()), State.GONE)
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
        first, last = trial.hold(trial.key()), trial.hold(trial.key())

        requests = [
            Replace(next_version(first), first.version),
            Replace(held(key), Version("another", 1)),
            Replace(next_version(last), last.version),
        ]
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
        """Every request up to ``batch_limit`` counts, and has its result."""
        limit = getattr(trial.store.raw, "batch_limit", None)
        trial.require(
            isinstance(limit, int) and limit >= 1, f"batch_limit must be an integer of 1 or more; it is {limit!r}"
        )
        records = [trial.hold(trial.key()) for _ in range(batch_size(trial, BATCH_MOST))]

        requests = [Replace(next_version(record), record.version) for record in records]
        results = trial.store.replace_many(requests)

        for request, result in zip(requests, results, strict=True):
            if not isinstance(result, Reply) or not result.applied:
                trial.fail(
                    f"one of a batch of {len(requests)} renewals was not applied; batch_limit is {limit}", came=result
                )
            trial.exactly(
                request.record,
                trial.store.read(request.record.key),
                f"one of a batch of {len(requests)} was not written",
            )

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


def batch_size(trial: Trial, most: int) -> int:
    """Return how many requests a batch may have, at most *most*."""
    return max(1, min(most, getattr(trial.store.raw, "batch_limit", 1)))


def won_by_one(trial: Trial, results: Any) -> LockRecord:
    """Return the record of the one grant among the *results* for one key."""
    for result in results:
        if not isinstance(result, Reply):
            trial.fail("a result of a batch in a race is no Reply", came=result)
    granted: list[LockRecord | None] = [result.record for result in results if result.applied]
    if len(granted) != 1 or granted[0] is None:
        trial.fail(
            f"of {len(results)} batches that expect one version of a record, {len(granted)} renewed it; exactly one must",
            came=list(results),
        )
    return granted[0]
