"""What a Redis URL says: it is redis-py's own, with every option that its connections know."""

from __future__ import annotations

import re
from typing import Any, Self
from urllib.parse import urlsplit

import redis
import redis.asyncio
from pydantic import Field, SecretStr

from dlock_core.backend import StoreOptions, redact
from dlock_core.errors import ConfigurationError

__all__ = ["RedisStoreOptions"]


def _fault_of(url: str) -> str | None:
    """Return what is wrong with *url*, or None.

    Raises: ValueError: it cannot be split, or its host cannot be looked up.
    """
    parts = urlsplit(url)
    if "#" in url:
        return "it has a '#'; write %23 in a password"
    try:
        _ = parts.port
    except ValueError:
        return "its port is not a number from 0 to 65535, or the @HOST behind a password is missing"
    if parts.scheme != "unix" and not parts.path.strip("/").isdecimal() and parts.path not in ("", "/"):
        return "its path is not the number of a database; a prefix of all keys goes into the query, ?prefix=locks:"
    # As Python does when it looks the host up; UnicodeError is a ValueError.
    (parts.hostname or "").encode("idna")
    return None


class RedisStoreOptions(StoreOptions):
    """``redis://[[user]:password@]host[:port][/db]``, ``rediss://…`` for TLS, ``unix://[user:password@]/path?db=0``.

    The query takes redis-py's options for connections (``ssl_ca_certs``, ``protocol``, ``client_name``, …), and so does the table
    ``[store]``. Time-outs, retries and decoding are dlock's own; those given here are not used.
    """

    url: SecretStr
    settings: dict[str, Any] = Field(default={}, repr=False)

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> Self:
        """Check *url* and *settings* by making, not opening, a connection.

        Raises: ConfigurationError: the URL is malformed, or has an option that redis-py does not know.
        """
        options = cls(url=SecretStr(url), settings=settings)
        try:
            fault = _fault_of(url)
            if not str(settings.get("db", 0)).isdecimal():
                fault = "db of [store] is not the number of a database"
            if fault is None:
                pool = options.client(redis).connection_pool
                pool.connection_class(**pool.connection_kwargs)
                return options
        except TypeError as error:
            unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            place = " of [store]" if unknown and unknown[1] in settings else ""
            fault = f"neither dlock nor redis-py knows its option {unknown[1]!r}{place}" if unknown else str(error)
        except (ValueError, redis.RedisError):
            fault = "it is malformed"  # what the parsers say may quote the password
        raise ConfigurationError(f"{redact(url)!r} cannot be used: {fault}")

    def client(self, colour: Any) -> Any:
        """Return redis-py's client for this URL, not connected; *colour* is ``redis`` or ``redis.asyncio``."""
        url, settings = self.url.get_secret_value(), self.settings
        if url.startswith("rediss:") and not any("ssl_cert_reqs" in given for given in (url, settings)):
            # Before version 6, redis-py compares the name in a certificate only where it is told to.
            settings = {"ssl_check_hostname": True, **settings}
        return colour.Redis.from_url(url, **settings)
