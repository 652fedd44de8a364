"""Which stores a client takes, and who closes them, in both colours from one text."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from typing import TYPE_CHECKING, Any, cast

import pytest
from pydantic import SecretStr

from dlock_core import (
    AsyncLockClient,
    ClientOptions,
    ConfigurationError,
    StoreUnavailableError,
    UnsafeStoreError,
    UnsupportedError,
    aconnect,
    connect,
)
from dlock_core.client import LockClient
from dlock_core.memory import AsyncMemoryStore, MemorySpace, MemoryStore
from tests.core.worlds import both_colours, saying

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.core.worlds import World


def test_store_for_asyncio_is_refused_by_the_blocking_client() -> None:
    """An async-only store in a blocking client is told apart at once."""
    with pytest.raises(UnsupportedError, match=r"AsyncMemoryStore is a store for asyncio; use AsyncLockClient"):
        LockClient(AsyncMemoryStore())  # type: ignore[arg-type]  # the mistake in question


@both_colours
@pytest.mark.parametrize(("declared", "message"), [(("atomic_multi",), "declares"), ((), "does not declare")])
async def test_store_whose_capabilities_do_not_agree_with_its_methods_is_refused(
    world: World, declared: tuple[str, ...], message: str
) -> None:
    """A capability is present when the client is built, or never asked for."""
    from dlock_core import Capability

    kind = MemoryStore if world.colour == "sync" else AsyncMemoryStore
    attributes: dict[str, object] = {"capabilities": frozenset()}
    if declared:
        attributes = {"claim_many": None, "capabilities": frozenset(map(Capability, declared)) | kind.capabilities}
    lying = type("LyingStore", (kind,), attributes)

    with pytest.raises(UnsupportedError, match=rf"LyingStore .*{message}.*clause S19"):
        world.client(lying())


@both_colours
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("fail_closed", {"fail_closed": True}),
        ("data", {"data": b"x"}),
        ("attributes", {"attributes": {"a": "b"}}),
        ("attributes.a", {"attributes": {"a": "b"}}),
        ("replace_data", {"replace_data": False}),
        ("only_if_exists", {"only_if_exists": True}),
        ("delete_on_release", {"delete_on_release": True}),
        ("clock_skew", {"clock_skew": 1}),
        ("owner_probe", {"owner_probe": "same-host"}),
        ("token_floor", {"token_floor": 2}),
        ("mode", {"mode": "read"}),
        ("permits", {"permits": 2}),
        ("renewal", {"renewal": "session"}),
    ],
)
async def test_an_option_that_a_store_has_no_place_for_is_refused_where_it_is_asked_for(
    world: World, name: str, given: dict[str, Any]
) -> None:
    """Whoever does not ask for it has the lock; the refusal names the option, and nothing is sent."""
    store = saying(world, refuses=((name, "its rows are narrow"),))
    async with world.client(store) as client, client.lock("k"):
        pass
    with pytest.raises(UnsupportedError) as refused:
        async with world.client(store, **given):
            pass

    assert str(refused.value) == f"{name} cannot be had from this store: its rows are narrow"
    assert store.requests == {"claim": 1, "release": 1}


@both_colours
async def test_a_store_without_leases_takes_locks_that_are_fail_closed(world: World) -> None:
    """And a client that asks for others is not made."""
    store = saying(world, refuses=(("lease_duration", "its rows end by themselves"),))
    async with world.client(store, fail_closed=True) as client, client.lock("k") as lease:
        assert lease.lease_duration == float("inf")
    with pytest.raises(UnsupportedError, match="lease_duration cannot be had from this store"):
        async with world.client(store):
            pass


def test_store_handed_over_stays_open_and_one_that_connect_opened_is_closed() -> None:
    """Who opens closes."""
    store = MemoryStore()
    with LockClient(store), LockClient(store):
        pass
    assert store.read("k", timeout_s=1) is None

    with connect("memory://who-closes") as client:
        inner = client._store
    with pytest.raises(StoreUnavailableError, match="closed"):
        inner.read("k", timeout_s=1)


class _Unsafe:
    """A store with an unsafe trait, whose closing fails."""

    capabilities: frozenset[Any] = frozenset()

    def __init__(self) -> None:
        self.closed = 0
        self._inner = MemoryStore()
        for name in ("claim", "replace", "release", "read", "scan", "provision"):
            setattr(self, name, getattr(self._inner, name))

    def guarantees(self) -> Any:
        return dataclasses.replace(self._inner.guarantees(), unsafe=(("no-replica", "it may grant twice"),))

    def close(self) -> None:
        self.closed += 1
        raise StoreUnavailableError("it does not want to close")


class _AsyncUnsafe(_Unsafe):
    def __init__(self) -> None:
        super().__init__()
        inner = AsyncMemoryStore()
        for name in ("claim", "replace", "release", "read", "scan", "provision"):
            setattr(self, name, getattr(inner, name))

    async def guarantees(self) -> Any:
        return super().guarantees()

    async def close(self) -> None:  # type: ignore[override]  # the twin
        super().close()


@both_colours
async def test_unsafe_store_is_refused_unless_it_is_accepted_by_name(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A topology that can grant twice is no surprise: the error names what to write, and the log says that it was accepted."""

    async def use(**options: Any) -> None:
        store = (_Unsafe if world.colour == "sync" else _AsyncUnsafe)()
        async with world.client(store, **options) as client, client.lock("k"):
            pass

    for allowed in (set(), {"redis-replica"}):
        with pytest.raises(
            UnsafeStoreError, match=r"memory store refused: it may grant twice; .*put 'no-replica' into allow_unsafe"
        ) as caught:
            await use(allow_unsafe=allowed)
        assert caught.value.name == "no-replica"

    await use(allow_unsafe={"no-replica", "redis-replica"})
    assert "accepted trait 'no-replica'" in caplog.text


def test_unknown_name_of_a_trait_is_refused_with_those_that_there_are() -> None:
    """A misspelt name would accept nothing, and would be noticed only on the day of the failover that it was meant for."""
    with pytest.raises(
        ConfigurationError, match=r"no trait 'redis-replcia'; perhaps 'redis-replica' is meant; the names are .*redis-"
    ):
        connect("memory://", allow_unsafe={"redis-replcia"})
    with pytest.raises(
        ConfigurationError, match=r"no trait 'nonsense'; the names are .*redis-cluster.*, session-rollback"
    ):
        LockClient(MemoryStore(), allow_unsafe={"nonsense"})
    with pytest.raises(ConfigurationError, match=r"no trait 'nonsense'; the names are .*no-replica"):
        LockClient(cast("Any", _Unsafe()), allow_unsafe={"no-replica", "nonsense"})


def test_store_may_name_a_trait_that_it_has_on_another_day() -> None:
    """Who accepts it must not be refused as long as all is well."""

    class Sometimes(MemoryStore):
        unsafe_traits = ("no-replica",)

    with LockClient(Sometimes(), allow_unsafe={"no-replica"}, timeout=0) as client, client.lock("k"):
        pass


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_store_that_connect_opened_is_closed_when_it_is_refused_and_its_error_told(
    colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ``connect`` opens it closes, whatever comes between; an error of that is told by ``close``, or is a note."""
    stores: list[_Unsafe] = []

    class Backend:
        options = type("Options", (), {"from_url": staticmethod(lambda url, **settings: url)})

        def open(self, options: object) -> Any:
            stores.append(_Unsafe())
            return stores[-1]

        def aopen(self, options: object) -> Any:
            async def opened() -> Any:
                stores.append(_AsyncUnsafe())
                return stores[-1]

            return opened()

    monkeypatch.setattr("dlock_core.engine.opening.backend_for", lambda url: Backend())

    def use(*, fails: bool, **options: Any) -> None:
        if colour == "sync":
            with connect("odd://", **options):
                if fails:
                    raise KeyError("body")
            return

        async def on_a_loop() -> None:
            async with aconnect("odd://", **options):
                if fails:
                    raise KeyError("body")

        asyncio.run(on_a_loop())

    with pytest.raises((UnsafeStoreError, StoreUnavailableError)):
        use(fails=False)
    with pytest.raises(ExceptionGroup) as caught:
        use(fails=False, allow_unsafe={"no-replica"})
    with pytest.raises(KeyError) as noted:
        use(fails=True, allow_unsafe={"no-replica"})

    assert [store.closed for store in stores] == [1, 1, 1]
    assert [str(error) for error in caught.value.exceptions] == ["it does not want to close"]
    assert "it does not want to close" in str(noted.value.__notes__)


@pytest.mark.parametrize("client", [LockClient, AsyncLockClient])
@pytest.mark.parametrize("name", ["claim", "read", "guarantees", "close"])
def test_store_without_a_method_is_refused_by_its_name(client: Any, name: str) -> None:
    """When the client is made, and not in the middle of a call."""
    Lacking = type("Lacking", (MemoryStore,), {name: None})  # noqa: N806  # a class

    with pytest.raises(UnsupportedError, match=rf"the store Lacking has no method {name}\(\); dlock_core/store.py"):
        client(Lacking(MemorySpace()))


@pytest.mark.parametrize("client", [LockClient, AsyncLockClient])
def test_store_that_says_nothing_of_itself_is_refused(client: Any) -> None:
    """``guarantees()`` was written without its return."""
    Silent = type("Silent", (MemoryStore,), {"guarantees": lambda _: None})  # noqa: N806  # a class

    async def use() -> None:
        async with client(Silent(MemorySpace())):
            raise AssertionError("it must not be opened")

    with pytest.raises(UnsupportedError, match=r"guarantees\(\) of the store returned None in place of a Guar"):
        asyncio.run(use())


def test_answer_that_is_no_reply_is_told_and_leaves_nothing_held() -> None:
    """A verb of somebody's store answered with True: whether it has written is as unknown as after a lost reply."""
    store = MemoryStore(MemorySpace())
    claim: Any = store.claim
    with LockClient(store) as client:
        store.claim = lambda *given, **options: claim(*given, **options) and True  # type: ignore[assignment, method-assign]
        with pytest.raises(TypeError, match="the store answered a request for lock 'k' with True in place of a Reply"):
            client.acquire("k")

        store.claim = claim  # type: ignore[method-assign]
        client.acquire("k", timeout=5).release()


def test_store_that_cannot_be_used_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was opened by then, and nobody else knows of it."""
    refused: list[Any] = []

    def refuse(store: Any) -> None:
        refused.append(store)
        raise UnsupportedError("it lies")

    async def scene() -> None:
        with pytest.raises(UnsupportedError):
            await aconnect("memory://lies")
        with pytest.raises(StoreUnavailableError, match="closed"):
            await refused[0].read("k", timeout_s=1)

    monkeypatch.setattr("dlock_core.aio.check_capabilities", refuse)
    asyncio.run(scene())


def test_program_that_was_frozen_without_an_adapter_is_told_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyInstaller follows imports, and the adapter is named in the metadata alone: there is no entry point to be mended."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setitem(sys.modules, "dlock_sqlite", None)

    with pytest.raises(
        ConfigurationError, match=r"frozen without it: give PyInstaller --collect-submodules dlock_sqlite$"
    ):
        connect("sqlite:///x.db")


def test_copy_of_the_source_without_metadata_is_told_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of what is installed would end in nothing."""
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    monkeypatch.setattr("dlock_core.backend._DISTRIBUTION", "no-such-distribution-of-ours")

    with pytest.raises(
        ConfigurationError, match="installed: none, since the metadata of dlock-core is not here: install it"
    ):
        connect("sqlite:///x.db")


@pytest.mark.parametrize("given", [str, lambda url: ClientOptions(url=SecretStr(url))])
def test_line_break_behind_a_url_names_no_other_store(tmp_path: Path, given: Callable[[str], Any]) -> None:
    """A file or a secret that the URL is read from ends with one: both would get the lock, each in a SQLite file of its own."""
    url = f"sqlite:///{tmp_path}/locks.db"
    with connect(url) as one, connect(given(f" {url}\n")) as other, one.lock("k"):
        assert other.try_acquire("k") is None
