"""``dlock prune``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dlock_core.clock import now_ns
from dlock_sqlite import _clock

if TYPE_CHECKING:
    from dlock_core import LockClient
    from tests.cli.operator_support import Command

DAY_NS = 86_400 * 10**9


@pytest.fixture
def old(client: LockClient, monkeypatch: pytest.MonkeyPatch) -> LockClient:
    """Make two records of 31 days ago, one of them with data."""
    with client.lock("app/a"), client.lock("app/b", data=b"kept"):
        pass
    monkeypatch.setattr(_clock, "now_ns", lambda: now_ns() + 31 * DAY_NS)
    return client


def test_prune_says_how_many_of_how_many_went(dlock: Command, old: LockClient) -> None:
    """First what would go, then what went."""
    assert dlock("prune", "app/", "--older-than", "30d", "--dry-run") == (0, "would remove  1 of 2 records\n", "")
    assert old.get("app/a") is not None
    assert dlock("prune", "app/b", "--older-than", "30d") == (0, "removed  0 of 1 records\n", "")
    assert dlock("prune", "app/", "--older-than", "30d") == (0, "removed  1 of 2 records\n", "")
    assert [record.key for record in old.scan()] == ["app/b"]


@pytest.mark.usefixtures("old")
def test_prune_as_json(dlock: Command) -> None:
    """For programs."""
    assert dlock.json("prune", "--older-than", "768h") == {"removed": 0, "seen": 2, "dry_run": False}
    assert dlock.json("prune", "--older-than", "25h") == {"removed": 1, "seen": 2, "dry_run": False}


@pytest.mark.usefixtures("old")
def test_prune_by_the_clients_prefix(dlock: Command) -> None:
    """``--prefix`` stands before all keys, as everywhere."""
    assert dlock("prune", "--prefix", "other/", "--older-than", "30d") == (0, "removed  0 of 0 records\n", "")


@pytest.mark.usefixtures("url")
@pytest.mark.parametrize("given", ["24h", "0", "1"])
def test_prune_names_the_least_time_and_why(dlock: Command, given: str) -> None:
    """A usage error, before anything is listed."""
    code, out, err = dlock("prune", "--older-than", given)

    assert (code, out) == (64, "")
    assert "90000 s (25 h)" in err
    assert "must not arrive after it" in err


@pytest.mark.usefixtures("url")
def test_prune_asks_for_the_time(dlock: Command) -> None:
    """Nothing is removed by a default."""
    assert dlock("prune") == (64, "", "dlock: Missing option '--older-than'; see 'dlock prune --help'\n")
