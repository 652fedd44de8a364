"""A slice of ``python -m tests.dynamodb.single_faults``: one delayed or half reply for each lock whose token is in a row of its own."""

from __future__ import annotations

import random

from tests.dynamodb.single_faults import Trials

CLIENTS, ROUNDS = 5, 2


def test_no_lock_is_lost_to_one_fault(endpoint: str, rng: random.Random) -> None:
    """Whichever of the requests of its acquire or renewals it befalls."""
    trials = Trials(endpoint, rng, CLIENTS)

    lost = trials.run(ROUNDS)

    assert lost == []
    assert trials.struck
    trials.close()
