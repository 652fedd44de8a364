"""The example programs do what they say, on every store that they name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends import EMBEDDED, SERVED, url_for

ROOT = Path(__file__).parents[1]
LIMIT_S = 120
TOLD = [
    "held until released; valid: True",
    "the rival gets None, and reads b'report 2026-11' with the same token: True",
    "the rival's turn; its token is greater: True",
]


def told_by(*arguments: str, url: str | None = None) -> list[str]:
    """Return the lines that ``examples.swap_backend`` prints."""
    command = [sys.executable, "-m", "examples.swap_backend", *arguments]
    variables = {name: value for name, value in os.environ.items() if name != "DLOCK_URL"}
    variables |= {"DLOCK_URL": url} if url else {}
    done = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EMBEDDED, *SERVED, "etcd", "zookeeper"])
def test_one_program_runs_on_every_store(name: str, tmp_path: Path) -> None:
    """Only the URL is another one; what the program sees is the same."""
    first, *others = told_by(url_for(name, tmp_path))

    assert first.startswith(("on redis ", "on valkey ") if name == "redis" else f"on {name} ")
    assert others == TOLD


def test_the_url_may_come_from_the_environment(tmp_path: Path) -> None:
    """``DLOCK_URL`` names the store where no argument does."""
    first, *others = told_by(url=f"sqlite:///{tmp_path}/locks.db")

    assert first.startswith("on sqlite ")
    assert others == TOLD


@pytest.mark.slow
def test_the_example_of_a_store_is_tested_by_its_own_settings() -> None:
    """A stranger runs its tests inside a clone, without the plugins that this project's settings are for."""
    folder = ROOT / "examples" / "third_party_store"
    options = ["-p", "no:timeout", "-p", "no:cacheprovider", "-p", "dlock_conformance.plugin", "--collect-only", "-q"]

    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_directory.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )

    assert done.returncode == 0, done.stdout + done.stderr
