"""Races between different verbs: what is one step for each is one step against all others, too."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from dlock_conformance.needs import needs
from dlock_conformance.races import CONTENDERS
from dlock_conformance.records import held, tombstone
from dlock_conformance.store_clauses.claiming import one_winner, together
from dlock_conformance.trial import Trial
from dlock_core.store import Claim, Expect, Release, Reply

__all__ = ["RacingClauses"]


class RacingClauses:
    """Clauses of steps that meet steps of another kind."""

    def test_s4_a_payload_is_kept_in_the_step_that_grants(self, trial: Trial) -> None:
        """Each holder adds one to the payload that it was granted: none of them was granted an older one."""
        key, rounds = trial.key(), max(10, trial.harness.race_rounds // 20)
        with trial.crowd() as crowd:
            stores = list(dict.fromkeys(crowd.subjects))
        trial.free(trial.hold(key), data=b"0")
        grants, errors = itertools.count(1), list[BaseException]()
        counted = [0]

        def contend(place: int) -> None:
            store = stores[place % len(stores)]
            try:
                for _ in range(rounds):
                    reply: Reply = store.calling("claim", Claim(held(key), Expect.ANY, keep_payload=True))()
                    if reply.applied and reply.record is not None:
                        counted[0] = next(grants)
                        more = b"%d" % (int(reply.record.data or b"0") + 1)
                        store.calling("release", Release(tombstone(reply.record, data=more), reply.record.version))()
            except Exception as error:  # noqa: BLE001  # judged below
                errors.append(error)

        together(contend)

        trial.require(not errors, f"a contender of a race got {errors[:1]}")
        last = trial.store.read(key)
        wrong = f"{counted[0]} holders each added one to the payload that they were granted"
        trial.require(last is not None and last.data == b"%d" % counted[0], wrong, came=last)

    @needs("claim_wait")
    def test_w1_of_racing_claims_that_wait_and_others_one_is_applied(self, trial: Trial) -> None:
        """Whether it waits or not, a claim is one step."""
        with trial.crowd() as crowd:
            for _ in range(max(20, trial.harness.race_rounds // 10)):
                key = trial.key()
                asks = [
                    ("claim_when_free" if place % 2 else "claim", Claim(held(key), Expect.ANY, ticket=f"{key} {place}"))
                    for place in range(crowd.size)
                ]
                winner = one_winner(trial, crowd.round(asks), "claims of one key, half of which wait,")
                trial.exactly(winner, trial.store.read(key), "what stands after a race is not what its winner wrote")

    @needs("atomic_multi")
    def test_m3_of_claims_of_several_keys_and_of_one_at_once_each_key_has_one_winner(self, trial: Trial) -> None:
        """A claim of several is atomic not only against others of its kind."""
        with trial.crowd() as crowd:
            for _ in range(max(20, trial.harness.race_rounds // 10)):
                keys = [trial.key(), trial.key()]
                asks: list[tuple[str, Any]] = []
                for place in range(crowd.size):
                    both = [Claim(held(key), Expect.ANY) for key in keys]
                    asks.append(("claim_many", both) if place % 2 else ("claim", both[place // 2 % 2]))

                came = crowd.round(asks)

                for key in keys:
                    won = [reply for reply in replies_of(trial, came) if reply.applied and reply.record.key == key]
                    trial.require(len(won) == 1, f"{len(won)} claims of one key, alone and with another, were applied")
                    trial.exactly(won[0].record, trial.store.read(key), "what was granted does not stand")

    @needs("prune")
    def test_p1_what_is_claimed_while_it_is_pruned_stays(self, trial: Trial) -> None:
        """A prune looks and removes in one step: whoever was granted the key in between keeps it."""
        free = trial.free(trial.hold(trial.key()))
        with trial.crowd() as crowd:
            for _ in range(max(40, trial.harness.race_rounds // 5)):
                asks: list[tuple[str, Any]] = [
                    ("prune", [free]) if place % 2 else ("claim", Claim(held(free.key), Expect.ANY))
                    for place in range(crowd.size)
                ]
                came = crowd.round(asks)

                winner = one_winner(trial, came[::2], "claims of one key beside prunes")
                trial.exactly(winner, trial.store.read(free.key), "a prune removed what was claimed meanwhile")
                trial.require(
                    winner.fencing_token > free.fencing_token, "a token went back by a prune in a race", came=winner
                )
                free = trial.free(winner)


def replies_of(trial: Trial, came: Sequence[Any]) -> list[Any]:
    """Return the replies in what *came*, alone and in lists; fail if there is anything else."""
    replies = [
        each
        for some in came
        for each in (some if isinstance(some, Sequence) and not isinstance(some, Reply) else [some])
    ]
    for each in replies:
        if not isinstance(each, Reply):
            trial.fail(f"one of {CONTENDERS} claims at once got no reply; a refusal is a value", came=each)
    return replies
