"""``dlock doctor --cost``: what locks cost in a month, from how often the options have them renewed and asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dlock_core.command.doctor import standing_store
from dlock_core.command.options import DURATION
from dlock_core.errors import ConfigurationError
from dlock_core.timings import NANOS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dlock_core.options import ClientOptions

_DAY_S, _MONTH_S = 86_400, 730 * 3_600  # a month of 730 hours, as bills have it
_MILLION = 1_000_000
_MOST = 1e15  # a number above it is a slip, and may be too large to multiply
_PRICES = ("request", "read_unit", "write_unit")
# Of a million, on demand, in us-east-1, Standard table class; https://aws.amazon.com/dynamodb/pricing/on-demand/ since 1 November 2024.
_DEFAULT: dict[str, dict[str, Any]] = {
    "dynamodb": {
        "currency": "USD",
        "read_unit": 0.125,
        "write_unit": 0.625,
        "source": "us-east-1, on demand, since November 2024",
    },
}
_WORKLOAD = {"locks": 1.0, "waiters": 0.0, "cycles": 0.0}


def estimated(options: ClientOptions, workload: str, prices: str | None) -> dict[str, Any]:
    """Return the estimate for *workload*, as ``locks=1000,lease=30s,waiters=5,cycles=200``; *prices* is a file or None.

    Raises: DLockError: the workload or the file cannot be read, or the store cannot be opened.
    """
    counts, lease_s = _parsed(workload)
    options = options if lease_s is None else options.with_(lease_duration=lease_s)
    with standing_store(options) as client:
        timings = client._context.resolve({}).timings
        store = client.guarantees().store
    # With jitter a pause takes between half of the longest and all of it.
    pause_s = (timings.fallback_ns if timings.notify else timings.poll_max_ns) * 0.75 / NANOS
    renewals = counts["locks"] * _MONTH_S * NANOS / timings.period_ns
    polls = counts["waiters"] * _MONTH_S / pause_s
    steps = 2 * counts["cycles"] * _MONTH_S / _DAY_S
    table = _table(store, prices)
    price = {name: table.get(name, 0) / _MILLION for name in _PRICES}
    spent = (renewals + steps) * price["write_unit"] + polls * price["read_unit"]
    return {
        "store": store,
        **counts,
        "lease_s": timings.own_lease_ns / NANOS,
        "renewals_a_month": round(renewals),
        "polls_a_month": round(polls),
        "acquires_and_releases_a_month": round(steps),
        "money_a_month": round(spent + (renewals + polls + steps) * price["request"], 2) if table else None,
        "currency": table.get("currency", ""),
        "prices": table.get("source") or prices,
    }


def estimate_in_words(estimate: Mapping[str, Any]) -> dict[str, object]:
    """Return what :func:`estimated` found, for people."""
    money = estimate["money_a_month"]
    counts = ", ".join(f"{name} {estimate[name]:g}" for name in _WORKLOAD)
    return {
        "store": estimate["store"],
        "for": f"{counts} a day, lease {estimate['lease_s']:g} s",
        "renewals": f"{estimate['renewals_a_month']:,} a month",
        "polls of waiters": f"{estimate['polls_a_month']:,} a month",
        "acquires, releases": f"{estimate['acquires_and_releases_a_month']:,} a month",
        "money": "requests have no price here: the server has; --prices names others"
        if money is None
        else f"{money:,.2f} {estimate['currency']} a month ({estimate['prices']})",
    }


def _parsed(workload: str) -> tuple[dict[str, float], float | None]:
    counts, lease_s = dict(_WORKLOAD), None
    for part in workload.split(","):
        name, _, text = part.strip().partition("=")
        try:
            if name == "lease":
                lease_s = DURATION.convert(text, None, None)
                continue
            number = float(text)
        except (ValueError, click.BadParameter):
            number = -1.0
        if name not in counts or not 0 <= number <= _MOST:
            raise ConfigurationError(
                f"--cost cannot read {part!r}; write it as locks=1000,lease=30s,waiters=5,cycles=200"
            )
        counts[name] = number
    return counts, lease_s


def _table(store: str, prices: str | None) -> dict[str, Any]:
    if prices is None:
        return _DEFAULT.get(store, {})
    try:
        table: Any = json.loads(Path(prices).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the prices in {prices!r} cannot be read: {error}") from error
    known = {*_PRICES, "currency", "source"}
    if (
        not isinstance(table, dict)
        or not table
        or not table.keys() <= known
        or not all(
            isinstance(table.get(name, 0), (int, float)) and 0 <= table.get(name, 0) <= _MOST for name in _PRICES
        )
    ):
        example = '{"currency": "USD", "request": 0, "read_unit": 0.125, "write_unit": 0.625}'
        raise ConfigurationError(f"{prices!r} is no table of prices of a million each, such as {example}")
    return table
