"""S23: what a verb costs, in each of its branches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pytest

from dlock_conformance.needs import needs
from dlock_conformance.records import fresh, held, next_version, tombstone
from dlock_conformance.store_clauses.claiming import EXPECTS, LARGE, NONE, prepare
from dlock_conformance.store_clauses.whole import WHOLE
from dlock_conformance.trial import Trial
from dlock_core.record import State, Times, Version
from dlock_core.store import Claim, Release, Replace

__all__ = ["CostClauses"]

# Held for so long, a look at those who wait costs a share that an adapter may allow itself.
HELD_S = 0.05
# A batch that is full, or nearly so: more take long to prepare.
MOST = 100
# Brings a key into a state, and returns the call that is counted.
Prepared: TypeAlias = Callable[[Trial], Callable[[], object]]


SESSION: dict[str, Any] = WHOLE["all that a lock may have"]
CLEARED: dict[str, Any] = {**NONE, "owner": ""}


def claiming(standing: str, expect: str = "any", fields: Mapping[str, Any] | None = None, **flags: Any) -> Prepared:
    """Return a claim of a key in the state *standing*, with *fields* in its record."""

    def prepared(trial: Trial) -> Callable[[], object]:
        key, record = prepare(trial, standing, data=b"x")
        version = Version(fresh(), 1) if record is None else record.version
        request = Claim(held(key, **(fields or {})), EXPECTS[expect](version), **flags)
        return lambda: trial.store.claim(request)

    return prepared


def changing(
    kind: type[Replace | Release],
    standing: str = "held",
    *,
    stale: bool = False,
    keep: bool = False,
    wakes: bool = False,
    after_s: float = 0,
    **fields: Any,
) -> Prepared:
    """Return a replace or release of a record that has been in the state *standing* for *after_s*.

    It writes *fields*; with a *state*, a tombstone.
    """

    def prepared(trial: Trial) -> Callable[[], object]:
        key, record = prepare(trial, standing, data=b"x")
        record = record or held(key)
        time.sleep(after_s)
        version = Version(fresh(), record.fencing_token) if stale else record.version
        writes = tombstone if "state" in fields else next_version
        request = kind(writes(record, **{**CLEARED, **fields}), version, keep)
        asked = request._replace(wakes=wakes) if isinstance(request, Replace) else request
        return lambda: trial.store.send(asked)

    return prepared


def reading(verb: str, standing: str) -> Prepared:
    """Return a read of a key in the state *standing*."""

    def prepared(trial: Trial) -> Callable[[], object]:
        key, _ = prepare(trial, standing, data=b"x")
        return lambda: getattr(trial.store, verb)(key)

    return prepared


def renewing(most: int, *, stale: bool = False, keep: bool = False, **fields: Any) -> Prepared:
    """Return a batch of at most *most* renewals, of which the first may expect a version that does not stand."""

    def prepared(trial: Trial) -> Callable[[], object]:
        records = [trial.hold(trial.key()) for _ in range(min(most, getattr(trial.store.raw, "batch_limit", 1)))]
        batch = [Replace(next_version(record, **fields), record.version, keep) for record in records]
        if stale:
            batch[0] = batch[0]._replace(expected=Version(fresh(), 1))
        return lambda: trial.store.replace_many(batch)

    return prepared


# Scans cost a request for each page, and are not counted.
BRANCHES: dict[str, dict[str, Prepared]] = {
    "claim": {
        "claim": claiming("absent"),
        "claim_of_free": claiming("free"),
        "claim_of_gone": claiming("gone"),
        "claim_of_version": claiming("free", "its_version"),
        "claim_keeping": claiming("free", keep_payload=True),
        "claim_of_existing": claiming("free", must_exist=True),
        "claim_with_a_ticket": claiming("free", ticket="conformance"),
        "claim_with_a_floor": claiming("free", fields={"token": 3}),
        "claim_without_a_lease": claiming("free", fields={"lease_ms": None}),
        "claim_of_much_data": claiming("free", fields=LARGE),
        "claim_under_a_session": claiming("free", fields=SESSION),
        "claim_refused": claiming("held"),
        "claim_refused_with_a_ticket": claiming("held", ticket="conformance"),
        "claim_refused_by_free": claiming("free", "absent"),
        "claim_refused_by_version": claiming("free", "another_rvn"),
        "claim_refused_by_absence": claiming("absent", must_exist=True),
    },
    "replace": {
        "replace": changing(Replace),
        "replace_keeping": changing(Replace, keep=True),
        "replace_freeing": changing(Replace, state=State.FREE),
        "replace_taking_over": changing(Replace, fencing_token=2**52),
        "replace_of_much_data": changing(Replace, **LARGE),
        "replace_under_a_session": changing(Replace, **SESSION),
        "replace_waking": changing(Replace, wakes=True),
        "replace_waking_and_keeping": changing(Replace, wakes=True, keep=True, **SESSION),
        "replace_freeing_refused": changing(Replace, stale=True, state=State.FREE),
        "replace_refused": changing(Replace, stale=True),
        "replace_refused_by_free": changing(Replace, "free"),
        "replace_refused_by_absence": changing(Replace, "absent"),
    },
    "release": {
        "release": changing(Release, state=State.FREE),
        "release_after_long": changing(Release, after_s=HELD_S, state=State.FREE),
        "release_gone": changing(Release, state=State.GONE),
        "release_keeping": changing(Release, keep=True, state=State.FREE),
        "release_with_times": changing(Release, state=State.FREE, times=Times(1, 2)),
        "release_of_much_data": changing(Release, state=State.FREE, **LARGE),
        "release_refused": changing(Release, stale=True, state=State.FREE),
        "release_gone_refused": changing(Release, stale=True, state=State.GONE),
        "release_refused_by_free": changing(Release, "free", state=State.FREE),
        "release_refused_by_absence": changing(Release, "absent", state=State.FREE),
    },
    "read": {
        "read": reading("read", "held"),
        "read_of_free": reading("read", "free"),
        "read_of_gone": reading("read", "gone"),
        "read_of_absence": reading("read", "absent"),
    },
    "read_age": {"read_age": reading("read_age", "held"), "read_age_of_absence": reading("read_age", "absent")},
    "replace_many": {
        "replace_many": renewing(5),
        "replace_many_of_one": renewing(1),
        "replace_many_of_all_that_it_takes": renewing(MOST),
        "replace_many_keeping": renewing(5, keep=True),
        "replace_many_under_a_session": renewing(5, **SESSION),
        "replace_many_refused": renewing(5, stale=True),
    },
}


class CostClauses:
    """Clauses of requests to the server."""

    @needs("count_requests")
    @pytest.mark.parametrize("verb", BRANCHES)
    def test_s23_a_verb_costs_one_request(self, trial: Trial, verb: str) -> None:
        """Granted or refused, in each of its branches: the record comes with the reply, and nothing is asked first."""
        count = trial.hook("count_requests")
        costs = trial.facts["requests"] = dict[str, int]()
        for branch, prepared in BRANCHES[verb].items():
            prepared(trial)()  # the first call may have to load a script, or to find out about the server
            ask = prepared(trial)

            before = count()
            ask()
            cost = costs[branch] = count() - before

            # Some servers say which of a batch was refused, but not by what: one read tells it of all.
            most = 2 if branch == "replace_many_refused" else 1
            wrong = f"a {branch.replace('_', ' ')} cost {cost} requests to the server; it may cost {most}"
            trial.require(1 <= cost <= most, wrong)
