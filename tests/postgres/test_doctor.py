"""``dlock doctor`` on a server that ``connect`` refuses."""

from __future__ import annotations

from typing import Any

import pytest

from dlock_core.store import Guarantees
from dlock_postgres import provision
from tests.cli.operator_support import Command

NAME = "postgres-async-replica"


def test_doctor_examines_a_server_that_is_refused(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason, the remedy, and the name that accepts it; the exit code tells."""
    alone = provision._guarantees

    def replicated(version: str, settings: list[Any], _: int, *, notifies: bool) -> Guarantees:
        return alone(version, settings, 1, notifies=notifies)

    monkeypatch.setattr(provision, "_guarantees", replicated)

    out = Command(capsys).refused(url, NAME)

    for words in (f"{NAME}: its replicas", "remedy: have a standby confirm", "-> C:"):
        assert words in out


def test_doctor_without_the_table_names_the_whole_command(server_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was made yet, and nothing is made."""
    url = f"{server_url}?table=dlock_tests.not_made"

    code, _, err = Command(capsys)("doctor", "--url", url)

    assert code == 69
    assert "dlock init --url postgresql://" in err
