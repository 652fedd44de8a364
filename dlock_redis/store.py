"""The Redis store in both colours. :mod:`dlock_redis._wire` has the verbs, :mod:`dlock_redis._connections` the way to the servers."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dlock_core.errors import StoreError, StoreUnavailableError
from dlock_core.kit import AsyncExchangeStore, Batches, Call, ClaimsMany, ExchangeStore, Prunes, ReadsAge
from dlock_core.store import Capability, mark_withdrawn
from dlock_redis._aconnections import AsyncConnections
from dlock_redis._connections import Connections
from dlock_redis._errors import FAILURES
from dlock_redis._wire import RedisVerbs, can_wait_in_server

if TYPE_CHECKING:
    import redis
    import redis.asyncio

    from dlock_core.kit import Exchange
    from dlock_core.record import LockRecord
    from dlock_core.store import Claim, Reply

__all__ = ["AsyncRedisStore", "RedisStore"]

_BATCH_MAX = 500
# Other programs' locks, those of redis-py among them, are Redis keys with the plain name of the lock.
DEFAULT_PREFIX = "dlock:"
_LEAVE_S = 0.25
_log = logging.getLogger("dlock.redis")
# A waiter stands in the queue for a little less than it waits, lest it is woken when it has just left.
_AWAY_S = 0.02
# What a request has at least.
_LEAST_S = 0.001


class _Store(Batches, ClaimsMany, ReadsAge, Prunes):
    """What both stores share; what their methods return is awaited with asyncio."""

    capabilities = frozenset(Capability)
    batch_limit = _BATCH_MAX
    default_prefix = DEFAULT_PREFIX
    _connections: Any

    def __init__(self, client: Any) -> None:
        verbs = RedisVerbs()
        link = self._connections(client, verbs.channel)
        verbs.topology = link.topology
        super().__init__(verbs, link)  # type: ignore[call-arg]  # the face that is mixed in

    def wait(self: Any, record: LockRecord, *, ticket: str, timeout_s: float) -> Any:
        """Return when the key is this waiter's to claim, or after *timeout_s*; waiters are woken in the order in which they came.

        A waiter that is interrupted leaves the queue, and its turn passes to the next.
        """
        return self._perform(self._waiting(record.key, self._verbs.place(ticket), timeout_s, record.rvn))

    def claim_when_free(self: Any, request: Claim, *, wait_s: float, timeout_s: float) -> Any:
        """Claim the key when it is free, within *wait_s*; where no connection is left for that, wait as the others do, and then claim."""
        return self._perform(self._claiming(request, wait_s, timeout_s))

    def _waiting(self: Any, key: str, place: bytes, timeout_s: float, seen: str | None = None) -> Exchange[None]:
        call = Call("read", key, timeout_s)
        deadline = self._begin(call)
        try:
            watch = yield self._link.watch(key)
            yield watch.wait(place.decode(), timeout_s, lambda: self._enter(key, place, deadline, seen))
        except FAILURES as error:
            if time.monotonic() < deadline:
                self._raise(error, call)
        except BaseException:
            yield from self._leaving(key, place)
            raise

    def _enter(self: Any, key: str, place: bytes, deadline: float, seen: str | None) -> Any:
        """Enter the queue for what is left of the time, but for a moment at its end."""
        left_s = max(deadline - time.monotonic(), _LEAST_S)
        entering = self._verbs.moved_on(key, place, left_s - min(_AWAY_S, left_s / 4), seen)
        return self._run(entering, Call("read", key, left_s))

    def _claiming(self: Any, request: Claim, wait_s: float, timeout_s: float) -> Exchange[Reply]:
        record, verbs = request.record, self._verbs
        key, heard, until = record.key, list[Any](), time.monotonic() + wait_s + timeout_s
        try:
            if can_wait_in_server(key):
                reply: Reply = yield self._run(
                    verbs.claim_when_free(request, wait_s, heard), Call("claim", key, wait_s + timeout_s)
                )
                return reply
        except StoreUnavailableError as error:
            if time.monotonic() >= until:
                raise
            _log.debug("no claim waits in the server for key %r: %s", key, error)
        except StoreError:
            raise
        except BaseException as interrupt:
            # With an answer it has taken its place, or found nothing to wait for: no copy of it comes to the queue behind this.
            if (yield from self._leaving(key, verbs.waiting_place(request))) and heard:
                mark_withdrawn(interrupt, request)
            raise
        left_s = until - timeout_s - time.monotonic()
        if left_s > 0:
            yield from self._waiting(key, verbs.place(request.ticket or record.rvn), left_s)
        reply = yield self.claim(request, timeout_s=min(timeout_s, max(until - time.monotonic(), _LEAST_S)))
        return reply

    def _leaving(self: Any, key: str, place: bytes) -> Exchange[bool]:
        with suppress(StoreError):  # its turn then lapses by itself
            was_known: bool = yield self._run(self._verbs.leave(key, place), Call("release", key, _LEAVE_S))
            return was_known
        return False


class RedisStore(_Store, ExchangeStore):
    """Locks on a Redis or Valkey server, for threads.

    *client* is a ``redis.Redis`` or ``redis.RedisCluster``. Only its address and credentials are used: the store has connections of its
    own, on which nothing is sent twice, time-outs are those of each call, and answers are not decoded. The client is never closed.
    """

    _connections = Connections

    def __init__(self, client: redis.Redis | redis.RedisCluster) -> None:
        super().__init__(client)


class AsyncRedisStore(_Store, AsyncExchangeStore):
    """Locks on a Redis or Valkey server, for tasks of one event loop; *client* is the one of ``redis.asyncio``. As :class:`RedisStore`."""

    _connections = AsyncConnections

    def __init__(self, client: redis.asyncio.Redis | redis.asyncio.RedisCluster) -> None:
        super().__init__(client)
