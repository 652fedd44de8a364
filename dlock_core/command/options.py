"""Options that several commands have, and how they become the client's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dlock_core.errors import ConfigurationError
from dlock_core.options import ClientOptions

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "LOST",
    "SIGNALLED",
    "client_options",
    "configuration_source",
    "connection_options",
    "early_options",
    "early_takeover",
    "output_option",
]

LOST = 76
SIGNALLED = 128

_F = TypeVar("_F", bound="Callable[..., Any]")


def connection_options(function: _F) -> _F:
    """Give a command the options that say which store, and as whom."""
    for option in (
        click.option(
            "--allow-unsafe", multiple=True, metavar="NAME", help="Accept an unsafe topology of the store, by name."
        ),
        click.option("--owner", metavar="LABEL", help="Who we are, for people. Default: host:pid:random."),
        click.option("--prefix", help="Put before every key. [env DLOCK_PREFIX]"),
        click.option("--url", help="The store. [env DLOCK_URL, or url in the file that DLOCK_CONFIG names]"),
    ):
        function = option(function)
    return function


def early_options(function: _F) -> _F:
    """Give a command the options that take a dead owner's lock over sooner."""
    for option in (
        click.option("--server-clock", is_flag=True, help="Trust the store's clock for how old a record is."),
        click.option(
            "--clock-skew", type=float, metavar="SECONDS", help="Trust that no two wall clocks are further apart."
        ),
        click.option("--probe-owner", is_flag=True, help="Take over at once from a process of this host that is dead."),
        click.option(
            "--observations", metavar="FILE", help="Go on with what earlier runs have seen, and keep it for later ones."
        ),
    ):
        function = option(function)
    return function


def early_takeover(given: dict[str, Any]) -> dict[str, Any]:
    """Return the client's options that those of :func:`early_options` amount to."""
    return {
        "observations": given["observations"],
        "owner_probe": "same-host" if given["probe_owner"] else None,
        "clock_skew": given["clock_skew"],
        "server_clock": given["server_clock"] or None,
    }


def output_option(function: _F) -> _F:
    """Give a command ``-o``."""
    return click.option(
        "-o", "--output", type=click.Choice(["table", "json"]), default="table", help="For people, or for programs."
    )(function)


def client_options(**given: Any) -> ClientOptions:
    """Gather the client's options; what was not given on the command line comes from where the library takes it.

    Raises: ConfigurationError: one is wrong, or no store is named.
    """
    given["allow_unsafe"] = frozenset(given.get("allow_unsafe") or ()) or None
    keywords = {name: value for name, value in given.items() if value is not None}
    options = ClientOptions.load(**keywords)
    if options.url is None:
        raise ConfigurationError(
            "no store is named; give --url, set DLOCK_URL, or name a TOML file that has url in DLOCK_CONFIG"
        )
    return options


def configuration_source(url: str | None) -> str:
    """Say where the store's name, and the options, come from."""
    file = os.environ.get("DLOCK_CONFIG")
    source = "--url" if url else "DLOCK_URL" if os.environ.get("DLOCK_URL") else "the file"
    return f"the store from {source}; " + (
        f"file {file!r} (DLOCK_CONFIG)" if file else "no file (DLOCK_CONFIG is not set)"
    )
