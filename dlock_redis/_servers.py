"""Where the servers are, as the brought client says, and how a connection to one is made.

A connection has redis-py's settings for the address and the credentials. Settings that could send a request twice, outlast its time-out or
change an answer are dlock's own, so the settings of the client that was brought do not matter.
"""

from __future__ import annotations

import copy
import inspect
import logging
import re
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.asyncio.sentinel import SentinelConnectionPool as AsyncSentinelPool
from redis.crc import key_slot
from redis.exceptions import ResponseError
from redis.sentinel import SentinelConnectionPool

from dlock_core.errors import ConfigurationError, StoreError, StoreUnavailableError
from dlock_core.kit import BeginsAnew, aperform, leave_behind, perform, watch_forks
from dlock_redis._errors import TROUBLE, is_misplaced, trouble, unsent
from dlock_redis._tls import SharedContext

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dlock_core.kit import Exchange

_DROPPED = {"retry", "health_check_interval", "decode_responses", "driver_info", "lib_name", "lib_version", "event_dispatcher"} | {
    "himport_registry", "maint_notifications_config", "maint_notifications_pool_handler", "oss_cluster_maint_notifications_handler",
    "orig_host_address", "orig_socket_timeout", "orig_socket_connect_timeout",
}  # fmt: skip
_OWN = {
    "protocol": 2,
    "retry_on_timeout": False,
    "retry_on_error": [],
    "driver_info": None,
    "lib_name": None,
    "lib_version": None,
}
# By which a connection is found that is gone without a word, such as the one that waiters share, which says nothing itself. redis-py has
# it by default since version 8 only.
_KEEPALIVE = {
    "socket_keepalive": True,
    "socket_keepalive_options": {
        getattr(socket, name): value
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    },
}
_log = logging.getLogger("dlock.redis")
_ADDRESS = re.compile(r"(?:MOVED|ASK) \d+ (.*):(\d+)$")


class Request(NamedTuple):
    """Commands that go to one server in one write."""

    commands: bytes = b""
    answers: int = 1
    key: str | None = None
    """The key that says which node of a Cluster it goes to, and that messages name."""
    node: Any = None
    """The node it goes to, where that is known already: one of those that :class:`Locate` is answered with, or a redirection."""
    urgent: bool = False
    """Whether it renews or releases: then it takes a connection that no claim and no read can have."""
    wait_s: float = 0
    """How long it waits in the server, if it does: then it takes one of the connections that only such requests have, or none."""
    share: int = 1
    """How many requests share the rest of the call's time-out, this one and those that follow it."""
    heard: list[Any] | None = None
    """Takes the answers as they come, for who is interrupted before they are whole."""

    @property
    def asks(self) -> bool:
        """Whether it is for a slot that is being moved, to the node that gets it."""
        return type(self.node) is str and self.node.startswith("ASK")


class Locate(NamedTuple):
    """Asks which node has which of *keys*, without a word to the server; without keys, for all primaries."""

    keys: tuple[str, ...] | None

    @property
    def is_local(self) -> bool:
        """True: it is no request of the cost."""
        return True


class Part(NamedTuple):
    """The keys of a batch that lie on one node in one slot, by their numbers."""

    node: Any
    numbers: list[int]


class Source(NamedTuple):
    """The address of one server, and the credentials."""

    connection_class: Any
    settings: Mapping[str, Any]
    tls: SharedContext

    def connection(self, timeout_s: float, asking_s: float, **more: Any) -> Any:
        """Return a new connection, not yet connected, with *more* settings; Sentinels are asked for its address within *asking_s*."""
        settings = {**self.settings, **_time_out(timeout_s), **more}
        pool = settings.get("connection_pool")  # of a connection that asks Sentinels for its address
        if pool is not None:
            kind = _AsyncPrimary if inspect.iscoroutinefunction(pool.get_master_address) else _Primary
            settings["connection_pool"] = kind(pool, asking_s)
        return self.connection_class(**settings)

    def late(self) -> TimeoutError:
        """Return the error of a connection that did not come in time."""
        pool, known = self.settings.get("connection_pool"), self.settings
        where = known.get("path") or f"{known.get('host', 'localhost')}:{known.get('port', 6379)}"
        kind = "TLS connection" if "SSL" in self.connection_class.__name__ else "connection"
        return TimeoutError(f"no {kind} to {where if pool is None else repr(pool.service_name)} in time")

    def unconnected(self, _: Exception) -> StoreError:
        """Return the error of a request that was not sent, since its connection did not come in time."""
        return trouble(self.late(), None, sent=False)


def _time_out(timeout_s: float) -> dict[str, float]:
    return {"socket_connect_timeout": timeout_s, "socket_timeout": timeout_s}


class _Primary:
    """What a connection asks for its address, in the place of redis-py's *pool*: each Sentinel within a share of *timeout_s*.

    The user's clients of the Sentinels have time-outs and retries of their own: one Sentinel that hangs would take the time of the others.
    """

    is_master, check_connection = True, False
    _perform: Any = staticmethod(perform)

    def __init__(self, pool: Any, timeout_s: float) -> None:
        self.service_name = pool.service_name
        self._known = pool.sentinel_manager.sentinels
        self._manager = copy.copy(pool.sentinel_manager)
        self._asked = [(each, _limited(each, timeout_s / (len(self._known) + 1))) for each in self._known]
        self._manager.sentinels = [own for _, own in self._asked]

    def get_master_address(self) -> Any:
        """Return it; for asyncio what this returns is awaited."""
        return self._perform(self._asking())

    def _asking(self) -> Exchange[Any]:
        """Return the address, and have the Sentinel that said it asked first from now on."""
        try:
            address = yield self._manager.discover_master(self.service_name)
        finally:
            for _, own in self._asked:
                yield own.connection_pool.disconnect()
        first = next(each for each, own in self._asked if own is self._manager.sentinels[0])
        # In one step, of a copy: several threads may do this at once, and none may be lost from the user's list.
        self._known[:] = [first, *(each for each in tuple(self._known) if each is not first)]
        return address


class _AsyncPrimary(_Primary):
    _perform = staticmethod(aperform)


def _limited(client: Any, timeout_s: float) -> Any:
    """Return a client of the same server as *client*, which asks it once, with this time-out."""
    pool = client.connection_pool
    source = source_of(pool.connection_class, pool.connection_kwargs)
    limited = type(pool)(connection_class=source.connection_class, **{**source.settings, **_time_out(timeout_s)})
    return type(client)(connection_pool=limited)


def source_of(connection_class: Any, settings: Mapping[str, Any]) -> Source:
    """Return the server that *settings* of a redis-py pool lead to, with dlock's own settings where they matter."""
    # Those in Python: for the one of object inspect calls ast.parse, which fails at times in several threads of CPython 3.11.
    written = [base.__init__ for base in connection_class.__mro__ if inspect.isfunction(vars(base).get("__init__"))]
    names = {name for function in written for name in inspect.signature(function).parameters}
    # Newer versions of redis-py take driver_info in place of lib_name and lib_version; without any of them a connection saves two requests.
    own = {
        name: _OWN[name] for name in _OWN if name in names and not (name.startswith("lib_") and "driver_info" in names)
    }
    kept = {name: value for name, value in settings.items() if name not in _DROPPED}
    own |= {name: value for name, value in _KEEPALIVE.items() if name in names and not kept.get(name)}
    return Source(connection_class, {**kept, **own}, SharedContext(kept))


class Servers(BeginsAnew):
    """The servers behind *client*, each as what *make* makes of its source, and which of them has which key: what both links share.

    *topology* names a client that is not for one server.
    """

    def __init__(self, client: Any, colour: Any, make: Callable[[Source], Any]) -> None:
        self._client, self._make = client, make
        self._nodes: dict[str, Any] = {}
        self._refreshing = self._closed = False
        self._silent: Any = None
        self._pool: Any = None
        self.topology = ""
        if isinstance(client, colour.RedisCluster):
            self.topology = "redis-cluster"
        elif isinstance(client, colour.Redis):
            self._pool = client.connection_pool
            if isinstance(self._pool, (SentinelConnectionPool, AsyncSentinelPool)):
                self.topology = "redis-sentinel"
        else:
            given, wanted = type(client), f"{colour.__name__}.Redis or {colour.__name__}.RedisCluster"
            raise ConfigurationError(
                f"this store needs a {wanted}, not a {given.__module__}.{given.__qualname__}; a URL goes to connect() or aconnect()"
            )
        watch_forks(self)

    @property
    def pools(self) -> list[Any]:
        """The pools of the servers that were used."""
        return [pool for node in list(self._nodes.values()) for pool in node.pools[:2]]

    @property
    def cluster(self) -> bool:
        """Whether several servers share the keys."""
        return self._pool is None

    def node(self, request: Request) -> Any:
        """Return the server that *request* goes to."""
        if not self.cluster:
            return self._of(self._pool)
        node, key = request.node, request.key
        with unsent(key):
            if node is None:
                node = self._client.get_node_from_key((key or "").encode())
            elif isinstance(node, str):
                address = _ADDRESS.match(node)
                node = address and self._client.get_node(
                    *self._client.nodes_manager.remap_host_port(address[1], int(address[2]))
                )
        if node is None:
            raise StoreUnavailableError(f"the slot of key {key!r} is being moved", key=key)
        return self._of(node)

    def locate(self, wanted: Locate) -> list[Any]:
        """Return the parts that *wanted* names."""
        if not self.cluster:
            return [None] if wanted.keys is None else [Part(None, list(range(len(wanted.keys))))]
        with unsent(None):
            if wanted.keys is None:
                return list(self._client.get_primaries())
            parts: dict[int, Part] = {}
            for number, key in enumerate(wanted.keys):
                slot = key_slot(key.encode())
                if slot not in parts:
                    parts[slot] = Part(self._client.get_node_from_key(key.encode()), [])
                parts[slot].numbers.append(number)
            return list(parts.values())

    def wants_refresh(self, error: BaseException, node: Any) -> bool:
        """Whether to ask the Cluster anew for its slots: *node* has failed. Only one asks at a time.

        Requests do not wait for it: it takes redis-py's time-outs, and does not concern locks on other nodes.
        """
        cause = error.__cause__ if isinstance(error, StoreError) else error
        answered = isinstance(cause, ResponseError)
        if not answered:
            self._silent = node
        misses = not answered or is_misplaced(cause)
        wanted = self.cluster and misses and not (self._closed or self._refreshing)
        self._refreshing |= wanted
        return wanted

    def refresh(self) -> Exchange[None]:
        """Ask, in steps, and allow the next refresh.

        The server that gave no answer last is asked last: it would take redis-py's time-outs, in which its locks are lost. Before the first
        time-out, when others say already that the Cluster is down, it is the one with the most requests under way.
        """
        try:
            manager = self._client.nodes_manager
            nodes = dict(self._nodes)
            silent = self._silent or max(nodes.values(), key=_under_way, default=None)
            name = next((name for name, node in nodes.items() if node is silent), None)
            if (last := manager.startup_nodes.get(name)) is not None:
                # A new one: another thread may go through the old one. Newer versions of redis-py shuffle it.
                others = {other: node for other, node in list(manager.startup_nodes.items()) if other != name}
                manager.startup_nodes = {**others, name: last}
            shuffles = "last_failed_node_name" in inspect.signature(manager.initialize).parameters
            yield manager.initialize(**({"last_failed_node_name": name} if shuffles else {}))
            # Those have left the Cluster, and whatever waits there asks another one.
            for left in [name for name in dict(self._nodes) if name not in manager.nodes_cache]:
                yield self._nodes.pop(left).close()
        except TROUBLE as error:
            _log.debug("asking the Cluster for its slots failed: %s", error)
        finally:
            self.refreshed()

    def refreshed(self) -> None:
        """Allow the next refresh."""
        self._refreshing = False

    def end(self) -> list[Any]:
        """Refuse later requests; return the servers that were used."""
        self._closed = True
        return list(self._nodes.values())

    def after_fork_in_child(self) -> None:
        """Begin with servers of its own: closing a connection of the parent would end it for the parent."""
        leave_behind(self._nodes)
        self._nodes, self._refreshing = {}, False

    def _of(self, found: Any) -> Any:
        if self._closed:
            raise StoreUnavailableError("the Redis store was closed; open a new one")
        name = "" if found is self._pool else found.name
        if name not in self._nodes:
            made = found
            if not hasattr(found, "connection_class"):
                made = self._client.get_redis_connection(found).connection_pool
            node = self._make(source_of(made.connection_class, made.connection_kwargs))
            self._nodes.setdefault(name, node)  # another thread may have made one: then this one never has a connection
        return self._nodes[name]


def _under_way(node: Any) -> int:
    return sum(len(pool.lent) for pool in node.pools[:2])
