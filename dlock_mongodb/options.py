"""The options of the MongoDB store, and how they stand in a URL: pymongo's own, with *collection* among its query keys."""

from __future__ import annotations

import re
from typing import Annotated, Any, Self
from urllib.parse import parse_qsl, unquote, unquote_plus, urlsplit

from pydantic import AfterValidator, SecretStr
from pymongo.errors import PyMongoError
from pymongo.uri_parser import split_options

from dlock_core.backend import StoreOptions, redact, split_url, url_parts
from dlock_core.errors import ConfigurationError

__all__ = ["MongoDBStoreOptions", "told"]

_FORM = "write mongodb://HOST/DATABASE?collection=NAME"
_NAME_MAX_BYTES = {"database": 63, "collection": 120}


def _database(value: str) -> str:
    if not re.fullmatch(r'[^\x00/\\. "$*<>:|?]+', value) or len(value.encode()) > _NAME_MAX_BYTES["database"]:
        raise ValueError(f'{value!r} is no database name (1 to 63 bytes without / \\ . " $ * < > : | ? or blanks)')
    return value


def _collection(value: str) -> str:
    wrong = not re.fullmatch(r"[^\x00$]+", value) or value.startswith(("system.", ".")) or value.endswith(".")
    if wrong or len(value.encode()) > _NAME_MAX_BYTES["collection"]:
        raise ValueError(f"{value!r} is no collection name (1 to 120 bytes, no $, no dot at an end, not system.…)")
    return value


class MongoDBStoreOptions(StoreOptions):
    """Where the records are: *url* is for pymongo; a client of one's own is used without it."""

    url: SecretStr | None = None
    database: Annotated[str, AfterValidator(_database)] = "dlock"
    collection: Annotated[str, AfterValidator(_collection)] = "locks"

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> Self:
        """Take the database from the path and *collection* from the query; all else is pymongo's. *settings* yield to them.

        Raises: ConfigurationError: two database names, or a query key that neither we nor pymongo know.
        """
        rest, ours = split_url(url, {"collection": str, "database": str})
        parts = url_parts(rest, _FORM)
        names = [unquote(name) for name in parts.path.strip("/").split("/") if name]
        if "database" in ours and ours["database"] not in names:
            names.append(ours["database"])
        if len(names) > 1:
            # With an @ in it, the path may be what follows the / of a password.
            which = "; in a password write %2F" if "@" in parts.path else f", {' and '.join(map(repr, names))}"
            raise ConfigurationError(f"{redact(url)!r} has two database names{which}; {_FORM}")
        if names and "." in names[0]:
            raise ConfigurationError(f"{redact(url)!r} names a collection in its path; {_FORM}")
        if not parts.netloc or parts.fragment:
            raise ConfigurationError(f"{redact(url)!r} has no host, or a fragment; {_FORM}")
        _check_query(rest, parts.query)
        return cls(**settings | ours | ({"database": names[0]} if names else {}) | {"url": rest})


def told(error: Exception, url: str) -> str:
    """Return what pymongo says of *url*, unless it repeats a part that may be a secret."""
    text = str(error)
    user, at, _ = url.partition("://")[2].rpartition("@")
    parts = (user.split(":") if at else []) + [value for _, value in parse_qsl(urlsplit(url).query)]
    hidden = any(
        re.search(rf"(?<!\w){re.escape(each)}(?!\w)", text)
        for part in parts
        for each in {part, unquote_plus(part)}
        if each
    )
    return f"{type(error).__name__}: {text}" if text and not hidden else type(error).__name__


def _check_query(url: str, query: str) -> None:
    if not query:
        return
    try:
        split_options(query)
    except (PyMongoError, ValueError, TypeError, OSError) as error:
        # Without its cause: the driver repeats values, and one of them may be a secret.
        raise ConfigurationError(
            f"{redact(url)!r} has a query key that neither dlock nor pymongo takes so: {told(error, url)}"
        ) from None
