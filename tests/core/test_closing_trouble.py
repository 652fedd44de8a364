"""Closing a client on a store that does not answer each request, and while somebody waits for long."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import LockClient, OutcomeUnknownError, StoreError
from dlock_core.memory import MemoryStore
from dlock_core.testing import FakeClock
from tests.core.worlds import both_colours, eventually

if TYPE_CHECKING:
    from tests.core.worlds import World


@both_colours
async def test_close_cleans_up_what_a_claim_without_an_answer_has_left(world: World) -> None:
    """At once: there is nobody who could do it later."""
    fails = True

    def after(_: str) -> None:
        if fails:
            raise OutcomeUnknownError("no answer")

    async with world.client(world.hooked_store(lambda *_: None, after), lease_duration=20) as client:
        with pytest.raises(StoreError):
            await client.acquire("k", timeout=0)
        assert world.space.records["k"].held
        fails = False

    assert not world.space.records["k"].held


@pytest.mark.parametrize(
    ("failing", "takes_s"), [({"k9", "k7"}, 2.0), ({"k9", "k8", "k7"}, 0.0)], ids=["slowly", "at once"]
)
def test_close_goes_on_where_some_releases_fail(failing: set[str], takes_s: float) -> None:
    """The store answers, if not to each."""
    with FakeClock() as clock:
        store = MemoryStore()
        client = clock.client(store, lease_duration=20, auto_renew=False)
        leases = [client.acquire(f"k{number}") for number in range(10)]
        release = store.release

        def fail(request: Any, *, timeout_s: float) -> Any:
            if request.record.key in failing:
                clock.advance(takes_s)
                raise OutcomeUnknownError("no answer", key=request.record.key)
            return release(request, timeout_s=timeout_s)

        store.release = fail  # type: ignore[method-assign]
        with pytest.raises(ExceptionGroup) as caught:
            client.close()
        assert {getattr(error, "key", "") for error in caught.value.exceptions} == failing

        assert {lease.key for lease in leases if store.space.records[lease.key].held} == failing


def test_close_ends_a_long_pause_between_two_looks() -> None:
    """Whoever observes, or waits for its next poll, is told at once."""
    client = LockClient(MemoryStore())
    observer = threading.Thread(target=lambda: list(client.election("k").observe(poll_period=600)), daemon=True)
    observer.start()
    eventually(lambda: bool(client._runtime._sleepers))
    client.close()
    observer.join(20)
    assert not observer.is_alive()
