"""Where the servers are: what a brought client says of them, with our own settings for whatever could weaken the protocol.

A connection has the driver's settings for the address and the credentials, and ours for what could send a request twice, outlast its time
or change an answer. So a client of any settings is as good as any other.
"""

from __future__ import annotations

import inspect
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.asyncio.sentinel import SentinelConnectionPool as AsyncSentinelPool
from redis.exceptions import ResponseError
from redis.sentinel import SentinelConnectionPool

from dlock_core.errors import ConfigurationError, StoreError, StoreUnavailableError
from dlock_redis._errors import is_misplaced

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Settings of a driver's connection that are not taken over, and those that are ours.
_NOT_THEIRS = {"retry", "health_check_interval", "decode_responses", "driver_info", "lib_name", "lib_version", "event_dispatcher"} | {
    "himport_registry", "maint_notifications_config", "maint_notifications_pool_handler", "oss_cluster_maint_notifications_handler",
    "orig_host_address", "orig_socket_timeout", "orig_socket_connect_timeout",
}  # fmt: skip
_OURS = {"retry_on_timeout": False, "retry_on_error": [], "driver_info": None, "lib_name": None, "lib_version": None}


def closed_error(key: str | None) -> StoreUnavailableError:
    """Return the error of every request after ``close``."""
    return StoreUnavailableError("the Redis store was closed; open a new one", key=key)


class Source(NamedTuple):
    """One server: what makes a connection to it."""

    connection_class: Any
    settings: Mapping[str, Any]

    def connection(self, timeout_s: float) -> Any:
        """Return a new connection, not yet connected."""
        return self.connection_class(
            **{**self.settings, "socket_connect_timeout": timeout_s, "socket_timeout": timeout_s}
        )


def source_of(connection_class: Any, settings: Mapping[str, Any]) -> Source:
    """Return the server that *settings* of a driver's pool lead to, with our own settings where they must be."""
    names = {name for base in connection_class.__mro__ for name in inspect.signature(base.__init__).parameters}
    # Versions of the driver differ in how they are told not to introduce themselves, which costs two requests.
    ours = {
        name: _OURS[name]
        for name in _OURS
        if name in names and not (name.startswith("lib_") and "driver_info" in names)
    }
    return Source(
        connection_class, {**{name: value for name, value in settings.items() if name not in _NOT_THEIRS}, **ours}
    )


class Servers:
    """The servers that a brought *client* is made for, and which of them has which key. *unsafe* names what is not one server."""

    def __init__(self, client: Any, colour: Any, kept: Any) -> None:
        pool = getattr(client, "connection_pool", None)
        self._client, self._kept = client, kept
        self._nodes: dict[str, Any] = {}
        self.one: Any = None
        self._asking = self._closed = False
        self.unsafe = "redis-sentinel" if isinstance(pool, (SentinelConnectionPool, AsyncSentinelPool)) else ""
        if isinstance(client, colour.RedisCluster):
            self.unsafe = "redis-cluster"
        elif isinstance(client, colour.Redis) and pool is not None:
            self.one = kept(source_of(pool.connection_class, pool.connection_kwargs))
        else:
            given, wanted = type(client), f"{colour.__name__}.Redis or {colour.__name__}.RedisCluster"
            raise ConfigurationError(f"this store needs a {wanted}; {given.__module__}.{given.__qualname__} is none")

    def learn(self) -> Any:
        """Have the Cluster client ask which node has which slot, the first time; asyncio awaits what is returned."""
        initialize = getattr(self._client, "initialize", None)
        return initialize() if initialize is not None else None

    def doubt(self, error: StoreError) -> bool:
        """Whether a Cluster is to be asked anew which node has which slot: one has failed, or sent us on. Never twice at a time.

        The requests do not wait for that: it takes the driver's time-outs, and of locks on other nodes it is no concern.
        """
        answer = error.__cause__
        told = isinstance(answer, ResponseError) and not is_misplaced(answer)
        wanted = self.one is None and not (told or self._closed or self._asking)
        self._asking |= wanted
        return wanted

    def ask_anew(self) -> Any:
        """Ask; asyncio awaits what is returned. Its trouble is told by the next request."""
        return self._client.nodes_manager.initialize()

    def asked(self) -> None:
        """End what :meth:`doubt` began."""
        self._asking = False

    def at(self, key: str) -> Any:
        """Return the connections to the Cluster node that has *key*."""
        return self._of(self._client.get_node_from_key(key.encode()))

    def all(self) -> list[Any]:
        """Return the connections to every primary."""
        return [self.one] if self.one else [self._of(node) for node in self._client.get_primaries()]

    def count(self) -> int:
        """Return how many primaries there are, as far as is known."""
        return 1 if self.one is not None else len(self._client.get_primaries())

    def close(self) -> list[Any]:
        """Refuse what comes after; return the connections that were asked for, to be closed."""
        self._closed = True
        return [self.one] if self.one else list(self._nodes.values())

    def _of(self, node: Any) -> Any:
        if self._closed:
            raise closed_error(None)
        if node.name not in self._nodes:
            made = (
                node if hasattr(node, "connection_class") else self._client.get_redis_connection(node).connection_pool
            )
            self._nodes[node.name] = self._kept(source_of(made.connection_class, made.connection_kwargs))
        return self._nodes[node.name]


class Turns:
    """The time of a batch, shared out: a server that is silent takes the time of no other, and is not asked again within it."""

    def __init__(self, servers: Servers, timeout_s: float) -> None:
        self._left = servers.count()
        self._deadline = time.monotonic() + timeout_s
        self._silent: set[Any] = set()

    @contextmanager
    def turn(self, server: Any, key: str) -> Iterator[float]:
        """Give the seconds that a request about *key* may take; what it raises tells whether *server* is silent."""
        left_s = (self._deadline - time.monotonic()) / max(self._left, 1)
        if server in self._silent or left_s <= 0:
            why = "its server gave no answer to the request before" if server in self._silent else "no time was left"
            raise StoreUnavailableError(f"the request for key {key!r} was not sent to Redis: {why}", key=key)
        try:
            yield left_s
        except StoreError as error:
            if not isinstance(error.__cause__, ResponseError):
                self._silent.add(server)
                self._left -= 1
            raise
