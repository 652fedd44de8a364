"""Writers that go on as readers, and sole readers that go on as writers, in both colours from one text."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, Literal

import pytest

from dlock_core import (
    AcquireTimeoutError,
    LeaseStateError,
    LockLostError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
)
from dlock_core.engine.blocking_runtime import run_blocking
from dlock_core.engine.membership import find_evicted
from tests.core.attempts import SECOND
from tests.core.test_shared_locks import lived
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World


@both_colours
async def test_writer_goes_on_as_a_reader_and_no_writer_comes_between(world: World) -> None:
    """Readers that waited come in beside it, with its token; the writer that waits has its turn after them."""
    async with world.client() as a, world.client() as b, world.client() as c:
        writer = await a.acquire("k", mode="write")
        writing = world.spawn(b.acquire("k", mode="write", timeout=60))
        await world.live(1)

        reader = await writer.downgrade()

        assert (writer.is_valid, reader.is_valid, reader.key) == (False, True, "k")
        assert (writer.fencing_token, reader.fencing_token) == (1, 2)
        beside = await c.try_acquire("k", mode="read")
        assert beside is not None
        assert beside.fencing_token == 2
        await writer.release()  # it has ended, so that does nothing
        await world.live(1)
        assert not writing.done
        await reader.release()
        await beside.release()
        last = await lived(world, writing, 3)
        assert last.fencing_token == 3


@both_colours
async def test_sole_reader_goes_on_as_the_writer(world: World) -> None:
    """With another reader it does not, and goes on reading; it comes before a writer that waits, which waits for it."""
    async with world.client() as a, world.client() as b:
        reader, other = await a.acquire("k", mode="read"), await b.acquire("k", mode="read")
        assert await reader.try_upgrade() is None
        assert reader.is_valid
        await other.release()
        writing = world.spawn(b.acquire("k", mode="write", timeout=60))
        await world.live(1)

        writer = await reader.try_upgrade()
        assert writer is not None

        assert (reader.is_valid, writer.is_valid) == (False, True)
        assert (reader.fencing_token, writer.fencing_token) == (1, 2)
        await world.live(5)
        assert not writing.done
        await writer.release()
        assert (await lived(world, writing, 3)).fencing_token == 3


@both_colours
@pytest.mark.parametrize("write", ["claim", "replace"])
@pytest.mark.parametrize("mode", ["read", "write"])
async def test_change_of_mode_whose_answer_is_lost_is_found(
    world: World, mode: Literal["read", "write"], write: str
) -> None:
    """By a look at the record; nobody else has had the lock."""
    store = world.another_store()
    async with world.client(store, lease_duration=10, request_timeout=1) as a, world.client() as b:
        old = await a.acquire("k", mode=mode)
        store.lose_reply(write)

        changing = world.spawn(old.try_upgrade() if mode == "read" else old.downgrade())
        new = await lived(world, changing, 3)

        assert (old.is_valid, new.is_valid) == (False, True)
        assert (old.fencing_token, new.fencing_token) == (1, 2)
        beside = await b.try_acquire("k", mode="read")
        assert (beside is None) == (mode == "read")


@both_colours
@pytest.mark.parametrize("mode", ["read", "write"])
async def test_change_of_mode_during_an_outage_is_told(world: World, mode: Literal["read", "write"]) -> None:
    """No write went out, so the lock is held as before."""
    store = world.another_store()
    async with world.client(store, lease_duration=10, request_timeout=1) as a, world.client() as b:
        old = await a.acquire("k", mode=mode)
        store.fail("read", times=99)

        with pytest.raises(StoreUnavailableError):
            await lived(world, world.spawn(old.try_upgrade() if mode == "read" else old.downgrade()), 12)

        assert old.is_valid
        assert await b.try_acquire("k", mode="write") is None


@both_colours
@pytest.mark.parametrize("later", [OutcomeUnknownError, StoreUnavailableError])
@pytest.mark.parametrize("mode", ["read", "write"])
async def test_change_of_mode_that_may_come_late(
    world: World, mode: Literal["read", "write"], later: type[StoreError]
) -> None:
    """A reader whose write as the writer may be under way still is none any more; a writer goes on, for it excludes others.

    That the writes after it were not sent says nothing of the first.
    """
    errors: list[StoreError] = [OutcomeUnknownError("it may arrive yet", key="k")]

    def lose(verb: str, request: Any) -> None:
        if verb == "replace" and request.record.key == "k":
            raise errors.pop() if errors else later("it may arrive yet, or does not", key="k")

    store = world.hooked_store(lose)
    async with world.client(store, lease_duration=40, request_timeout=1) as a, world.client(lease_duration=10) as b:
        old = await a.acquire("k", mode=mode)
        changing = world.spawn(old.try_upgrade() if mode == "read" else old.downgrade())
        with pytest.raises(later):
            await lived(world, changing, 12)

        assert old.is_valid == (mode == "write")
        other = await b.try_acquire("k", mode="write")
        assert (other is None) == (mode == "write")


@both_colours
@pytest.mark.parametrize("mode", ["read", "write"])
async def test_change_of_mode_that_was_applied_unseen(world: World, mode: Literal["read", "write"]) -> None:
    """The reader whose place the writer has taken is none any more; the writer beside which a reader stands excludes others still."""
    sent: list[str] = []

    def before(verb: str, request: Any) -> None:
        if verb == "read" and sent:
            raise StoreUnavailableError("it cannot be reached")
        sent.extend(["k"] if verb == "replace" and request.record.key == "k" else [])

    def after(verb: str) -> None:
        if sent == ["k"]:
            sent.append("applied")
            raise OutcomeUnknownError("no answer", key="k")

    store = world.hooked_store(before, after)
    async with world.client(store, lease_duration=10, request_timeout=1) as a, world.client(lease_duration=10) as b:
        old = await a.acquire("k", mode=mode)
        changing = world.spawn(old.try_upgrade() if mode == "read" else old.downgrade())
        with pytest.raises(StoreUnavailableError):
            await lived(world, changing, 12)

        assert old.is_valid == (mode == "write")
        other = await b.try_acquire("k", mode="read")
        assert (other is None) == (mode == "write")


@both_colours
async def test_change_of_mode_costs_a_place_and_the_end_of_the_other(world: World) -> None:
    """A look, the session, the place; then the end of the old session, and of the old place where that still stands."""
    async with world.client() as client:
        reader = await client.acquire("k", mode="read")
        world.store.requests.clear()

        writer = await reader.try_upgrade()
        assert writer is not None
        assert world.store.requests == {"read": 1, "claim": 1, "replace": 1, "release": 1}
        world.store.requests.clear()
        reader = await writer.downgrade()
        assert world.store.requests == {"read": 1, "claim": 1, "replace": 2, "release": 1}
        await reader.release()


@both_colours
@pytest.mark.parametrize("trouble", ["not sent", "without an answer"])
async def test_upgrade_that_is_refused_after_trouble_leaves_the_reader(world: World, trouble: str) -> None:
    """What was not sent, or expects a version that is gone, will never be applied."""
    sent: list[str] = []

    def before(verb: str, request: Any) -> None:
        if verb == "replace" and request.record.key == "k" and not (sent and trouble == "without an answer"):
            sent.append("k")
            raise (
                OutcomeUnknownError("no answer", key="k")
                if trouble == "without an answer"
                else StoreUnavailableError("")
            )

    async with world.client(world.hooked_store(before), lease_duration=10) as a, world.client(lease_duration=10) as b:
        old = await a.acquire("k", mode="read")
        changing = world.spawn(old.try_upgrade())
        await world.until(lambda: bool(sent))
        if trouble == "not sent":
            with pytest.raises(StoreUnavailableError):
                await lived(world, changing, 12)
            other = await b.acquire("k", mode="read")
        else:
            other = await b.acquire("k", mode="read")
            assert await lived(world, changing, 12) is None

        assert old.is_valid
        assert other.is_valid


@both_colours
async def test_reader_that_another_thread_or_task_upgrades_waits_behind_nobody(world: World) -> None:
    """Least of all behind a writer of the same client that waits for it."""
    async with world.client() as client:
        reader = await client.acquire("k", mode="read")
        writing = world.spawn(client.acquire("k", mode="write", timeout=60))
        await world.live(1)

        writer = await lived(world, world.spawn(reader.try_upgrade()), 1)

        assert writer.is_valid
        assert not writing.done
        await writer.release()
        assert (await lived(world, writing, 3)).is_valid


@both_colours
async def test_reader_twice_over_is_not_the_sole_one(world: World) -> None:
    """Not even where both leases are of one thread or task."""
    async with world.client() as client:
        first, second = await client.acquire("k", mode="read"), await client.acquire("k", mode="read")

        assert await first.try_upgrade() is None

        assert first.is_valid
        assert second.is_valid


@both_colours
async def test_lock_that_others_had_meanwhile_is_not_changed(world: World) -> None:
    """Somebody removed the record and wrote there; who goes on from the old lease would not know of it."""
    async with world.client() as a, world.client() as b:
        reader = await a.acquire("k", mode="read")
        del world.space.records["k"]
        await (await b.acquire("k", mode="write")).release()

        with pytest.raises(LockLostError, match="an operator broke it"):
            await reader.try_upgrade()

        assert not reader.is_valid


@both_colours
async def test_reader_whose_record_is_gone_does_not_upgrade_where_that_cannot_be_looked_into(world: World) -> None:
    """Others may have had the lock since."""
    looks: list[str] = []

    def refuse_a_second_look(verb: str, request: Any) -> None:
        if verb == "read" and request == "k":
            looks.append(request)
            if len(looks) > 2:
                raise StoreUnavailableError("not now")

    async with world.client(world.hooked_store(refuse_a_second_look)) as client:
        reader = await client.acquire("k", mode="read")
        assert looks == ["k"]
        del world.space.records["k"]

        assert await reader.try_upgrade() is None

        assert "k" not in world.space.records


@both_colours
async def test_only_a_writer_is_downgraded_and_only_a_reader_upgraded(world: World) -> None:
    """All else is refused by name, and goes on; a lease that is lost, or released, says so."""
    async with world.client() as client:
        lock, permit = await client.acquire("a"), await client.acquire("b", permits=1)
        reader, writer = await client.acquire("c", mode="read"), await client.acquire("d", mode="write")
        for lease in (lock, permit, reader):
            with pytest.raises(LeaseStateError, match=r"not obtained by write_lock\(\), so downgrade\(\)"):
                await lease.downgrade()
        for lease in (lock, permit, writer):
            with pytest.raises(LeaseStateError, match=r"not obtained by read_lock\(\), so try_upgrade\(\)"):
                await lease.try_upgrade()
        assert all(lease.is_valid for lease in (lock, permit, reader, writer))

        await reader.release()
        with pytest.raises(LeaseStateError, match="was released"):
            await reader.try_upgrade()
        await client.break_lock("d", fencing_token=writer.fencing_token)
        await world.live(10)
        world.store.requests.clear()
        with pytest.raises(LockLostError):
            await writer.downgrade()
        assert not world.store.requests


@both_colours
async def test_reader_that_becomes_the_writer_is_not_lost(world: World) -> None:
    """Its own write takes the reader out of the record; who looks at its places meanwhile finds none missing."""
    lost: list[Any] = []
    looks: list[Any] = []

    def look(_: str) -> None:
        record = world.space.records.get("k")
        if not looks and record is not None and record.members and record.members.members[0].mode == "write":
            looks.append(record)
            driver = world.clients[0]._engine.driver
            lost.extend(run_blocking(find_evicted(driver, list(driver.held.values()), lambda: 1.0)))

    async with world.client(world.hooked_store(lambda *_: None, look)) as client:
        reader = await client.acquire("k", mode="read")

        writer = await reader.try_upgrade()

        assert writer is not None
        await world.live(5)
        assert (len(looks), lost, writer.is_valid, reader.loss) == (1, [], True, None)


@both_colours
@pytest.mark.parametrize(("lease_s", "patience_s"), [(60, 10), (4, 4)])
async def test_change_of_mode_ends_in_time_where_others_write_all_the_while(
    world: World, lease_s: float, patience_s: float
) -> None:
    """Within ten seconds, and within the lease of the writer, which goes on."""

    def write_before(verb: str, request: Any) -> None:
        if verb == "replace" and request.record.key == "k" and request.expected is not None:
            record = world.space.records["k"]
            world.space.records["k"] = dataclasses.replace(record, rvn=f"of another, {next(numbers)}")

    numbers = itertools.count()
    async with world.client(world.hooked_store(write_before), lease_duration=lease_s, request_timeout=0.5) as client:
        writer = await client.acquire("k", mode="write")
        began = world.clock.now()
        with pytest.raises(AcquireTimeoutError):
            await lived(world, world.spawn(writer.downgrade()), 2 * patience_s)

        assert world.clock.now() - began <= (patience_s + 0.5) * SECOND
        assert writer.is_valid


@both_colours
async def test_reader_whose_upgrade_was_refused_is_looked_after_as_before(world: World) -> None:
    """Who takes it out of the record takes its lock."""
    async with world.client() as a, world.client() as b:
        reader, other = await a.acquire("k", mode="read"), await b.acquire("k", mode="read")
        assert await reader.try_upgrade() is None
        await other.release()

        del world.space.records["k"]
        await world.live(20)

        assert not reader.is_valid


@both_colours
async def test_old_lease_whose_end_gets_no_answer_is_told_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The lock goes on in the other mode."""
    written: list[str] = []

    def fail_the_end(verb: str, request: Any) -> None:
        if verb == "release" or (verb == "replace" and request.record.key == "k"):
            written.append(verb)
            if len(written) > 1 and "the end" not in written:
                raise StoreUnavailableError("not now")

    async with world.client(world.hooked_store(fail_the_end), lease_duration=10, request_timeout=1) as client:
        writer = await client.acquire("k", mode="write")

        reader = await lived(world, world.spawn(writer.downgrade()), 12)

        written.append("the end")
        assert (reader.is_valid, writer.is_valid) == (True, False)
        assert "lock 'k' is held as before, too, until a write or its lease ends that: not now" in caplog.text
