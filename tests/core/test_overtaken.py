"""Another thread changes the state of a lock after the caller looked at it, and before the caller's own step."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import Lease, LockClient, LockLostError
from dlock_core.engine.blocking_runtime import run_blocking
from dlock_core.memory import MemoryStore
from dlock_core.states import Ended
from dlock_core.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable


class _Overtaken:
    """A mutex before which, once, another thread is in it and does *work*."""

    def __init__(self, inner: Any, work: Callable[[], object]) -> None:
        self._inner, self._work = inner, [work]

    def __enter__(self) -> None:
        if self._work:
            self._work.pop()()
        self._inner.__enter__()

    def __exit__(self, *exc: object) -> None:
        self._inner.__exit__(*exc)


@pytest.mark.parametrize("ends", ["discard", "give_up"])
def test_lock_that_was_just_given_back_is_not_given_back_once_more(monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    """An acquire that is interrupted gives its lock back, and so does the scheduler, since nobody has it in hand; either may be first."""
    with LockClient(MemoryStore()) as client:
        lease = client.acquire("k")
        engine, handle = client._engine, lease._handle
        release = partial(run_blocking, engine.release(handle, None))
        monkeypatch.setattr(engine.runtime, "mutex", _Overtaken(engine.runtime.mutex, release))

        (engine.discard if ends == "discard" else engine.driver.give_up)(handle)

        assert type(handle.state) is Ended
        again = client.try_acquire("k")
        assert again is not None


def test_lock_that_is_lost_during_a_call_of_progress_is_told_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not as a lease that has ended."""
    with FakeClock() as clock, clock.client(auto_renew=False, lease_duration=10) as client:
        lease = client.acquire("k")
        engine = client._engine
        monkeypatch.setattr(engine.runtime, "mutex", _Overtaken(engine.runtime.mutex, partial(_lose, lease, clock)))

        with pytest.raises(LockLostError):
            lease.progress()


def _lose(lease: Lease, clock: FakeClock) -> None:
    clock.advance(11)
    lease._engine.keepers.notice_end(lease._handle)
