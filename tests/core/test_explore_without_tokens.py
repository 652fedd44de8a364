"""Small worlds of the shipped machine over a store whose records have no fencing token, as rows of other clients: exclusion holds."""

from __future__ import annotations

from typing import Any

import pytest

from dlock_core.record import LockRecord, State
from dlock_core.states import Read
from dlock_core.store import Claim
from proof.explore import store_model, table
from proof.explore.canonical import TOKEN
from proof.explore.search import explore
from proof.explore.world import Removal, Request, Rules


def perform_without_token(record: LockRecord | None, request: Request) -> tuple[bool, LockRecord | None]:
    """Do *request* on *record*; a version is the RVN alone, and every record says the same token."""
    if isinstance(request, (Read, Removal)):
        return False, record
    if isinstance(request, Claim):
        applied = store_model._may_claim(record, request)
    else:
        applied = record is not None and record.state is State.HELD and record.rvn == request.expected.rvn
    return (True, store_model._written(request.record, TOKEN, None)) if applied else (False, record)


@pytest.fixture
def without_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the explorer's store forget tokens; what it checks about their order is left out, that no two leases are valid is not."""

    def perform(record: LockRecord | None, request: Request, _: int) -> tuple[bool, LockRecord | None]:
        return perform_without_token(record, request)

    def nothing(*_: Any) -> None:
        return None

    monkeypatch.setattr(store_model, "perform", perform)
    monkeypatch.setattr(store_model, "_relation", nothing)
    monkeypatch.setattr(table.Table, "_claims", nothing)


@pytest.mark.slow
@pytest.mark.usefixtures("without_tokens")
def test_explore_without_tokens_never_finds_two_valid_leases() -> None:
    """Two clients, three ticks, any one message lost, late or doubled: complete."""
    report = explore(Rules(ticks=3))

    assert report.violation is None
    assert report.complete
    assert report.states > 100_000
    reached = {
        "late request applied: claim",
        "copy applied: claim",
        "lost claim adopted",
        "lost: expired",
        "late grant",
    }
    assert reached <= set(report.notes)


@pytest.mark.usefixtures("without_tokens")
def test_explore_without_tokens_finds_what_a_store_that_does_not_compare_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the RVN in the condition of a write two leases are valid, and the explorer says so."""

    def careless(record: LockRecord | None, request: Request, _: int) -> tuple[bool, LockRecord | None]:
        if isinstance(request, (Read, Claim)):
            return perform_without_token(record, request)
        if record is None or record.state is not State.HELD:
            return False, record
        return True, store_model._written(request.record, TOKEN, None)

    monkeypatch.setattr(store_model, "perform", careless)

    assert str(explore(Rules(ticks=3), traced=False).violation).startswith("I1")
