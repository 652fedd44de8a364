"""A pool of psycopg_pool whose functions, which say where to connect and with which password, fail, hang, or have to be awaited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg_pool
import pytest

from dlock_core.errors import ConfigurationError, StoreUnavailableError
from dlock_postgres import AsyncPostgresStore, PostgresStore
from tests.postgres.conftest import TABLE
from tests.postgres.support import TIMEOUT_S, any_claim

SECRET = "in-no-message"


@pytest.fixture
def pool_of() -> Iterator[Callable[[Callable[[], str]], Any]]:
    """Make pools, which connect to nothing by themselves."""
    made: list[Any] = []

    def make(conninfo: Callable[[], str]) -> Any:
        made.append(psycopg_pool.ConnectionPool(conninfo, open=False))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


@pytest.mark.usefixtures("url")
def test_a_function_that_fails_is_told_and_asked_again(
    server_url: str, pool_of: Callable[[Callable[[], str]], Any], key: str
) -> None:
    """As a server that cannot be reached, without what the error says; with its answer all goes on."""
    answers: list[str | Exception] = [RuntimeError(SECRET), f"password {SECRET}", server_url]

    def conninfo() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with closing(PostgresStore(pool_of(conninfo), table=TABLE)) as store:
        for kind in ("RuntimeError", "ProgrammingError"):
            with pytest.raises(StoreUnavailableError, match=f"conninfo or kwargs cannot be used .{kind}.$"):
                store.claim(any_claim(key), timeout_s=TIMEOUT_S)
        assert store.claim(any_claim(key), timeout_s=TIMEOUT_S).applied


@pytest.mark.usefixtures("url")
def test_a_function_that_hangs_holds_up_no_verb(
    server_url: str, pool_of: Callable[[Callable[[], str]], Any], key: str
) -> None:
    """The verb ends in its time, and does not ask it again for the sake of a message."""
    calls, answered = [], threading.Event()

    def conninfo() -> str:
        calls.append(1)
        answered.wait(TIMEOUT_S)
        return server_url

    with closing(PostgresStore(pool_of(conninfo), table=TABLE)) as store:
        with pytest.raises(StoreUnavailableError, match="which are functions, did not answer in time"):
            store.claim(any_claim(key), timeout_s=0.2)
        assert len(calls) == 1
        answered.set()
        assert store.claim(any_claim(key), timeout_s=TIMEOUT_S).applied


@pytest.mark.parametrize("place", ["conninfo", "kwargs"])
def test_a_function_that_has_to_be_awaited_is_refused(place: str) -> None:
    """When the store is made: it connects on threads."""

    async def said() -> Any:
        raise AssertionError("it is never called")

    async def make() -> None:
        pool = psycopg_pool.AsyncConnectionPool(open=False)
        setattr(pool, place, said)
        with pytest.raises(ConfigurationError, match="give it a pool whose functions are plain ones"):
            AsyncPostgresStore(pool)

    asyncio.run(make())
