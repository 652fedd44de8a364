"""Looking at locks and breaking them, in both colours from one text."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    ConfigurationError,
    EventKind,
    Grade,
    LossReason,
    State,
    StoreUnavailableError,
    TokenOrder,
)
from dlock_core.record import NO_TOKEN, TOKEN_MAX, Broken, LockRecord
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World


@both_colours
async def test_holds_makes_no_request(world: World) -> None:
    """Whether this client holds a key is known without the store."""
    async with world.client() as a, world.client() as b:
        held = await a.acquire("k")
        before = sum(world.store.requests.values())

        assert (a.holds("k"), b.holds("k"), a.holds("other")) == (True, False, False)

        assert sum(world.store.requests.values()) == before
        assert held.is_valid


@both_colours
async def test_holds_turns_false_at_the_deadline(world: World) -> None:
    """A lock whose lease ran out is not held, whether or not anybody noticed."""
    async with world.client(auto_renew=False, lease_duration=10) as client:
        lease = await client.acquire("k")
        world.clock.advance(9.81)

        assert not client.holds("k")
        assert not lease.is_valid


@both_colours
async def test_get_shows_the_record_and_none_for_an_unknown_key(world: World) -> None:
    """A look at a key gives a value that cannot be released by mistake."""
    async with world.client(owner="a") as client:
        assert await client.get("k") is None

        async with client.lock("k", data=b"x", attributes={"n": 1, "a": "b"}):
            record = await client.get("k")

        assert record is not None
        assert (record.key, record.held, record.data) == ("k", True, b"x")
        assert record.attributes == (("a", "b"), ("n", 1))
        assert not hasattr(record, "release")


@both_colours
async def test_prefix_stands_before_every_key_of_the_store_and_of_none_of_the_callers(world: World) -> None:
    """A client's prefix is seen in the store, and by nobody who uses that client."""
    async with world.client(prefix="app/") as client, world.client() as other, client.lock("k") as lease:
        assert lease.key == "k"
        seen = await client.get("k")
        assert seen is not None
        assert seen.key == "k"
        assert [record.key async for record in client.scan()] == ["k"]
        assert [record.key async for record in client.scan("app")] == []
        assert [record.key async for record in other.scan()] == ["app/k"]
        assert client.holds("k")
        assert not other.holds("app/k")


@both_colours
async def test_scan_gives_the_records_with_the_prefix(world: World) -> None:
    """Operators list keys by prefix; nothing in it is a wildcard."""
    async with world.client() as client:
        for key in ("a/1", "a/2", "a%", "b/1"):
            async with client.lock(key):
                pass

        assert [record.key async for record in client.scan("a/")] == ["a/1", "a/2"]
        assert [record.key async for record in client.scan("a%")] == ["a%"]
        assert len([record.key async for record in client.scan()]) == 4


@both_colours
async def test_scan_refuses_what_no_key_begins_with(world: World) -> None:
    """Before the store is asked, which could make nothing of it."""
    async with world.client() as client:
        for prefix in ("a\ud800", "a\n", "x" * 1025, None):
            with pytest.raises(ConfigurationError):
                [record async for record in client.scan(prefix)]  # type: ignore[arg-type]

        assert [record async for record in client.scan("")] == []


@both_colours
async def test_break_closes_the_key_for_one_lease_and_raises_the_token(world: World) -> None:
    """By the time anybody else can hold a broken key, its holder has stopped; it is told that it was broken."""
    async with world.client(owner="a", lease_duration=8) as a, world.client(owner="op") as operator:
        lease = await a.acquire("k")

        assert await operator.break_lock("k", fencing_token=lease.fencing_token)

        record = await operator.get("k")
        assert record is not None
        assert (record.state, record.fencing_token) == ("held", 2)
        assert record.broken is not None
        assert record.broken == Broken("op", world.clock.wall_ms())
        assert await operator.try_acquire("k") is None
        await world.live(2.5)
        assert lease.loss is not None
        assert (lease.loss.reason, lease.loss.fencing_token) == (LossReason.BROKEN, 1)
        await world.jump(8)
        again = await operator.try_acquire("k")
        assert again is not None
        assert again.fencing_token == 3


@both_colours
async def test_break_of_the_last_token_says_that_there_is_no_greater_one(world: World) -> None:
    """The record stays: a break raises the token, which has reached its end."""
    last = LockRecord("k", State.HELD, "r", TOKEN_MAX, "a", 8000)
    world.space.records["k"] = last
    async with world.client() as operator:
        with pytest.raises(StoreUnavailableError, match=f"'k' has reached its end, {TOKEN_MAX}"):
            await operator.break_lock("k", fencing_token=TOKEN_MAX)

    assert world.space.records["k"] == last


@both_colours
async def test_break_refuses_what_can_be_no_token(world: World) -> None:
    """Above all True, which compares equal to the first token: nobody has looked at the grant that it would break."""
    async with world.client() as client:
        lease = await client.acquire("k")
        for token in (True, "1", 1.0, -1, None):
            with pytest.raises(ConfigurationError, match=r"fencing_token.*whole number"):
                await client.break_lock("k", fencing_token=token)  # type: ignore[arg-type]

        await lease.renew()
        await lease.release()


@both_colours
async def test_break_now_frees_the_key_at_once(world: World) -> None:
    """With *now* nobody waits, and the holder learns of it at its next renewal."""
    async with world.client(lease_duration=8) as a, world.client() as operator:
        lease = await a.acquire("k")

        assert await operator.break_lock("k", fencing_token=1, now=True)

        again = await operator.try_acquire("k")
        assert again is not None
        assert again.fencing_token == 3
        await world.live(2.5)
        assert lease.loss is not None
        assert lease.loss.reason in (LossReason.BROKEN, LossReason.STOLEN)


@both_colours
async def test_break_of_a_grant_that_does_not_stand_changes_nothing(world: World) -> None:
    """The token names the grant that is meant: another, an unknown key and a free one are left alone, and no event tells of them."""
    events: list[EventKind] = []
    async with world.client(on_event=lambda event: events.append(event.kind)) as client:
        lease = await client.acquire("k")

        assert not await client.break_lock("k", fencing_token=2)
        assert not await client.break_lock("other", fencing_token=1)
        await lease.ensure(60)
        await lease.release()
        assert not await client.break_lock("k", fencing_token=1)
        async with client.lock("k"):
            pass
        await world.until(lambda: events.count(EventKind.RELEASED) == 2)
    assert EventKind.BROKEN not in events


@both_colours
async def test_break_of_a_record_that_has_changed_changes_nothing(world: World) -> None:
    """With an RVN exactly the record that was seen is meant, and a renewal makes another of it."""
    async with world.client() as client:
        lease = await client.acquire("k")
        seen = await client.get("k")
        await lease.renew()
        now = await client.get("k")
        assert seen is not None
        assert now is not None

        assert not await client.break_lock("k", fencing_token=1, rvn=seen.rvn)
        assert await client.get("k") == now
        assert not await client.break_lock("k", fencing_token=2, rvn=now.rvn)
        assert not await client.break_lock("other", fencing_token=1, rvn=now.rvn)
        assert not await client.break_lock("k", fencing_token=NO_TOKEN, rvn=now.rvn)
        assert await client.break_lock("k", fencing_token=1, rvn=now.rvn)


@both_colours
async def test_break_by_rvn_that_meets_a_renewal_changes_nothing(world: World) -> None:
    """The record is compared in the write itself, and what came between is not broken in its stead."""
    leases: list[Any] = []

    def renew(verb: str, _: Any) -> None:
        if verb == "replace" and leases:
            world.space.records["k"] = dataclasses.replace(world.space.records["k"], rvn="f" * 32)

    async with world.client() as client, world.client(world.hooked_store(renew)) as operator:
        leases.append(await client.acquire("k"))
        seen = await client.get("k")
        assert seen is not None

        assert not await operator.break_lock("k", fencing_token=1, rvn=seen.rvn)


@both_colours
async def test_break_whose_answer_was_lost_still_breaks_once(world: World) -> None:
    """A break that was applied unheard is recognised, and the token rises by one."""
    async with world.client() as a, world.client() as operator:
        lease = await a.acquire("k")
        world.store.lose_reply("replace")

        assert await operator.break_lock("k", fencing_token=1)

        record = await operator.get("k")
        assert record is not None
        assert record.fencing_token == lease.fencing_token + 1


@both_colours
async def test_guarantees_say_what_the_store_promises(world: World) -> None:
    """What may be relied on can be asked for."""
    async with world.client() as client:
        guarantees = await client.guarantees()
        await client.provision()
        await client.provision()

    assert (guarantees.store, guarantees.grade, guarantees.token) == ("memory", Grade.A, TokenOrder.ORDERED)
