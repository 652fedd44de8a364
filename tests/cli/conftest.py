"""What the tests of the command share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import connect
from tests.cli.operator_support import Command
from tests.cli.support import Shell

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Return a shell with a store of its own."""
    shell = Shell(tmp_path)
    yield shell
    for process in shell.started:
        with process:  # closes its pipes, of which a test that failed may have closed some
            if process.poll() is None:
                process.kill()


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name a store in the environment, and nothing else."""
    url = f"sqlite:///{tmp_path / 'locks.db'}"
    monkeypatch.setenv("DLOCK_URL", url)
    monkeypatch.delenv("DLOCK_CONFIG", raising=False)
    return url


@pytest.fixture
def dlock(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return the command."""
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    return Command(capsys)


@pytest.fixture
def client(url: str) -> Any:
    """Return a client of the same store."""
    with connect(url) as client:
        yield client
