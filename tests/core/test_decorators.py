"""Functions that run under a lock, or once per slot: the decorators of both clients."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from functools import partial, wraps
from typing import Any

import pytest

from dlock_core import AsyncLockClient, ConfigurationError, LockClient
from dlock_core.memory import AsyncMemoryStore, MemorySpace, MemoryStore
from tests.core.aio_support import forever


def test_decorated_functions_of_the_blocking_client() -> None:
    """``once`` returns None where the slot is not due, and keeps bytes as the result; ``locked`` holds the lock during each call."""
    slot, calls = [1], []
    with LockClient(MemoryStore(MemorySpace())) as client:

        @client.once("k", slot=lambda: slot[0])
        def job(word: str) -> bytes:
            calls.append(word)
            return word.encode()

        @client.locked("m", data=b"why")
        def guarded() -> bool:
            record = client.get("m")
            return client.holds("m") and record is not None and record.data == b"why"

        assert (job("a"), job("b"), guarded(), guarded()) == (b"a", None, True, True)
        slot[0] = 2
        assert job("c") == b"c"

        assert job.__name__ == "job"
        assert calls == ["a", "c"]
        assert not client.holds("m")
        record = client.get("k")
        assert record is not None
        assert record.data == b"c"


def test_decorated_functions_of_the_asyncio_client() -> None:
    """As their twins."""
    slot, calls = [1], []

    async def scenario() -> None:
        async with AsyncLockClient(MemoryStore(MemorySpace())) as client:

            @client.once("k", slot=lambda: slot[0])
            async def job(word: str) -> bytes:
                calls.append(word)
                return word.encode()

            @client.locked("m", data=b"why")
            async def guarded() -> bool:
                record = await client.get("m")
                return client.holds("m") and record is not None and record.data == b"why"

            assert (await job("a"), await job("b"), await guarded(), await guarded()) == (b"a", None, True, True)
            slot[0] = 2
            assert await job("c") == b"c"

            assert job.__name__ == "job"
            assert not client.holds("m")
            record = await client.get("k")
            assert record is not None
            assert record.data == b"c"

    asyncio.run(scenario())
    assert calls == ["a", "c"]


def test_function_of_the_other_colour_is_refused() -> None:
    """When it is decorated, not at the first call."""
    client: Any = LockClient(MemoryStore(MemorySpace()))
    aclient: Any = AsyncLockClient(MemoryStore(MemorySpace()))

    for decorate in (client.locked("m"), client.once("k", slot=1), client.election("e").run):
        with pytest.raises(ConfigurationError, match="is a coroutine function"):
            decorate(forever)
    for decorate in (aclient.locked("m"), aclient.once("k", slot=1)):
        with pytest.raises(ConfigurationError, match="is not a coroutine function"):
            decorate(print)
    client.close()


def test_generator_function_is_refused() -> None:
    """Its call returns before its body begins, so the lock would be free, or the slot done, while the body runs."""
    client: Any = LockClient(MemoryStore(MemorySpace()))
    aclient: Any = AsyncLockClient(MemoryStore(MemorySpace()))

    def rows() -> Iterator[int]:
        yield 1

    async def arows() -> AsyncIterator[int]:
        yield 1

    for decorate in (client.locked("m"), client.once("k", slot=1), client.election("e").run):
        with pytest.raises(ConfigurationError, match=r"rows.* is a generator function"):
            decorate(rows)
    for decorate in (aclient.locked("m"), aclient.once("k", slot=1)):
        with pytest.raises(ConfigurationError, match=r"arows.* is a generator function"):
            decorate(arows)
    client.close()


def test_object_with_a_call_is_judged_by_that() -> None:
    """A coroutine would be made inside of the lock, and run after it."""
    aclient: Any = AsyncLockClient(MemoryStore(MemorySpace()))

    nothing: Any = None

    class Job:
        async def __call__(self) -> None:
            pass

    with LockClient(MemoryStore(MemorySpace())) as client:
        with pytest.raises(
            ConfigurationError, match="is a coroutine function; it is for the asyncio client, of aconnect"
        ):
            client.locked("k")(Job())
        with pytest.raises(ConfigurationError, match="None is no function"):
            client.locked("k")(nothing)
        assert client.locked("k")(partial(max, 1))(2) == 2
    assert inspect.iscoroutinefunction(aclient.locked("k")(Job()))


def test_coroutine_that_a_wrapper_makes_is_refused() -> None:
    """Its body would run without the lock, and the slot of a job would be done before it began."""

    @wraps(forever)
    def wrapped(*_: object) -> object:
        return forever()

    with LockClient(MemoryStore(MemorySpace())) as client:
        for call in (
            client.locked("m")(wrapped),
            client.once("k", slot=1)(wrapped),
            lambda: client.election("e").run(wrapped),
        ):
            with pytest.raises(ConfigurationError, match=r"forever.* returned a coroutine"):
                call()
        assert [record for record in client.scan() if record.held] == []
        with client.once("k", slot=1) as job:
            assert job.due


def test_class_is_refused() -> None:
    """The lock would be held while an object is made, and free while its methods run."""
    client: Any = LockClient(MemoryStore(MemorySpace()))
    aclient: Any = AsyncLockClient(MemoryStore(MemorySpace()))

    class Report:
        def run(self) -> None: ...

    for decorate in (client.locked("m"), client.once("k", slot=1), client.election("e").run, aclient.locked("m")):
        with pytest.raises(ConfigurationError, match=r"Report'> is a class, .* give a function or a method"):
            decorate(Report)
    client.close()


@pytest.mark.parametrize("kind", [classmethod, staticmethod])
def test_decorator_above_that_of_a_class_method_is_refused(kind: Any) -> None:
    """What it is given there is not what is called."""
    with LockClient(MemoryStore(MemorySpace())) as client:
        for decorate in (client.locked("m"), client.once("k", slot=1)):
            with pytest.raises(ConfigurationError, match=f"write @{kind.__name__} above the decorator of the lock"):
                decorate(kind(print))


def test_wrong_options_are_refused_before_the_first_call() -> None:
    """When the function is decorated."""
    with LockClient(MemoryStore(MemorySpace())) as client:
        for each in (client, AsyncLockClient(AsyncMemoryStore(MemorySpace()))):
            with pytest.raises(ConfigurationError, match="timeout"):
                each.locked("m", timeout=-1)
            with pytest.raises(ConfigurationError, match="a key must be a str of one character or more, not ''"):
                each.locked("")


def test_key_that_looks_like_a_form_is_refused() -> None:
    """Every call would lock the same text. Braces that name no argument are a key like any other."""

    def pay(customer: str) -> str:
        return customer

    async def apay(customer: str) -> str:
        return customer

    aclient: Any = AsyncLockClient(AsyncMemoryStore(MemorySpace()))
    with LockClient(MemoryStore(MemorySpace())) as client:
        for decorate, function in (
            (client.locked("cust/{customer}"), pay),
            (client.once("cust/{customer}", slot=1), pay),
            (aclient.locked("cust/{customer}"), apay),
            (aclient.once("cust/{customer}", slot=1), apay),
        ):
            with pytest.raises(ConfigurationError, match=r"the argument 'customer' is not put into it"):
                decorate(function)

        assert client.locked("{tag}/k")(pay)("a customer") == "a customer"
