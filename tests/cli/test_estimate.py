"""``dlock doctor --cost``: what locks cost in a month."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from dlock_core import LockClient
from dlock_core.command import estimate
from dlock_core.testing import FaultyStore
from tests.cli.operator_support import Command


def asked(dlock: Command, *arguments: str) -> dict[str, Any]:
    """Return what the command prints as JSON."""
    code, out, err = dlock("doctor", "-o", "json", *arguments)
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def test_estimate_counts_renewals_polls_and_cycles(dlock: Command, url: str) -> None:
    """Of 730 hours; a lock is renewed four times a lease, and a waiter that is woken looks each 1.5 s besides."""
    found = asked(dlock, "--cost", "locks=2, lease=1m, waiters=1, cycles=24")

    assert found["renewals_a_month"] == 2 * 4 * 730 * 60
    assert found["acquires_and_releases_a_month"] == 2 * 730
    assert found["polls_a_month"] == 730 * 3600 / 1.5
    assert (found["money_a_month"], found["lease_s"]) == (None, 60)


def test_prices_are_those_of_the_file(dlock: Command, url: str, tmp_path: Path) -> None:
    """Of a million each; a request has a price beside that of its unit."""
    prices = tmp_path / "prices.json"
    prices.write_text('{"currency": "EUR", "request": 1, "write_unit": 2}')

    found = asked(dlock, "--cost", "locks=1000,lease=60,waiters=5,cycles=20000", "--prices", str(prices))
    code, out, _ = dlock("doctor", "--cost", "locks=1000,lease=60", "--prices", str(prices))

    written = found["renewals_a_month"] + found["acquires_and_releases_a_month"]
    assert found["money_a_month"] == pytest.approx((written * 3 + found["polls_a_month"]) / 1e6, abs=0.01)
    assert (code, f"525.60 EUR a month ({prices})" in out) == (0, True)


def test_prices_may_say_where_they_come_from_and_need_no_currency(dlock: Command, url: str, tmp_path: Path) -> None:
    """Nothing costs nothing, which is a price, too."""
    prices = tmp_path / "prices.json"
    prices.write_text('{"source": "the contract", "write_unit": 2}')

    found = asked(dlock, "--cost", "locks=0", "--prices", str(prices))
    out = dlock("doctor", "--cost", "locks=0", "--prices", str(prices))[1]

    assert (found["money_a_month"], found["currency"], found["prices"]) == (0, "", "the contract")
    assert "money               0.00  a month (the contract)\n" in out


def test_lease_is_by_default_that_of_the_options(dlock: Command, url: str) -> None:
    """No other is asked for."""
    assert asked(dlock, "--cost", "locks=1", "--url", f"{url}?lease_duration=5")["lease_s"] == 5


def test_waiter_that_no_store_wakes_looks_more_often(dlock: Command, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each half a second at most, in place of each two."""
    woken = asked(dlock, "--cost", "waiters=1")["polls_a_month"]
    with LockClient(FaultyStore()) as client:
        monkeypatch.setattr(estimate, "standing_store", lambda _: nullcontext(client))

        assert asked(dlock, "--cost", "waiters=1")["polls_a_month"] == 4 * woken


def test_dynamodb_has_prices_by_default(dlock: Command, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the page that the documentation names."""
    named = estimate._DEFAULT["dynamodb"]
    monkeypatch.setitem(estimate._DEFAULT, "sqlite", named)

    found = asked(dlock, "--cost", "locks=1000,lease=60,waiters=5,cycles=20000")

    spent = (found["renewals_a_month"] + found["acquires_and_releases_a_month"]) * 0.625 + found[
        "polls_a_month"
    ] * 0.125
    assert found["money_a_month"] == pytest.approx(spent / 1e6, abs=0.01)
    assert (found["currency"], found["prices"]) == ("USD", "us-east-1, on demand, since November 2024")


@pytest.mark.parametrize(
    "workload",
    ["", "locks", "locks=many", "locks=-1", "locks=inf", "locks=1e308", "leases=1", "lease=soon", "locks=1;waiters=1"],
)
def test_workload_that_cannot_be_read_is_told_in_one_line(dlock: Command, url: str, workload: str) -> None:
    """With an example."""
    code, out, err = dlock("doctor", "--cost", workload)

    assert (code, out, err.count("\n")) == (64, "", 1)
    assert "write it as locks=1000,lease=30s,waiters=5,cycles=200" in err


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "write_unit = 1"),
        *(f'{{"write_unit": {price}}}' for price in ('"dear"', "-1", "1e308", "Infinity")),
        '{"writes": 1}',
    ],
)
def test_prices_that_are_none_are_told_in_one_line(dlock: Command, url: str, tmp_path: Path, text: str) -> None:
    """With the name of the file."""
    prices = tmp_path / "prices.json"
    prices.write_text(text)

    code, out, err = dlock("doctor", "--cost", "locks=1", "--prices", str(prices))

    assert (code, out, err.count("\n"), str(prices) in err) == (64, "", 1, True)


@pytest.mark.skipif(sys.platform != "linux", reason="the file is one of Linux")
def test_prices_that_cannot_be_read_are_told_in_one_line(dlock: Command, url: str) -> None:
    """As of a disk that fails: nothing is mapped where this file begins."""
    code, out, err = dlock("doctor", "--cost", "locks=1", "--prices", "/proc/self/mem")

    assert (code, out) == (64, "")
    assert err.startswith("dlock: the prices in '/proc/self/mem' cannot be read: ")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--policy", "--cost", "locks=1"], "--policy and --cost exclude each other"),
        (["--prices", __file__], "--prices is for --cost"),
    ],
)
def test_options_that_go_together_with_nothing_are_refused(
    dlock: Command, url: str, options: list[str], told: str
) -> None:
    """None of them is left out in silence."""
    code, out, err = dlock("doctor", *options)

    assert (code, out, told in err) == (64, "", True)
