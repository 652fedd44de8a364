"""One TLS context for all connections to a server: redis-py makes one for each, and so reads all authorities of the system, for 25 ms.

On asyncio the event loop stands still for that.
"""

from __future__ import annotations

import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio

from dlock_core.kit import mark_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_FILES = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "ssl_ca_path")


class SharedContext:
    """The context that redis-py has made for a connection with *settings*, for the next ones, until one of its files changes."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._named = [settings.get(name) for name in _FILES]
        self._made: tuple[list[Any], ssl.SSLContext] | None = None

    @contextmanager
    def lent(self, connection: Any) -> Iterator[None]:
        """While this runs, *connection* connects."""
        blocking = _is_plain(connection)
        if not blocking and not isinstance(connection, redis.asyncio.SSLConnection):
            yield
            return
        # Before the files are read: if one changes meanwhile, they are read again.
        state, made = self._state(), self._made
        if made is not None and made[0] == state:
            _give(connection, made[1], blocking=blocking)
            yield
        else:
            yield
            self._made = state, connection._sock.context if blocking else connection.ssl_context.context

    def _state(self) -> list[Any]:
        system = ssl.get_default_verify_paths()
        return [mark_of(path) for path in (*self._named, system.cafile, system.capath)]


def _is_plain(connection: Any) -> bool:
    """Whether *connection* of the blocking driver does no more with its context than to encrypt, as a check by OCSP would."""
    wrap = getattr(type(connection), "_wrap_socket_with_ssl", None)
    return wrap is redis.SSLConnection._wrap_socket_with_ssl and not (
        connection.ssl_validate_ocsp or connection.ssl_validate_ocsp_stapled
    )


def _give(connection: Any, context: ssl.SSLContext, *, blocking: bool) -> None:
    if blocking:  # its host is known when it connects, where Sentinels are asked for it
        connection._wrap_socket_with_ssl = lambda sock: context.wrap_socket(sock, server_hostname=connection.host)
    else:
        connection.ssl_context.context = context
