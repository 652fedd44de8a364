"""From a URL to a store: the entry-point group ``dlock.stores``, one name per URL scheme.

Adapters of this project and of strangers are loaded in the same way, when a URL with their scheme is first opened.
"""

from __future__ import annotations

import re
import sys
import threading
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, Self
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from dlock_core.engine.hints import near, unknown_option
from dlock_core.errors import ConfigurationError, DLockError, MissingDriverError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Container, Iterator
    from importlib.metadata import EntryPoint

    from dlock_core.store import AsyncLockStore, LockStore

__all__ = [
    "CheckedModel",
    "StoreBackend",
    "StoreOptions",
    "backend_for",
    "check_claims",
    "installed_schemes",
    "redact",
    "split_url",
    "url_parts",
]

GROUP = "dlock.stores"
_DISTRIBUTION = "dlock-core"

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+._-]*")
_HOST = r"(?:\[[^\]]*\]|[^:,\[\]]*)(?::\d*)?"
_HOSTS = re.compile(f"{_HOST}(?:,{_HOST})*")
# Pydantic's words for a type that an option wants, and ours.
_WANTED = "Input should be "
_KINDS = {
    "a valid string": "a str",
    "a valid integer": "an int",
    "a valid number": "a number",
    "a valid boolean": "True or False",
    "a valid bytes": "bytes",
    "a valid dictionary": "a dict",
}

_building = threading.RLock()  # a signal handler may build a model while its own thread builds one


def _without_report(name: str) -> Any:
    """Return pydantic's class method *name*, with ConfigurationError in place of pydantic's report."""

    def validate(cls: Any, *values: Any, **options: Any) -> Any:
        try:
            return getattr(super(CheckedModel, cls), name)(*values, **options)
        except ValidationError as error:
            cause = error.errors(include_url=False, include_input=False)[0].get("ctx", {}).get("error")
            if isinstance(cause, ConfigurationError):
                raise cause from None
            raise ConfigurationError(cls._subject() + explain(cls, error)) from None

    return classmethod(validate)


class CheckedModel(BaseModel):
    """A frozen pydantic model whose mistakes are ConfigurationErrors; pydantic's own report, which may show a secret, never comes out."""

    # Building a validator is slow, and the first one has pydantic look for plug-ins in all installed packages: not on import.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)

    if not TYPE_CHECKING:

        def __init__(self, **values: object) -> None:
            if not self.__pydantic_complete__:
                # One thread at a time: pydantic takes a half-built model apart when another thread builds it.
                with _building, _reading_packages():
                    self.model_rebuild()
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ConfigurationError(self._subject() + explain(type(self), error)) from None

        model_validate, model_validate_json, model_validate_strings = map(
            _without_report, ("model_validate", "model_validate_json", "model_validate_strings")
        )

        def __delattr__(self, name: str) -> None:
            raise ConfigurationError(f"{name}: {type(self).__name__} is frozen; make a new one")

        def __setattr__(self, name: str, value: object) -> None:
            if not name.startswith("_"):
                raise ConfigurationError(f"{name}: {type(self).__name__} is frozen; make a new one")
            super().__setattr__(name, value)

    @classmethod
    def _subject(cls) -> str:
        return ""


class StoreOptions(CheckedModel):
    """The base class of an adapter's options: frozen, unknown names are refused, and no error shows a value."""

    _inspect_timeout_s: float | None = PrivateAttr(default=None)  # how long guarantees() may take, if less than usual

    @classmethod
    def _subject(cls) -> str:
        return f"wrong options for the {cls.__name__.removesuffix('Options').removesuffix('Store')} store: "

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> Self:  # noqa: ARG003  # what an adapter's own is given
        """Parse the parts of *url* that belong to the store; *settings* are those of the TOML table ``[store]``, and yield to the URL.

        Raises: ConfigurationError: the URL is malformed, or has a query key that the store does not know.
        """
        raise ConfigurationError(
            f"{cls.__module__}.{cls.__qualname__} has no from_url; give it that class method, which makes options of a URL"
        )


class StoreBackend(Protocol):
    """The object behind an entry point: how to make a store of one or more schemes from a URL."""

    options: type[StoreOptions]
    extra: str

    def open(self, options: Any) -> LockStore:
        """Open the store for threads. *options* is an instance of ``self.options``."""

    def aopen(self, options: Any) -> Awaitable[AsyncLockStore] | None:
        """Open the store for asyncio, or return None: then threads over :meth:`open` serve."""


def installed_schemes() -> dict[str, list[EntryPoint]]:
    """Return each installed URL scheme with its claims: one, or several where two packages collide.

    This reads the files of every installed package.

    Raises: StoreUnavailableError: those files cannot be read, for example where the process may open no more files.
    """
    from importlib.metadata import entry_points

    schemes: dict[str, list[EntryPoint]] = {}
    with _reading_packages():
        entries = entry_points(group=GROUP)
    for entry in entries:
        claims = schemes.setdefault(entry.name.lower(), [])
        if all((entry.value, _owner(entry)) != (other.value, _owner(other)) for other in claims):
            claims.append(entry)
    return dict(sorted(schemes.items()))


def backend_for(url: str) -> StoreBackend:
    """Return the backend of *url*'s scheme.

    A scheme of this distribution is always served by this distribution, so that no other package has to be read. Every other scheme is
    looked up in all installed packages.

    Raises:
        ConfigurationError: no scheme, an unknown one (the message lists the installed), or one that two packages claim.
        MissingDriverError: the adapter's driver is not installed (the message names the extra).
        StoreUnavailableError: the files of the installed packages cannot be read now.
    """
    return load_backend(_entry_of(url))


def _entry_of(url: str) -> EntryPoint:
    return _own_entry(_scheme(url)) or check_claims(url)


def check_claims(url: str) -> EntryPoint:
    """Return the one entry point that claims *url*'s scheme, after a look into all installed packages.

    Raises: ConfigurationError: no package claims the scheme, or several do; the message names them.
    """
    scheme = _scheme(url)
    schemes = installed_schemes()
    if scheme not in schemes:
        base = scheme.partition("+")[0]  # SQLAlchemy's URLs name a driver, which dlock chooses itself
        meant = {"valkey": "redis", "valkeys": "rediss"}.get(scheme) or near(scheme, schemes)
        advice = f"; write {base}://…" if base in schemes else f"; perhaps {meant}://… is meant" if meant else ""
        installed = ", ".join(schemes) or "none, since the metadata of dlock-core is not here: install it with pip"
        raise ConfigurationError(f"unknown store scheme {scheme!r} in '{scheme}://…'{advice}; installed: {installed}")
    claims = schemes[scheme]
    if len(claims) > 1:
        names = " and ".join(f"{_owner(entry)} ({entry.value})" for entry in claims)
        raise ConfigurationError(f"the store scheme {scheme!r} is claimed by {names}; uninstall one of them")
    return claims[0]


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        raise ConfigurationError(
            "the text that names the store is not a URL, since it does not begin with scheme://; write, for example, "
            "redis://HOST:6379/0, or sqlite:////var/lib/locks.db for a file"
        )
    if any("\ud800" <= letter <= "\udfff" for letter in url):  # what Python makes of a byte that is not UTF-8
        raise ConfigurationError(
            f"the URL of the {scheme.lower()} store holds a byte that is not UTF-8; write it as % and two hexadecimal digits, such as %FF"
        )
    return scheme.lower()


def is_own(url: str) -> bool:
    """Whether this distribution has the store of *url*; what its stores are like is known before one is opened."""
    return _own_entry(_scheme(url)) is not None


def _own_entry(scheme: str) -> EntryPoint | None:
    """Return this distribution's entry point for *scheme*; None if it has none, or is not installed as a distribution."""
    from importlib.metadata import PackageNotFoundError, distribution

    with _reading_packages():
        try:
            entries = distribution(_DISTRIBUTION).entry_points
        except PackageNotFoundError:
            return None
    return next((entry for entry in entries if (entry.group, entry.name) == (GROUP, scheme)), None)


@contextmanager
def _reading_packages() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailableError(f"the installed stores cannot be looked up: {error}") from error


def load_backend(entry: EntryPoint) -> StoreBackend:
    """Import what *entry* names; a driver that is missing becomes an error with the exact ``pip install``.

    Raises: ConfigurationError: it cannot be imported, or is no backend; the message names the package.
    """
    try:
        backend: Any = entry.load()
    except MissingDriverError:
        raise
    except OSError as error:
        raise StoreUnavailableError(f"{_adapter(entry)} cannot be read: {error}") from error
    except Exception as error:
        advice = "mend the entry point or what it names"
        # What makes one program of many modules follows imports, and not names in metadata.
        if getattr(sys, "frozen", False):
            advice = f"this program was frozen without it: give PyInstaller --collect-submodules {entry.module.partition('.')[0]}"
        raise ConfigurationError(
            f"{_adapter(entry)} cannot be imported: {type(error).__name__}: {error}; {advice}"
        ) from error
    lacks = [name for name in ("options", "options.from_url", "open", "aopen") if not _has(backend, name)]
    if lacks or isinstance(backend, type):
        fault = f"has no {', '.join(lacks)}" if lacks else "is a class"
        raise ConfigurationError(
            f"{_adapter(entry)} is no backend: it {fault}; have the entry point name an object as dlock_core.kit.Backend makes one"
        )
    loaded: StoreBackend = backend
    return loaded


def _has(backend: Any, name: str) -> bool:
    try:
        return callable(attrgetter(name)(backend))
    except AttributeError:
        return False


def _adapter(entry: EntryPoint) -> str:
    return f"the adapter {entry.value!r} of the package {_owner(entry)} for store scheme {entry.name!r}"


@contextmanager
def adapter_faults(url: str) -> Iterator[None]:
    """Have a mistake in the adapter of *url*, as a function that takes other arguments, name its package."""
    try:
        yield
    except DLockError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        # What other errors say may have a part of the URL in it, and so a secret.
        said = f" ({error})" if isinstance(error, (AttributeError, TypeError)) else ""
        raise ConfigurationError(
            f"{_adapter(_entry_of(url))} failed on {redact(url)!r} with {type(error).__name__}{said}; report that to its author"
        ) from error


@contextmanager
def importing(driver: str, extra: str) -> Iterator[None]:
    """Import *driver* in this block, which the pip *extra* brings.

    Raises: MissingDriverError: that fails; the message says how to install it, and what is wrong with one that is there.
    """
    try:
        yield
    except ImportError as error:
        in_block = error.__traceback__.tb_next if error.__traceback__ else None
        why = f"cannot be imported ({error})" if in_block and in_block.tb_next else "is not installed"
        raise MissingDriverError(
            f"the {extra} store needs {driver}, which {why}: pip install 'dlock-core[{extra}]'"
        ) from error


def explain(model: type[BaseModel], error: ValidationError) -> str:
    """Return every fault that pydantic found, each with the name of its option, and no value."""
    faults: dict[str, str] = {}
    wanted: dict[str, dict[str, None]] = {}
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        known = [str(part) for part in fault["loc"] if part in model.model_fields or not isinstance(part, str)]
        name = ".".join(known or map(str, fault["loc"][:1]))
        message = fault["msg"].removeprefix("Value error, ")
        text = ": ".join(filter(None, (name, message)))
        if fault["type"] == "extra_forbidden":
            text = unknown_option(name, model.model_fields)
        elif message.startswith(_WANTED):
            # A report for each of the types that an option may have: they make one text.
            kind = message.removeprefix(_WANTED)
            kinds = wanted.setdefault(name, {})
            kinds[_KINDS.get(kind, kind)] = None
            faults[name] = f"{name}: give {' or '.join(kinds)}"
            continue
        faults.setdefault(text, text)
    return "; ".join(faults.values())


def split_url(url: str, known: Container[str]) -> tuple[str, dict[str, str]]:
    """Split off those query keys of *url* that are in *known*; return the rest, with the scheme in small letters, and the pairs.

    Blanks and line breaks around *url* do not count: a file or a secret that it was read from ends with one, which named another store.

    Raises: ConfigurationError: a key of ours stands twice, or the password was hidden.
    """
    url = url.strip()
    if re.match(r"[^/]+//[^/?#@]*:\*\*\*@", url):
        raise ConfigurationError(
            f"the password in {redact(url)!r} is ***, which stands for a hidden one, as in str(url) of SQLAlchemy; "
            "give the whole URL, there url.render_as_string(hide_password=False)"
        )
    scheme, separator, rest = url.partition("://")
    url = scheme.lower() + separator + rest if separator else url  # drivers know small letters only
    head, mark, query = url.partition("?")
    if not mark:
        return url, {}
    ours: dict[str, str] = {}
    others: list[str] = []
    for part in query.split("&"):
        pairs = parse_qsl(part, keep_blank_values=True)
        if not pairs or pairs[0][0] not in known:
            others.append(part)
            continue
        name, value = pairs[0]
        if name in ours:
            raise ConfigurationError(f"the query key {name!r} stands twice in {redact(url)!r}")
        ours[name] = value
    return head + (mark + "&".join(others) if any(others) else ""), ours


def url_parts(url: str, form: str) -> SplitResult:
    """Return the parts of *url*.

    Raises: ConfigurationError: it is malformed; the message says what *form* it has to have.
    """
    try:
        return urlsplit(url)
    except ValueError:
        raise ConfigurationError(f"{redact(url)!r} is malformed; {form}") from None


def redact(url: str) -> str:
    """Return *url* without anything that may be a secret: no user information, no query values."""
    try:
        parts = urlsplit(url)
        scheme, netloc, path, query = parts.scheme, parts.netloc, parts.path, parts.query
    except ValueError:
        return "(malformed URL)"
    if not scheme or "://" not in url:
        return "(not a URL)"
    # A password with an unescaped '@', '/' or '#' in it ends up elsewhere than in the user information: show nothing then.
    if "@" in path or "@" in query or "@" in parts.fragment or netloc.count("@") > 1:
        return f"{scheme}://…"
    host = netloc.rpartition("@")[2]
    user = "…@" if "@" in netloc else ""
    # What stands where a port should is a password whose '@host' was forgotten.
    if not _HOSTS.fullmatch(host):
        return f"{scheme}://…"
    names = "&".join(f"{name}=…" for name, _ in parse_qsl(query, keep_blank_values=True))
    return f"{scheme}://{user}{host}{path}" + (f"?{names}" if names else "")


def _owner(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module
