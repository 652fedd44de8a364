"""The command line's options that become options of the client, described by the client's own models."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dlock_core.engine.texts import seconds_text
from dlock_core.errors import ConfigurationError, UnsupportedError
from dlock_core.options import ClientOptions

if TYPE_CHECKING:
    from collections.abc import Callable

LOST = 76
SIGNALLED = 128
# By which the lease is divided.
GRACE = 4


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions alone
    """Seconds, or a number with its unit: ``500ms``, ``10s``, ``1m``, ``2h``, ``30d``."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        if isinstance(value, (int, float)):
            return float(value)
        text = str(value).strip()
        try:
            return seconds_text(text)
        except ValueError as error:
            self.fail(f"{text!r} is not a duration; {error}", param, ctx)


DURATION = Duration()
_F = TypeVar("_F", bound="Callable[..., Any]")


def option(flag: str, name: str, note: str = "", **more: Any) -> Callable[[_F], _F]:
    """Return a decorator that adds *flag* for the client's option *name*, whose description is the help, with *note* behind it."""
    field = ClientOptions.model_fields[name]
    return click.option(flag, name, help=f"{field.description}{note}", **more)


def connection_options(function: _F) -> _F:
    """Add the options that say which store, and as whom."""
    for decorate in (
        option("--allow-unsafe", "allow_unsafe", multiple=True, metavar="NAME"),
        option("--owner", "owner", metavar="LABEL"),
        option("--prefix", "prefix", " [env DLOCK_PREFIX]"),
        option("--url", "url", " [env DLOCK_URL, or url in the file that DLOCK_CONFIG names]"),
    ):
        function = decorate(function)
    return function


probe_option = click.option(
    "--probe-owner",
    "owner_probe",
    flag_value="same-host",
    help="Take over at once from a process of this host that is dead, together with its command; give it to all runs.",
)
grace_option = click.option(
    "--grace",
    type=DURATION,
    metavar="TIME",
    help="Seconds between TERM and KILL, both within the lease; a quarter of the lease by default.",
)


def grace_within(options: ClientOptions, grace: float | None) -> float:
    """Return the grace in seconds; by default a quarter of the shortest of the lease, ``max_hold`` and ``stall_timeout``.

    Raises: ConfigurationError: the grace is so long that a healthy command would be ended.
    """
    bounds = {
        "lease": options.lease_duration,
        "max_hold": options.max_hold or math.inf,
        "stall_timeout": options.stall_timeout or math.inf,
    }
    what, bound = min(bounds.items(), key=lambda named: float(named[1]))  # type: ignore[arg-type]  # checked: seconds
    bound = float(bound)  # type: ignore[arg-type]  # as above
    if grace is None:
        return bound / GRACE
    if not 0 <= grace <= bound / 2:
        longer = "--lease" if what == "lease" else what
        raise ConfigurationError(
            f"a grace of {grace:g} s does not fit a {what} of {bound:g} s; give 0 to {bound / 2:g} s, or a longer {longer}"
        )
    return grace


def output_option(function: _F) -> _F:
    """Add ``-o``."""
    choice = click.Choice(["table", "json"])
    return click.option("-o", "--output", type=choice, default="table", help="For people, or for programs.")(function)


def client_options(**given: Any) -> ClientOptions:
    """Gather the client's options; what was not given on the command line comes from where the library takes it.

    Raises: ConfigurationError: one is wrong, or no store is named.
    """
    # A flag that was not set, and a list that is empty, leave the option to the other sources.
    keywords = {name: value for name, value in given.items() if value not in (None, ())}
    if "allow_unsafe" in keywords:
        keywords["allow_unsafe"] = frozenset(keywords["allow_unsafe"])
    options = ClientOptions.load(**keywords)
    if options.url is None:
        raise ConfigurationError(
            "no store is named; give --url, set DLOCK_URL, or name a TOML file that has url in DLOCK_CONFIG"
        )
    return options


def holding_options(**given: Any) -> ClientOptions:
    """Return the options as :func:`client_options` does, for a command that holds a lock while a program runs.

    Raises: as it does; UnsupportedError: no other process could see a lock of the store.
    """
    options = client_options(**given, auto_renew=True, cancel_on_loss=False)
    assert options.url is not None  # asked by client_options
    if options.url.get_secret_value().partition(":")[0].lower() == "memory":
        raise UnsupportedError(
            "memory:// protects nothing here: no other process sees its locks; name a store that processes share, "
            "for example sqlite:////var/lib/locks.db on one host"
        )
    return options


def configuration_source(url: str | None) -> str:
    """Say where the store's name, and the options, come from."""
    file = os.environ.get("DLOCK_CONFIG")
    source = "--url" if url else "DLOCK_URL" if os.environ.get("DLOCK_URL") else "the file"
    named = f"file {file!r} (DLOCK_CONFIG)" if file else "no file (DLOCK_CONFIG is not set)"
    return f"the store from {source}; {named}"
