"""The options of locks and clients: frozen models that check themselves, and where their values come from.

Precedence, strongest first: the call, the keywords of ``connect``, the query of the URL, the environment (``DLOCK_…``), the TOML file
that the user names, the defaults. Nothing reads a file that the user has not named.
"""

import inspect
import math
import os
from collections.abc import Callable, Collection, Mapping, MutableMapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self, Unpack

from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator, PrivateAttr, SecretStr

from dlock_core.backend import CheckedModel
from dlock_core.engine.option_sources import (
    STORE,
    Sources,
    from_environment,
    from_query,
    from_toml,
    naming_sources,
    query_key,
    variable_of,
)
from dlock_core.engine.texts import owner_text, prefix_text, trait_names
from dlock_core.errors import ConfigurationError
from dlock_core.events import LockEvent
from dlock_core.keywords import AcquireKeywords, ClientKeywords, OwnerProbe, Seconds
from dlock_core.record import DATA_MAX_BYTES, TOKEN_MAX, AttributeValue

__all__ = ["ClientOptions", "EarlyTakeover", "LockOptions"]


def to_seconds(value: object, *, least: float = 0.0) -> float:
    """Return the duration *value* in seconds.

    Raises: ValueError: it is not a finite number or timedelta of 0 or more; the message names *least*, which is the caller's to check.
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
        raise ValueError(f"{seconds:g} is not a finite number of seconds, {least:g} or more")
    if seconds > _LONGEST_S:
        raise ValueError(f"{seconds:g} s is too long; at most {_LONGEST_S:g} seconds are possible")
    return seconds


def _positive(value: object) -> float:
    seconds = to_seconds(value, least=SHORTEST_S)
    if seconds < SHORTEST_S:
        raise ValueError(f"{seconds:g} s is too short; give {SHORTEST_S:g} seconds or more")
    return seconds


def _delay(value: object) -> float:
    seconds = to_seconds(value)
    if seconds > _DELAY_MAX_S:
        raise ValueError(f"{seconds:g} s is too long; at most {_DELAY_MAX_S:g} seconds are possible")
    return seconds


def _timeout(value: object) -> float:
    try:
        return to_seconds(value)
    except ValueError as error:
        raise ValueError(f"{error}; None waits for ever, 0 tries once") from None


def _data(value: object) -> object:
    if isinstance(value, bytes) and len(value) > DATA_MAX_BYTES:
        raise ValueError(
            f"{len(value)} bytes exceed {DATA_MAX_BYTES} (64 KiB); store the payload elsewhere and put its name here"
        )
    return value


def _count(value: object) -> object:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a number of tries; give a whole number, 0 or more")
    return value


def _number_of(what: str) -> BeforeValidator:
    def check(value: object) -> object:
        if type(value) is not int or not 0 < value <= _NUMBER_MAX:
            raise ValueError(f"{value!r} is not a number of {what}; give a whole number from 1 to {_NUMBER_MAX}")
        return value

    return BeforeValidator(check)


def _probe(value: object) -> object:
    if value is not None and value != "same-host" and not callable(value):
        raise ValueError(f"{value!r} is not a probe; give 'same-host', or a function of a record")
    return value


def _kept(value: object) -> object:
    """Return *value* itself: what the user keeps must not be copied. An empty text names no file."""
    if value is not None and not isinstance(value, (str, Path, MutableMapping)):
        raise ValueError(f"{value!r} is neither a path nor a mapping that can be written")
    return None if value == "" else value


def _hook(value: object) -> object:
    if inspect.iscoroutinefunction(value):
        raise ValueError(f"{value!r} is a coroutine function; give a plain function, it is called on a thread")
    if value is not None and not callable(value):
        raise ValueError(f"{value!r} is not a function of an event; give one in the program")
    return value


# The unit of the lease in a record.
SHORTEST_S = 0.001
# Somewhat more than timedelta.max: a number with which one can still calculate.
_LONGEST_S = 1e14
_DELAY_MAX_S = 60.0
_NUMBER_MAX = 1_000_000
# At a half, nothing of a lease could be used.
_DRIFT_END = 0.5

_Duration = Annotated[Seconds, BeforeValidator(_positive)]
_Wait = Annotated[Seconds, BeforeValidator(to_seconds)]
_Timeout = Annotated[Seconds, BeforeValidator(_timeout)]
_Permits = Annotated[int, _number_of("permits")]


class _Options(CheckedModel):
    model_config = ConfigDict(strict=True, arbitrary_types_allowed=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Append the options to the docstring, so that ``help()`` shows them, also of the type of their keywords."""
        fields = "\n".join(f"    {name}: {field.description}" for name, field in cls.model_fields.items())
        for shown in {cls, {"LockOptions": AcquireKeywords, "ClientOptions": ClientKeywords}.get(cls.__name__, cls)}:
            shown.__doc__ = f"{(shown.__doc__ or '').rstrip()}\n\n    Options:\n{fields}\n    "

    def _with(self, changes: Mapping[str, Any]) -> Self:
        return type(self)(**{name: getattr(self, name) for name in self.model_fields_set} | dict(changes))


class _PlainLockOptions(_Options):
    """The options of a lock but for those of early takeover."""

    lease_duration: _Duration = Field(
        default=20.0, description="Seconds until the lock of a holder that died is free; 20 by default."
    )
    timeout: _Timeout | None = Field(
        default=None, description="Seconds to wait for the lock, 0 for a single try; by default the wait has no end."
    )
    timeout_after_lease: bool = Field(
        default=False,
        description="Whether the timeout starts only after the lease of the holder that was met first; off by default.",
    )
    retries: Annotated[int, BeforeValidator(_count)] | None = Field(
        default=None, description="Number of tries after the first one; as many as the timeout allows by default."
    )
    poll_period: _Duration | None = Field(
        default=None, description="Longest pause between two tries, in seconds; by default it follows from the lease."
    )
    server_wait: bool = Field(
        default=True, description="Whether a claim may wait in the server, where the store can; on by default."
    )
    heartbeat_period: _Duration | None = Field(
        default=None, description="Seconds between two renewals; a quarter of the lease by default."
    )
    auto_renew: bool = Field(
        default=True, description="Whether the client renews the lease in the background; on by default."
    )
    renewal: Literal["lock", "session", "auto"] = Field(
        default="lock",
        description="Whether each lock is renewed by itself, or a session for many, 'auto' from 16 locks on; 'lock' by default.",
    )
    data: Annotated[bytes | None, BeforeValidator(_data)] = Field(
        default=None, description="Bytes to store in the record, at most 64 KiB; none by default."
    )
    replace_data: bool = Field(
        default=True, description="Whether the holder's data replaces the data in the record; on by default."
    )
    attributes: Mapping[str, AttributeValue] = Field(
        default={},
        description="Named values to store in the record: text, whole numbers, booleans, bytes; none by default.",
    )
    only_if_exists: bool = Field(
        default=False, description="Whether to acquire the key only if the store has a record of it; off by default."
    )
    delete_on_release: bool = Field(
        default=False, description="Whether the record disappears from get and scan on release; off by default."
    )
    reentrant: bool | Literal["client"] = Field(
        default=False,
        description="Whether the thread or task that holds the key may acquire it again, with 'client' any of this client; off by default.",
    )
    handover: bool = Field(
        default=False,
        description="Whether another thread or task may release the lock, so that its own may wait for that; off by default.",
    )
    fail_closed: bool = Field(
        default=False,
        description="Whether the lock has no lease and stays held until it is released or broken; off by default.",
    )
    max_hold: _Duration | None = Field(
        default=None, description="Longest time to hold the lock, in seconds; without limit by default."
    )
    stop_grace: _Wait | None = Field(
        default=None, description="Seconds before the lock ends at which its holder is told to stop; 0 by default."
    )
    stall_timeout: _Duration | None = Field(
        default=None,
        description="Longest time between two calls of the lease's progress(), in seconds; without limit by default.",
    )
    lock_delay: Annotated[Seconds, BeforeValidator(_delay)] = Field(
        default=0.0,
        description="Seconds, at most 60, for which nobody gets the lock of a holder that died, beyond its lease; 0 by default.",
    )
    cancel_on_loss: bool = Field(
        default=False,
        description="Whether the loss of the lock, or stop_grace before it, cancels the task, in asyncio only; off by default.",
    )
    mode: Literal["exclusive", "read", "write"] = Field(
        default="exclusive",
        description="Whether many readers or one writer may hold the key together; one holder alone by default.",
    )
    permits: _Permits | None = Field(
        default=None,
        description="How many holders the key may have at once, as a semaphore; an exclusive lock by default.",
    )
    weight: _Permits = Field(
        default=1, description="How many of the permits this holder takes, all or none; 1 by default."
    )


class EarlyTakeover(_Options):
    """What a lock trusts, beside its own observation, to tell that a holder's lease has ended: docs/early-takeover.md.

    The fourth kind, *observations*, belongs to a client as a whole: :class:`ClientOptions`.
    """

    clock_skew: _Duration | None = Field(
        default=None, description="Trust wall clocks that are at most this many seconds apart; off by default."
    )
    server_clock: bool | None = Field(
        default=None,
        description="Trust the store's clock for the age of a record; by default only where the wait is shorter than a lease.",
    )
    owner_probe: Annotated[OwnerProbe | None, BeforeValidator(_probe)] = Field(
        default=None, description="Trust 'same-host', or a function, to tell that an owner is dead; off by default."
    )


class LockOptions(EarlyTakeover, _PlainLockOptions):
    """The options of one lock. Durations are in seconds; ``with_`` returns a changed copy, checked as a whole.

    Raises: ConfigurationError: a name is unknown or a value is out of bounds; all faults are named.
    """

    @property
    def is_shared(self) -> bool:
        """Whether they ask for a semaphore or a read/write lock."""
        return self.permits is not None or self.mode != "exclusive"

    def with_(self, **changes: Unpack[AcquireKeywords]) -> Self:
        """Return a copy with *changes*, checked as a whole.

        Raises: ConfigurationError: a name is unknown or a value is out of bounds.
        """
        return self._with(changes)


class ClientOptions(LockOptions):
    """A client's options: the defaults of its locks, and the options that all of its locks share.

    Leases, records and scans show keys without the *prefix*, and so do errors of wrong use; those about a record, and the log, with it.
    Set *token_floor* in every client of a fleet that moves to another store, above the highest token of the old one.
    """

    url: SecretStr | None = Field(default=None, description="URL of the store; its query may hold any other option.")
    prefix: Annotated[str, BeforeValidator(prefix_text)] = Field(
        default="", description="Text before every key; dlock: by default on Redis, elsewhere empty."
    )
    owner: Annotated[str | None, BeforeValidator(owner_text)] = Field(
        default=None, description="Label that tells people who holds a lock; host:process:random digits by default."
    )
    request_timeout: _Duration | None = Field(
        default=None,
        description="Longest time for one request, in seconds; by default a share of the lease, at most 10.",
    )
    drift_bound: float = Field(
        default=0.01, description="Share by which the rates of two clocks may differ; 0.01, one per cent, by default."
    )
    max_lease_duration: _Duration = Field(
        default=86400.0,
        description="Longest lease, in seconds, of own locks and of other holders' records; 86400 by default.",
    )
    allow_unsafe: Annotated[Collection[str], PlainValidator(trait_names)] = Field(
        default=frozenset(), description="Names of the store's unsafe traits to accept; none by default."
    )
    provision: bool = Field(
        default=False, description="Whether connect creates what the store lacks, a table for example; off by default."
    )
    audit_period: _Duration = Field(
        default=900.0, description="Seconds in which each lock that a session keeps is read once; 900 by default."
    )
    session_locks_max: Annotated[int, _number_of("locks")] = Field(
        default=10_000, description="How many locks one session keeps at most, all lost if it is; 10000 by default."
    )
    token_floor: int = Field(default=1, description="Lowest fencing token that is granted; 1 by default.")
    observations: Annotated[str | Path | MutableMapping[str, Any] | None, PlainValidator(_kept)] = Field(
        default=None,
        description="File, or mapping, that keeps what was seen of other holders for the next run; off by default.",
    )
    on_event: Annotated[Callable[[LockEvent], object] | None, PlainValidator(_hook)] = Field(
        default=None,
        description="Function that is called with each event of a lock, on a thread of its own; none by default.",
    )

    _store_settings: dict[str, Any] = PrivateAttr(default_factory=dict)
    _sources: Sources = PrivateAttr(default_factory=Sources)

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
        changed._sources = Sources((name, where) for name, where in self._sources.items() if name not in changes)
        return changed

    @classmethod
    def load(cls, path: Path | None = None, **keywords: Unpack[ClientKeywords]) -> Self:
        """Gather options: defaults < the TOML file < environment < URL query < *keywords*.

        The file is *path*, else the one that ``DLOCK_CONFIG`` names, else none. Its top level holds our options, its table ``[store]``
        those of the store. ``DLOCK_URL`` counts only where no URL is given. Names ``DLOCK_…`` that are no option are ignored, with a
        warning where one is nearly an option.

        Raises: ConfigurationError: a file cannot be read, a name is unknown, or a value is out of bounds.
        """
        fields = cls.model_fields
        settings, store, file = from_toml(path, fields)
        sources = dict.fromkeys(settings, file)
        found = from_environment(fields)
        settings |= found
        sources |= {name: variable_of(name) for name in found}
        url: object = settings.get("url") if keywords.get("url") is None else keywords["url"]
        if url is not None:
            text = url.get_secret_value() if isinstance(url, SecretStr) else url
            if not isinstance(text, str):
                raise ConfigurationError(f"url must be a str, such as 'redis://localhost', not {type(text).__name__}")
            plain, query = from_query(text, fields)
            settings |= {**query, "url": SecretStr(plain)}
            sources |= {name: query_key(name) for name in query}
        settings |= {name: value for name, value in keywords.items() if name != "url"}
        sources = Sources((name, where) for name, where in sources.items() if name not in keywords)
        with naming_sources(sources):
            loaded = cls(**settings)
        loaded._store_settings, loaded._sources = store, Sources(sources, **{STORE: f"{STORE} of {file}"})
        return loaded


def trusts_server_clock(options: LockOptions, *, has_one: bool) -> bool:
    """Whether the store's clock counts, if the store *has_one*.

    By default it counts only for an attempt that ends too early to watch a dead holder for a lease.
    """
    if options.server_clock is not None:
        return options.server_clock
    timeout_s = math.inf if options.timeout is None else to_seconds(options.timeout)
    is_short = timeout_s < to_seconds(options.lease_duration) and not (timeout_s and options.timeout_after_lease)
    return has_one and (is_short or options.retries is not None)


def default_owner() -> str:
    """Return a label for people: host, process, and a few random digits, since one process may have several clients."""
    import socket

    return f"{socket.gethostname()}:{os.getpid()}:{os.urandom(3).hex()}"
