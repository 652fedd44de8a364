"""Random users of the asyncio client; ``python -m proof.simulate.users`` goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import lease
from dlock_core.aio import AsyncLease
from dlock_core.engine.elections import Candidate
from dlock_core.engine.handle import Handle
from dlock_core.engine.lease_view import LeaseView
from dlock_core.memory import MemorySpace
from proof.simulate.users import main, ran

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlock_core.record import LockRecord
    from dlock_core.states import Observation
    from dlock_core.store import Claim, Reply

_RUNS = 15
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # users drop leases


def test_no_user_sees_what_must_not_be() -> None:
    """Whatever they ask for, whatever the store does, and whenever they are cancelled."""
    runs = [ran(seed) for seed in range(_RUNS)]

    assert {seed: run.violation for seed, run in enumerate(runs) if run.violation is not None} == {}
    assert sum(run.grants for run in runs) > 40 * _RUNS


def _found(first: int = 0, most: int = 40) -> str:
    runs = (ran(seed).violation for seed in range(first, first + most))
    return next((violation for violation in runs if violation is not None), "nothing")


def test_users_see_two_holders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who takes a lock over must have seen it stand still for a lease."""

    def at_once(record: LockRecord, now: int) -> Observation:
        return right(record, now)._replace(lease_ns=0)

    right = lease.observe
    monkeypatch.setattr(lease, "observe", at_once)

    assert " at once" in _found()


def test_users_see_members_that_exclude_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who joins must wait for whoever is in the way."""
    monkeypatch.setattr("dlock_core.engine.sharing.in_the_way", lambda *_: None)

    assert " at once" in _found()


def test_users_see_an_error_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that may come out is dlock's."""

    async def ensure(*_: Any) -> int:
        raise KeyError("none of dlock's")

    monkeypatch.setattr(AsyncLease, "ensure", ensure)

    assert _found() == 'a user met KeyError("none of dlock\'s")'


def test_users_see_keys_that_are_granted_together_and_were_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of several keys are held, or none."""

    def grant(space: MemorySpace, requests: Sequence[Claim]) -> list[Reply]:
        for request in requests:
            space.records.pop(request.record.key, None)
        return [space.step(request) for request in requests]

    monkeypatch.setattr(MemorySpace, "claim_many", grant)

    found = _found()

    assert " at once" in found or ": token " in found


def test_users_see_a_slot_that_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a job has finished is not run again."""
    monkeypatch.setattr("dlock_core.engine.jobs.is_due", lambda *_: True)

    assert " was finished" in _found()


def test_users_see_an_election_that_campaigns_while_it_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """One election leads once at a time."""
    monkeypatch.setattr(Candidate, "_begin", lambda *_: None)

    assert _found() == "an election campaigns while it leads"


def test_users_see_a_term_that_is_given_back_under_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a client gives a term, or a job, back only after its body has ended."""

    def begin(view: LeaseView) -> None:
        right(view)
        view._handle.body_of = None

    right = LeaseView._begin_body
    monkeypatch.setattr(LeaseView, "_begin_body", begin)

    assert _found(first=22).endswith("was given back under its body")  # what earlier seeds find takes longer


def test_users_see_a_loss_that_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who holds a lock is told when it is lost."""
    monkeypatch.setattr(Handle, "signal_loss", lambda _, event: event)

    assert _found().endswith("was not told")


def test_users_see_a_cancellation_that_nobody_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cancellation of a block by its loss does not leave the block."""
    monkeypatch.setattr(AsyncLease, "_end_cancelling", lambda *_: False)

    assert _found() == "a user was cancelled, and nobody asked for that"


def test_command_tells_what_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    """And ends with 0 where all that must hold did."""
    assert main(["--first", "7", "--count", "2"]) == 0

    assert capsys.readouterr().out.startswith("users: 2 runs, ")
