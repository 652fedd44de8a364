"""The Redis store in both colours. :mod:`dlock_redis._wire` has the verbs, :mod:`dlock_redis._connections` the way to the servers."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dlock_core.errors import StoreError, StoreUnavailableError
from dlock_core.kit import AsyncExchangeStore, Batches, Call, ClaimsMany, ExchangeStore, Prunes, ReadsAge
from dlock_core.store import Capability
from dlock_redis._aconnections import AsyncConnections
from dlock_redis._connections import Connections
from dlock_redis._errors import TROUBLE
from dlock_redis._wire import RedisVerbs, can_wait_in_server

if TYPE_CHECKING:
    import redis
    import redis.asyncio

    from dlock_core.kit import Exchange
    from dlock_core.record import LockRecord
    from dlock_core.store import Claim, Reply

__all__ = ["AsyncRedisStore", "RedisStore"]

_CAPABILITIES = frozenset(
    {
        Capability.ATOMIC_MULTI,
        Capability.BATCH_RENEW,
        Capability.CLAIM_WAIT,
        Capability.NOTIFY,
        Capability.PRUNE,
        Capability.SERVER_CLOCK,
    }
)
_BATCH_MAX = 500
# Other programs' locks, those of redis-py among them, are Redis keys with the plain name of the lock.
DEFAULT_PREFIX = "dlock:"
_LEAVE_S = 0.25
_log = logging.getLogger("dlock.redis")
# A waiter stands in the queue for a little less than it waits, lest it is woken when it has just left.
_AWAY_S = 0.02


def _entering(store: Any, key: str, place: bytes, deadline: float) -> tuple[Exchange[bool], Call]:
    """Return the exchange of a waiter that enters the queue, and its call."""
    left_s = max(deadline - time.monotonic(), 0.001)
    return store._verbs.is_free(key, place, left_s - min(_AWAY_S, left_s / 4)), Call("read", key, left_s)


class RedisStore(Batches, ClaimsMany, ReadsAge, Prunes, ExchangeStore):
    """Locks on a Redis or Valkey server, for threads.

    *client* is a ``redis.Redis`` or ``redis.RedisCluster``. Only its address and credentials are used: the store has connections of its
    own, on which nothing is sent twice, time-outs are those of each call, and answers are not decoded. The client is never closed.
    """

    capabilities = _CAPABILITIES
    batch_limit = _BATCH_MAX
    default_prefix = DEFAULT_PREFIX
    _verbs: RedisVerbs
    _link: Connections

    def __init__(self, client: redis.Redis | redis.RedisCluster) -> None:
        verbs = RedisVerbs()
        link = Connections(client, verbs.channel)
        verbs.topology = link.servers.topology
        super().__init__(verbs, link)

    def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """Return when the key is this waiter's to claim, or after *timeout_s*; waiters are woken in the order in which they came."""
        key, place = record.key, self._verbs.place(ticket)
        call = Call("read", key, timeout_s)
        deadline = self._begin(call)
        try:
            self._link.watch(key).wait(
                place.decode(), timeout_s, lambda: self._run(*_entering(self, key, place, deadline))
            )
        except (StoreError, *TROUBLE) as error:
            if time.monotonic() < deadline:
                self._raise(error, call)
        except BaseException:
            self._leave(key, place)
            raise

    def claim_when_free(self, request: Claim, *, wait_s: float, timeout_s: float) -> Reply:
        """Claim the key when it is free, within *wait_s*; where no connection is left for that, wait as the others do, and then claim."""
        record, verbs = request.record, self._verbs
        call = Call("claim", record.key, wait_s + timeout_s)
        try:
            if can_wait_in_server(record.key):
                return self._run(verbs.claim_when_free(request, wait_s), call)
        except StoreUnavailableError as error:
            _log.debug("no claim waits in the server for key %r: %s", record.key, error)
        except StoreError:
            raise
        except BaseException:
            self._leave(record.key, verbs.waiting_place(request))
            raise
        self.wait(record, ticket=request.ticket or record.rvn, timeout_s=wait_s)
        return self.claim(request, timeout_s=timeout_s)

    def _leave(self, key: str, place: bytes) -> None:
        with suppress(StoreError):  # its turn then lapses by itself
            self._run(self._verbs.leave(key, place), Call("release", key, _LEAVE_S))


class AsyncRedisStore(Batches, ClaimsMany, ReadsAge, Prunes, AsyncExchangeStore):
    """Locks on a Redis or Valkey server, for tasks of one event loop; *client* is the one of ``redis.asyncio``. As :class:`RedisStore`."""

    capabilities = _CAPABILITIES
    batch_limit = _BATCH_MAX
    default_prefix = DEFAULT_PREFIX
    _verbs: RedisVerbs
    _link: AsyncConnections

    def __init__(self, client: redis.asyncio.Redis | redis.asyncio.RedisCluster) -> None:
        verbs = RedisVerbs()
        link = AsyncConnections(client, verbs.channel)
        verbs.topology = link.servers.topology
        super().__init__(verbs, link)

    async def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """As :meth:`RedisStore.wait`; a cancelled waiter leaves the queue, and its turn passes to the next."""
        key, place = record.key, self._verbs.place(ticket)
        call = Call("read", key, timeout_s)
        deadline = self._begin(call)
        try:
            watch = await self._link.watch(key)
            await watch.wait(place.decode(), timeout_s, lambda: self._run(*_entering(self, key, place, deadline)))
        except (StoreError, *TROUBLE) as error:
            if time.monotonic() < deadline:
                self._raise(error, call)
        except BaseException:
            await self._leave(key, place)
            raise

    async def claim_when_free(self, request: Claim, *, wait_s: float, timeout_s: float) -> Reply:
        """As :meth:`RedisStore.claim_when_free`."""
        record, verbs = request.record, self._verbs
        call = Call("claim", record.key, wait_s + timeout_s)
        try:
            if can_wait_in_server(record.key):
                return await self._run(verbs.claim_when_free(request, wait_s), call)
        except StoreUnavailableError as error:
            _log.debug("no claim waits in the server for key %r: %s", record.key, error)
        except StoreError:
            raise
        except BaseException:
            await self._leave(record.key, verbs.waiting_place(request))
            raise
        await self.wait(record, ticket=request.ticket or record.rvn, timeout_s=wait_s)
        return await self.claim(request, timeout_s=timeout_s)

    async def _leave(self, key: str, place: bytes) -> None:
        with suppress(StoreError):  # its turn then lapses by itself
            await self._run(self._verbs.leave(key, place), Call("release", key, _LEAVE_S))
