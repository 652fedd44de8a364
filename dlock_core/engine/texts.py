"""The texts among the options: durations, the prefix of keys, the owner, and the names of a store's unsafe traits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from dlock_core.engine.hints import near
from dlock_core.errors import ConfigurationError
from dlock_core.record import CONTROL, KEY_MAX_BYTES, RESERVED

# Every trait that a store of this distribution may have; stores may share their options, so each is known to all of them.
TRAITS = (
    "dynamodb-global-table",
    "dynamodb-ttl",
    "mongodb-standalone",
    "mysql-cluster",
    "mysql-replica",
    "postgres-async-replica",
    "redis-allkeys-policy",
    "redis-cluster",
    "redis-replica",
    "redis-sentinel",
    "session-rollback",
    "sqlite-network-filesystem",
    "sqlite-second-name",
)
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}


def seconds_text(text: str) -> float:
    """Return the seconds that *text* says: a number, and perhaps a unit.

    Raises: ValueError: it is no duration; the message says what one looks like.
    """
    text = text.strip()
    number = text.rstrip("mshd")
    try:
        return float(number) * _UNITS_S[text[len(number) :]]
    except (ValueError, KeyError):
        raise ValueError("write seconds, or 500ms, 10s, 1m, 2h") from None


def shown(value: object) -> str:
    """Return *value* as a message shows it; Python refuses to print a number of very many digits."""
    try:
        return repr(value)
    except ValueError:
        return f"a {type(value).__name__} that is too long to be shown"


def prefix_text(value: object) -> object:
    """Return the prefix *value* if a key can begin with it.

    Raises: ValueError: no key can; the message says why.
    """
    if not isinstance(value, str):
        return value  # the type is pydantic's to refuse
    size = len(_printable(value).encode())
    if size >= KEY_MAX_BYTES:
        raise ValueError(f"{size} bytes leave no room for a key; a key has at most {KEY_MAX_BYTES} with its prefix")
    if RESERVED in value:
        raise ValueError(f"{value!r} holds {RESERVED!r}, which is reserved for records of dlock's own")
    return value


def owner_text(value: object) -> object:
    """Return the owner *value* if people can read it on one line.

    Raises: ValueError: it has a character that cannot be printed; the message says where.
    """
    return _printable(value) if isinstance(value, str) else value


def _printable(text: str) -> str:
    if found := CONTROL.search(text):
        raise ValueError(f"{text!r} holds the control character {found.group()!r} at position {found.start()}")
    if flaw := _unencodable(text):
        raise ValueError(f"{text!r} {flaw}")
    return text


def _unencodable(text: str) -> str:
    """Say what in *text* has no UTF-8 form; nothing where it has one."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"holds a lone surrogate at position {error.start}; it has no UTF-8 form"
    return ""


def trait_names(value: object) -> object:
    """Return the names of traits in the collection *value*.

    Raises: ValueError: it is no collection of texts.
    """
    if isinstance(value, str):
        raise ValueError(f"it takes several names; {value!r} is one text: write [{value!r}]")  # noqa: TRY004  # pydantic wants it
    if isinstance(value, Mapping) or not isinstance(value, Collection):
        raise ValueError("it takes a collection of names, such as ['redis-replica']")  # noqa: TRY004  # as above
    if not all(isinstance(name, str) for name in value):
        raise ValueError("each name must be a str, such as 'redis-replica'")
    return frozenset(value)


def check_traits(accepted: Collection[str], more: Iterable[str] = ()) -> None:
    """Refuse a name in *accepted* that no trait has; *more* are the traits of a store that is not of this distribution.

    Raises: ConfigurationError: the message lists the names that there are.
    """
    known = sorted({*TRAITS, *more})
    for name in sorted(accepted):
        if name not in known:
            meant = near(name, known)
            perhaps = f"perhaps {meant!r} is meant; " if meant else ""
            raise ConfigurationError(
                f"allow_unsafe: there is no trait {name!r}; {perhaps}the names are {', '.join(known)}"
            )


def check_texts(texts: dict[str, object]) -> None:
    """Refuse what no store can keep.

    Raises: ConfigurationError: a name or a value has no UTF-8 form.
    """
    for name, value in texts.items():
        for text in (name, value):
            if isinstance(text, str) and (flaw := _unencodable(text)):
                raise ConfigurationError(f"{name!r}: {text!r} {flaw}")
