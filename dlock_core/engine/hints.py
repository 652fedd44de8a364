"""What people write who come from other libraries, or mistype, and what to write instead."""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from dlock_core.engine.callers import calling_line
from dlock_core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

_LEASE = "lease_duration is how long the lock of a holder that died stays taken; that of a living one is renewed"
_POLL = "poll_period is the longest pause between two tries"
_WAIT = "timeout is how long to wait: None for ever, 0 for one try; or use try_acquire()"
_OWNER = "owner, an option of the client, is the label that people see"
_HINTS = {
    **dict.fromkeys(("blocking", "block", "wait", "nowait", "blocking_timeout", "acquire_timeout", "wait_timeout"), _WAIT),
    **dict.fromkeys(("ttl", "expire", "expires", "expiry", "expiration", "lease", "lease_time", "lock_timeout"), _LEASE),
    **dict.fromkeys(("sleep", "interval", "poll_interval", "check_interval", "retry_delay", "retry_interval"), _POLL),
    **dict.fromkeys(("retry", "retry_count", "retry_times", "max_retries", "tries"), "retries is the number of tries after the first"),
    **dict.fromkeys(("id", "identifier", "client_id", "holder", "name"), _OWNER),
    **dict.fromkeys(("namespace", "key_prefix", "root"), "prefix, an option of the client, is put before every key"),
    **dict.fromkeys(("auto_renewal", "renew", "heartbeat"), "auto_renew is on by default; heartbeat_period says how often"),
    **dict.fromkeys(("thread_local", "strict"), "leave it out: any thread may use a lease that it is given"),
    **dict.fromkeys(("reentrance", "recursive", "rlock"), "reentrant=True lets the same thread or task acquire again"),
}  # fmt: skip
_NEAR = 0.75
# A longer lease, given as a number, was probably meant in milliseconds; from here on it is refused, whatever the unit.
_LEASE_WARNED_S, _LEASE_REFUSED_S = 3600, 1e14


def near(name: str, known: Iterable[str]) -> str:
    """Return the one of *known* that *name* seems to be a misspelling of, or nothing."""
    return next(iter(get_close_matches(name, known, n=1, cutoff=_NEAR)), "")


def unknown_option(name: str, known: Collection[str], *, where: str = "", others: Collection[str] = ()) -> str:
    """Say that there is no option *name*, what was probably meant, and which are *known*; *others* are those of the client."""
    hint = "it is an option of the client, for connect() or aconnect()"
    if name not in others:
        hint = _meant(name, [*known, *others])
    return f"unknown option {name!r}{where}{': ' if hint else ''}{hint}; options: {', '.join(known)}"


def _meant(name: str, known: Iterable[str]) -> str:
    match = near(name, known)
    return f"perhaps {match!r} is meant" if match else _HINTS.get(name, "")


@contextmanager
def guessing_keys(url: str, known: Collection[str]) -> Iterator[None]:
    """Have a store's refusal of *url* say which of the options *known* a key of the query was probably meant to be."""
    try:
        yield
    except ConfigurationError as error:
        names = dict(parse_qsl(url.partition("?")[2].partition("#")[0], keep_blank_values=True))
        # Many a store quotes the key that it refuses; where none is quoted, it may be any.
        refused = [name for name in names if repr(name) in str(error)] or names
        told = [f"{name}: {hint}" for name in refused if (hint := _meant(name, known))]
        if not told or type(error) is not ConfigurationError:
            raise
        raise ConfigurationError(f"{error}; {'; '.join(told)}") from error.__cause__


def check_keywords(keywords: Mapping[str, Any]) -> None:
    """Look at the options of one call as they were written: warn of a lease that seems to be in milliseconds.

    Raises: ConfigurationError: a lock without a lease was given one.
    """
    lease = keywords.get("lease_duration")
    if keywords.get("fail_closed") and lease is not None:
        raise ConfigurationError(
            "fail_closed and lease_duration exclude each other: a fail-closed lock has no lease, it is held until it is released or broken"
        )
    if isinstance(lease, (int, float)) and _LEASE_WARNED_S < lease < _LEASE_REFUSED_S:
        warn(
            f"lease_duration={lease} is {lease / 3600:.1f} hours, for which a crashed holder keeps the lock; durations are seconds, "
            f"not milliseconds. If it is meant, write timedelta(seconds={lease})"
        )


@contextmanager
def naming(option: str, given: str | None) -> Iterator[None]:
    """Have an error of *option* name it as it was *given*, by another option; None: it was not."""
    try:
        yield
    except ConfigurationError as error:
        if given is None or type(error) is not ConfigurationError:
            raise
        raise ConfigurationError(str(error).replace(option, given)) from None


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the program that is calling dlock."""
    file, line = calling_line()
    warnings.warn_explicit(f"dlock: {message}", category, file, line)


def check_variables(environment: Iterable[str], known: Collection[str]) -> None:
    """Warn of a variable of the environment that nothing reads, and whose name behind ``DLOCK_`` is nearly one of *known*, or a time."""
    for variable in environment:
        name = variable.removeprefix("DLOCK_")
        if name == variable or name in known:
            continue
        match, hint = near(name.upper(), known), _HINTS.get(name.lower())
        # Other names may well be those of the user's own variables.
        meant = f"did you mean DLOCK_{match}?" if match else hint if hint in (_LEASE, _POLL, _WAIT) else ""
        if meant:
            warn(f"nothing reads the environment variable {variable}; {meant}")


_told: set[str] = set()


def check_event_loop() -> None:
    """Warn, once in a process, of a blocking call in a thread that runs an event loop: everything in that loop stands still meanwhile."""
    asyncio = sys.modules.get("asyncio")
    # A notebook runs its cells in an event loop, in which nothing else has to go on.
    if _told or asyncio is None or asyncio._get_running_loop() is None or "ipykernel" in sys.modules:
        return
    _told.add("event loop")
    warn(
        "a blocking client is used inside of an event loop, which stands still meanwhile; use aconnect() there",
        RuntimeWarning,
    )
