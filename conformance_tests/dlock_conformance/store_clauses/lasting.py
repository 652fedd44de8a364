"""S18: tokens go up for ever, and nothing removes the record that keeps them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dlock_conformance.needs import needs
from dlock_conformance.records import LAPSED_MS, fresh, held, next_version, tombstone
from dlock_conformance.store_clauses.claiming import LARGE
from dlock_conformance.store_clauses.connecting import use_and_close
from dlock_conformance.store_clauses.forms import STOOD, changes, granted_in_each_form, looks
from dlock_conformance.store_clauses.whole import LEFT, WHOLE
from dlock_conformance.trial import Trial, batch_size
from dlock_core.errors import StoreError
from dlock_core.record import TOKEN_MAX, LockRecord, State, Version
from dlock_core.store import Claim, Expect, Replace, TokenOrder

__all__ = ["LastingClauses"]

# Some who let records expire do so after a number of leases.
HANDS = 12
# And others so long after the last write: servers count whole seconds. Where nothing tells of what is due later, we wait longer.
MOMENT_S, LONGER_S = 2.2, 3.2


class LastingClauses:
    """Clauses of the life of a key."""

    def test_s18_the_token_never_goes_back(self, trial: Trial) -> None:
        """Through every way in which a key changes hands."""
        record = trial.hold(trial.key())
        tokens = [record.fencing_token]
        for way in ("free", "takeover", "gone", "break", "gone", "free", "takeover", "gone"):
            if way == "takeover":
                record = trial.renew(record, fencing_token=record.fencing_token + 1)
            else:
                if way == "break":
                    request = Replace(tombstone(record, fencing_token=record.fencing_token + 1), record.version)
                    trial.granted(trial.store.replace(request), "a replace")
                else:
                    trial.free(record, State(way))
                record = trial.hold(record.key)
            tokens.append(record.fencing_token)

            trial.require(
                tokens[-1] > tokens[-2],
                f"after a change of hands by {way} the token must be greater; the tokens were {tokens}",
            )

    def test_s18_a_deleted_key_keeps_its_token(self, trial: Trial) -> None:
        """``gone`` hides the record; the next holder must still get a greater token than any before."""
        record = trial.hold(trial.key(), token=41)

        trial.free(record, State.GONE)
        again = trial.hold(record.key, store=trial.other)

        trial.require(
            again.fencing_token > record.fencing_token,
            f"token {record.fencing_token} was granted before the deletion",
            came=again,
        )

    def test_s18_the_last_token_is_not_passed(self, trial: Trial) -> None:
        """Where the numbers end the key is never granted again: a token that wraps would let old holders win."""
        record = trial.hold(trial.key(), token=TOKEN_MAX - 1)
        for _ in range(3):
            new = next_version(record)
            came = trial.tried(lambda new=new, old=record: trial.store.replace(Replace(new, old.version)))  # type: ignore[misc]  # as below
            free = trial.free(
                trial.granted(came, "a renewal that expects the version that stands, with the last token,")
            )
            came = trial.tried(lambda key=free.key: trial.other.claim(Claim(held(key), Expect.ANY)))  # type: ignore[misc]  # bound on purpose
            if isinstance(came, StoreError):
                break
            record = trial.granted(came, "a claim of a tombstone")
            wrong = f"after token {free.fencing_token} a claim must get a greater one, up to {TOKEN_MAX}, or raise"
            trial.require(record.fencing_token > free.fencing_token, wrong, came=record)
        else:
            trial.fail(f"three grants after token {TOKEN_MAX - 1} were possible", came=record)

        trial.exactly(free, trial.store.read(free.key), "a claim that could not be given a token changed the record")

    @needs("restart")
    def test_s18_what_was_answered_survives_a_restart(self, trial: Trial) -> None:
        """Held, free and gone, with their tokens, and the next grant counts on; and a store that was open is of use again."""
        restart: Callable[[], None] = trial.hook("restart")
        if not trial.store.guarantees().durable:
            trial.skip("guarantees() says that the store is not durable")
        written = written_in_every_way(trial) | written_together(trial)
        written |= {"a claim of much": trial.hold(trial.key(), **LARGE)}
        written |= {"a release of what was renewed": trial.free(trial.renew(trial.hold(trial.key())))}
        gone = written["a release that hides"] = trial.free(trial.hold(trial.key(), token=90), State.GONE)
        trial.other.close()

        restart()

        store = trial.open()
        for what, record in written.items():
            wrong = f"what {what} wrote was answered, and is lost after a restart, though guarantees() says durable"
            trial.exactly(record, store.read(record.key), wrong)
        again = trial.hold(gone.key, store=store)
        trial.require(again.fencing_token > gone.fencing_token, "the token went back by a restart", came=again)
        *_, came = (trial.tried(lambda: trial.store.read(gone.key)) for _ in range(3))
        told = "the server was restarted, and the third read by a store that was open before still fails"
        trial.require(not isinstance(came, StoreError), told, came=came)

    @needs("restart")
    def test_s18_a_restart_repeats_no_token(self, trial: Trial) -> None:
        """Where tokens are said to be ordered they are, also over lost records."""
        restart: Callable[[], None] = trial.hook("restart")
        if trial.store.guarantees().token is TokenOrder.NONE:
            trial.skip("guarantees() says that tokens have no order")
        if not trial.store.guarantees().durable and not trial.harness.token_floor:
            trial.skip("guarantees() says that the store is not durable, and it has no floor for tokens")
        record = trial.hold(trial.key(), token=1)
        record = trial.hold(trial.free(record).key)
        trial.free(record)

        restart()

        again = trial.hold(record.key, store=trial.open())
        trial.require(
            again.fencing_token > record.fencing_token,
            f"token {record.fencing_token} was granted before the restart",
            came=again,
        )

    def test_s18_nothing_but_a_prune_removes_a_record(self, trial: Trial) -> None:
        """No call that is about something else, however long a lease is over, and whoever is the first to come or the last to go."""
        records = [trial.renew(trial.hold(trial.key(), lease_ms=LAPSED_MS)), *left_alone(trial)]
        elsewhere = trial.hold(trial.key())
        for what, (need, act) in _ELSEWHERE.items():
            if need and not trial.harness.gives(need):
                continue
            act(trial, elsewhere)

            for record in records:
                trial.exactly(record, trial.store.read(record.key), f"{what} changed a record that is {record.state}")

    def test_s18_no_record_is_gone_a_moment_after_its_lease_or_session(self, trial: Trial) -> None:
        """Nor is a tombstone: what the server is told to remove is often due within seconds. Of later the harness can tell: *expires*."""
        shapes = [held("k", lease_ms=LAPSED_MS), *(held("k", **fields) for fields in WHOLE.values())]
        old = left_alone(trial)
        standing = [*old]
        for shape in filter(trial.carries, shapes):
            claims = [Claim(next_version(shape, key=trial.key()), Expect.ANY) for _ in range(2)]
            first, second = [trial.granted(trial.store.claim(each), "a claim of an absent key") for each in claims]
            standing += [first, trial.renew(second)]
        if trial.harness.gives("batch_renew"):
            [came] = trial.store.replace_many([renewal(trial.hold(trial.key(), lease_ms=LAPSED_MS))])
            standing.append(trial.granted(came, "a renewal in a batch"))
        moment_s = MOMENT_S if trial.harness.gives("expires") else LONGER_S
        time.sleep(moment_s)

        for record in standing:
            trial.exactly(record, trial.store.read(record.key), f"{moment_s:g} s after its last write a record is gone")
        for record in old:
            for what, look in looks(trial).items():
                if record.held or not what.startswith("the refusal of"):  # a claim of what nobody holds is none
                    look(record)
                    wrong = f"{what}, {moment_s:g} s after the last write, changed a record that is {record.state}"
                    trial.exactly(record, trial.store.read(record.key), wrong)

    @needs("expires")
    def test_s18_nothing_that_was_written_ends_by_itself(self, trial: Trial) -> None:
        """Whatever wrote it, and however short its lease: with a record its token would end, and begin again."""
        expires: Callable[[str], bool] = trial.hook("expires")
        for what, record in written_in_every_way(trial).items():
            wrong = f"the server will remove a record that {what} wrote, and its token with it"
            trial.require(not expires(record.key), wrong, came=record)


def left_alone(trial: Trial) -> list[LockRecord]:
    """Return records of each kind that the store can keep, whose leases are over or without an end."""
    shapes: list[dict[str, Any]] = [{"lease_ms": LAPSED_MS}, {"lease_ms": LAPSED_MS, "data": b"x"}, {"lease_ms": None}]
    records = [held(trial.key(), **fields) for fields in shapes]
    standing = [trial.hold(each.key, lease_ms=each.lease_ms, data=each.data) for each in records if trial.carries(each)]
    states = [state for state in (State.FREE, State.GONE) if trial.carries(tombstone(records[0], state))]
    return standing + [trial.free(trial.hold(trial.key(), lease_ms=LAPSED_MS), state) for state in states]


def beside(trial: Trial) -> LockRecord:
    """Return what is held under a key of its own."""
    return trial.hold(trial.key())


# What has nothing to do with the records of others, and the capability that it needs.
_ELSEWHERE: dict[str, tuple[str, Callable[[Trial, LockRecord], object]]] = {
    "another store that is opened": ("", lambda trial, here: trial.open().read(here.key)),
    "guarantees()": ("", lambda trial, _: trial.other.guarantees()),
    "a scan": ("", lambda trial, _: trial.store.scan("")),
    "a read of another key": ("", lambda trial, here: trial.other.read(here.key)),
    "a release of another key": ("", lambda trial, here: trial.free(trial.renew(here))),
    "a claim of another key": ("", lambda trial, here: trial.hold(here.key)),
    "a batch": ("batch_renew", lambda trial, _: trial.store.replace_many([renewal(beside(trial))])),
    "several claims": ("atomic_multi", lambda trial, _: trial.store.claim_many([Claim(held(trial.key()), Expect.ANY)])),
    "a prune of another key": (
        "prune",
        lambda trial, _: trial.store.prune([trial.free(beside(trial))], older_than_ms=0),
    ),
    "provision()": ("", lambda trial, _: trial.other.provision()),
    "a store that is closed": ("", lambda trial, _: use_and_close(trial)),
}


def renewal(record: LockRecord) -> Replace:
    """Return a renewal of *record*, which stands."""
    return Replace(next_version(record), record.version)


def written_together(trial: Trial) -> dict[str, LockRecord]:
    """Return what two in one request have written, as far as the store has such requests."""
    written: dict[str, LockRecord] = {}
    if trial.harness.gives("batch_renew"):
        before = [trial.hold(trial.key()) for _ in range(batch_size(trial, 2))]
        after = [next_version(record, owner="renewed in a batch") for record in before]
        trial.store.replace_many([Replace(new, old.version) for new, old in zip(after, before, strict=True)])
        written |= {f"member {number} of a batch": record for number, record in enumerate(after)}
    if trial.harness.gives("atomic_multi"):
        claimed = trial.store.claim_many([Claim(held(trial.key()), Expect.ANY) for _ in range(2)])
        written |= {f"claim {number} of two": trial.granted(came, "one of two") for number, came in enumerate(claimed)}
    return written


def written_in_every_way(trial: Trial) -> dict[str, LockRecord]:
    """Return a record for each way in which one is written last, each with a short lease and a key of its own."""

    def fresh_one() -> LockRecord:
        return trial.hold(trial.key(), lease_ms=1)

    often, renewed = fresh_one(), fresh_one()
    for _ in range(HANDS):
        often, renewed = trial.hold(trial.free(often).key, lease_ms=1), trial.renew(renewed)
    ways = {
        "a claim with data": trial.hold(trial.key(), lease_ms=1, data=b"x"),
        "a claim that asks for a token": trial.hold(trial.key(), lease_ms=1, token=STOOD),
        "a claim without a lease": trial.hold(trial.key(), lease_ms=None),
        f"claim number {HANDS} of a tombstone": often,
        f"the renewal number {HANDS}": renewed,
    }
    for state in (None, State.FREE):
        ways |= {
            f"{form}{' of a tombstone' if state else ''}": came
            for form, _, _, came in granted_in_each_form(trial, state, {}, lease_ms=1)
        }
    for form in changes(held("k"), Version(fresh(), 1)):
        record = fresh_one()
        ways[form] = trial.granted(trial.store.send(changes(record, record.version)[form]), form)
    for name, fields in WHOLE.items():
        if not trial.carries(held("k", **fields)) or not trial.carries(tombstone(held("k"), **LEFT)):
            continue
        ways[f"a claim with {name}"] = trial.hold(trial.key(), **fields)
        ways[f"a renewal with {name}"] = trial.renew(trial.hold(trial.key(), **fields))
        ways[f"a release with {name}"] = trial.free(trial.hold(trial.key(), **fields), **LEFT)
    if trial.harness.gives("batch_renew"):
        record, other = fresh_one(), fresh_one()
        freed = Replace(tombstone(other, fencing_token=other.fencing_token + 1), other.version)
        for what, request in (("a batch", renewal(record)), ("a break in a batch", freed)):
            [came] = trial.store.replace_many([request])
            ways[what] = trial.granted(came, what)
    return ways
