"""What is logged: the names of the loggers are those of the page, and the records carry the fields that it promises."""

from __future__ import annotations

import gc
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from dlock_core import AcquireTimeoutError, LockClient, LockLostError
from dlock_core.memory import MemorySpace, MemoryStore
from tests.core.test_shared_locks import lived
from tests.core.worlds import World, both_colours, raw

ROOT = Path(__file__).parents[2]
FIELDS = {
    "dlock_kind",
    "dlock_key",
    "dlock_attempt",
    "dlock_fencing_token",
    "dlock_duration",
    "dlock_holder",
    "dlock_error",
}


def test_each_logger_is_on_the_page() -> None:
    """Whoever sets levels by name finds each name, and none that is not used."""
    sources = [file.read_text(encoding="utf-8") for file in ROOT.glob("dlock_*/**/*.py")]
    used = {
        name for text in sources for name in re.findall(r'(?:getLogger|guarded_logger)\("([a-z.]+\.[a-z.]+)"\)', text)
    }
    page = (ROOT / "docs" / "logging.md").read_text(encoding="utf-8")

    assert {"dlock.engine", "dlock.client"} <= used
    assert set(re.findall(r"^\| `([a-z.]+)` \|", page, re.MULTILINE)) == used


def test_records_of_a_grant_and_a_release_carry_their_facts(caplog: pytest.LogCaptureFixture) -> None:
    """A handler that writes JSON needs no parsing."""
    with (
        caplog.at_level(logging.DEBUG, "dlock.engine"),
        LockClient(MemoryStore(MemorySpace())) as client,
        client.lock("k") as lease,
    ):
        token = lease.fencing_token

    facts = told(caplog)
    assert [fields["dlock_kind"] for fields in facts] == ["granted", "released"]
    assert all((fields["dlock_key"], fields["dlock_fencing_token"]) == ("k", token) for fields in facts)
    assert all(fields["dlock_duration"] >= 0 for fields in facts)


def drop(client: LockClient) -> None:
    """Acquire a lock, and forget it."""
    client.acquire("k")
    gc.collect()


def test_log_names_the_key_as_the_store_has_it(caplog: pytest.LogCaptureFixture) -> None:
    """One log may tell of clients with several prefixes, and who reads it looks into the store."""
    with LockClient(MemoryStore(), prefix="p/") as client:
        with client.once("job", slot=2):
            pass
        with client.once("job", slot=1) as late:
            assert not late.due
        with pytest.warns(ResourceWarning, match="unreleased lease of lock 'k'"):
            drop(client)

    assert "slot 1 of job 'p/job' lies before 2" in caplog.text
    assert "the lease of lock 'p/k' was dropped unreleased" in caplog.text


@both_colours
async def test_session_of_a_waiter_is_not_told_of_as_the_lock(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """It never had the lock, so the lock is not released with it."""
    with caplog.at_level(logging.DEBUG, "dlock.engine"):
        async with (
            world.client(lease_duration=8) as one,
            world.client(lease_duration=8) as other,
            one.lock("k", mode="read"),
        ):
            waiting = world.spawn(other.acquire("k", mode="write", timeout=3))
            with pytest.raises(AcquireTimeoutError):
                await lived(world, waiting, 5)
            told_before = [message for message in caplog.messages if " released" in message]

    assert [message.partition(" released")[0] for message in told_before] == ["the session of a waiter for lock 'k'"]


@both_colours
async def test_session_is_not_told_of_as_a_lock(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """It is a record like others, of which nobody asked for."""
    with caplog.at_level(logging.DEBUG, "dlock.engine"):
        async with world.client(lease_duration=20, renewal="session") as client, client.lock("k") as lease:
            await world.live(12)
            assert raw(lease)._handle.keeper is not None

    assert [(fields["dlock_kind"], fields["dlock_key"]) for fields in told(caplog)] == [
        ("granted", "k"),
        ("released", "k"),
    ]


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the fields of each record that has any; it has all of them."""
    every = [
        {name: value for name, value in vars(each).items() if name.startswith("dlock_")} for each in caplog.records
    ]
    facts = [fields for fields in every if fields]
    assert all(fields.keys() == FIELDS for fields in facts)
    return facts


@both_colours
async def test_records_of_a_wait_and_a_takeover_name_holder_time_and_token(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The wait is told after 1 s; the grant that ends it has the same attempt."""
    async with world.client(owner="dead", lease_duration=4) as holder, world.client(lease_duration=4) as client:
        lease = await holder.acquire("k", auto_renew=False)
        with caplog.at_level(logging.INFO, "dlock.engine"):
            waiter = world.spawn(client.acquire("k", auto_renew=False))
            await world.live(6)
            taken = await waiter.result()
        await taken.release()
        with pytest.raises(LockLostError):
            await lease.release()

        first, *_, last = [fields for fields in told(caplog) if fields["dlock_kind"] in ("waiting", "taken over")]

    assert (first["dlock_kind"], first["dlock_holder"], first["dlock_fencing_token"]) == ("waiting", "dead", 0)
    assert 1 <= first["dlock_duration"] <= 4
    assert (last["dlock_kind"], last["dlock_key"], last["dlock_fencing_token"]) == ("taken over", "k", 2)
    assert 4 <= last["dlock_duration"] <= 6
    assert first["dlock_attempt"] == last["dlock_attempt"]


@both_colours
async def test_records_of_a_risk_and_a_loss_say_why(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """How long the lock still lasts and what the store said, and then the reason of the loss and how long it was held."""
    async with world.client(lease_duration=20) as client:
        lease = await client.acquire("k")
        with world.store.outage():
            await world.live(25)

        risk, lost = told(caplog)
        with pytest.raises(LockLostError):
            await lease.release()

    assert (risk["dlock_kind"], risk["dlock_fencing_token"], risk["dlock_holder"]) == ("at risk", 1, None)
    assert 5 < risk["dlock_duration"] < 20
    assert "was not sent" in risk["dlock_error"]
    assert (lost["dlock_kind"], lost["dlock_fencing_token"], lost["dlock_error"]) == ("lost", 1, "unreachable")
    assert 15 < lost["dlock_duration"] < 25


@both_colours
async def test_record_of_a_loss_names_who_took_the_lock(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """As the operator who broke it."""
    async with world.client(owner="operator") as operator, world.client() as client:
        lease = await client.acquire("k")
        assert await operator.break_lock("k", fencing_token=lease.fencing_token)
        with pytest.raises(LockLostError):
            await lease.renew()

        [lost] = [fields for fields in told(caplog) if fields["dlock_kind"] == "lost"]

    assert (lost["dlock_error"], lost["dlock_holder"]) == ("broken", "operator")
