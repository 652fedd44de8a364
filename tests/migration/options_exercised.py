"""The options that the page names, each by what it changes."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from typing import Any

import pytest

from dlock_core import (
    AcquireTimeoutError,
    AttributeValue,
    Capability,
    ConfigurationError,
    LockLostError,
    LossReason,
    UnsupportedError,
)
from dlock_core.errors import RecordError, StoreError
from dlock_core.memory import MemoryStore
from dlock_core.record import DATA_MAX_BYTES, LockRecord, State
from dlock_core.store import Claim, Expect
from dlock_core.testing import FaultyStore
from tests.migration.shop import Shop, exercise


def requests(client: object) -> int:
    """Return how many requests a client of the shop has made."""
    store = client._store  # type: ignore[attr-defined]
    assert isinstance(store, FaultyStore)
    return store.requests.total()


@exercise("lease_duration")
def lease_duration(shop: Shop) -> None:
    """A dead holder's lock is had one lease after it was first seen, and not before."""
    token = shop.dies("k", lease_duration=30)

    lease, took = shop.while_time_passes(lambda: shop.client().acquire("k"))

    assert 30 <= took < 32
    assert lease.fencing_token > token


@exercise("timeout", any_store=True)
def timeout(shop: Shop) -> None:
    """It bounds the wait, all of it."""
    shop.dies("k")

    with pytest.raises(AcquireTimeoutError) as caught:
        shop.while_time_passes(lambda: shop.client().acquire("k", timeout=3))

    assert caught.value.timeout == pytest.approx(3, abs=1)


@exercise("timeout_after_lease", any_store=True)
def timeout_after_lease(shop: Shop) -> None:
    """The timeout counts on top of one lease of the holder first seen, as the Java client counts: enough for a dead holder."""
    shop.dies("k", lease_duration=10)

    lease, took = shop.while_time_passes(lambda: shop.client().acquire("k", timeout=1, timeout_after_lease=True))

    assert lease.is_valid
    assert 10 <= took < 12


@exercise("retries", any_store=True)
def retries(shop: Shop) -> None:
    """So often it is asked again, and no more."""
    shop.dies("k")
    client = shop.client(retries=2)

    with pytest.raises(AcquireTimeoutError):
        shop.while_time_passes(lambda: client.acquire("k"))

    assert requests(client) == 3


@exercise("poll_period", any_store=True)
def poll_period(shop: Shop) -> None:
    """However long the wait lasts, two looks at a held key are no further apart, and half of it at least once it is reached."""
    shop.dies("k", lease_duration=60)
    client = shop.client(poll_period=10)

    with pytest.raises(AcquireTimeoutError):
        shop.while_time_passes(lambda: client.acquire("k", timeout=50))

    assert requests(client) < 30


@exercise("heartbeat_period", any_store=True)
def heartbeat_period(shop: Shop) -> None:
    """A renewal is made after so long."""
    client = shop.client()
    client.acquire("k", heartbeat_period=1)
    before = client.get("k")

    shop.clock.advance(1.1)

    assert before is not None
    shop.eventually(lambda: (record := client.get("k")) is not None and record.rvn != before.rvn)


@exercise("auto_renew", any_store=True)
def auto_renew(shop: Shop) -> None:
    """Without it nothing is renewed but by hand."""
    lease = shop.client().acquire("k", auto_renew=False)
    shop.clock.advance(6)
    lease.renew()
    shop.clock.advance(6)
    assert lease.is_valid

    shop.clock.advance(6)

    assert not lease.is_valid


def oversized(key: str, data: bytes) -> LockRecord:
    """Return a record that no check has seen, as a writer without them makes it."""
    record = LockRecord(key, State.HELD, "rvn", 1, "owner", 10_000)
    object.__setattr__(record, "data", data)
    return record


@exercise("data")
def data(shop: Shop) -> None:
    """Bytes travel exactly, 64 KiB of them; one more is refused before anything is sent, and where it is read."""
    whole = bytes(range(256)) * (DATA_MAX_BYTES // 256)
    lease = shop.client().acquire("k", data=whole)

    record = shop.client().get("k")

    assert record is not None
    assert record.data == lease.data == whole
    with pytest.raises(ConfigurationError):
        shop.client().acquire("other", data=whole + b"x")
    if not isinstance(shop.store, MemoryStore):  # its records are never read, they are there
        with suppress(StoreError):  # some see it in the reply already
            shop.store.claim(Claim(oversized(f"{shop.prefix}over", whole + b"x"), Expect.ANY), timeout_s=5)
        with pytest.raises(RecordError, match="data of 65537 bytes exceeds 65536"):
            shop.client().get("over")


@exercise("replace_data")
def replace_data(shop: Shop) -> None:
    """False keeps what a released record had, and what a dead holder's has; without any, the new data is not lost. True replaces it."""
    shop.client().acquire("k", data=b"old", attributes={"by": "a"}).release()
    with shop.client().acquire("k", data=b"new", replace_data=False) as lease:
        assert (lease.data, lease.attributes) == (b"old", {"by": "a"})
    shop.dies("k", replace_data=False)

    taken = shop.taken("k", data=b"new", attributes={"by": "b"}, replace_data=False)

    assert (taken.data, taken.attributes) == (b"old", {"by": "a"})
    assert shop.client().acquire("fresh", data=b"new", replace_data=False).data == b"new"
    taken.release()
    shop.dies("k", data=b"old", attributes={"by": "a"})
    replaced = shop.taken("k", data=b"new")
    record = shop.client().get("k")
    assert record is not None
    assert (replaced.data, record.data, record.attributes) == (b"new", b"new", ())


@exercise("attributes")
def attributes(shop: Shop) -> None:
    """Text, numbers, truth values and bytes beside the data."""
    given: dict[str, AttributeValue] = {"build": 7, "by": "ci", "dry": True, "hash": b"\x00\xff"}

    lease = shop.client().acquire("k", attributes=given)

    record = shop.client().get("k")
    assert record is not None
    assert dict(record.attributes) == lease.attributes == given


@exercise("only_if_exists")
def only_if_exists(shop: Shop) -> None:
    """No record is created; one that is there is taken, unless it was deleted on release."""
    client = shop.client()
    assert client.try_acquire("k", only_if_exists=True) is None
    assert client.get("k") is None
    client.acquire("k").release()

    lease = client.try_acquire("k", only_if_exists=True, delete_on_release=True)

    assert lease is not None
    lease.release()
    assert client.try_acquire("k", only_if_exists=True) is None


@exercise("delete_on_release")
def delete_on_release(shop: Shop) -> None:
    """The record is gone for everybody, and the next token is greater all the same."""
    client = shop.client()
    first = client.acquire("k", delete_on_release=True)
    first.release()
    assert client.get("k") is None
    assert list(client.scan()) == []

    assert client.acquire("k").fencing_token > first.fencing_token


@exercise("reentrant")
def reentrant(shop: Shop) -> None:
    """The same token, counted: free after the last release only."""
    one, two = shop.client(), shop.client()
    outer, inner = one.acquire("k", reentrant=True), one.acquire("k", reentrant=True)
    assert inner.fencing_token == outer.fencing_token
    outer.release()
    assert two.try_acquire("k") is None

    inner.release()

    assert two.try_acquire("k") is not None


@exercise("fail_closed")
def fail_closed(shop: Shop) -> None:
    """No lease: nobody takes it over, and the operator's way out frees it."""
    token = shop.dies("k", fail_closed=True)
    client = shop.client()
    with pytest.raises(AcquireTimeoutError):
        shop.while_time_passes(lambda: client.acquire("k", timeout=12))

    assert client.break_lock("k", fencing_token=token)

    assert client.acquire("k", timeout=0).is_valid


@exercise("max_hold", any_store=True)
def max_hold(shop: Shop) -> None:
    """A critical section has an end, counted from the grant, however well it is renewed."""
    lease = shop.client().acquire("k", max_hold=4)
    assert lease.remaining == pytest.approx(4, abs=0.5)

    shop.clock.advance(4)

    assert not lease.is_valid
    with pytest.raises(LockLostError):
        lease.ensure()
    assert lease.loss is not None
    assert lease.loss.reason is LossReason.OVERRUN


@exercise("owner", any_store=True)
def owner(shop: Shop) -> None:
    """A label for people, written to the record."""
    shop.client(owner="host-7").acquire("k")

    record = shop.client().get("k")

    assert record is not None
    assert record.owner == "host-7"


@exercise("prefix")
def prefix(shop: Shop) -> None:
    """It is put before every key: what a sort key is used for, and what a list by partition needs."""
    client = shop.client(prefix=f"{shop.prefix}team/")
    client.acquire("k")

    assert [record.key for record in client.scan()] == ["k"]
    assert [record.key for record in shop.client().scan("team/")] == ["team/k"]


@exercise("request_timeout", any_store=True)
def request_timeout(shop: Shop) -> None:
    """No request of a lock may take longer."""
    client = shop.client(request_timeout=0.5)

    assert (
        client._context.default.timings.timeout_ns == client._context.default.timings.acquire_timeout_ns == 500_000_000
    )


@exercise("clock_skew")
def clock_skew(shop: Shop) -> None:
    """A newcomer that has seen nothing takes over at once, when the time stamp says that it may."""
    shop.dies("k", clock_skew=2)
    shop.dies("unstamped")
    shop.clock.advance(12.2)

    assert shop.client().try_acquire("k", clock_skew=2) is not None
    assert shop.client().try_acquire("unstamped", clock_skew=2) is None


@exercise("owner_probe")
def owner_probe(shop: Shop) -> None:
    """Only ``dead`` takes over; what the record says of its process comes back from every store."""
    shop.dies("k", owner_probe="same-host")
    assert shop.client().try_acquire("k", owner_probe="same-host") is None

    assert (
        shop.client().try_acquire("k", owner_probe=lambda record: "dead" if record.process else "unknown") is not None
    )


@exercise("observations")
def observations(shop: Shop) -> None:
    """The next client goes on where the last one stopped: by a file, or by what the program keeps as JSON."""
    shop.dies("k")
    with tempfile.TemporaryDirectory() as folder:
        assert shop.client(observations=f"{folder}/seen").try_acquire("k") is None
        shop.clock.advance(10)

        assert shop.client().try_acquire("k") is None
        lease = shop.client(observations=f"{folder}/seen").try_acquire("k")
        assert lease is not None
    lease.release()
    shop.dies("k")
    state: dict[str, Any] = {}
    assert shop.client(observations=state).try_acquire("k") is None
    shop.clock.advance(10)
    assert shop.client(observations=json.loads(json.dumps(state))).try_acquire("k") is not None


@exercise("server_clock")
def server_clock(shop: Shop) -> None:
    """Told by the store itself where it can; refused where it cannot."""
    if Capability.SERVER_CLOCK not in shop.store.capabilities:
        with pytest.raises(UnsupportedError, match="server_clock"):
            shop.client(shop.store, server_clock=True)
        return
    shop.client(shop.store, auto_renew=False).acquire("k", lease_duration=0.05)
    client = shop.client(shop.store, server_clock=True)

    shop.eventually(lambda: client.try_acquire("k") is not None)
