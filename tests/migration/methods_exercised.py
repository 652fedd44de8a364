"""The methods, properties and errors that the page names, each by what it does."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from dlock_core import (
    AcquireTimeoutError,
    ConfigurationError,
    LeaseStateError,
    LockLostError,
    Loss,
    LossReason,
    OutcomeUnknownError,
    StoreUnavailableError,
    UnsupportedError,
    aconnect,
    connect,
)
from dlock_core.aio import AsyncLockClient
from dlock_core.testing import FaultyStore
from tests.migration.shop import Shop, exercise


@exercise("connect()", any_store=True)
def connect_(shop: Shop) -> None:
    """A client of the store that a URL names."""
    with connect("memory://", lease_duration=10) as client:
        assert client.options.lease_duration == 10


@exercise("aconnect()", any_store=True)
def aconnect_(shop: Shop) -> None:
    """The same for asyncio."""

    async def ask() -> int:
        async with aconnect("memory://") as client, client.lock("aconnect") as lease:
            return lease.fencing_token

    assert asyncio.run(ask()) >= 1


@exercise("client.lock()")
def client_lock(shop: Shop) -> None:
    """A block that holds the lock, and never swallows what its body raises."""
    client = shop.client()

    def fail() -> None:
        with client.lock("k") as lease:
            assert lease.is_valid
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert client.try_acquire("k") is not None


@exercise("client.acquire()", any_store=True)
def client_acquire(shop: Shop) -> None:
    """The lease, or an error: never a bare truth value."""
    lease = shop.client().acquire("k")

    assert lease.is_valid


@exercise("client.try_acquire()")
def client_try_acquire(shop: Shop) -> None:
    """Never waits; repeated over a lease it takes over from a dead holder."""
    token, client = shop.dies("k"), shop.client()
    for _ in range(20):
        assert client.try_acquire("k") is None
        shop.clock.advance(0.5)

    lease = client.try_acquire("k")

    assert lease is not None
    assert lease.fencing_token > token


@exercise("client.lock_all()")
def client_lock_all(shop: Shop) -> None:
    """All of them or none."""
    client = shop.client()
    with client.lock_all(["b", "a"]) as leases:
        assert sorted(leases) == ["a", "b"]
        with pytest.raises(AcquireTimeoutError), shop.client().lock_all(["c", "a"], timeout=0):
            pass
        assert not shop.client().get("c") or not shop.client().get("c").held  # type: ignore[union-attr]  # it is there


@exercise("client.holds()", any_store=True)
def client_holds(shop: Shop) -> None:
    """By this client, without a request."""
    client = shop.client()
    lease = client.acquire("k")
    assert client.holds("k")
    assert not client.holds("other")

    lease.release()

    assert not client.holds("k")


@exercise("client.get()")
def client_get(shop: Shop) -> None:
    """What is stored, also of others' locks and of free ones; a value without any verb, so nobody releases it by mistake."""
    lease = shop.client().acquire("k", data=b"x")
    record = shop.client().get("k")
    assert record is not None
    assert (record.held, record.fencing_token, record.data) == (True, lease.fencing_token, b"x")
    assert not hasattr(record, "release")
    lease.release()

    record = shop.client().get("k")

    assert record is not None
    assert not record.held
    assert shop.client().get("never") is None


@exercise("client.scan()")
def client_scan(shop: Shop) -> None:
    """All records, page by page, or those with a prefix."""
    client = shop.client()
    for key in ("a/1", "a/2", "b/1"):
        client.acquire(key)

    assert sorted(record.key for record in client.scan()) == ["a/1", "a/2", "b/1"]
    assert sorted(record.key for record in client.scan("a/")) == ["a/1", "a/2"]


@exercise("client.break_lock()")
def client_break_lock(shop: Shop) -> None:
    """Takes the lock from a holder named by its token; the key stays closed for one lease."""
    token, client = shop.dies("k"), shop.client()
    assert not client.break_lock("k", fencing_token=token + 5)

    assert client.break_lock("k", fencing_token=token)

    assert client.try_acquire("k") is None
    lease, _ = shop.while_time_passes(lambda: client.acquire("k"))
    assert lease.fencing_token > token + 1


@exercise("client.guarantees()")
def client_guarantees(shop: Shop) -> None:
    """What the store promises; raises where it is not set up."""
    assert shop.client().guarantees().token.value == "ordered"


@exercise("client.close()")
def client_close(shop: Shop) -> None:
    """Releases all, and goes on after an error."""
    store = FaultyStore(shop.store)
    client = shop.client(store)
    for key in ("a", "b", "c"):
        client.acquire(key)
    store.fail("release", times=2)  # the first is tried again at once

    with pytest.raises(ExceptionGroup):
        client.close()

    free = [key for key in ("a", "b", "c") if shop.client().try_acquire(key) is not None]
    assert len(free) >= 2


@exercise("lease.key", any_store=True)
def lease_key(shop: Shop) -> None:
    """As it was asked for, without the prefix."""
    assert shop.client().acquire("k").key == "k"


@exercise("lease.owner", any_store=True)
def lease_owner(shop: Shop) -> None:
    """The label."""
    assert shop.client(owner="me").acquire("k").owner == "me"


@exercise("lease.fencing_token", any_store=True)
def lease_fencing_token(shop: Shop) -> None:
    """Greater with each grant: through releases, takeovers and deletions."""
    client, tokens = shop.client(), list[int]()
    for options in ({}, {"delete_on_release": True}):
        lease = client.acquire("k", **options)  # type: ignore[arg-type]  # options of a lock
        tokens.append(lease.fencing_token)
        lease.release()
    tokens.append(shop.dies("k"))
    lease, _ = shop.while_time_passes(lambda: client.acquire("k"))
    tokens.append(lease.fencing_token)

    assert tokens == sorted(set(tokens))


@exercise("lease.data", any_store=True)
def lease_data(shop: Shop) -> None:
    """As this lease last wrote it."""
    lease = shop.client().acquire("k", data=b"1")
    lease.renew(data=b"2")

    assert lease.data == b"2"


@exercise("lease.attributes", any_store=True)
def lease_attributes(shop: Shop) -> None:
    """The extra attributes."""
    assert shop.client().acquire("k", attributes={"a": 1}).attributes == {"a": 1}


@exercise("lease.lease_duration", any_store=True)
def lease_lease_duration(shop: Shop) -> None:
    """What the record carries now."""
    assert shop.client().acquire("k", lease_duration=7).lease_duration == 7


@exercise("lease.is_valid", any_store=True)
def lease_is_valid(shop: Shop) -> None:
    """False from the deadline on, which is before anybody could take the lock over."""
    lease = shop.client().acquire("k", auto_renew=False, lease_duration=10)
    shop.clock.advance(9.7)
    assert lease.is_valid

    shop.clock.advance(0.2)

    assert not lease.is_valid


@exercise("lease.remaining", any_store=True)
def lease_remaining(shop: Shop) -> None:
    """Seconds to the deadline."""
    lease = shop.client().acquire("k", auto_renew=False, lease_duration=10)
    shop.clock.advance(4)

    assert lease.remaining == pytest.approx(5.8, abs=0.1)


@exercise("lease.lost", any_store=True)
def lease_lost(shop: Shop) -> None:
    """An event to wait for."""
    lease = shop.client().acquire("k", auto_renew=False)
    event = lease.lost
    assert not event.is_set()

    shop.clock.advance(10)

    assert event.wait(20)


@exercise("lease.loss")
def lease_loss(shop: Shop) -> None:
    """Why."""
    client = shop.client()
    lease = client.acquire("k")
    assert lease.loss is None
    client.break_lock("k", fencing_token=lease.fencing_token)

    with pytest.raises(LockLostError):
        lease.renew()

    assert lease.loss is not None
    assert lease.loss.reason is LossReason.BROKEN


@exercise("lease.ensure()", any_store=True)
def lease_ensure(shop: Shop) -> None:
    """Renews only if too little is left, and never shortens a lease."""
    lease = shop.client().acquire("k", auto_renew=False, lease_duration=10)
    shop.clock.advance(6)
    assert lease.ensure(1) == lease.fencing_token
    assert lease.remaining < 4

    lease.ensure(5)

    assert lease.remaining > 9
    assert lease.lease_duration == 10
    lease.ensure(30)
    assert lease.lease_duration >= 30


@exercise("lease.renew()")
def lease_renew(shop: Shop) -> None:
    """A heartbeat by hand; it may change the lease, and change or delete the data."""
    lease = shop.client().acquire("k", auto_renew=False, data=b"x", lease_duration=10)
    shop.clock.advance(6)
    lease.renew()
    assert lease.remaining > 9
    assert lease.data == b"x"

    lease.renew(data=None, lease_duration=20)

    record = shop.client().get("k")
    assert record is not None
    assert (record.data, record.lease_ms) == (None, 20_000)
    assert lease.remaining > 19


@exercise("lease.release()")
def lease_release(shop: Shop) -> None:
    """Frees the key; what *data* says stays behind. A second call does nothing, another's lock is never touched."""
    lease = shop.client().acquire("k", data=b"x", attributes={"by": "a"})
    lease.release(data=b"left")
    lease.release()

    with shop.client().acquire("k", replace_data=False, timeout=0) as later:
        assert later.data == b"left"
        assert later.attributes == {"by": "a"}
        lease.release()
        assert later.is_valid
        assert shop.client().try_acquire("k") is None
    for left in (b"left", None):
        shop.client().acquire("k", replace_data=False).release(**({} if left else {"data": None}))
        record = shop.client().get("k")
        assert record is not None
        assert record.data == left


@exercise("lease.on_lost()", any_store=True)
def lease_on_lost(shop: Shop) -> None:
    """Called at once on theft and on expiry, with a typed reason."""
    client, told = shop.client(), list[Loss]()
    lease = client.acquire("k")
    lease.on_lost(told.append)
    client.break_lock("k", fencing_token=lease.fencing_token, now=True)

    with pytest.raises(LockLostError):
        lease.renew()

    shop.eventually(lambda: bool(told))
    assert told[0].reason is LossReason.BROKEN


@exercise("lease.on_risk()", any_store=True)
def lease_on_risk(shop: Shop) -> None:
    """Called when no renewal succeeded for the safe time, armed again when the lease recovers, and called at once on theft."""
    told = list[Any]()
    lease = shop.client().acquire("k", auto_renew=False, lease_duration=10)
    lease.on_risk(told.append, safe_time=4)
    shop.clock.advance(5)
    shop.eventually(lambda: len(told) == 1)
    lease.renew()

    shop.clock.advance(5)

    shop.eventually(lambda: len(told) == 2)
    lease.renew()
    shop.client().break_lock("k", fencing_token=lease.fencing_token, now=True)
    with pytest.raises(LockLostError):
        lease.renew()
    shop.eventually(lambda: len(told) == 3)


@exercise("cancel_on_loss", any_store=True)
def cancel_on_loss(shop: Shop) -> None:
    """Cancels the body of an ``async with``; refused where nothing can be cancelled."""
    with pytest.raises(UnsupportedError):
        shop.client().acquire("k", cancel_on_loss=True)

    async def body() -> None:
        async with (
            AsyncLockClient(shop.store, prefix=shop.prefix, lease_duration=10) as client,
            client.lock("k", cancel_on_loss=True, max_hold=0.05),
        ):
            await asyncio.sleep(60)

    began = time.monotonic()
    with pytest.raises(LockLostError):
        asyncio.run(body())

    assert time.monotonic() - began < 30


@exercise("AcquireTimeoutError", any_store=True)
def acquire_timeout_error(shop: Shop) -> None:
    """Says who holds it."""
    token = shop.dies("k")

    with pytest.raises(AcquireTimeoutError) as caught:
        shop.client().acquire("k", timeout=0)

    assert caught.value.holder is not None
    assert caught.value.holder.fencing_token == token


@exercise("LockLostError", any_store=True)
def lock_lost_error(shop: Shop) -> None:
    """From ``ensure()``, ``renew()``, ``release()`` and the end of the block."""
    lease = shop.client().acquire("k", auto_renew=False)
    shop.clock.advance(20)

    for use in (lease.ensure, lease.renew, lease.release):
        with pytest.raises(LockLostError):
            use()


@exercise("LossReason", any_store=True)
def loss_reason(shop: Shop) -> None:
    """Typed: expired, stolen, broken, unreachable, overrun."""
    assert " ".join(LossReason) == "expired stolen broken unreachable overrun stalled"


@exercise("LeaseStateError", any_store=True)
def lease_state_error(shop: Shop) -> None:
    """A mistake of the program: used after its release, or after the client was closed."""
    lease = shop.client().acquire("k")
    lease.release()

    with pytest.raises(LeaseStateError):
        lease.renew()


@exercise("ConfigurationError", any_store=True)
def configuration_error(shop: Shop) -> None:
    """What cannot work is refused before anything is sent, and names the number that breaks it."""
    with pytest.raises(ConfigurationError, match="heartbeat_period"):
        shop.client(lease_duration=10, heartbeat_period=9)


@exercise("StoreUnavailableError", any_store=True)
def store_unavailable_error(shop: Shop) -> None:
    """Nothing was written."""
    store = FaultyStore(shop.store)
    client = shop.client(store)

    with store.outage(), pytest.raises(StoreUnavailableError):
        client.get("k")


@exercise("OutcomeUnknownError")
def outcome_unknown_error(shop: Shop) -> None:
    """It may have been written; the client finds out by itself: a lost reply to a claim is still a lock."""
    store = FaultyStore(shop.store)
    store.lose_reply("claim")
    lease = shop.client(store).acquire("k")
    assert lease.is_valid

    store.lose_request("read")
    with pytest.raises(OutcomeUnknownError):
        shop.client(store).get("k")
