"""Django: the locks that the settings name, and the management command ``run_locked``. No model, no table of Django's.

    INSTALLED_APPS = [..., "dlock_contrib.django"]
    LOCKS = {"default": {"URL": "postgresql://app@db/locks", "LEASE_DURATION": 30}}

Then ``locks["default"].lock("key")`` is what ``connect(url, lease_duration=30).lock("key")`` is, and survives the forks of a web server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from dlock_core import ConfigurationError, shared_client

if TYPE_CHECKING:
    from dlock_core import LockClient

__all__ = ["locks"]

_HELP = 'write LOCKS = {"default": {"URL": "redis://host/0"}} into the settings'


class _NoSuchLocksError(ImproperlyConfigured, KeyError):  # type: ignore[misc]  # django is published without types
    """The settings have no such name: a KeyError, too, by which ``in`` and ``get`` of a mapping know."""

    __str__ = Exception.__str__


class _Locks(Mapping[str, "LockClient"]):
    """The clients by their names in the setting ``LOCKS``; each is one for the whole program, and opened by its first lock."""

    def __init__(self) -> None:
        self._clients: dict[str, LockClient] = {}

    def __getitem__(self, alias: str) -> LockClient:
        """Return the client *alias*.

        Raises: ImproperlyConfigured: the settings name none, or its options are wrong.
        """
        client = self._clients.get(alias)
        if client is None:
            client = self._clients[alias] = self._client(alias)
        return client

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(_setting())

    def __len__(self) -> int:
        """Return how many there are."""
        return len(_setting())

    def forget(self) -> None:
        """Read the settings again: a test has changed them."""
        self._clients.clear()

    def _client(self, alias: str) -> LockClient:
        options = _setting().get(alias)
        if options is None:
            raise _NoSuchLocksError(f"LOCKS has no {alias!r}; it has {', '.join(map(repr, self))}")
        if not isinstance(options, Mapping) or "URL" not in options:
            raise ImproperlyConfigured(f"LOCKS[{alias!r}] has no URL; {_HELP}")
        keywords: dict[str, Any] = {str(name).lower(): value for name, value in options.items()}
        try:
            return shared_client(keywords.pop("url"), **keywords)
        except ConfigurationError as error:
            raise ImproperlyConfigured(f"LOCKS[{alias!r}]: {error}") from error


def _setting() -> Mapping[str, Any]:
    named = getattr(settings, "LOCKS", None)
    if named is None:
        raise ImproperlyConfigured(f"the settings have no LOCKS; {_HELP}")
    if not isinstance(named, Mapping):
        raise ImproperlyConfigured(f"LOCKS is a {type(named).__name__}, not a dict; {_HELP}")
    if not named:
        raise ImproperlyConfigured(f"LOCKS is empty; {_HELP}")
    return named


def _changed(*, setting: str, **_: Any) -> None:
    if setting == "LOCKS":
        locks.forget()


locks = _Locks()
setting_changed.connect(_changed)
