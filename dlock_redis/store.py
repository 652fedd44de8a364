"""The Redis store, both colours side by side. What is asked and answered is in :mod:`dlock_redis._wire`."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio

from dlock_core.errors import StoreError, StoreSetupError
from dlock_core.store import Capability
from dlock_redis import _errors as errors
from dlock_redis import _wire as wire
from dlock_redis._connections import AsyncConnections, Connections
from dlock_redis._scripts import CLAIM, PUT, READ, READ_AGE
from dlock_redis._servers import Servers, Turns
from dlock_redis.provision import CONFIG, INFO, guarantees_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from dlock_core.record import LockRecord
    from dlock_core.store import Claim, Guarantees, Release, Replace, Reply
    from dlock_redis._scripts import Script

__all__ = ["AsyncRedisStore", "RedisStore"]

_CAPABILITIES = frozenset({Capability.BATCH_RENEW, Capability.NOTIFY, Capability.SERVER_CLOCK})
_BATCH_MAX = 500
_log = logging.getLogger("dlock.redis")
_QUESTION_S = 5.0


class RedisStore:
    """Locks on a Redis or Valkey server, for threads.

    *client* is a ``redis.Redis`` or ``redis.RedisCluster``. Only its address and credentials are used: the store has connections of its
    own, on which nothing is sent twice, time-outs are those of each call, and answers are not decoded. The client is never closed.
    """

    capabilities = _CAPABILITIES
    batch_limit = _BATCH_MAX

    def __init__(self, client: redis.Redis | redis.RedisCluster) -> None:
        self._servers = Servers(client, redis, Connections)

    def claim(self, request: Claim, *, timeout_s: float) -> Reply:
        """Create the record if nobody holds the key."""
        return wire.reply_of(request, self._run(CLAIM, request.record.key, wire.claim_words(request), timeout_s))

    def replace(self, request: Replace, *, timeout_s: float) -> Reply:
        """Replace the held record if its version is the expected one."""
        return wire.reply_of(request, self._run(PUT, request.record.key, wire.put_words(request), timeout_s))

    def release(self, request: Release, *, timeout_s: float) -> Reply:
        """Put the tombstone if the record is held in the expected version; the first waiter is woken, and the key kept for it."""
        return wire.reply_of(request, self._run(PUT, request.record.key, wire.put_words(request), timeout_s))

    def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """Return the record under *key*."""
        return wire.record_of(key, self._run(READ, key, (), timeout_s))

    def read_age(self, key: str, *, timeout_s: float) -> tuple[LockRecord, int] | None:
        """Return the record under *key* and the ms since its last write, by the server's clock."""
        return wire.aged_of(key, self._run(READ_AGE, key, (), timeout_s))

    def replace_many(self, requests: Sequence[Replace], *, timeout_s: float) -> Sequence[Reply | StoreError]:
        """Do each replace: one request for all on one server, one for each slot on a Cluster."""
        batch = wire.Batch(requests, by_slot=self._servers.one is None)
        turns: Turns | None = None
        for part in batch.parts:
            key = part.keys[0]
            with batch.failing(part):
                server = self._at(key)
                turns = turns or Turns(self._servers, timeout_s)
                with turns.turn(server, key) as time_s:
                    batch.answer(part, self._run(part.script, key, part.words, time_s, part.keys))
        return batch.results

    def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """Return when the key is this waiter's to claim, or after *timeout_s*; waiters are woken in the order in which they came."""
        self._at(record.key).wait(record.key, wire.place_of(record.key, ticket), timeout_s)

    def scan(self, prefix: str, *, timeout_s: float) -> Iterator[LockRecord]:
        """Yield the records whose key starts with *prefix*, in no order; at the end, raise RecordError if there were other values, too."""
        pages = wire.Pages(prefix)
        for server in self._everywhere():
            pages.more = True
            while pages.more:
                names = pages.names(errors.check(server.ask((pages.command,), timeout_s=timeout_s), None)[0])
                yield from pages.records(names, server.ask(pages.fields(names), timeout_s=timeout_s))
        pages.end()

    def guarantees(self) -> Guarantees:
        """Ask the server what it is: INFO, and CONFIG GET where that is allowed."""
        server = self._everywhere()[0]
        info = errors.check(server.ask((INFO,), timeout_s=_QUESTION_S), None)[0]
        try:
            config = errors.check(server.ask((CONFIG,), timeout_s=_QUESTION_S), None)[0]
        except StoreSetupError:
            config = None
        return guarantees_of(info, config, self._servers.unsafe)

    def provision(self) -> None:
        """Create nothing, since nothing is needed, but see that the server is there and new enough."""
        self.guarantees()

    def close(self) -> None:
        """Close the store's own connections."""
        for server in self._servers.close():
            server.close()

    def _run(self, script: Script, key: str, words: Sequence[bytes], timeout_s: float, keys: Sequence[str] = ()) -> Any:
        try:
            return self._at(key).run(
                script, [name.encode() for name in keys or (key,)], words, key=key, timeout_s=timeout_s
            )
        except StoreError as error:
            if self._servers.doubt(error):
                self._ask_anew()
            raise

    def _ask_anew(self) -> None:
        def ask() -> None:
            try:
                self._servers.ask_anew()
            except errors.TROUBLE as error:
                _log.debug("asking the Cluster for its slots failed: %s", error)
            finally:
                self._servers.asked()

        try:
            threading.Thread(target=ask, name="dlock-redis-slots", daemon=True).start()
        except RuntimeError:
            self._servers.asked()  # the interpreter is shutting down, and starts no thread any more

    def _at(self, key: str) -> Connections:
        servers = self._servers
        if servers.one is not None:
            return servers.one  # type: ignore[no-any-return]
        with errors.unsent(key):
            servers.learn()
            return servers.at(key)  # type: ignore[no-any-return]

    def _everywhere(self) -> list[Connections]:
        with errors.unsent(None):
            self._servers.learn()
            return self._servers.all()


class AsyncRedisStore:
    """Locks on a Redis or Valkey server, for tasks of one event loop; *client* is the one of ``redis.asyncio``. As :class:`RedisStore`."""

    capabilities = _CAPABILITIES
    batch_limit = _BATCH_MAX

    def __init__(self, client: redis.asyncio.Redis | redis.asyncio.RedisCluster) -> None:
        self._servers = Servers(client, redis.asyncio, AsyncConnections)
        self._asking: asyncio.Task[None] | None = None

    async def claim(self, request: Claim, *, timeout_s: float) -> Reply:
        """As :meth:`RedisStore.claim`."""
        return wire.reply_of(request, await self._run(CLAIM, request.record.key, wire.claim_words(request), timeout_s))

    async def replace(self, request: Replace, *, timeout_s: float) -> Reply:
        """As :meth:`RedisStore.replace`."""
        return wire.reply_of(request, await self._run(PUT, request.record.key, wire.put_words(request), timeout_s))

    async def release(self, request: Release, *, timeout_s: float) -> Reply:
        """As :meth:`RedisStore.release`."""
        return wire.reply_of(request, await self._run(PUT, request.record.key, wire.put_words(request), timeout_s))

    async def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """As :meth:`RedisStore.read`."""
        return wire.record_of(key, await self._run(READ, key, (), timeout_s))

    async def read_age(self, key: str, *, timeout_s: float) -> tuple[LockRecord, int] | None:
        """As :meth:`RedisStore.read_age`."""
        return wire.aged_of(key, await self._run(READ_AGE, key, (), timeout_s))

    async def replace_many(self, requests: Sequence[Replace], *, timeout_s: float) -> Sequence[Reply | StoreError]:
        """As :meth:`RedisStore.replace_many`."""
        batch = wire.Batch(requests, by_slot=self._servers.one is None)
        turns: Turns | None = None
        for part in batch.parts:
            key = part.keys[0]
            with batch.failing(part):
                server = await self._at(key)
                turns = turns or Turns(self._servers, timeout_s)
                with turns.turn(server, key) as time_s:
                    batch.answer(part, await self._run(part.script, key, part.words, time_s, part.keys))
        return batch.results

    async def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """As :meth:`RedisStore.wait`; a cancelled waiter leaves the queue, and its turn passes to the next."""
        await (await self._at(record.key)).wait(record.key, wire.place_of(record.key, ticket), timeout_s)

    async def scan(self, prefix: str, *, timeout_s: float) -> AsyncIterator[LockRecord]:
        """As :meth:`RedisStore.scan`."""
        pages = wire.Pages(prefix)
        for server in await self._everywhere():
            pages.more = True
            while pages.more:
                names = pages.names(errors.check(await server.ask((pages.command,), timeout_s=timeout_s), None)[0])
                for record in pages.records(names, await server.ask(pages.fields(names), timeout_s=timeout_s)):
                    yield record
        pages.end()

    async def guarantees(self) -> Guarantees:
        """As :meth:`RedisStore.guarantees`."""
        server = (await self._everywhere())[0]
        info = errors.check(await server.ask((INFO,), timeout_s=_QUESTION_S), None)[0]
        try:
            config = errors.check(await server.ask((CONFIG,), timeout_s=_QUESTION_S), None)[0]
        except StoreSetupError:
            config = None
        return guarantees_of(info, config, self._servers.unsafe)

    async def provision(self) -> None:
        """As :meth:`RedisStore.provision`."""
        await self.guarantees()

    async def close(self) -> None:
        """As :meth:`RedisStore.close`."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        for server in self._servers.close():
            await server.close()

    async def _run(
        self, script: Script, key: str, words: Sequence[bytes], timeout_s: float, keys: Sequence[str] = ()
    ) -> Any:
        try:
            server = self._servers.one or await self._at(key)
            return await server.run(
                script, [name.encode() for name in keys or (key,)], words, key=key, timeout_s=timeout_s
            )
        except StoreError as error:
            if self._servers.doubt(error):
                self._asking = asyncio.create_task(self._ask_anew())
            raise

    async def _ask_anew(self) -> None:
        try:
            await self._servers.ask_anew()
        except errors.TROUBLE as error:
            _log.debug("asking the Cluster for its slots failed: %s", error)
        finally:
            self._servers.asked()

    async def _at(self, key: str) -> AsyncConnections:
        servers = self._servers
        if servers.one is not None:
            return servers.one  # type: ignore[no-any-return]
        with errors.unsent(key):
            await servers.learn()
            return servers.at(key)  # type: ignore[no-any-return]

    async def _everywhere(self) -> list[AsyncConnections]:
        with errors.unsent(None):
            if self._servers.one is None:
                await self._servers.learn()
            return self._servers.all()
