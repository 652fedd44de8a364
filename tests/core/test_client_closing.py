"""Closing a client, in both colours from one text."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    AsyncLockClient,
    ConfigurationError,
    LeaseStateError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
    aconnect,
    connect,
)
from dlock_core.client import LockClient
from dlock_core.engine.raised import unresolved_error
from dlock_core.memory import MemoryStore
from dlock_core.testing import FakeClock
from dlock_core.timings import NANOS
from tests.core.worlds import async_only, both_colours, raw

if TYPE_CHECKING:
    from pathlib import Path

    from dlock_core import LockRecord
    from dlock_core.store import Claim, Reply
    from tests.core.worlds import World

GIVEN_BACK = (
    "lock 'k' (token 1) was given back when its client was closed elsewhere, before this use of it ended; what was done since may clash "
    "with another holder's work; end the work first (lease.stopping tells it), or close later"
)


@both_colours
async def test_close_releases_all_that_is_held(world: World) -> None:
    """A closed client holds nothing, and its leases say so."""
    async with world.client() as client, world.client() as other:
        leases = [await client.acquire(key) for key in "abc"]

        await client.close()
        await client.close()

        assert [lease.is_valid for lease in leases] == [False] * 3
        assert {record.state.value async for record in other.scan()} == {"free"}
        await leases[0].release()
        with pytest.raises(LeaseStateError):
            await leases[1].ensure()


@pytest.mark.parametrize("asks_late", [False, True])
def test_close_tells_the_holders_in_other_threads_to_stop(asks_late: bool) -> None:
    """Their locks are free at once, so what they do from then on is beside the next holder, and the end of the block says so."""
    client = LockClient(MemoryStore())
    held, closed = threading.Event(), threading.Event()
    told: list[Any] = []

    def hold() -> None:
        with client.lock("k") as lease:
            stopping = None if asks_late else lease.stopping
            held.set()
            closed.wait(20)
            told.append((stopping or lease.stopping).wait(20))

    def work() -> None:
        with pytest.raises(LeaseStateError) as caught:
            hold()
        told.append(str(caught.value))

    thread = threading.Thread(target=work)
    thread.start()
    held.wait(20)
    client.close()
    closed.set()
    thread.join()

    assert told == [True, GIVEN_BACK]


@async_only
async def test_close_in_another_task_is_told_at_the_end_of_the_block(world: World) -> None:
    """As a note where the body has failed; not where the lock was given back before the close."""
    entered, closed = asyncio.Event(), asyncio.Event()

    async def hold(failure: Exception | None) -> None:
        async with client.lock("k"):
            entered.set()
            await closed.wait()
            if failure is not None:
                raise failure

    for failure in (None, KeyError("k")):
        entered.clear()
        closed.clear()
        async with world.client() as client:
            holding = asyncio.ensure_future(hold(failure))
            await entered.wait()
        closed.set()
        with pytest.raises(LeaseStateError if failure is None else KeyError) as caught:
            await holding
        assert GIVEN_BACK.replace("token 1", f"token {1 if failure is None else 2}") in (
            [str(caught.value)] if failure is None else caught.value.__notes__
        )


async def _close_twice(url: str) -> None:
    async with aconnect(url) as client:
        lease = await client.acquire("k")
        await client.close()
        assert not lease.is_valid
        await client.close()


def test_close_of_a_client_on_a_store_for_threads_may_be_repeated(tmp_path: Path) -> None:
    """At the end of a block, too, within which it was closed."""
    asyncio.run(_close_twice(f"sqlite:///{tmp_path}/locks.db"))

    with connect(f"sqlite:///{tmp_path}/locks.db") as client, client.lock("k", timeout=0) as lease:
        assert lease.is_valid


@both_colours
async def test_close_within_a_block_makes_its_end_silent(world: World) -> None:
    """The lease was given back before the block ended, by whoever closed the client."""
    async with world.client() as client, client.lock("k") as lease:
        await client.close()

        assert not lease.is_valid


@both_colours
async def test_close_goes_on_after_an_error_and_raises_them_all(world: World) -> None:
    """One release without an answer does not keep the others from being released."""
    async with world.client() as other:
        client = world.client()
        await client.__aenter__()
        leases = [await client.acquire(key) for key in "abc"]
        world.store.fail("release", 2)

        with pytest.raises(ExceptionGroup) as caught:
            await client.close()

        assert all(isinstance(error, StoreUnavailableError) for error in caught.value.exceptions)
        states = [record.state.value async for record in other.scan()]
        assert sorted(states) in (["free", "free", "free"], ["free", "free", "held"])
        assert not any(lease.is_valid for lease in leases)
        await client.close()


@async_only
async def test_close_looks_after_what_is_unresolved_for_one_request_time_out(world: World) -> None:
    """However many attempts were given up: each look may take its whole time where the store hangs."""
    hangs = [False]

    def before(verb: str, request: Any) -> None:
        if hangs[0]:
            world.clock.advance(3)  # a little less than its time-out
            raise OutcomeUnknownError("no answer")

    client = await world.client(world.hooked_store(before), lease_duration=20)
    hangs[0] = True
    for number in range(5):
        with pytest.raises(StoreError):
            await client.acquire(f"k{number}", timeout=0)
    began = world.clock.now()
    await client.close()

    assert (world.clock.now() - began) / NANOS < 7  # a request time-out, and a request that was under way by then


def test_close_with_a_store_that_hangs_takes_a_few_request_time_outs_for_all() -> None:
    """However many locks are held: what was not given back lapses, and is named."""
    tries = []
    with FakeClock() as clock:
        store = MemoryStore()
        client = clock.client(store, lease_duration=20, auto_renew=False)
        leases = [client.acquire(f"k{number}") for number in range(10)]

        def hang(request: Any, *, timeout_s: float) -> Any:
            if threading.current_thread() is threading.main_thread():
                tries.append(request.record.key)
                clock.advance(timeout_s)
            raise OutcomeUnknownError("no answer", key=request.record.key)

        store.release = hang  # type: ignore[method-assign]
        with pytest.raises(ExceptionGroup) as caught:
            client.close()

        assert len(tries) < 5
        assert {getattr(error, "key", "") for error in caught.value.exceptions} == {lease.key for lease in leases}
        assert not any(lease.is_valid for lease in leases)


def test_close_without_time_names_a_lock_without_a_lease_as_held() -> None:
    """It never lapses: an operator has to know its token."""
    with FakeClock() as clock:
        store = MemoryStore()
        client = clock.client(store, fail_closed=True)
        lease = client.acquire("k")

        def fail(request: Any, *, timeout_s: float) -> Any:
            raise OutcomeUnknownError("no answer", key=request.record.key)

        store.release = fail  # type: ignore[method-assign]
        with pytest.raises(ExceptionGroup) as caught:
            client._close(until=clock.now())

        assert ["lapses" in str(error) for error in caught.value.exceptions] == [False]
        assert f"token {lease.fencing_token}" in str(caught.value.exceptions[0])


@both_colours
async def test_close_tells_what_is_unresolved_in_the_order_in_which_it_was_asked(world: World) -> None:
    """The same program says the same each time it runs."""
    keys = [f"k{number}" for number in range(12)]
    world.store.lose_request("claim", 99)
    world.store.fail("read", 99)
    client = await world.client(fail_closed=True).__aenter__()
    for key in keys:
        with contextlib.suppress(OutcomeUnknownError):
            await client.acquire(key, timeout=0)
    with pytest.raises(ExceptionGroup) as caught:
        await client.close()

    assert [error.key for error in caught.value.exceptions if isinstance(error, OutcomeUnknownError)] == keys


def test_close_while_another_thread_ends_a_clean_up_closes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is still followed changes while it is told: the renewals go on until then, and other threads end as they like."""

    def fail(*_: object, **__: object) -> None:
        raise OutcomeUnknownError("no answer")

    with FakeClock() as clock:
        store = MemoryStore()
        client = clock.client(store, fail_closed=True)
        store.claim = store.read = fail  # type: ignore[assignment, method-assign]
        for number in range(3):
            with pytest.raises(StoreError):
                client.acquire(f"k{number}", timeout=0)
        following, told = client._engine.driver.following, unresolved_error

        def slowly(state: Any) -> Any:
            for handle in [handle for handle in following if handle.state is not state]:
                del following[handle]
            return told(state)

        monkeypatch.setattr("dlock_core.engine.closing.unresolved_error", slowly)
        with pytest.raises(ExceptionGroup):
            client.close()

        assert client._runtime._closed


@both_colours
async def test_close_as_a_block_ends_keeps_the_exception_of_the_body(world: World) -> None:
    """What fails in closing is a note on what the body raised, never in its place."""
    leases = []

    async def body() -> None:
        async with world.client() as client:
            leases.append(await client.acquire("k"))
            world.store.fail("release", 9)
            raise KeyError("body")

    with pytest.raises(KeyError) as caught:
        await body()

    assert any("closing the client failed too" in note for note in caught.value.__notes__)
    assert not leases[0].is_valid


@both_colours
async def test_closed_client_refuses_every_call(world: World) -> None:
    """After close nothing reaches the store, and each call says what to do."""
    async with world.client() as client:
        pass

    async def scan() -> None:
        async for _ in client.scan():
            pass

    calls = [
        lambda: client.acquire("k"),
        lambda: client.try_acquire("k"),
        lambda: client.get("k"),
        lambda: client.break_lock("k", fencing_token=1),
        client.guarantees,
        client.provision,
        lambda: client.election("k").leader(),
        lambda: client.prune(older_than=90_000),
        scan,
    ]
    for call in calls:
        with pytest.raises(LeaseStateError, match=r"closed.*connect\(\)"):
            await call()
    with pytest.raises(LeaseStateError, match="closed"):
        async with client:
            pass
    await client.close()  # looks for nothing of them
    assert not world.store.requests
    assert not client.holds("k")


@both_colours
async def test_close_ends_a_wait_for_a_lock(world: World) -> None:
    """Who waits in a client that is closed is told, and leaves nothing behind."""
    async with world.client() as a:
        held = await a.acquire("k")
        b = world.client()
        await b.__aenter__()
        waiting = world.spawn(b.acquire("k"))
        await world.until(lambda: world.store.requests["claim"] == 2)

        await b.close()

        with pytest.raises(LeaseStateError, match="closed while lock 'k'"):
            await waiting.result()
        await held.release()
        again = await a.try_acquire("k")
        assert again is not None


@both_colours
@pytest.mark.parametrize("state", ["free", "held"])
async def test_lock_that_is_granted_after_its_client_was_closed_is_released_at_once(world: World, state: str) -> None:
    """Nobody will get it, and no scheduler is left. What the store says of that is the cause of the error."""

    def close(verb: str) -> object:
        return raw(client).close() if verb == "claim" else None

    def refuse(verb: str, _: object) -> None:
        if verb == "release" and state == "held":
            raise StoreUnavailableError("was not sent")

    client = world.client(world.hooked_store(refuse, close))
    await client.__aenter__()
    with pytest.raises(LeaseStateError, match="closed while lock 'k'") as caught:
        await client.acquire("k")

    assert world.space.records["k"].state == state
    assert isinstance(caught.value.__cause__, StoreUnavailableError) == (state == "held")


@pytest.mark.parametrize("kind", [LockClient, AsyncLockClient])
@pytest.mark.parametrize("store", ["memory://", object()], ids=["url", "other"])
def test_client_of_what_is_no_store_says_what_takes_it(kind: type[LockClient], store: Any) -> None:
    """A URL goes to ``connect()``, a driver's client to a store."""
    with pytest.raises(ConfigurationError, match=r"is not a store.*connect\(\)"):
        kind(store)


def test_close_leaves_nothing_to_look_for_of_a_wait() -> None:
    """A claim that was not sent any more is not taken for one under way, for which a second close would look."""
    clock, claims = FakeClock(), 0

    class Closing(MemoryStore):
        """Waits its time out, and meanwhile its client is closed."""

        def claim(self, request: Claim, *, timeout_s: float) -> Reply:
            nonlocal claims
            claims += 1
            return super().claim(request, timeout_s=timeout_s)

        def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
            assert (record.key, ticket != "") == ("k", True)
            b.close()
            clock.advance(timeout_s)

    held = MemoryStore()
    with clock.client(held) as a, a.lock("k"):
        b = clock.client(Closing(held.space), server_wait=False)
        with pytest.raises(LeaseStateError, match="closed while lock 'k'"):
            b.acquire("k")

        assert claims == 1
        assert not b._engine.driver.following
