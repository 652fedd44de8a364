"""M1 to M4: several keys in one atomic step, for stores that declare it. What every verb owes is tried with the other verbs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dlock_conformance.needs import needs
from dlock_conformance.records import fresh, held
from dlock_conformance.store_clauses.claiming import LARGE, OLD, kept_whole
from dlock_conformance.store_clauses.forms import STOOD
from dlock_conformance.store_clauses.reading import ENDS, EXACT, alike
from dlock_conformance.store_clauses.sessions import SESSIONS
from dlock_conformance.trial import Trial
from dlock_core.record import LockRecord, State, Version
from dlock_core.store import CLAIM_MANY_MAX, Claim, Expect, Reply

__all__ = ["AtomicMultiClauses"]


@needs("atomic_multi")
class AtomicMultiClauses:
    """Clauses of ``claim_many``."""

    @pytest.mark.parametrize("keep", [False, True])
    def test_m1_each_is_granted_as_a_claim_of_its_own(self, trial: Trial, keep: bool) -> None:  # a parameter
        """Token, payload and all other fields, each under its own key, and the replies in order."""
        free = trial.free(trial.hold(trial.key(), **OLD), keep=True)
        gone = trial.free(trial.hold(trial.key(), **OLD), State.GONE, keep=True)
        before: list[LockRecord | None] = [None, free, gone, None]
        asked = [
            Claim(held(trial.key() if old is None else old.key, data=bytes([place])), Expect.ANY, keep_payload=keep)
            for place, old in enumerate(before)
        ]
        asked[3] = asked[3]._replace(record=replace(asked[3].record, fencing_token=2**40))

        replies = trial.store.claim_many(asked)

        for request, reply, old in zip(asked, replies, before, strict=True):
            record = trial.granted(reply, "one of several claims of keys that nobody holds")
            trial.require(
                record.fencing_token > (0 if old is None else old.fencing_token)
                and record.fencing_token >= request.record.fencing_token,
                "one of several claims was granted a token that is too small",
                came=record,
            )
            right = max((0 if old is None else old.fencing_token) + 1, request.record.fencing_token)
            wrong = f"one of several claims must be given token {right}, whatever the tokens of the others are"
            trial.require(trial.harness.token_floor or record.fencing_token == right, wrong, came=record)
            kept: dict[str, Any] = (
                {"data": old.data, "attributes": old.attributes} if keep and old is free and old is not None else {}
            )
            trial.exactly(
                replace(request.record, fencing_token=record.fencing_token, **kept),
                record,
                "one of several claims was not granted as a claim of its own",
            )
            trial.exactly(record, trial.store.read(record.key), "another record stands than was granted")

    def test_m1_each_is_written_exactly(self, trial: Trial) -> None:
        """Whatever a record may have, each has its own."""
        cases = [*EXACT.values(), *SESSIONS.values(), {"lease_ms": 1}, {"owner": "another"}]
        asked = []
        for case in cases:
            fields = {name: value for name, value in case.items() if name not in ("rvn", "fencing_token")}
            record = held(trial.key(), token=case.get("fencing_token", 1), **fields)
            if trial.carries(record):
                asked.append(Claim(record, Expect.ANY))

        for request, reply in zip(asked, trial.store.claim_many(asked), strict=True):
            came = trial.granted(reply, "one of several claims")
            right = replace(request.record, fencing_token=came.fencing_token)
            trial.exactly(right, came, "one of several claims was granted with another record")
            trial.exactly(right, trial.store.read(came.key), "one of several claims wrote another record")

    def test_m1_keys_that_are_alike_are_told_apart(self, trial: Trial) -> None:
        """Each reply is of its own key."""
        prefix = alike(trial)
        for at in range(0, len(ENDS), CLAIM_MANY_MAX):
            asked = [Claim(held(f"{prefix}{end}"), Expect.ANY) for end in ENDS[at : at + CLAIM_MANY_MAX]]
            for request, reply in zip(asked, trial.store.claim_many(asked), strict=True):
                came = trial.granted(reply, "one of several claims of keys that are alike")
                right = replace(request.record, fencing_token=came.fencing_token)
                trial.exactly(right, came, "one of several claims was answered with another's reply")
                trial.exactly(right, trial.store.read(right.key), "one of several claims wrote under another's key")

    def test_m1_a_payload_is_kept_whole(self, trial: Trial) -> None:
        """S4 holds: as for any claim."""
        free = [trial.free(trial.hold(trial.key(), **LARGE), keep=True) for _ in range(2)]

        for reply in trial.store.claim_many([Claim(held(old.key), Expect.ANY, keep_payload=True) for old in free]):
            kept_whole(trial, trial.granted(reply, "one of several claims of keys that nobody holds"))

    def test_m1_what_was_granted_is_held_like_any_other(self, trial: Trial) -> None:
        """Each is renewed, released and claimed again by itself."""
        keys = [trial.key(), trial.key()]
        for _ in range(2):
            replies = trial.store.claim_many([Claim(held(key), Expect.ANY) for key in keys])
            for record in [
                trial.granted(reply, "one of several claims of keys that nobody holds") for reply in replies
            ]:
                trial.refused(trial.other.claim(Claim(held(record.key), Expect.ANY)), "a claim of a held key", record)
                trial.free(trial.renew(record))

    @needs("count_requests")
    def test_m1_it_is_one_request(self, trial: Trial) -> None:
        """Granted or refused, for any number of keys."""
        keys, count = [trial.key() for _ in range(5)], trial.hook("count_requests")
        trial.store.claim_many([Claim(held(trial.key()), Expect.ANY)])
        for what in ("granted", "refused"):
            before = count()
            trial.store.claim_many([Claim(held(key), Expect.ANY) for key in keys])
            sent = count() - before
            trial.require(sent == 1, f"a claim of 5 keys that was {what} took {sent} requests")

    @pytest.mark.parametrize("state", [State.FREE, State.GONE])
    @pytest.mark.parametrize("place", range(3))
    def test_m2_one_that_is_held_refuses_all(self, trial: Trial, place: int, state: State) -> None:
        """Nothing is written under the others, whether they are absent or free, and each reply shows what stands."""
        standing: list[LockRecord | None] = [None, trial.free(trial.hold(trial.key(), **OLD), state)]
        standing.insert(place, trial.hold(trial.key(), **OLD))
        keys = [trial.key() if record is None else record.key for record in standing]

        replies = trial.store.claim_many([Claim(held(key), Expect.ANY) for key in keys])

        for key, record, reply in zip(keys, standing, replies, strict=True):
            trial.refused(reply, "one of several claims, of which one key was held,", record)
            trial.require(
                record is not None or trial.store.read(key) is None, "a refused claim of several keys has made one"
            )
            if record is None:
                trial.require(reply.record is None, "a refusal shows a record under an absent key", came=reply)
            else:
                trial.exactly(record, reply.record, "a refusal of several claims shows another record than stands")

    @pytest.mark.parametrize("state", [None, State.GONE])
    def test_m2_one_that_must_exist_refuses_all(self, trial: Trial, state: State | None) -> None:
        """S2 holds for each: a key that is absent or gone is not claimed, nor what was asked for with it."""
        lacking = trial.key()
        if state is not None:
            trial.free(trial.hold(lacking), state)
        free = trial.free(trial.hold(trial.key()))
        asked = [Claim(held(key), Expect.ANY, must_exist=key is lacking) for key in (free.key, lacking, free.key + "/")]
        for some in (asked[:2], asked[1:]):
            for request, reply in zip(some, trial.store.claim_many(some), strict=True):
                standing = free if request.record.key == free.key else None
                trial.refused(reply, "one of several claims, of which one key must exist and does not,", standing)

    @needs("plant_newer")
    def test_m2_a_newer_format_refuses_all(self, trial: Trial) -> None:
        """It is held by everybody."""
        newer, key = trial.plant(Version(fresh(), 7)), trial.key()

        for reply in trial.store.claim_many([Claim(held(each), Expect.ANY) for each in (key, newer)]):
            trial.refused(reply, "one of several claims, of which one key has a newer format,", None)
        trial.require(trial.store.read(key) is None, "a refused claim of several keys has made one")

    @needs("plant_foreign")
    def test_m2_what_cannot_be_read_leaves_the_others_alone(self, trial: Trial) -> None:
        """An exception stands for all of them."""
        foreign, key = trial.plant(), trial.key()

        came = trial.tried(lambda: trial.store.claim_many([Claim(held(each), Expect.ANY) for each in (key, foreign)]))

        trial.require(isinstance(came, Exception), "a claim of several keys met a foreign record", came=came)
        trial.require(trial.store.read(key) is None, "a claim of several keys that failed has made one")

    @pytest.mark.parametrize("sets", [[(0, 1, 2), (2, 1, 0), (1, 0, 2)], [(0, 1), (1, 2), (2, 0)]])
    def test_m3_of_several_at_once_with_a_key_in_common_one_is_applied(
        self, trial: Trial, sets: list[tuple[int, ...]]
    ) -> None:
        """In whatever order they name their keys: one wins, wholly, and the others wait for nothing."""
        keys = [trial.key() for _ in range(3)]
        with trial.crowd() as crowd:
            chosen = [sets[place % len(sets)] for place in range(crowd.size)]
            for _ in range(max(10, trial.harness.race_rounds // 20)):
                batches = [[Claim(held(keys[at]), Expect.ANY) for at in places] for places in chosen]

                won = [
                    replies
                    for replies in crowd.round([("claim_many", batch) for batch in batches])
                    if all(reply.applied for reply in answered(trial, replies))
                ]

                trial.require(
                    len(won) == 1, f"of {crowd.size} claims that share keys {len(won)} were applied", came=won
                )
                for reply in won[0]:
                    trial.exactly(reply.record, trial.store.read(reply.record.key), "what was granted does not stand")
                    trial.free(reply.record)

    @pytest.mark.parametrize("place", [0, CLAIM_MANY_MAX // 2, CLAIM_MANY_MAX - 1])
    def test_m2_one_of_as_many_as_the_port_allows_refuses_all(self, trial: Trial, place: int) -> None:
        """They are one step, however many they are."""
        keys = [trial.key() for _ in range(CLAIM_MANY_MAX)]
        taken = trial.hold(keys[place])

        replies = trial.store.claim_many([Claim(held(key), Expect.ANY) for key in keys])

        applied = sum(reply.applied for reply in replies)
        trial.require(not applied, f"one of {CLAIM_MANY_MAX} keys was held, and {applied} others were granted")
        for key in keys:
            stands = trial.store.read(key)
            trial.require(
                stands == (taken if key == taken.key else None), "a refused claim has made a record", came=stands
            )

    def test_m4_as_many_as_the_port_allows_are_applied(self, trial: Trial) -> None:
        """All of them; each second is of a tombstone, whose token and payload count for its own claim alone."""
        asked = [Claim(held(trial.key()), Expect.ANY) for _ in range(CLAIM_MANY_MAX)]
        before = [trial.free(trial.hold(each.record.key, token=STOOD), **OLD) for each in asked[1::2]]
        asked[1::2] = [each._replace(must_exist=True, keep_payload=True) for each in asked[1::2]]
        standing = itertools.chain.from_iterable(zip(itertools.repeat(None), before, strict=False))

        for request, reply, old in itertools.zip_longest(asked, trial.store.claim_many(asked), standing):
            record = trial.granted(reply, f"one of {CLAIM_MANY_MAX} claims of keys that nobody holds")
            above = old is None or record.fencing_token > old.fencing_token
            trial.require(above, f"one of {CLAIM_MANY_MAX} claims was given an old token", came=record)
            right = replace(request.record, fencing_token=record.fencing_token, **({} if old is None else OLD))
            trial.exactly(
                right, trial.store.read(request.record.key), "one of many claims was not written as a claim is"
            )


def answered(trial: Trial, replies: object) -> Sequence[Reply]:
    """Return the replies of one of several calls at once; fail if there are none."""
    if not isinstance(replies, Sequence):
        trial.fail("one of several claims of the same keys at once got no answer", came=replies)
    return replies
