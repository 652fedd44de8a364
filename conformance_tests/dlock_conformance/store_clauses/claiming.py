"""S1 to S4: who wins a race, when a claim is applied, which token it mints, and whose payload stays."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from dlock_conformance.needs import needs
from dlock_conformance.races import CONTENDERS, race_of_processes
from dlock_conformance.records import fresh, held, next_version, tombstone
from dlock_conformance.trial import Trial
from dlock_core.record import DATA_MAX_BYTES, Broken, LockRecord, ProcessIdentity, Stamp, State, Version
from dlock_core.store import Claim, Expect, Release, Replace, Reply

__all__ = [
    "EXPECTS",
    "GREAT_TOKEN",
    "ClaimingClauses",
    "claimed_by_its_condition",
    "kept_whole",
    "one_winner",
    "together",
]

EXPECTS: dict[str, Callable[[Version], Version | Expect]] = {
    "any": lambda _: Expect.ANY,
    "absent": lambda _: Expect.ABSENT,
    "its_version": lambda standing: standing,
    "another_rvn": lambda standing: standing._replace(rvn=fresh()),
    "a_greater_token": lambda standing: standing._replace(fencing_token=standing.fencing_token + 1),
    "a_smaller_token": lambda standing: standing._replace(fencing_token=standing.fencing_token - 1),
    "the_same_32_bits": lambda standing: standing._replace(fencing_token=standing.fencing_token + 2**32),
}
# (what stands, what is expected): applied without must_exist, applied with it. All else is refused.
APPLIED = {
    ("absent", "any"): (True, False),
    ("absent", "absent"): (True, False),
    ("free", "any"): (True, True),
    ("free", "its_version"): (True, True),
    ("gone", "any"): (True, False),
    ("gone", "its_version"): (True, False),
}
CLAIMS = [
    pytest.param(standing, expect, must_exist, id=f"{standing}-expect_{expect}{'-must_exist' if must_exist else ''}")
    for standing, expect, must_exist in itertools.product(("absent", "held", "free", "gone"), EXPECTS, (False, True))
]
# So great that in 32 bits, whole or floating, or in 15 digits, another token is the same; and above the clocks that tokens are made of.
GREAT_TOKEN = 2**52 + 5
# All that a store could write in another form when it keeps it.
OLD: dict[str, Any] = {
    "data": bytes(range(256)),
    "attributes": (("bytes", b"\xff\x00"), ("int", 2**53 + 1), ("text", "\u00e9e\u0301"), ("truth", True)),
}
LARGE: dict[str, Any] = {
    "data": OLD["data"] * (DATA_MAX_BYTES // 256),
    "attributes": tuple((f"name-{number:02}", OLD["data"]) for number in range(40)),
}
NEW: dict[str, Any] = {"data": b"new", "attributes": (("b", 2),)}
NONE: dict[str, Any] = {"data": None, "attributes": ()}
OTHER_FIELDS: dict[str, Any] = {
    "owner": "somebody else",
    "lease_ms": 1234,
    "stamp": Stamp(1_700_000_000_000, "an rvn"),
    "process": ProcessIdentity("boot", 4026531836, 17, 991),
    "broken": Broken("an operator", 1_700_000_000_001),
}


def prepare(trial: Trial, standing: str, **fields: Any) -> tuple[str, LockRecord | None]:
    """Bring a new key into the state *standing*; return the key and the record under it."""
    key = trial.key()
    if standing == "absent":
        return key, None
    record = trial.hold(key, **fields)
    if standing == "held":
        return key, record
    return key, trial.free(record, State(standing), keep=True)


class ClaimingClauses:
    """Clauses of ``claim``, and of races of all three steps."""

    def test_s1_of_racing_first_claims_one_is_applied(self, trial: Trial) -> None:
        """Eight contenders claim a key that is absent; one gets it, and the others are shown its record."""
        with trial.crowd() as crowd:
            for _ in range(trial.harness.race_rounds):
                key = trial.key()
                replies = crowd.round([("claim", Claim(held(key), Expect.ANY)) for _ in range(crowd.size)])
                winner = one_winner(trial, replies, "claims of one absent key")
                for reply in replies:
                    if reply.record != winner:
                        trial.fail("the loser of a race was not shown the winner's record", expected=winner, came=reply)

    def test_s1_of_racing_claims_of_a_tombstone_one_is_applied(self, trial: Trial) -> None:
        """Contenders that expect the same tombstone are in a race as much as those that expect nothing."""
        free = trial.free(trial.hold(trial.key()))
        with trial.crowd() as crowd:
            for number in range(max(50, trial.harness.race_rounds // 2)):
                expect = free.version if number % 2 else Expect.ANY
                replies = crowd.round([("claim", Claim(held(free.key), expect)) for _ in range(crowd.size)])
                winner = one_winner(trial, replies, "claims of one tombstone")
                [free] = released(trial, [winner])

    def test_s1_of_racing_replaces_one_is_applied(self, trial: Trial) -> None:
        """Renewals and takeovers that expect one version: at most one is applied, whichever it is."""
        standing = trial.hold(trial.key())
        with trial.crowd() as crowd:
            for _ in range(max(50, trial.harness.race_rounds // 2)):
                tokens = (standing.fencing_token + place % 2 for place in range(crowd.size))
                writes = [next_version(standing, fencing_token=token) for token in tokens]
                replies = crowd.round([("replace", Replace(record, standing.version)) for record in writes])
                standing = one_winner(trial, replies, "replaces that expect one version")

    def test_s1_of_a_racing_renewal_takeover_and_release_one_is_applied(self, trial: Trial) -> None:
        """The three steps exclude each other: what a release frees no renewal brings back, and no takeover is released."""
        with trial.crowd() as crowd:
            for _ in range(max(50, trial.harness.race_rounds // 4)):
                standing = trial.hold(trial.key())
                renewals = [("replace", Replace(next_version(standing), standing.version)) for _ in range(3)]
                taken = next_version(standing, fencing_token=standing.fencing_token + 1)
                others = [("release", Release(tombstone(standing), standing.version)) for _ in range(4)]
                replies = crowd.round([*renewals, ("replace", Replace(taken, standing.version)), *others])
                winner = one_winner(trial, replies, "a renewal, a takeover and a release that expect one version")
                trial.exactly(
                    winner, trial.store.read(standing.key), "what stands after a race is not what its winner wrote"
                )

    @needs("several_processes", "sync")
    def test_s1_of_racing_processes_one_is_granted(self, trial: Trial) -> None:
        """Eight processes claim one key, absent or free, or replace its record: no mutex inside a process helps here, and no cache."""
        url = trial.harness.url
        assert url is not None, "several_processes needs the url that other processes open"
        keys = [trial.key() for _ in range(max(20, trial.harness.race_rounds // 10))]
        for record in [trial.hold(key) for place, key in enumerate(keys) if place % 3][::2]:
            trial.free(record)

        for key, came in zip(keys, race_of_processes(url, keys), strict=True):
            errors = [each for each in came if isinstance(each, str)]
            trial.require(not errors, f"a process that claimed {key!r} got no reply: {errors[:1]}")
            winners = [each for each in came if isinstance(each, int)]
            wrong = f"{len(winners)} of {CONTENDERS} processes were granted {key!r}, with tokens {winners}"
            trial.require(len(winners) == 1, wrong)
            seen = trial.store.read(key)
            right = seen is not None and seen.fencing_token == winners[0]
            trial.require(right, "a read does not show what the winner of a race of processes has written", came=seen)

    @pytest.mark.parametrize(("standing", "expect", "must_exist"), CLAIMS)
    def test_s2_a_claim_is_applied_by_its_condition_only(
        self, trial: Trial, standing: str, expect: str, *, must_exist: bool
    ) -> None:
        """Every state of the key against every expectation, whatever else the claim asks for."""
        for others in ("", "keep_payload", "a ticket"):
            claimed_by_its_condition(trial, trial.store.claim, (standing, expect, must_exist), others)

    def test_s2_a_ticket_changes_no_condition(self, trial: Trial) -> None:
        """It names an attempt and may be seen again: the claim is another one, under its own RVN, and gets a token of its own."""
        record = trial.hold(trial.key())
        free = trial.free(record)
        for _ in range(2):
            claim = Claim(held(free.key), Expect.ANY, ticket="the same")
            granted = trial.granted(trial.store.claim(claim), "a claim with a ticket, of a key that nobody holds")
            trial.require(
                granted.rvn == claim.record.rvn, "a ticket that was seen before got an old grant", came=granted
            )
            again = Claim(held(free.key), Expect.ANY, ticket="the same")
            trial.refused(trial.other.claim(again), "a claim of a held record, with its holder's ticket,", granted)
            free = trial.free(granted)

    def test_s3_the_first_token_is_the_least_that_was_asked_for(self, trial: Trial) -> None:
        """``record.fencing_token`` is a floor, and with no other floor the token itself."""
        for least in (1, 2, 1000, 2**31, 2**40):
            record = trial.hold(trial.key(), token=least)

            trial.require(record.fencing_token >= least, f"a claim asked for a token of at least {least}", came=record)
            if not trial.harness.token_floor:
                trial.require(
                    record.fencing_token == least,
                    f"the first token of a key must be {least}, as asked for, unless the harness declares token_floor",
                    came=record,
                )

    @pytest.mark.parametrize("state", [State.FREE, State.GONE])
    def test_s3_the_next_token_is_one_more_or_the_floor(self, trial: Trial, state: State) -> None:
        """The token counts from the one that stood there, and jumps to what the claim asks for; other keys count for themselves."""
        record = trial.hold(trial.key())
        trial.hold(trial.key(), token=record.fencing_token + 500)
        for least, jump in ((1, False), (1, False), (record.fencing_token + 70, True), (1, False)):
            free = trial.free(record, state)
            record = trial.hold(free.key, token=least)

            right = least if jump else free.fencing_token + 1
            trial.require(
                record.fencing_token >= right,
                f"after token {free.fencing_token} the next is {right} or more",
                came=record,
            )
            if not trial.harness.token_floor:
                trial.require(
                    record.fencing_token == right, f"after token {free.fencing_token} the next is {right}", came=record
                )

    def test_s3_a_takeover_counts_too(self, trial: Trial) -> None:
        """The token of a takeover is written by the caller; the next claim counts from it."""
        record = trial.hold(trial.key())
        taken = trial.renew(record, fencing_token=record.fencing_token + 7)

        again = trial.hold(trial.free(taken).key)

        trial.require(
            again.fencing_token > taken.fencing_token,
            f"the claim after token {taken.fencing_token} must get a greater",
            came=again,
        )

    def test_s3_a_refused_claim_uses_no_token_and_changes_none(self, trial: Trial) -> None:
        """A claim that loses leaves the token of the record as it is."""
        record = trial.hold(trial.key())

        for _ in range(3):
            trial.refused(
                trial.other.claim(Claim(held(record.key, token=50), Expect.ANY)), "a claim of a held record", record
            )

    def test_s3_tokens_of_racing_grants_never_repeat(self, trial: Trial) -> None:
        """The token is minted in the step that grants: contenders that claim and release at will never get one twice."""
        key, rounds = trial.key(), max(10, trial.harness.race_rounds // 20)
        with trial.crowd() as crowd:
            stores = dict.fromkeys(crowd.subjects)
        grants: list[list[int]] = [[] for _ in range(CONTENDERS)]
        errors: list[BaseException] = []

        def contend(place: int) -> None:
            store = list(stores)[place % len(stores)]
            try:
                for _ in range(rounds):
                    reply: Reply = store.calling("claim", Claim(held(key), Expect.ANY))()
                    if reply.applied and reply.record is not None:
                        grants[place].append(reply.record.fencing_token)
                        store.calling("release", Release(tombstone(reply.record), reply.record.version))()
            except Exception as error:  # noqa: BLE001  # judged below
                errors.append(error)

        together(contend)

        trial.require(not errors, f"a contender of a race got {errors[:1]}")
        tokens = sorted(itertools.chain(*grants))
        trial.require(
            len(set(tokens)) == len(tokens), f"{len(tokens)} grants of one key had {len(set(tokens))} different tokens"
        )
        for own in grants:
            trial.require(own == sorted(own), f"one contender was granted tokens that go back: {own}")

    @pytest.mark.parametrize("keep", [False, True], ids=["renewed", "kept"])
    @pytest.mark.parametrize("standing", ["absent", "free", "gone"])
    def test_s4_the_payload_of_a_claim(self, trial: Trial, standing: str, *, keep: bool) -> None:
        """keep_payload keeps what a free record had; there is nothing to keep where the key is absent or gone."""
        key, _ = prepare(trial, standing, **OLD)

        request = Claim(held(key, **NEW, **OTHER_FIELDS), Expect.ANY, keep_payload=keep)
        reply = trial.store.claim(request)

        what = f"a claim {'with' if keep else 'without'} keep_payload of a key that is {standing}"
        written_as(trial, request, reply, OLD if keep and standing == "free" else NEW, what)

    @pytest.mark.parametrize("verb", ["replace", "takeover", "release", "release_gone", "release_by_break"])
    @pytest.mark.parametrize("case", ["new", "nothing", "kept", "kept_over_nothing", "nothing_kept"])
    def test_s4_the_payload_of_a_change(self, trial: Trial, verb: str, case: str) -> None:
        """Data and attributes stay or are written, both together; all other fields are those of the request."""
        keep = "kept" in case
        old = NONE if case == "nothing_kept" else OLD
        new = NONE if case in ("nothing", "kept_over_nothing") else NEW
        record = trial.hold(trial.key(), **old)

        request: Replace | Release
        if verb in ("replace", "takeover"):
            fields = {**OTHER_FIELDS, **new}
            if verb == "takeover":
                fields["fencing_token"] = record.fencing_token + 1
            request = Replace(next_version(record, **fields), record.version, keep)
        elif verb == "release_by_break":
            request = Replace(tombstone(record, broken=OTHER_FIELDS["broken"], **new), record.version, keep)
        else:
            state = State.GONE if verb == "release_gone" else State.FREE
            request = Release(tombstone(record, state, stamp=OTHER_FIELDS["stamp"], **new), record.version, keep)
        reply = trial.store.send(request)

        what = f"a {verb} {'with' if keep else 'without'} keep_payload"
        written_as(trial, request, reply, old if keep else new, what)

    def test_s4_a_large_payload_is_kept_from_hand_to_hand(self, trial: Trial) -> None:
        """As long as nobody writes another one, it stays to its last byte."""
        first = trial.hold(trial.key(), **LARGE)
        record = trial.renew(first, keep=True, **NONE)
        taken = trial.renew(record, keep=True, fencing_token=record.fencing_token + 1, **NONE)

        free = trial.free(taken, keep=True)
        again = trial.store.claim(Claim(held(free.key), Expect.ANY, keep_payload=True))

        for each in (record, taken, free, trial.granted(again, "a claim of a key that nobody holds")):
            kept_whole(trial, each)

    def test_s4_what_was_gone_does_not_come_back(self, trial: Trial) -> None:
        """The payload of a deleted record is nobody's: the next holder who keeps the payload must not inherit it."""
        gone = trial.free(trial.hold(trial.key(), **OLD), State.GONE, keep=True)

        record = trial.granted(
            trial.store.claim(Claim(held(gone.key), Expect.ANY, keep_payload=True)),
            "a claim of a key that is gone",
        )

        trial.require(
            record.data is None and not record.attributes, "the payload of a gone record came back", came=record
        )


def claimed_by_its_condition(
    trial: Trial, claim: Callable[[Claim], Reply], condition: tuple[str, str, bool], others: str
) -> None:
    """Fail unless *claim* applies exactly what S2 says of *condition*: what stands, what is expected, whether it must exist.

    *others* is what the claim asks for beside its condition.
    """
    standing, expect, must_exist = condition
    key, record = prepare(trial, standing, token=GREAT_TOKEN)
    version = Version(fresh(), GREAT_TOKEN) if record is None else record.version
    keep, ticket = others == "keep_payload", fresh() if others == "a ticket" else None

    reply = claim(Claim(held(key), EXPECTS[expect](version), must_exist, keep, ticket))

    flags = "".join(f" with {flag}" for flag in ("must_exist" if must_exist else "", others) if flag)
    what = f"a claim that expects {expect}{flags}, of a key that is {standing},"
    if APPLIED.get((standing, expect), (False, False))[must_exist]:
        trial.granted(reply, what)
        return
    trial.refused(reply, what, record)
    stands = trial.store.read(key)
    trial.require(stands is not None or record is None, f"{what} removed the record")
    trial.require(record is not None or stands is None, f"{what} was refused, and yet created a record")


def kept_whole(trial: Trial, record: LockRecord) -> None:
    """Fail unless *record* has the large payload."""
    short = f"of a payload of {DATA_MAX_BYTES} bytes {len(record.data or b'')} were kept"
    trial.require(record.data == LARGE["data"], short, came=record)
    few = f"of {len(LARGE['attributes'])} attributes {len(record.attributes)} were kept as they were"
    trial.require(record.attributes == LARGE["attributes"], few, came=record)


def one_winner(trial: Trial, replies: Sequence[Any], what: str) -> LockRecord:
    """Return the record of the one grant among *replies*; fail if there is none, several, or an exception."""
    for reply in replies:
        if not isinstance(reply, Reply):
            trial.fail(f"one of {len(replies)} {what} got no reply; a refusal is a value", came=reply)
    granted: list[LockRecord | None] = [reply.record for reply in replies if reply.applied]
    if len(granted) != 1 or granted[0] is None:
        trial.fail(
            f"of {len(replies)} {what} at the same instant, {len(granted)} were applied; exactly one must be",
            came=replies,
        )
    return granted[0]


def released(trial: Trial, records: Sequence[LockRecord]) -> Iterator[LockRecord]:
    """Release each record; yield the tombstones."""
    return (trial.free(record) for record in records)


def written_as(
    trial: Trial, request: Claim | Replace | Release, reply: Reply, payload: dict[str, Any], what: str
) -> None:
    """Fail unless the reply and a read show what *request* wrote, with *payload*; the token is the reply's."""
    came, asked = trial.granted(reply, what), request.record
    right = next_version(asked, rvn=asked.rvn, fencing_token=came.fencing_token, **payload)
    trial.exactly(right, came, f"{what} was granted with a record that should not stand")
    trial.exactly(right, trial.store.read(asked.key), f"{what} wrote something else")


def together(work: Callable[[int], None], size: int = CONTENDERS) -> None:
    """Run *work* in *size* threads and wait for all."""
    threads = [threading.Thread(target=work, args=(place,), daemon=True) for place in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
