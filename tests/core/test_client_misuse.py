"""What may not be done with a client or a lease, and what it says then, in both colours from one text."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    KEEP,
    AcquireTimeoutError,
    ConfigurationError,
    DLockError,
    LeaseStateError,
    LockLostError,
    StoreUnavailableError,
    connect,
)
from dlock_core.client import Lease
from tests.core.worlds import async_only, both_colours, raw

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.core.worlds import World


SECRET = "S3CRETw0rd"


@both_colours
async def test_client_and_lease_refuse_to_be_pickled_or_copied(world: World) -> None:
    """Connections and ownership stay in their process; the errors say what to send instead."""
    async with world.client() as client:
        lease = await client.acquire("k")
        client_itself = getattr(client, "_inner", client)

        for dump in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(LeaseStateError, match="URL"):
                dump(client_itself)
            with pytest.raises(LeaseStateError, match=r"fencing_token \(1\)"):
                dump(raw(lease))


def test_lease_that_outlives_the_modules_is_dropped_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of the interpreter, which puts None in the place of what they have."""
    with connect("memory://dropped-at-the-end") as client:
        lease = client.acquire("k")
        with monkeypatch.context() as ending:
            ending.setattr("dlock_core.engine.lease_view.generation", None)
            lease.__del__()

        assert lease.is_valid
        lease.release()


@both_colours
async def test_hazard_31_dropped_lease_warns_and_lapses(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A leak ends itself: no I/O in the finalizer, no renewal after it, and others obtain the key a lease later."""
    async with world.client(lease_duration=8) as client, world.client() as other:
        lease = await client.acquire("k")
        lease.on_risk(print)
        requests = sum(world.store.requests.values())

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del lease
            gc.collect()

        assert [str(one.message) for one in caught] == ["unreleased lease of lock 'k'; it lapses in 7.8 s"]
        assert (caught[0].category, caught[0].filename) == (ResourceWarning, __file__)
        assert caught[0].source is not None  # with tracemalloc it says where the lease was made
        assert "the lease of lock 'k' was dropped unreleased" in caplog.text
        assert sum(world.store.requests.values()) == requests
        assert await other.try_acquire("k") is None
        await world.live(8.25)
        assert world.store.requests["replace"] == 0
        assert not client.holds("k")
        assert not getattr(client, "_inner", client)._engine.driver.held
        assert "lock 'k' is lost (expired)" in caplog.text
        again = await other.try_acquire("k")
        assert again is not None


@both_colours
@pytest.mark.parametrize("handed_out", [True, False])
async def test_lease_whose_finalizer_is_yet_to_run_lapses_as_a_dropped_one(world: World, handed_out: bool) -> None:
    """Its body may still work; a lock that no caller has ever had is given back instead."""
    async with world.client(lease_duration=20) as client:
        lease = await client.acquire("k")
        handle = raw(lease)._handle
        raw(lease)._closed = True  # the collector takes the references to a lease away before it runs the finalizer
        if not handed_out:
            handle.views.clear()
        del lease

        await world.live(8)

        assert world.space.records["k"].held == handed_out


@both_colours
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.timeout(20)
async def test_dropped_lease_ends_where_its_hold_ends_with_a_renewal(world: World) -> None:
    """Looked at a little before that, as a renewal is, it was put there again, and looked at again, for ever."""
    async with world.client(lease_duration=8) as client:
        lease = await client.acquire("k", stall_timeout=2)
        other = await client.acquire("ends", max_hold=1.75)

        del lease
        gc.collect()
        await world.live(2.25)

        assert not client.holds("k")
        assert not other.is_valid


@both_colours
async def test_dropped_lease_of_a_lock_without_one_says_that_it_stays_held(world: World) -> None:
    """Nothing lapses: the key stays closed to all others."""
    async with world.client() as client:
        lease = await client.acquire("k", fail_closed=True)

        with pytest.warns(ResourceWarning, match="it has no lease to end: it stays held until its client is closed"):
            del lease  # CPython finalizes it here

        await world.live(100)
        record = await client.get("k")
        assert record is not None
        assert record.held


@both_colours
async def test_dropped_view_of_a_reentrant_lock_leaves_the_others(world: World) -> None:
    """One view that nobody can release any more does not keep the key for ever."""
    async with world.client(reentrant=True) as client:
        outer, inner = await client.acquire("k"), await client.acquire("k")

        del inner
        gc.collect()
        assert outer.is_valid
        await outer.release()

        record = await client.get("k")
        assert record is not None
        assert record.state == "free"


@both_colours
async def test_copy_of_a_lease_in_a_forked_child_is_dead(world: World) -> None:
    """Each call is refused, what ends a block is silent, and the store hears of nothing; the parent's lease goes on."""
    async with world.client() as client:
        lease = await client.acquire("k")
        context = raw(client)._context
        context.generation -= 1
        assert (lease.is_valid, lease.remaining) == (False, 0)
        for call in (lease.ensure, lease.renew, lease.release):
            with pytest.raises(LeaseStateError, match="forked"):
                await call()
        for watch in (lease.on_lost, lease.on_risk, lease.on_wanted):
            with pytest.raises(LeaseStateError, match="forked"):
                watch(print)
        with pytest.raises(LeaseStateError, match="forked"):
            lease.progress()
        await lease.__aexit__(None, None, None)
        raw(lease)._leave_to_scheduler()
        await world.live(1)

        context.generation += 1
        assert lease.is_valid
        assert world.store.requests == {"claim": 1}
        await lease.release()


@both_colours
async def test_block_that_was_never_entered_is_left_in_silence(world: World) -> None:
    """As where a stack of blocks is unwound."""
    async with world.client() as client:
        with pytest.warns(RuntimeWarning, match="never entered"):
            await client.lock("k").__aexit__(None, None, None)


@both_colours
async def test_released_and_lost_leases_are_dropped_silently(world: World) -> None:
    """Only what still counts is a leak."""
    async with world.client(lease_duration=8, auto_renew=False) as client:
        released, lost = await client.acquire("a"), await client.acquire("b")
        await released.release()
        await world.jump(8)
        assert lost.loss is not None

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del released, lost
            gc.collect()

        assert caught == []


@both_colours
async def test_repr_names_the_lock_and_hides_what_it_carries(world: World) -> None:
    """What is logged by accident tells the key, the token and the state, and no data."""
    async with world.client(owner="a", data=SECRET.encode()) as client:
        lease = await client.acquire("billing/42")

        assert repr(lease).endswith("Lease 'billing/42' token 1 held>")
        assert repr(client).endswith("LockClient no URL owner 'a'>")
        assert SECRET not in repr(lease) + repr(client)
        await lease.release()
        assert repr(lease).endswith("Lease 'billing/42' token 1 ended>")


def test_repr_of_a_client_with_a_url_hides_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """The URL is shown without its secrets."""
    with connect("memory://repr-test") as client:
        assert "memory://repr-test" in repr(client)
        assert "**" in repr(client.options)


@both_colours
@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("", "one character or more, not ''"),
        (b"bytes", "must be a str .* not b'bytes'"),
        (None, "must be a str .* not None"),
        (5, "must be a str .* not 5"),
        ("a\nb", r"control character '\\n' at position 1"),
        ("\x7f", "control character"),
        ("a\ud800", "lone surrogate at position 1"),
        ("x" * 1025, r"has 1025 bytes.*1 to 1024"),
        ("é" * 513, r"has 1026 bytes"),
    ],
    ids=["empty", "bytes", "none", "int", "newline", "delete", "surrogate", "long", "long-utf8"],
)
async def test_bad_key_is_refused_by_every_method(world: World, key: Any, message: str) -> None:
    """A key that some store could not hold exactly is held by none; nothing is sent."""
    async with world.client() as client:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: client.acquire(key),
            lambda: client.try_acquire(key),
            lambda: client.get(key),
            lambda: client.break_lock(key, fencing_token=1),
        ]
        for call in calls:
            with pytest.raises(ConfigurationError, match=message):
                await call()
        with pytest.raises(ConfigurationError, match=message):
            client.holds(key)
        with pytest.raises(ConfigurationError, match=message):
            async with client.lock(key):
                pass

        assert not world.store.requests


@both_colours
@pytest.mark.parametrize("key", ["é", "e\u0301", "K", "k", " k", "k ", "%", "a/../b", "💥", "x" * 1024])
async def test_keys_are_exact(world: World, key: str) -> None:
    """Nothing is folded, trimmed, normalised or cut: each spelling is a key of its own."""
    async with world.client() as client, client.lock(key):
        assert [record.key async for record in client.scan()] == [key]


@both_colours
async def test_unknown_option_of_a_call_is_refused(world: World) -> None:
    """A misspelt option would otherwise be a lock with other terms than its caller believes."""
    async with world.client() as client:
        with pytest.raises(
            ConfigurationError, match=r"unknown option 'leaseduration': perhaps 'lease_duration' is meant; options: "
        ):
            await client.acquire("k", leaseduration=5)  # type: ignore[call-arg]  # the mistake in question
        with pytest.raises(ConfigurationError, match="unknown option 'owner': it is an option of the client"):
            async with client.lock("k", owner="me"):  # type: ignore[call-arg]  # an option of the client
                pass


@both_colours
async def test_call_options_are_checked_again_after_an_equal_call_was_good(world: World) -> None:
    """1 and True are equal, and one of them is no duration: what was checked for one call does not let another pass."""
    async with world.client() as client:
        async with client.lock("k", lease_duration=1, reentrant=True):
            pass

        for options in ({"reentrant": 1, "lease_duration": True}, {"lease_duration": True}, {"reentrant": 1}):
            with pytest.raises(ConfigurationError):
                await client.acquire("k", **options)


@both_colours
async def test_what_is_remembered_of_others_locks_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that tries a great many keys does not keep them all; forgetting only delays a takeover."""
    monkeypatch.setattr("dlock_core.engine.observations.OBSERVATIONS_MAX", 5)
    async with world.client(auto_renew=False, lease_duration=10) as dead, world.client() as client:
        for number in range(20):
            raw(await dead.acquire(f"k{number}"))._closed = True
            assert await client.try_acquire(f"k{number}") is None

        assert len(getattr(client, "_inner", client)._engine._observations) == 5
        await world.jump(11)
        assert await client.try_acquire("k0") is None
        lease = await client.try_acquire("k19")
        assert lease is not None


def test_lease_that_was_never_made_is_dropped_silently() -> None:
    """A constructor that failed leaves nothing to warn of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Lease.__new__(Lease)
        gc.collect()

    assert caught == []
    assert repr(KEEP) == "KEEP"


@async_only
async def test_client_that_is_not_open_says_how_to_open_it(world: World) -> None:
    """An asyncio client is opened by ``async with`` or ``await``."""
    client = world.client()

    with pytest.raises(LeaseStateError, match="not open yet"):
        await client.acquire("k")
    with pytest.raises(LeaseStateError, match="not open yet"):
        client.holds("k")
    await client.close()
    opened = await client
    assert opened is client
    await client.close()


@both_colours
async def test_losses_and_takeovers_are_logged_at_their_levels(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """WARNING when lost, INFO when taken over, DEBUG for the rest, all under the logger ``dlock``."""
    caplog.set_level(logging.DEBUG, "dlock")
    async with world.client(owner="a", auto_renew=False, lease_duration=10) as a, world.client(owner="b") as b:
        dead = await a.acquire("k")
        assert await b.try_acquire("k") is None
        await world.jump(10)
        taken = await b.try_acquire("k")

        assert taken is not None
        assert dead.loss is not None
        levels = {record.getMessage().split(",")[0]: record.levelname for record in caplog.records}
        assert levels["lock 'k' acquired by 'a'"] == "DEBUG"
        assert levels["lock 'k' is lost (expired)"] == "WARNING"
        assert levels["lock 'k' taken over from a dead holder by 'b'"] == "INFO"
        assert all(record.name.startswith("dlock.") for record in caplog.records)


def test_every_error_of_a_client_is_one_of_ours() -> None:
    """Whatever goes wrong in a call can be caught as DLockError."""
    for kind in (AcquireTimeoutError, ConfigurationError, LeaseStateError, LockLostError, StoreUnavailableError):
        assert issubclass(kind, DLockError)
