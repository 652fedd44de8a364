"""Small worlds of the shipped machine, explored to the last state; and that the explorer itself is to be believed."""

from __future__ import annotations

import random

import pytest

from dlock_core.memory import MemorySpace
from dlock_core.record import LockRecord, OwnerState, State, Version
from dlock_core.store import Claim, ClaimExpect, Expect, Release, Replace, Reply
from proof.explore import store_model
from proof.explore.canonical import TOKEN
from proof.explore.scenarios import NIGHTLY, QUICK, SCENARIOS
from proof.explore.search import GOLDEN, explore, problems, replay, run_scenarios
from proof.explore.world import Rules
from proof.mutate.mutant import WORLDS


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_explore_small_worlds_completely_holds_every_invariant() -> None:
    """Every interleaving, loss, late and doubled message of these worlds; 2 clients, 8 ticks, 1 fault and 3 clients, 4 ticks among them."""
    reports = run_scenarios(QUICK)

    assert [problem for name, report in reports.items() for problem in problems(name, report)] == []


def test_explore_is_repeatable() -> None:
    """The same rules give the same counts."""
    first, second = (explore(Rules(ticks=2, faults=0)) for _ in range(2))

    assert first.complete
    assert (first.states, first.steps, first.depth, first.notes) == (
        second.states,
        second.steps,
        second.depth,
        second.notes,
    )


def test_explore_with_clients_that_keep_their_places_finds_no_less() -> None:
    """Permuting clients leaves out worlds, and no kind of event."""
    from proof.explore.table import Table

    table = Table(Rules(ticks=1, faults=0), symmetric=False)
    layer = [table.start()]
    seen = set(layer)
    while layer:
        layer = list({step.world for here in layer for step in table.steps(here)} - seen)
        seen.update(layer)
    symmetric = explore(Rules(ticks=1, faults=0))

    assert symmetric.states < len(seen) <= 2 * symmetric.states


def test_replay_shows_each_choice() -> None:
    """A violation is told as a sequence of choices, which can be looked at."""
    lines = replay(Rules(), ["0:0.begin", "0:0.apply", "0:0.answer"])

    assert len(lines) == 3
    assert "valid" in lines[-1]


def test_replay_of_an_impossible_choice_names_the_possible_ones() -> None:
    """The trace of another version of the machine."""
    with pytest.raises(SystemExit, match=r"is not possible here; possible: 0:0\.begin"):
        replay(Rules(), ["0:0.apply"])


def test_golden_counts_are_of_all_quick_worlds() -> None:
    """A world without a golden count is one that nobody looked at."""
    import json

    assert set(QUICK) <= set(json.loads(GOLDEN.read_text()))
    assert set(QUICK) | set(NIGHTLY) == set(SCENARIOS)


def test_explore_finds_what_a_probe_that_is_wrong_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A living owner that is called dead is taken over from while its lease is valid: the explorer sees what it should."""
    monkeypatch.setattr(store_model, "answers", lambda _: (OwnerState.DEAD,))

    report = explore(Rules(ticks=1, faults=0, probes=True))

    assert str(report.violation).startswith(("I1", "I3"))


def test_explore_finds_what_a_clock_that_steps_too_far_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store's clock that has stepped a tick more than it is trusted with gives a lock away while it is held."""
    age_ms = store_model.age_ms
    monkeypatch.setattr(store_model, "age_ms", lambda store: age_ms(store) + 1)

    report = explore(Rules(ticks=2, faults=0, aged=True))

    assert str(report.violation).startswith(("I1", "I3"))


def test_explore_finds_what_a_token_without_a_floor_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a removal the claim reads a floor in its own step, or a token is given twice."""
    monkeypatch.setattr(store_model, "floor_of", lambda _: TOKEN)

    report = explore(WORLDS["prune-twice"], traced=False)

    assert str(report.violation).startswith("I2")


def test_explore_finds_what_a_removal_does_to_a_lock_without_a_lease() -> None:
    """Its first claim expects an absent key, and rests on no answer: late, it holds the key for ever. So such locks refuse a prune."""
    rules = Rules(leases=(None, None), breaks=1, late=1, ticks=2, faults=1, abandons=1, heartbeat=False, copies=False)

    report = explore(rules, traced=False)

    assert str(report.violation).startswith(("L3", "I5"))


def test_abstract_store_does_what_the_memory_store_does(rng: random.Random) -> None:
    """The clauses S2 to S8, executed twice: 2,000 requests, chosen to hit and to miss."""
    space = MemorySpace()
    # The abstract store's tokens begin at a floor.
    space.claim(Claim(LockRecord("k", State.HELD, "first", TOKEN, "o", 1), Expect.ANY))
    record: LockRecord | None = LockRecord("k", State.HELD, "first", TOKEN, "o", 1)
    for turn in range(2_000):
        request = _request(rng, record, f"r{turn}")
        applied, after = store_model.perform(record, request)

        assert _in_memory(space, request)[:2] == (applied, after)
        record = after


def _in_memory(space: MemorySpace, request: Claim | Replace | Release) -> Reply:
    match request:
        case Claim():
            return space.claim(request)
        case Replace():
            return space.replace(request)
        case Release():
            return space.release(request)


def _request(rng: random.Random, record: LockRecord | None, rvn: str) -> Claim | Replace | Release:
    assert record is not None
    version = record.version if rng.random() < 0.7 else Version("other", rng.randrange(1, 99))
    data = rng.choice([None, b"", b"x"])
    keep = rng.random() < 0.5
    kind = rng.randrange(3)
    if kind == 0:
        expects: list[ClaimExpect] = [Expect.ANY, Expect.ABSENT, version]
        expect = rng.choice(expects)
        return Claim(LockRecord("k", State.HELD, rvn, 1, "o", 5, data), expect, rng.random() < 0.3, keep)
    token = record.fencing_token + rng.randrange(2)
    if kind == 1:
        return Replace(LockRecord("k", State.HELD, rvn, token, "o", 7, data), version, keep)
    state = rng.choice([State.FREE, State.GONE])
    return Release(LockRecord("k", state, rvn, record.fencing_token, "", None, data), version, keep)
