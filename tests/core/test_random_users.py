"""Random users of the asyncio client; ``python -m proof.simulate.users`` goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import lease
from dlock_core.aio import AsyncLease
from proof.simulate.users import main, ran

if TYPE_CHECKING:
    from dlock_core.record import LockRecord
    from dlock_core.states import Observation

_RUNS = 30
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # users drop leases


def test_no_user_sees_what_must_not_be() -> None:
    """Whatever they ask for, whatever the store does, and whenever they are cancelled."""
    runs = [ran(seed) for seed in range(_RUNS)]

    assert {seed: run.violation for seed, run in enumerate(runs) if run.violation is not None} == {}
    assert sum(run.grants for run in runs) > 40 * _RUNS


def _found(most: int = 40) -> str:
    runs = (ran(seed).violation for seed in range(most))
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


def test_command_tells_what_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    """And ends with 0 where all that must hold did."""
    assert main(["--first", "7", "--count", "2"]) == 0

    assert capsys.readouterr().out.startswith("users: 2 runs, ")
