"""Each call of a store for threads, as asyncio asks it."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from dlock_core import StoreUnavailableError
from dlock_core.engine import store_in_threads
from dlock_core.engine.store_in_threads import ThreadedStore
from dlock_core.store import Capability
from tests.core.worlds import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlock_core.store import LockStore


class _Recorder:
    """Answers each verb with its name and what it was given."""

    capabilities = frozenset(Capability)

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        if verb == "batch_limit":
            raise AttributeError
        return lambda *given, **named: (verb, given, named)


def test_each_verb_is_handed_to_the_store_as_it_was_asked() -> None:
    """And its answer back; a store without a limit of its batches takes one at a time."""

    async def use() -> None:
        store: Any = ThreadedStore(_Recorder())
        assert store.batch_limit == 1
        for verb in ("claim", "replace", "release", "read", "replace_many", "claim_many", "read_age"):
            assert await getattr(store, verb)("it", timeout_s=3) == (verb, ("it",), {"timeout_s": 3})
        given = {"older_than_ms": 1, "dry_run": True, "timeout_s": 3}
        assert await store.prune("records", **given) == ("prune", ("records",), given)
        given = {"wait_s": 2, "timeout_s": 3}
        assert await store.claim_when_free("request", **given) == ("claim_when_free", ("request",), given)
        assert await store.guarantees() == ("guarantees", (), {})
        await store.close()
        with pytest.raises(StoreUnavailableError, match="the store was closed; open a new one"):
            await store.read("k", timeout_s=3)

    asyncio.run(use())


def test_a_scan_ends_though_the_store_gives_a_list() -> None:
    """The port asks for an iterator; a list begins anew with each page."""

    class Lists(_Recorder):
        def scan(self, prefix: str, **_: object) -> list[str]:
            return [prefix]

    async def found() -> list[object]:
        store = ThreadedStore(cast("LockStore", Lists()))
        async with asyncio.timeout(PATIENCE_S):
            return [record async for record in store.scan("k", timeout_s=3)]

    assert asyncio.run(found()) == ["k"]


def test_without_a_thread_for_it_a_wait_is_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that would wait in the server is made after its wait; who waits next, has a thread again."""
    monkeypatch.setattr(store_in_threads, "WAIT_THREADS", 1)
    entered, over, asked = threading.Event(), threading.Event(), list[str]()

    class Waits(_Recorder):
        """Whose first wait takes long."""

        def wait(self, record: str, *, ticket: str, timeout_s: float) -> None:
            asked.append(f"wait for {record} as {ticket}")
            if record == "first":
                entered.set()
                over.wait(PATIENCE_S)

    async def use() -> None:
        store: Any = ThreadedStore(Waits())
        first = asyncio.ensure_future(store.wait("first", ticket="t", timeout_s=PATIENCE_S))
        await asyncio.to_thread(entered.wait)
        pauses = list[float]()

        async def pause(seconds: float) -> None:
            pauses.append(seconds)

        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "sleep", pause)
            await store.wait("second", ticket="t", timeout_s=7)
            assert (await store.claim_when_free("request", wait_s=8, timeout_s=9)) == (
                "claim",
                ("request",),
                {"timeout_s": 9},
            )
        assert (pauses, asked) == ([7, 8], ["wait for first as t"])
        over.set()
        await first
        for third in range(2):
            await store.wait(f"third {third}", ticket="t", timeout_s=PATIENCE_S)
        assert asked[1:] == ["wait for third 0 as t", "wait for third 1 as t"]
        await store.close()

    asyncio.run(use())


def test_a_call_that_gets_no_thread_is_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that was said not to be sent was applied by the next thread: the key was held by nobody, without a lease for ever."""
    monkeypatch.setattr(store_in_threads, "WAIT_THREADS", 1)
    entered, over, asked = threading.Event(), threading.Event(), list[str]()

    class Claims(_Recorder):
        """Whose first claim takes long."""

        def claim(self, request: Any, *, timeout_s: float) -> Any:
            asked.append(request)
            if request == "first":
                entered.set()
                over.wait(timeout_s)

        def wait(self, record: Any, *, ticket: str, timeout_s: float) -> None:
            asked.append(f"wait for {record}")

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def use() -> None:
        store: Any = ThreadedStore(Claims())
        first = asyncio.ensure_future(store.claim("first", timeout_s=PATIENCE_S))
        await asyncio.to_thread(entered.wait)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(
                StoreUnavailableError, match="no more threads: can't start new thread; nothing was sent"
            ):
                await store.claim("second", timeout_s=PATIENCE_S)
            with pytest.raises(StoreUnavailableError, match="no more threads"):
                await store.wait("second", ticket="t", timeout_s=PATIENCE_S)
        over.set()
        await first
        await store.claim("third", timeout_s=PATIENCE_S)
        await store.wait("third", ticket="t", timeout_s=PATIENCE_S)
        await store.close()

    asyncio.run(use())
    assert asked == ["first", "third", "wait for third"]


@pytest.mark.parametrize(("queued_s", "left_s"), [(0.4, 10), (0.6, 9.4), (9.5, 0.5), (10, None), (11, None)])
def test_time_in_the_queue_is_taken_off_the_time_of_the_call(
    monkeypatch: pytest.MonkeyPatch, queued_s: float, left_s: float | None
) -> None:
    """What hardly waited has all of its time; what waited for longer than it has is not sent."""
    now = iter((100.0, 100.0 + queued_s))
    monkeypatch.setattr(store_in_threads, "time", SimpleNamespace(monotonic=lambda: next(now)))
    sent = list[float]()
    job = store_in_threads._Job(lambda *, timeout_s: sent.append(round(timeout_s, 3)), 10)
    if left_s is None:
        with pytest.raises(StoreUnavailableError, match="given up before it was sent"):
            job()
    else:
        job()

    assert sent == ([] if left_s is None else [left_s])
    assert job.abandon() is (left_s is None)
