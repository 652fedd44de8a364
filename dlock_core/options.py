"""The options of locks and clients: frozen models that check themselves, and where their values come from.

Precedence, strongest first: the call, the keywords of ``connect``, the query of the URL, the environment (``DLOCK_…``), the TOML file
that the user names, the defaults. Nothing reads a file that the user has not named.
"""

from __future__ import annotations

import json
import math
import os
import socket
import tomllib
from collections.abc import Callable, Mapping, MutableMapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, TypedDict, Unpack

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainValidator, PrivateAttr, SecretStr, ValidationError

from dlock_core.backend import split_url
from dlock_core.errors import ConfigurationError
from dlock_core.record import DATA_MAX_BYTES, TOKEN_MAX, AttributeValue, LockRecord

__all__ = ["ClientKeywords", "ClientOptions", "LockKeywords", "LockOptions", "OwnerProbe", "Seconds"]

Seconds: TypeAlias = float | timedelta
"""A duration: seconds as a number, or a timedelta. Never a bool, NaN, infinite or negative."""


OwnerProbe: TypeAlias = Literal["same-host"] | Callable[[LockRecord], Any]
"""Tells whether the owner of a record lives, by an OwnerState or its value: a function (in asyncio also a coroutine one) or, built in, the
processes of this host."""


def to_seconds(value: object) -> float:
    """Return the duration *value* in seconds.

    Raises: ValueError: it is not a finite number or timedelta of 0 or more.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        kind = type(value).__name__
        raise ValueError(f"{kind} is not a duration; give seconds as a number, or a timedelta")  # noqa: TRY004  # pydantic wants it
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{seconds:g} is not a finite number of seconds, 0 or more")
    if seconds > _LONGEST_S:
        raise ValueError(f"{seconds:g} s is too long; at most {_LONGEST_S:g} seconds are possible")
    return seconds


def _positive(value: object) -> float:
    seconds = to_seconds(value)
    if seconds < _SHORTEST_S:
        raise ValueError(f"{seconds:g} s is too short; give {_SHORTEST_S:g} seconds or more")
    return seconds


def _data(value: object) -> object:
    if isinstance(value, bytes) and len(value) > DATA_MAX_BYTES:
        raise ValueError(
            f"{len(value)} bytes exceed {DATA_MAX_BYTES} (64 KiB); store the payload elsewhere and put its name here"
        )
    return value


def _count(value: object) -> object:
    if value is not None and (type(value) is not int or value < 0):
        raise ValueError(f"{value!r} is not a number of tries; give a whole number, 0 or more")
    return value


def _probe(value: object) -> object:
    if value is not None and value != "same-host" and not callable(value):
        raise ValueError(f"{value!r} is no probe; give 'same-host', or a function of a record")
    return value


def _kept(value: object) -> object:
    """Return *value* itself: what the user keeps must not be copied."""
    if value is not None and not isinstance(value, (str, Path, MutableMapping)):
        raise ValueError(f"{value!r} is neither a path nor a mapping that can be written")
    return value


def _names(value: object) -> object:
    if isinstance(value, (set, list, tuple)):
        if not all(isinstance(name, str) for name in value):
            raise ValueError("a name is a text")
        return frozenset(value)
    return value


# The unit of the lease in a record.
_SHORTEST_S = 0.001
# Somewhat more than timedelta.max: a number with which one can still calculate.
_LONGEST_S = 1e14
# At a half, nothing of a lease could be used.
_DRIFT_END = 0.5

_Duration = Annotated[Seconds, BeforeValidator(_positive)]
_Wait = Annotated[Seconds, BeforeValidator(to_seconds)]


class _Options(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, arbitrary_types_allowed=True
    )

    if not TYPE_CHECKING:

        def __init__(self, **values: object) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ConfigurationError(_explain(type(self), error)) from None

    def _with(self, changes: Mapping[str, Any]) -> Self:
        return type(self)(**{name: getattr(self, name) for name in self.model_fields_set} | dict(changes))


class LockKeywords(TypedDict, total=False):
    """The keywords of ``lock``, ``acquire``, ``try_acquire`` and ``lock_all``: the fields of :class:`LockOptions`."""

    lease_duration: Seconds
    timeout: Seconds | None
    timeout_after_lease: bool
    retries: int | None
    poll_period: Seconds | None
    heartbeat_period: Seconds | None
    auto_renew: bool
    data: bytes | None
    replace_data: bool
    attributes: Mapping[str, AttributeValue]
    only_if_exists: bool
    delete_on_release: bool
    reentrant: bool
    fail_closed: bool
    max_hold: Seconds | None
    cancel_on_loss: bool
    clock_skew: Seconds | None
    server_clock: bool
    owner_probe: OwnerProbe | None


class ClientKeywords(LockKeywords, total=False):
    """The keywords of ``connect`` and ``aconnect``: the fields of :class:`ClientOptions`."""

    url: SecretStr | str | None
    prefix: str
    owner: str | None
    request_timeout: Seconds | None
    drift_bound: float
    max_lease_duration: Seconds
    allow_unsafe: frozenset[str]
    token_floor: int
    observations: str | Path | MutableMapping[str, Any] | None


class LockOptions(_Options):
    """What is asked of one lock. Durations are in seconds; ``with_`` gives a changed copy, checked anew.

    Raises: ConfigurationError: a name is unknown or a value is out of bounds; all faults are named.
    """

    lease_duration: _Duration = 20.0
    timeout: _Wait | None = None
    timeout_after_lease: bool = False
    retries: Annotated[int | None, BeforeValidator(_count)] = None
    poll_period: _Duration | None = None
    heartbeat_period: _Duration | None = None
    auto_renew: bool = True
    data: Annotated[bytes | None, BeforeValidator(_data)] = None
    replace_data: bool = True
    attributes: Mapping[str, AttributeValue] = {}
    only_if_exists: bool = False
    delete_on_release: bool = False
    reentrant: bool = False
    fail_closed: bool = False
    max_hold: _Duration | None = None
    cancel_on_loss: bool = False
    clock_skew: _Duration | None = None
    server_clock: bool = False
    owner_probe: Annotated[OwnerProbe | None, BeforeValidator(_probe)] = None

    def with_(self, **changes: Unpack[LockKeywords]) -> Self:
        """Return a copy with *changes*, checked as a whole.

        Raises: ConfigurationError: a name is unknown or a value is out of bounds.
        """
        return self._with(changes)


class ClientOptions(LockOptions):
    """A client's options: the defaults of its locks, and what is the same for all of them.

    *prefix* is put before every key; leases, records and scans show keys without it, errors and the log with it. *token_floor* is the least
    token that is granted: set it in every client of a fleet that moves to another store, above the highest token of the old one.
    """

    url: SecretStr | None = None
    prefix: str = ""
    owner: str | None = None
    request_timeout: _Duration | None = None
    drift_bound: float = 0.01
    max_lease_duration: _Duration = 86400.0
    allow_unsafe: Annotated[frozenset[str], BeforeValidator(_names)] = frozenset()
    token_floor: int = 1
    observations: Annotated[str | Path | MutableMapping[str, Any] | None, PlainValidator(_kept)] = None

    _store_settings: dict[str, Any] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any, /) -> None:  # pydantic's signature
        """Check what needs more than one look."""
        if not 0 <= self.drift_bound < _DRIFT_END:  # at a half nothing of a lease could be used
            raise ConfigurationError(
                f"drift_bound={self.drift_bound!r} must be 0 or more and less than 0.5; 0.01 means 1 %"
            )
        if not 0 < self.token_floor < TOKEN_MAX:
            raise ConfigurationError(
                f"token_floor={self.token_floor} must be from 1 to {TOKEN_MAX - 1}; "
                "give the highest token of the store that you left, plus 1"
            )

    def with_(self, **changes: Unpack[ClientKeywords]) -> Self:
        """Return a copy with *changes*, checked as a whole.

        Raises: ConfigurationError: a name is unknown or a value is out of bounds.
        """
        changed = self._with(changes)
        changed._store_settings = self._store_settings  # the same class
        return changed

    @classmethod
    def load(cls, path: Path | None = None, **keywords: Unpack[ClientKeywords]) -> Self:
        """Gather options: defaults < the TOML file < environment < URL query < *keywords*.

        The file is *path*, else the one that ``DLOCK_CONFIG`` names, else none. Its top level holds our options, its table ``[store]``
        those of the store. ``DLOCK_URL`` counts only where no URL is given. Names ``DLOCK_…`` that are no option are ignored.

        Raises: ConfigurationError: a file cannot be read, a name is unknown, or a value is out of bounds.
        """
        settings, store = _from_toml(path)
        settings |= _from_environment()
        url: object = settings.get("url") if keywords.get("url") is None else keywords["url"]
        if url is not None:
            text = url.get_secret_value() if isinstance(url, SecretStr) else url
            if not isinstance(text, str):
                raise ConfigurationError(f"url is {type(text).__name__}, not str")
            plain, query = split_url(text, _PARSERS)
            settings |= {
                name: _parsed(name, value, f"the query key {name!r} of the URL") for name, value in query.items()
            }
            settings["url"] = SecretStr(plain)
        settings |= {name: value for name, value in keywords.items() if name != "url"}
        loaded = cls(**settings)
        loaded._store_settings = store  # a factory of the class
        return loaded


def default_owner() -> str:
    """Return a label for people: host, process, and a few random digits, since one process may have several clients."""
    return f"{socket.gethostname()}:{os.getpid()}:{os.urandom(3).hex()}"


# ---- values as text: from the environment and from URL queries


def _boolean(text: str) -> bool:
    values = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in values:
        raise ValueError("write true or false")
    return values[text.lower()]


def _optional_count(text: str) -> int | None:
    return None if text.lower() in ("", "none") else int(text)


def _number(text: str) -> float:
    return float(text)


def _optional_number(text: str) -> float | None:
    return None if text.lower() in ("", "none") else float(text)


def _probe_name(text: str) -> str:
    if text != "same-host":
        raise ValueError("write same-host; a function can be given in Python only")
    return text


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("write a JSON object")  # noqa: TRY004  # reported like any other bad value
    return value


_PARSERS: dict[str, Callable[[str], Any]] = {
    "lease_duration": _number,
    "timeout": _optional_number,
    "timeout_after_lease": _boolean,
    "retries": _optional_count,
    "poll_period": _optional_number,
    "heartbeat_period": _optional_number,
    "auto_renew": _boolean,
    "data": str.encode,
    "replace_data": _boolean,
    "attributes": _mapping,
    "only_if_exists": _boolean,
    "delete_on_release": _boolean,
    "reentrant": _boolean,
    "fail_closed": _boolean,
    "max_hold": _optional_number,
    "cancel_on_loss": _boolean,
    "clock_skew": _optional_number,
    "server_clock": _boolean,
    "owner_probe": _probe_name,
    "observations": str,
    "prefix": str,
    "owner": str,
    "request_timeout": _optional_number,
    "drift_bound": _number,
    "max_lease_duration": _number,
    "token_floor": int,
    "allow_unsafe": lambda text: frozenset(filter(None, map(str.strip, text.split(",")))),
}


def _parsed(name: str, text: str, where: str) -> Any:
    try:
        return _PARSERS[name](text)
    except ValueError as error:
        raise ConfigurationError(f"{where}: {text!r} is not a value of {name} ({error})") from None


def _from_environment() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _PARSERS:
        variable = f"DLOCK_{name.upper()}"
        # DLOCK_OWNER is what `dlock run` tells its child; a lock taken inside must not inherit it.
        if name != "owner" and variable in os.environ:
            found[name] = _parsed(name, os.environ[variable], f"the environment variable {variable}")
    if url := os.environ.get("DLOCK_URL"):
        found["url"] = url
    return found


def _from_toml(path: Path | None) -> tuple[dict[str, Any], dict[str, Any]]:
    named = os.environ.get("DLOCK_CONFIG")
    if path is None and not named:
        return {}, {}
    file = Path(named) if path is None and named else Path(str(path))
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"the configuration file {str(file)!r} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the configuration file {str(file)!r} is not TOML: {error}") from None
    store = table.pop("store", {})
    if not isinstance(store, dict):
        raise ConfigurationError(f"[store] in {str(file)!r} is not a table")
    if isinstance(table.get("observations"), dict):
        raise ConfigurationError(
            f"observations in {str(file)!r} is a table; write a path, a mapping is for Python only"
        )
    if isinstance(table.get("data"), str):
        table["data"] = table["data"].encode()
    unknown = sorted(set(table) - set(ClientOptions.model_fields))
    if unknown:
        raise ConfigurationError(
            f"unknown option {unknown[0]!r} in {str(file)!r}; options: {', '.join(ClientOptions.model_fields)}"
        )
    return table, store


def _explain(model: type[BaseModel], error: ValidationError) -> str:
    faults = []
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        known = [str(part) for part in fault["loc"] if part in model.model_fields or not isinstance(part, str)]
        name = ".".join(known or map(str, fault["loc"][:1]))
        text = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            text = f"unknown option {name!r}; options: {', '.join(model.model_fields)}"
        elif name:  # else it is about the whole, and says so itself
            text = f"{name}: {text}"
        if text not in faults:
            faults.append(text)
    return "; ".join(faults)
