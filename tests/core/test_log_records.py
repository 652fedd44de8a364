"""What is logged: the names of the loggers are those of the page, and the records carry the fields that it promises."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from dlock_core import LockClient
from dlock_core.memory import MemorySpace, MemoryStore

ROOT = Path(__file__).parents[2]
FIELDS = {
    "dlock_kind",
    "dlock_key",
    "dlock_attempt",
    "dlock_fencing_token",
    "dlock_duration",
    "dlock_holder",
    "dlock_error",
}


def test_each_logger_is_on_the_page() -> None:
    """Whoever sets levels by name finds each name, and none that is not used."""
    sources = [file.read_text(encoding="utf-8") for file in ROOT.glob("dlock_*/**/*.py")]
    used = {
        name for text in sources for name in re.findall(r'(?:getLogger|guarded_logger)\("([a-z.]+\.[a-z.]+)"\)', text)
    }
    page = (ROOT / "docs" / "logging.md").read_text(encoding="utf-8")

    assert {"dlock.engine", "dlock.client"} <= used
    assert set(re.findall(r"^\| `([a-z.]+)` \|", page, re.MULTILINE)) == used


def test_records_of_a_grant_and_a_release_carry_their_facts(caplog: pytest.LogCaptureFixture) -> None:
    """A handler that writes JSON needs no parsing."""
    with (
        caplog.at_level(logging.DEBUG, "dlock.engine"),
        LockClient(MemoryStore(MemorySpace())) as client,
        client.lock("k") as lease,
    ):
        token = lease.fencing_token

    told = [
        {name: value for name, value in vars(record).items() if name.startswith("dlock_")} for record in caplog.records
    ]
    facts = [fields for fields in told if fields]
    assert [fields["dlock_kind"] for fields in facts] == ["granted", "released"]
    assert all(fields.keys() == FIELDS for fields in facts)
    assert all((fields["dlock_key"], fields["dlock_fencing_token"]) == ("k", token) for fields in facts)
    assert all(fields["dlock_duration"] >= 0 for fields in facts)
