"""``dlock doctor`` on a server that ``connect`` refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dlock_core.store import Guarantees
from dlock_postgres import provision
from tests.cli.operator_support import Command
from tests.cli.support import Shell

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


@pytest.mark.parametrize("command", ["run k", "once k --slot 1", "elect k"])
def test_command_under_a_lock_names_the_whole_command_that_makes_the_table(
    server_url: str, tmp_path: Path, command: str
) -> None:
    """What a first use meets."""
    shell = Shell(tmp_path)
    shell.environment["DLOCK_URL"] = f"{server_url}?table=dlock_tests.not_made"

    done = shell.run(*command.split(), "--", "true")

    assert done.returncode == 69
    assert "dlock init --url postgresql://" in done.stderr
