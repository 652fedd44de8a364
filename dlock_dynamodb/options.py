"""The options of the DynamoDB store, and how they are written as a URL: ``dynamodb://REGION/TABLE?partition_key=…&dialect=…``.

Credentials are never part of it: they come from where boto3 finds them (environment, profile, role).
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Annotated, Any, Literal, Self, TypeAlias
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, model_validator

from dlock_core.backend import StoreOptions, redact, split_url, url_parts
from dlock_core.errors import ConfigurationError
from dlock_dynamodb import _wire as dlock
from dlock_dynamodb.dialects import awslabs, node

__all__ = ["RECORD_ATTRIBUTES", "Dialect", "DynamoDBStoreOptions"]

Dialect: TypeAlias = Literal["dlock", "awslabs", "node-fail-open", "node-fail-closed"]

# A key attribute of such a name would be written over.
RECORD_ATTRIBUTES: dict[Dialect, frozenset[str]] = {
    "dlock": dlock.ATTRIBUTES,
    "awslabs": awslabs.ATTRIBUTES,
    "node-fail-open": node.ATTRIBUTES,
    "node-fail-closed": node.ATTRIBUTES,
}
_COUNTED: dict[Dialect, str] = {
    "dlock": "our own rows have fencing tokens",
    "node-fail-open": "the rows of FailOpen have fencing tokens",
    "node-fail-closed": "a lock without a lease may be granted long before its token is drawn",
}
_FORM = "write dynamodb://REGION/TABLE, for example dynamodb://eu-west-1/locks"


def _like(pattern: str, told: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(told)
        return value

    return AfterValidator(check)


_Region = Annotated[str, _like(r"[a-z0-9-]{1,63}", f"not the name of a region, as eu-west-1 is one; {_FORM}")]
_Table = Annotated[
    str, _like(r"[A-Za-z0-9_.-]{3,255}", f"no table name (3 to 255 letters, digits, '_', '-', '.'); {_FORM}")
]
_KeyName = Annotated[
    str, _like(r'[^"\x00-\x1f]{1,255}', "no attribute name (1 to 255 characters, none a quotation mark)")
]
_SortValue = Annotated[str, _like(r"(?s).{1,256}", "a sort key of 1 to 256 characters is needed")]
_Separator = Annotated[str, _like(r"[^\x00-\x1f]{1,16}", "a separator of 1 to 16 characters is needed")]
_Endpoint = Annotated[
    str,
    _like(
        r"https?://[^/?#@\s]+(/[^?#@\s]*)?",
        "no endpoint; write http://HOST:PORT or https://HOST, without user, password or query",
    ),
]


class DynamoDBStoreOptions(StoreOptions):
    """Which table holds the records, where it is, and what its key attributes are called.

    *sort_key* is for a table that has one: each record then stands under *sort_key_value*, beside items of other kinds.
    *profile* is a profile of the AWS configuration files; *endpoint_url* another endpoint than the region's own.

    *dialect* says whose rows these are: our own, or those of a client of another language, which then shares the locks
    (``docs/dialects.md``). Only for them: *sort_key_separator* stands between partition and sort key in a lock's key, where each lock has
    a sort key of its own; *trust_release_mark* is off for a table with Java clients that set updateExistingLockRecord; *token_row*
    gives locks shared with Java clients fencing tokens, counted in a row beside each.
    """

    region: _Region
    table: _Table
    partition_key: _KeyName = "key"
    sort_key: _KeyName | None = None
    sort_key_value: _SortValue = "dlock"
    dialect: Dialect = "dlock"
    sort_key_separator: _Separator | None = None
    trust_release_mark: bool = True
    token_row: bool = False
    endpoint_url: _Endpoint | None = None
    profile: str | None = None

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> Self:
        """Take the region from the host, the table from the path, the rest from the query; *settings* yield to them.

        Raises: ConfigurationError: a part is missing, doubled, unknown or malformed.
        """
        known = cls.model_fields.keys() - {"region", "table"}
        rest, pairs = split_url(url, dict.fromkeys(known))
        parts = url_parts(rest, _FORM)
        if "@" in parts.netloc + parts.path:
            raise ConfigurationError(
                f"{redact(url)!r} holds credentials; give them to boto3 instead (environment, profile=…, role)"
            )
        if parts.query or parts.fragment:
            raise ConfigurationError(
                f"{redact(rest)!r} has a query key or fragment that is not known; known are {', '.join(sorted(known))}"
            )
        names = [unquote(name) for name in parts.path.strip("/").split("/")]
        if len(names) > 1:
            raise ConfigurationError(
                f"{redact(url)!r} has {len(names)} table names, {' and '.join(map(repr, names))}; {_FORM}"
            )
        if not parts.netloc:
            raise ConfigurationError(f"{redact(url)!r} names no region; {_FORM}")
        return cls(**settings | {"region": parts.netloc, "table": names[0]} | pairs)

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        keys = {self.partition_key, self.sort_key}
        if len(keys) == 1:
            raise ConfigurationError(f"partition key and sort key have the same name, {self.sort_key!r}")
        if taken := keys & RECORD_ATTRIBUTES[self.dialect]:
            raise ConfigurationError(
                f"{taken.pop()!r} is an attribute of the record itself; name the key attribute otherwise"
            )
        return self

    @model_validator(mode="after")
    def _check_dialect(self) -> Self:
        if self.dialect == "dlock" and self.sort_key_separator is not None:
            raise ConfigurationError("sort_key_separator is for the dialects of other clients; use sort_key_value")
        if self.sort_key is None and self.sort_key_separator is not None:
            raise ConfigurationError("sort_key_separator needs the name of the sort key, sort_key")
        if self.dialect != "awslabs" and not self.trust_release_mark:
            raise ConfigurationError("trust_release_mark is about the rows of the Java client, dialect=awslabs")
        if self.token_row and self.dialect != "awslabs":
            raise ConfigurationError(
                f"token_row is for the rows of the Java client, dialect=awslabs: {_COUNTED[self.dialect]}"
            )
        if self.dialect == "node-fail-closed" and self.sort_key is not None:
            raise ConfigurationError("the Node client's fail-closed locks have no sort key: it refuses one")
        return self

    @property
    def is_loopback(self) -> bool:
        """Whether *endpoint_url* is on this machine, as DynamoDB Local's is."""
        host = urlsplit(self.endpoint_url or "").hostname or ""
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"
