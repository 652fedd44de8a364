"""The app ``dlock_contrib.django``: its name, and what ``manage.py check`` says of ``LOCKS``."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, register
from django.core.exceptions import ImproperlyConfigured

from dlock_contrib.django import locks

__all__ = ["LocksConfig"]


class LocksConfig(AppConfig):  # type: ignore[misc]  # django is published without types
    """The app."""

    name = "dlock_contrib.django"
    label = "dlock"
    verbose_name = "Distributed locks"

    def ready(self) -> None:
        """Register the check."""
        register(_check)


def _check(**_: Any) -> list[CheckMessage]:
    try:
        for alias in locks:
            locks[alias]  # its options are checked; the store is not opened
    except ImproperlyConfigured as error:
        return [Error(str(error), id="dlock.E001")]
    return []
