"""What a SQLite URL says: the path of the file, and ``synchronous``."""

from __future__ import annotations

import os
from typing import Any, Literal, Self
from urllib.parse import unquote_to_bytes

from dlock_core.backend import StoreOptions, redact, split_url
from dlock_core.errors import ConfigurationError

__all__ = ["SYNCHRONOUS", "SqliteOptions", "Synchronous", "checked_path"]

Synchronous = Literal["full", "extra", "normal"]
SYNCHRONOUS: tuple[Synchronous, ...] = ("full", "extra", "normal")


class SqliteOptions(StoreOptions):
    """``sqlite:///relative/path`` or ``sqlite:////absolute/path``, with ``synchronous`` as query key or setting."""

    path: str
    synchronous: Synchronous = "full"

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> Self:
        """Take the path of *url*, percent-decoded, and its query over *settings*."""
        known = {name: None for name in cls.model_fields if name != "path"}
        bare, query = split_url(url, known)
        values = settings | query
        if unknown := sorted(values.keys() - known.keys()):
            raise ConfigurationError(f"the sqlite store has no setting {unknown[0]!r}; it knows {', '.join(known)}")
        if values.get("synchronous", "full") not in SYNCHRONOUS:
            raise ConfigurationError(f"synchronous {values['synchronous']!r} is not one of {', '.join(SYNCHRONOUS)}")
        rest = bare.partition("://")[2]
        for mark, what in (("?", "query key"), ("#", "fragment (write %23 for '#')")):
            if mark in rest:
                extra = rest.partition(mark)[2].partition("=")[0]
                raise ConfigurationError(
                    f"unknown {what} {extra!r} in {redact(url)!r}; the sqlite store knows {', '.join(known)}"
                )
        host, _, path = rest.partition("/")
        if host:
            raise ConfigurationError(
                f"{redact(url)!r} has a host; write sqlite:///relative.db or sqlite:////absolute/path.db"
            )
        return cls(path=checked_path(os.fsdecode(unquote_to_bytes(path))), **values)


def checked_path(path: str) -> str:
    """Return *path* if it can name a database file.

    Raises: ConfigurationError: it is empty, in memory, a directory, or holds a zero byte.
    """
    if not path or path.startswith(":memory:"):
        raise ConfigurationError(f"SQLite path {path!r} is no file; name one, sqlite:///locks.db, or use memory://")
    if "\0" in path:
        raise ConfigurationError(f"SQLite path {path!r} holds a zero byte, which no file name can")
    if path.endswith("/"):
        raise ConfigurationError(f"SQLite path {path!r} names a directory; add the name of a file, such as locks.db")
    return path
