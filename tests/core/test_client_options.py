"""Options of locks and reentrancy at work, in both colours from one text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    KEEP,
    ConfigurationError,
    LockLostError,
    LossReason,
    UnsupportedError,
    connect,
)
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from pathlib import Path

    from tests.core.worlds import World


@both_colours
async def test_data_and_attributes_are_written_and_kept_through_renewals(world: World) -> None:
    """What the record carries is what was asked for, and a renewal leaves it alone."""
    async with world.client(lease_duration=4) as client:
        lease = await client.acquire("k", data=b"\x00x", attributes={"b": True, "a": b"1", "c": -5})
        await world.live(5)

        record = await client.get("k")
        assert record is not None
        assert record.data == lease.data == b"\x00x"
        assert dict(record.attributes) == lease.attributes == {"a": b"1", "b": True, "c": -5}
        assert world.store.requests["replace"] >= 4
        await lease.release()
        record = await client.get("k")
        assert record is not None
        assert record.data == b"\x00x"


@both_colours
async def test_replace_data_false_keeps_what_the_record_had(world: World) -> None:
    """A holder that does not replace finds what the last one left, and so does the record."""
    async with world.client() as client:
        async with client.lock("k", data=b"old", attributes={"by": "a"}):
            pass

        async with client.lock("k", data=b"new", replace_data=False) as lease:
            assert (lease.data, lease.attributes) == (b"old", {"by": "a"})
            await lease.ensure(60)
            record = await client.get("k")
            assert record is not None
            assert record.data == b"old"
        async with client.lock("fresh", data=b"new", replace_data=False) as lease:
            assert lease.data == b"new"
        async with client.lock("k") as lease:
            assert (lease.data, lease.attributes) == (None, {})


@both_colours
async def test_release_data_replaces_what_stays_behind(world: World) -> None:
    """The last word of a holder is kept in the free record; KEEP, the default, leaves what there was."""
    async with world.client() as client:
        for given, left in ((b"done", b"done"), (None, None), (KEEP, b"first")):
            lease = await client.acquire("k", data=b"first", attributes={"a": 1})
            await lease.release(data=given)

            record = await client.get("k")
            assert record is not None
            assert record.data == left
            assert record.attributes == (("a", 1),)


@both_colours
@pytest.mark.parametrize("data", ["text", bytearray(b"x"), b"x" * 65_537, 5])
async def test_bad_data_is_refused_before_anything_is_sent(world: World, data: Any) -> None:
    """A wrong payload changes nothing: the lease is as it was, also after a refused release."""
    async with world.client() as client:
        lease = await client.acquire("k")

        with pytest.raises(ConfigurationError, match="data"):
            await client.acquire("other", data=data)
        with pytest.raises(ConfigurationError, match=r"data for lock 'k' is .*65536"):
            await lease.renew(data=data)
        with pytest.raises(ConfigurationError, match="data for lock 'k'"):
            await lease.release(data=data)

        assert lease.is_valid
        assert world.store.requests == {"claim": 1}


@both_colours
async def test_only_if_exists_takes_nothing_that_is_not_there(world: World) -> None:
    """A key that never was, or was deleted on release, is not created; one that is there is taken."""
    async with world.client() as client:
        assert await client.try_acquire("k", only_if_exists=True) is None
        assert await client.get("k") is None

        async with client.lock("k"):
            pass
        async with client.lock("k", only_if_exists=True, delete_on_release=True) as lease:
            assert lease.fencing_token == 2
        assert await client.try_acquire("k", only_if_exists=True) is None


@both_colours
async def test_hazard_08_delete_on_release_hides_the_key_and_keeps_its_token(world: World) -> None:
    """A deleted lock is not seen any more, and its next grant still has a greater token."""
    async with world.client() as client:
        async with client.lock("k", data=b"x", delete_on_release=True):
            pass

        assert await client.get("k") is None
        assert [record async for record in client.scan()] == []
        async with client.lock("k", replace_data=False) as lease:
            assert lease.fencing_token == 2
            assert lease.data is None


@both_colours
async def test_fail_closed_lock_is_held_until_it_is_released(world: World) -> None:
    """Without a lease nothing lapses: no renewal, no takeover, for as long as it takes."""
    async with world.client() as a, world.client() as b:
        lease = await a.acquire("k", fail_closed=True)
        assert lease.remaining == lease.lease_duration == float("inf")
        await world.live(400, step=50)

        assert lease.is_valid
        assert await b.try_acquire("k") is None
        assert world.store.requests["replace"] == 0
        with pytest.raises(ConfigurationError, match=r"fail-closed.*no lease"):
            await lease.renew(lease_duration=5)
        await lease.renew(data=b"still here")
        assert await lease.ensure(1000) == 1
        await lease.release()
        again = await b.try_acquire("k")
        assert again is not None


@both_colours
async def test_fail_closed_lock_of_a_dead_holder_is_freed_by_breaking_only(world: World) -> None:
    """An operator frees it, by its token."""
    async with world.client() as a, world.client() as b:
        lease = await a.acquire("k", fail_closed=True)

        assert await b.break_lock("k", fencing_token=lease.fencing_token)

        again = await b.try_acquire("k")
        assert again is not None
        assert again.fencing_token == 3


@both_colours
async def test_max_hold_ends_the_hold_though_renewals_succeed(world: World) -> None:
    """A body that overruns is told as of any loss, with a reason of its own."""
    async with world.client(lease_duration=4, max_hold=10) as client:
        told: list[Any] = []
        lease = await client.acquire("k")
        lease.on_lost(told.append)

        await world.live(9.75)
        assert lease.is_valid
        assert lease.remaining <= 0.26
        await world.live(0.5)

        assert not lease.is_valid
        assert lease.loss is not None
        assert lease.loss.reason is LossReason.OVERRUN
        await world.until(lambda: len(told) == 1)
        with pytest.raises(LockLostError, match="longer than max_hold"):
            await lease.release()
        record = await client.get("k")
        assert record is not None
        assert record.state == "free"


@both_colours
async def test_cancel_on_loss_is_refused_where_nothing_can_be_cancelled(world: World) -> None:
    """A thread cannot be cancelled, so the blocking client refuses the option, and says what there is instead."""
    if world.colour == "async":
        async with world.client(cancel_on_loss=True) as client, client.lock("k"):
            return
    with pytest.raises(UnsupportedError, match=r"asyncio.*on_lost, lost or ensure"):
        world.client(cancel_on_loss=True)
    async with world.client() as client:
        with pytest.raises(UnsupportedError, match="cancel_on_loss"):
            await client.acquire("k", cancel_on_loss=True)
        assert not world.store.requests


def test_options_that_do_not_go_together_name_where_each_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But those that the program gives itself."""
    file = tmp_path / "locks.toml"
    file.write_text("heartbeat_period = 30\n[store]\nnonsense = 3\n")
    monkeypatch.setenv("DLOCK_CONFIG", str(file))
    monkeypatch.setenv("DLOCK_LEASE_DURATION", "10")
    named = f"the configuration file '{file}'"

    with pytest.raises(ConfigurationError) as both:
        connect("memory://")
    with pytest.raises(ConfigurationError) as one:
        connect("memory://", lease_duration=9)
    with pytest.raises(ConfigurationError) as store:
        connect(f"sqlite:///{tmp_path}/locks.db", heartbeat_period=2)

    assert f"{both.value}".startswith(f"{named} and the environment variable DLOCK_LEASE_DURATION: the renewal does")
    assert f"{one.value}".startswith(f"{named}: the renewal does not fit lease_duration=9 s")
    assert f"{store.value}" == f"[store] of {named}: the sqlite store has no setting 'nonsense'; it knows synchronous"
