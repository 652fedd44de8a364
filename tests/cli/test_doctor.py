"""``dlock doctor``: the policy that it prints, and the names of traits that it is given."""

from __future__ import annotations

import importlib.metadata
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core.command import doctor
from dlock_sqlite import SqliteStore

if TYPE_CHECKING:
    from tests.cli.operator_support import Command

UNSAFE = {"name": "odd", "reason": "why", "remedy": "do", "accepted": False}
BOTH = ("--allow-unsafe", "sqlite-second-name", "--allow-unsafe", "sqlite-network-filesystem")


def test_doctor_policy_of_a_store_without_one_says_so(dlock: Command, url: str) -> None:
    """A file needs no rights that a server would grant."""
    code, out, err = dlock("doctor", "--policy")

    assert (code, out) == (64, "")
    assert "no policy" in err


@pytest.mark.parametrize("policy", ["text", {"Version": 1}, lambda options: f"for {type(options).__name__}"])
def test_doctor_prints_the_policy_of_the_backend(
    dlock: Command, url: str, monkeypatch: pytest.MonkeyPatch, policy: Any
) -> None:
    """Text as it is, a document as JSON, a function of the store's options as what it gives."""
    from dlock_sqlite import backend

    monkeypatch.setattr(backend, "policy", policy)

    code, out, _ = dlock("doctor", "--policy")

    assert code == 0
    assert out in ("text\n", '{\n  "Version": 1\n}\n', "for SqliteOptions\n")
    assert dlock.json("doctor", "--policy")["policy"] in ("text", {"Version": 1}, "for SqliteOptions")


def test_doctor_refuses_a_trait_that_no_store_has(dlock: Command, url: str) -> None:
    """The name is checked where it is first tried."""
    code, _, err = dlock("doctor", "--allow-unsafe", "redis-replcia")

    assert code == 64
    assert "no trait 'redis-replcia'; perhaps 'redis-replica' is meant" in err


def test_doctor_names_the_package_of_an_adapter_that_cannot_open_its_store(
    dlock: Command, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As connect does: the mistake is not the user's."""
    from dlock_sqlite import backend

    monkeypatch.setattr(backend, "look", lambda options: options.no_such_option)

    code, out, err = dlock("doctor")

    assert (code, out) == (64, "")
    assert "the adapter 'dlock_sqlite:backend' of the package dlock-core" in err
    assert err.endswith("report that to its author\n")


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"clock_rate_ppm": None}, "its rate cannot be checked on this system"),
        ({"clock_rate_ppm": 0.0}, "rate +0.0 ppm against the raw counter, within the bound of 10000 ppm"),
        ({"clock_rate_ppm": -10_000.0}, "rate -10000.0 ppm against the raw counter, BEYOND the bound of 10000 ppm"),
        ({"durable": False}, "NO: a restart may forget locks"),
        ({"notes": []}, "'notes': '-'"),
        ({"grade": "B"}, "['   A: the promises hold in the documented failure model', '-> B: "),
        ({"grade": "B"}, "'   C: a failover can grant a lock twice"),
        ({"unsafe": [UNSAFE | {"accepted": True}]}, "'unsafe': ['odd, accepted: why']"),
        ({"unsafe": [UNSAFE | {"remedy": None}]}, "'unsafe': ['odd: why', \"  if that cannot happen here"),
        ({"read_ms_max": 1600.0}, "a renewal may take 3333 ms with a lease of 20 s'"),
        ({"read_ms_max": 1700.0}, "a renewal may take 3333 ms with a lease of 20 s; TOO SLOW: take a longer lease'"),
    ],
)
def test_doctor_says_what_it_found(dlock: Command, url: str, found: dict[str, Any], told: str) -> None:
    """A part of it on most systems alone."""
    dlock("init")
    facts: dict[str, Any] = dlock.json("doctor")

    assert told in str(doctor.in_words(facts | found))


def test_doctor_tells_the_middle_and_the_longest_of_the_round_trips(
    dlock: Command, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whichever order they came."""
    dlock("init")
    monkeypatch.setattr(doctor, "_reads_ms", lambda _: [float(number) for number in range(21, 0, -1)])

    facts = dlock.json("doctor")

    assert (facts["read_ms_median"], facts["read_ms_max"], facts["reads"], facts["unread"]) == (11, 21, 21, None)


@pytest.mark.parametrize(
    ("options", "limit_ms"), [("6", 1000), ("3600&request_timeout=20", 10_000), ("6&request_timeout=0.5", 500)]
)
def test_doctor_tells_how_long_a_request_may_take(dlock: Command, url: str, options: str, limit_ms: int) -> None:
    """A share of the lease, but no longer than ten seconds, nor than the option says."""
    assert dlock.json("doctor", "--url", f"{url}?lease_duration={options}")["request_timeout_ms"] == limit_ms


def test_doctor_tells_how_much_faster_the_clock_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Than the counter that nobody adjusts, where the system has one."""
    ours, raw = iter([7, 7 + 250_002_500]), iter([3, 3 + 250_000_000])
    monkeypatch.setattr(doctor, "now_ns", lambda: next(ours))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with monkeypatch.context() as patched:
        patched.setattr(time, "CLOCK_MONOTONIC_RAW", 4, raising=False)
        patched.setattr(time, "clock_gettime_ns", lambda _: next(raw))
        assert doctor._clock_rate_ppm() == 10.0

    monkeypatch.delattr(time, "CLOCK_MONOTONIC_RAW", raising=False)
    assert doctor._clock_rate_ppm() is None


@pytest.mark.parametrize(("accepted", "code"), [((), 1), (("--allow-unsafe", "sqlite-second-name"), 1), (BOTH, 0)])
def test_doctor_refuses_a_store_until_each_trait_is_accepted(
    dlock: Command, url: str, monkeypatch: pytest.MonkeyPatch, accepted: tuple[str, ...], code: int
) -> None:
    """As connect does, which reads no store that it refuses."""
    dlock("init")
    traits = tuple((name, "why") for name in BOTH if not name.startswith("--"))
    promised = SqliteStore.guarantees
    monkeypatch.setattr(SqliteStore, "guarantees", lambda self: replace(promised(self), unsafe=traits))

    ended, out, err = dlock("doctor", *accepted)

    assert (ended, err.count("accepted trait")) == (code, code == 0 and 2)
    assert ("not measured: the store is refused" in out) == (code == 1)


def test_doctor_finds_another_package_that_claims_the_scheme(
    dlock: Command, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To open the store nothing looks for one."""
    points = [
        importlib.metadata.EntryPoint("sqlite", f"{name}:backend", "dlock.stores") for name in ("dlock_sqlite", "other")
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: points)

    code, _, err = dlock("doctor")

    assert code == 64
    assert "'sqlite' is claimed by " in err
