"""What the caller of a lock does in MongoDB at the same time is no part of the lock, nor the lock a part of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pymongo
import pytest
from pymongo.client_session import ClientSession

from dlock_core.store import Release
from tests.mongodb.support import TIMEOUT_S, Opener, any_claim, freed


def _within(opener: Opener, way: str, client: Any, call: Callable[[Any], Any], store: Any) -> Any:
    """Return what *call* returns, in code of the user's that has bound a session of *client*, or set a time-out."""
    if way == "time-out":
        with pymongo.timeout(0.001):
            return opener.loop.run(call(store)) if opener.loop is not None else call(store)

    async def bound() -> Any:
        async with client.start_session() as session, session.bind():
            if way == "transaction":
                await session.start_transaction()
            return await call(store)

    if opener.loop is not None:
        return opener.loop.run(bound())
    with client.start_session() as session, session.bind():
        if way == "transaction":
            session.start_transaction()
        return call(store)


@pytest.mark.parametrize("way", ["session of another client", "transaction", "time-out"])
def test_a_step_is_no_part_of_what_its_caller_does_in_mongodb(opener: Opener, key: str, way: str) -> None:
    """A session that the caller has bound, its transaction, which then is aborted, and the time-out of the caller's own requests."""
    if way != "time-out" and not hasattr(ClientSession, "bind"):
        pytest.skip("this pymongo binds no session")
    store = opener.store()
    link: Any = store.raw._link
    client = link.client if way == "transaction" else opener.client()
    request = any_claim(key)

    reply = _within(opener, way, client, lambda raw: raw.claim(request, timeout_s=TIMEOUT_S), store.raw)
    assert reply.applied
    assert store.read(key) == reply.record
    release = Release(freed(reply.record), reply.record.version)
    assert _within(opener, way, client, lambda raw: raw.release(release, timeout_s=TIMEOUT_S), store.raw).applied
    assert not store.read(key).held
