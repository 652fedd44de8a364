"""Options as people write them: text in the environment and in the query of a URL, and a TOML file.

The type of an option's field in the options model says how its text is read, so no option is listed here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from dlock_core.backend import split_url
from dlock_core.engine.hints import check_variables, unknown_option
from dlock_core.engine.texts import seconds_text
from dlock_core.errors import ConfigurationError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

Fields: TypeAlias = "Mapping[str, FieldInfo]"
STORE = "[store]"
"""What a message calls the settings of the store in a configuration file."""


class Sources(dict[str, str]):  # noqa: PLW1641  # a dict has no hash
    """Where options were set that are not in the program, by name; :data:`STORE` names the file of the store's settings.

    Options that are equal are so wherever they were set.
    """

    def __eq__(self, other: object) -> bool:
        """Whether *other* is one, too."""
        return isinstance(other, Sources)


def _boolean(text: str) -> bool:
    values = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in values:
        raise ValueError("write true or false")
    return values[text.lower()]


def _mapping(text: str) -> dict[str, Any]:
    import json

    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError('write a JSON object, such as {"name": "value"}')  # noqa: TRY004  # reported like any other bad value
    return value


def _words(text: str) -> frozenset[str]:
    return frozenset(filter(None, map(str.strip, text.split(","))))


# How text becomes a value of a type. The first type that an option takes counts, so text itself comes last.
_READERS: dict[object, Callable[[str], Any]] = {
    bool: _boolean,
    timedelta: seconds_text,
    float: float,
    int: int,
    bytes: str.encode,
    Mapping: _mapping,
    Collection: _words,
    str: str,
}


def _types(annotation: Any) -> set[object]:
    """Return the types that *annotation* admits, without their arguments; of a Literal, its values."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _types(annotation.__origin__)
    if origin in (Union, UnionType):
        return set().union(*map(_types, get_args(annotation)))
    if origin is Literal:
        return set(get_args(annotation))
    return {origin or annotation}


def parse_option(name: str, fields: Fields, text: str, where: str) -> Any:
    """Return the value of the option *name* that is written as *text*, by the option's type.

    Raises: ConfigurationError: the text is no such value; the message says *where* it stands.
    """
    types = _types(fields[name].annotation)
    words = sorted(kind for kind in types if isinstance(kind, str))
    if text in words:
        return text
    advice = [f"write {' or '.join(map(repr, words))}"] if words else []
    reader = next((_READERS[kind] for kind in _READERS if kind in types), None)
    try:
        if NoneType in types and reader in (int, float, seconds_text) and text.lower() in ("", "none"):
            return None
        if reader is not None:
            return reader(text)
    except ValueError as error:
        advice.insert(0, "write a number" if reader in (int, float) else str(error))
    if not advice:
        advice = ["it can be given in Python only"]
    raise ConfigurationError(f"{where}: {text!r} is not a value of {name} ({' or '.join(advice)})")


@contextmanager
def naming_sources(sources: Mapping[str, str]) -> Iterator[None]:
    """Have an error about the value of an option say where that was set; *sources* has the options that are not in the program."""
    try:
        yield
    except ConfigurationError as error:
        said = str(error)
        named = [where for name, where in sources.items() if re.search(rf"(?<!\w){re.escape(name)}([:=']| \d)", said)]
        if not named or type(error) is not ConfigurationError:
            raise
        raise ConfigurationError(f"{' and '.join(dict.fromkeys(named))}: {error}") from None


def from_query(url: str, fields: Fields) -> tuple[str, dict[str, Any]]:
    """Return *url* without the options in its query, and these.

    Raises: ConfigurationError: a key holds no value of its option, or stands twice.
    """
    plain, query = split_url(url, fields.keys() - {"url"})
    return plain, {name: parse_option(name, fields, text, query_key(name)) for name, text in query.items()}


def query_key(name: str) -> str:
    """Return how a message names the place of an option in a URL."""
    return f"the query key {name!r} of the URL"


def variable_of(name: str) -> str:
    """Return how a message names the variable of an option."""
    return f"the environment variable {_variable(name)}"


def _variable(name: str) -> str:
    return f"DLOCK_{name.upper()}"


def from_environment(fields: Fields) -> dict[str, Any]:
    """Return the options that variables ``DLOCK_…`` set.

    Raises: ConfigurationError: a variable holds no value of its option.
    """
    found: dict[str, Any] = {}
    check_variables(os.environ, {name.upper() for name in fields} | {"CONFIG"})
    for name in fields:
        variable = _variable(name)
        # DLOCK_OWNER is what `dlock run` tells its child; a lock taken inside must not inherit it.
        if name not in ("owner", "url") and variable in os.environ:
            found[name] = parse_option(name, fields, os.environ[variable], variable_of(name))
    if url := os.environ.get("DLOCK_URL"):
        found["url"] = url
    return found


def _read(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))  # some editors begin a file with the mark
    except OSError as error:
        raise ConfigurationError(f"the configuration file {str(file)!r} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also of a number that Python does not read
        raise ConfigurationError(f"the configuration file {str(file)!r} is not TOML: {error}") from None


def from_toml(path: Path | None, fields: Fields) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Return the options and the store's settings in the file *path*, or in the one that ``DLOCK_CONFIG`` names, and what to call it.

    Raises: ConfigurationError: the file cannot be read or names something that is no option.
    """
    named = os.environ.get("DLOCK_CONFIG")
    if path is None and not named:
        return {}, {}, ""
    file = Path(named) if path is None and named else Path(str(path))
    table = _read(file)
    store = table.pop("store", {})
    if not isinstance(store, dict):
        raise ConfigurationError(f"[store] in {str(file)!r} is not a table")
    if misplaced := sorted(set(store) & set(fields)):
        raise ConfigurationError(
            f"{misplaced[0]} stands in [store] of {str(file)!r}; write it above, at the top level of the file"
        )
    if isinstance(table.get("observations"), dict):
        raise ConfigurationError(
            f"observations in {str(file)!r} is a table; write a path, a mapping is for Python only"
        )
    if isinstance(table.get("data"), str):
        table["data"] = table["data"].encode()
    unknown = sorted(set(table) - set(fields))
    if unknown:
        raise ConfigurationError(unknown_option(unknown[0], fields, where=f" in {str(file)!r}"))
    where = f"the configuration file {str(file)!r}"
    for name, value in table.items():
        if isinstance(value, str) and timedelta in _types(fields[name].annotation):
            table[name] = parse_option(name, fields, value, where)
    return table, store, where
