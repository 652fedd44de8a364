"""Requests without a reply, and stores that fail, in both colours from one text."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    AcquireTimeoutError,
    OutcomeUnknownError,
    RecordError,
    StoreError,
    StoreSetupError,
    StoreUnavailableError,
)
from dlock_core.memory import AsyncMemoryStore, MemoryStore
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World


@both_colours
@pytest.mark.parametrize("wait", [0, 5, None])
async def test_acquire_whose_reply_was_lost_holds_the_key(world: World, wait: float | None) -> None:
    """A read tells that the claim was applied; it is adopted, with the token of the record (hazard 1)."""
    async with world.client() as client:
        world.store.lose_reply("claim")

        lease = await client.acquire("k", timeout=wait)

        assert lease.fencing_token == 1
        assert world.store.requests == {"claim": 1, "read": 1}
        assert await lease.ensure(19.7) == 1
        await lease.release()


@both_colours
async def test_acquire_whose_reply_and_read_were_lost_holds_the_key_later(world: World) -> None:
    """It goes on asking while it has time."""
    async with world.client() as client:
        world.store.lose_reply("claim")
        world.store.fail("read", 2)
        acquiring = world.spawn(client.acquire("k", timeout=10))
        for _ in range(20):
            await world.live(0.5)
            if acquiring.done:
                break

        lease = await acquiring.result()

        assert lease.fencing_token == 1


@both_colours
@pytest.mark.parametrize("lost", ["claim", "read"])
async def test_acquire_whose_claim_vanished_claims_again(
    world: World, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A request that never arrived is repeated, and costs no second token; that nothing is there is no mistake of the store."""
    async with world.client() as client:
        world.store.lose_request("claim")
        if lost == "read":
            world.store.lose_request("read")
        acquiring = world.spawn(client.acquire("k", timeout=10))
        for _ in range(20):
            await world.live(0.5)
            if acquiring.done:
                break

        lease = await acquiring.result()

        assert lease.fencing_token == 1
        assert "without a record" not in caplog.text


@both_colours
async def test_acquire_given_up_with_an_applied_claim_leaves_no_orphan(world: World) -> None:
    """What the caller was told to be doubtful is cleaned up by the client, well within the lease."""
    async with world.client(lease_duration=20) as client, world.client() as other:
        world.store.lose_reply("claim")
        world.store.fail("read", 1)

        with pytest.raises(OutcomeUnknownError, match=r"got no answer and is being cleaned up") as caught:
            await client.acquire("k", timeout=0)

        assert isinstance(caught.value.__cause__, StoreUnavailableError)
        assert caught.value.key == "k"
        await world.live(4)
        record = await other.get("k")
        assert record is not None
        assert record.state == "free"


@both_colours
async def test_acquire_that_timed_out_with_a_write_pending_says_so(world: World) -> None:
    """``outcome_unknown`` tells that a claim may still be applied, and it is freed when it is (hazard 4)."""
    async with world.client(lease_duration=20) as client, world.client() as other:
        held = await other.acquire("k", lease_duration=4, auto_renew=False)
        world.store.delay("claim")

        with pytest.raises(AcquireTimeoutError) as caught:
            await client.acquire("k", timeout=0)

        assert caught.value.outcome_unknown
        assert "a write got no answer and is being cleaned up" in str(caught.value)
        await world.settle()
        await held.release()
        late = world.store.deliver()
        if late is not None:
            await late
        record = await other.get("k")
        assert record is not None
        assert record.state == "held"
        await world.live(21)
        record = await other.get("k")
        assert record is not None
        assert record.state == "free"


@both_colours
async def test_new_attempt_does_not_adopt_what_the_last_one_left(world: World) -> None:
    """It takes the orphan over with a token of its own, so that the clean-up of the old attempt cannot free it (F4)."""
    async with world.client(lease_duration=20) as client:
        world.store.lose_reply("claim")
        world.store.fail("read", 1)
        with pytest.raises(StoreError):
            await client.acquire("k", timeout=0)

        lease = await client.acquire("k", timeout=0)
        assert lease.fencing_token == 2
        await world.live(30)

        assert await lease.ensure() == 2


@both_colours
@pytest.mark.parametrize("fault", ["lose_reply", "lose_request", "fail", "delay"])
async def test_renewals_whose_outcome_is_unknown_lose_nothing(world: World, fault: str) -> None:
    """Whatever happens to one renewal, the next one finds out, and the lock stays held (hazard 2)."""
    async with world.client(lease_duration=20) as client, client.lock("k") as lease:
        for _ in range(8):
            getattr(world.store, fault)("replace")
            await world.live(6)

        assert lease.is_valid
        assert lease.fencing_token == 1
        assert lease.loss is None


@both_colours
async def test_renew_whose_reply_was_lost_succeeds_and_writes_its_data(world: World) -> None:
    """The second try is refused by what the first one wrote, and that is a success."""
    async with world.client(auto_renew=False) as client, client.lock("k") as lease:
        world.store.lose_reply("replace")

        await lease.renew(data=b"new", lease_duration=60)

        record = await client.get("k")
        assert record is not None
        assert (record.data, record.lease_ms) == (b"new", 60_000)
        assert (lease.data, lease.lease_duration) == (b"new", 60)


@both_colours
async def test_renew_that_was_never_applied_raises_and_keeps_the_old_deadline(world: World) -> None:
    """Nothing was written: what remained, remains."""
    async with world.client(auto_renew=False) as client, client.lock("k", data=b"old") as lease:
        await world.jump(5)
        left = lease.remaining
        world.store.fail("replace", 2)

        with pytest.raises(StoreUnavailableError):
            await lease.renew(data=b"new", lease_duration=2)

        assert lease.remaining == left
        assert lease.data == b"old"
        assert lease.lease_duration == 20


@both_colours
async def test_renew_to_less_without_an_answer_counts_the_shorter_lease(world: World) -> None:
    """A waiter may be counting the shorter one: until it is known, the holder does too (hazard 11)."""
    async with world.client(auto_renew=False) as client:
        lease = await client.acquire("k")
        world.store.delay("replace", 2)

        with pytest.raises(OutcomeUnknownError):
            await lease.renew(lease_duration=2)

        assert lease.remaining < 2
        await world.jump(2)
        assert not lease.is_valid


@both_colours
@pytest.mark.parametrize("fault", ["lose_reply", "lose_request", "fail"])
async def test_release_whose_reply_was_lost_frees_the_key_without_an_error(world: World, fault: str) -> None:
    """One more request tells, and the next holder does not wait for a lease (hazard 3)."""
    async with world.client() as client, world.client() as other:
        lease = await client.acquire("k")
        getattr(world.store, fault)("release")

        await lease.release()

        assert world.store.requests["release"] == 2
        again = await other.try_acquire("k")
        assert again is not None
        assert lease.loss is None


@both_colours
async def test_release_while_a_renewal_is_unknown_follows_it(world: World) -> None:
    """A renewal that was applied unheard is chased, so that the release is not refused for good (F8c)."""
    async with world.client(lease_duration=20) as client:
        lease = await client.acquire("k")
        world.store.lose_reply("replace", 1)
        await world.live(5)
        assert world.store.requests["replace"] == 1

        await lease.release()

        record = await client.get("k")
        assert record is not None
        assert record.state == "free"


@both_colours
async def test_late_duplicate_of_a_claim_harms_nobody(world: World) -> None:
    """A claim applied a second time, after the release, holds the key for nobody: for one lease at most."""
    async with world.client(lease_duration=10) as client, world.client() as other:
        world.store.duplicate("claim")
        lease = await client.acquire("k")
        await lease.release()
        late = world.store.deliver()
        if late is not None:
            await late

        assert await other.try_acquire("k") is None
        await world.live(10.25)
        again = await other.try_acquire("k")

        assert again is not None
        assert again.fencing_token == 3
        assert not lease.is_valid


@both_colours
@pytest.mark.parametrize("wait", [0, 3, None])
async def test_acquire_from_a_store_that_is_down_fails_in_bounded_time(world: World, wait: float | None) -> None:
    """No longer than asked for, and no longer than a lease: then the store's error is told."""
    async with world.client(lease_duration=8) as client:
        with world.store.outage():
            acquiring = world.spawn(client.acquire("k", timeout=wait))
            for _ in range(40):
                if acquiring.done:
                    break
                await world.live(0.25)
            with pytest.raises(StoreUnavailableError, match="claim of 'k' was not sent"):
                await acquiring.result()

        lease = await client.acquire("k", timeout=0)
        assert lease.fencing_token == 1


@both_colours
async def test_timeout_told_is_the_one_asked_for(world: World) -> None:
    """However long the last request took beyond it."""

    def before(verb: str, request: Any) -> None:
        if verb == "claim" and request.record.owner == "slow":
            world.clock.advance(3)

    async with world.client() as holder, world.client(world.hooked_store(before), owner="slow") as client:
        held = await holder.acquire("k", fail_closed=True)

        with pytest.raises(AcquireTimeoutError, match=r"within 1\.0 s") as caught:
            await client.acquire("k", timeout=1)

        assert caught.value.timeout == 1.0
        assert held.is_valid


@both_colours
async def test_acquire_survives_a_short_outage(world: World) -> None:
    """Within its time it tries again."""
    async with world.client(lease_duration=20) as client:
        world.store.fail("claim", 3)
        acquiring = world.spawn(client.acquire("k", timeout=30))
        for _ in range(40):
            if acquiring.done:
                break
            await world.live(0.5)

        lease = await acquiring.result()

        assert lease.is_valid


class _Unreadable:
    """Raises *error* from every verb."""

    def __init__(self, inner: Any, error: Exception) -> None:
        self._inner, self._error = inner, error
        self.asked: Counter[str] = Counter()
        self.capabilities: frozenset[Any] = frozenset()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("replace_many", "wait", "read_age", "claim_many", "batch_limit"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def claim(self, request: object, *, timeout_s: float) -> Any:
        self.asked["claim"] += 1
        raise self._error


class _AsyncUnreadable(_Unreadable):
    async def claim(self, request: object, *, timeout_s: float) -> Any:
        self.asked["claim"] += 1
        raise self._error


@both_colours
@pytest.mark.parametrize("kind", [RecordError, StoreSetupError])
async def test_trouble_that_waiting_cannot_mend_is_told_at_once(world: World, kind: type[StoreError]) -> None:
    """A foreign record, a missing table: the error leaves after one request, however long the timeout."""
    error = kind("it is not ours", key="k")
    store = (_Unreadable if world.colour == "sync" else _AsyncUnreadable)(world.another_store(), error)
    async with world.client(store) as client:
        with pytest.raises(kind) as caught:
            await client.acquire("k")

        assert caught.value is error
        assert store.asked == {"claim": 1}


@both_colours
@pytest.mark.parametrize("kind", [ValueError, OSError, MemoryError, RecursionError])
async def test_store_that_breaks_the_contract_leaks_no_lock(world: World, kind: type[Exception]) -> None:
    """An exception that no store should raise leaves as it is, and what may have been applied is cleaned up."""
    store = (_Unreadable if world.colour == "sync" else _AsyncUnreadable)(world.another_store(), kind("driver"))
    async with world.client(store, lease_duration=4) as client:
        with pytest.raises(kind, match="driver"):
            await client.acquire("k")
        await world.live(5)

        assert not getattr(client, "_inner", client)._engine.driver.following


@both_colours
async def test_waiting_for_notice_that_fails_falls_back_to_polling(world: World) -> None:
    """A notification is a convenience: without it the key is obtained all the same."""
    kind = MemoryStore if world.colour == "sync" else AsyncMemoryStore

    def fail(self: object, *_: object, **__: object) -> Any:
        raise StoreUnavailableError("no notifications today")

    deaf = type("DeafStore", (kind,), {"wait": fail})(world.space)
    async with world.client(owner="a") as a, world.client(deaf, server_wait=False) as b:
        held = await a.acquire("k")
        waiting = world.spawn(b.acquire("k", timeout=30))
        await world.live(1)
        assert not waiting.done
        await held.release()
        await world.live(3)

        assert waiting.done
        lease = await waiting.result()
        assert lease.fencing_token == 2


@both_colours
async def test_what_is_remembered_of_given_up_attempts_is_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forgetting one costs at most the wait for its lease."""
    monkeypatch.setattr("dlock_core.engine.driver.ABANDONED_MAX", 3)
    async with world.client(lease_duration=4) as client:
        world.store.fail("read", 1000)
        for number in range(8):
            world.store.lose_request("claim")
            with pytest.raises(StoreError):
                await client.acquire(f"k{number}", timeout=0)

        assert len(getattr(client, "_inner", client)._engine.driver._abandoned) == 3
        await world.live(5)
