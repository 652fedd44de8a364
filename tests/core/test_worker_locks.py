"""The fixture ``worker_locks``: locks between the workers of pytest-xdist."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import os
import pathlib
import pytest

@pytest.fixture(scope="session")
def database(worker_locks):
    with worker_locks.once("database", slot=1, timeout=60) as job:
        if job.due:
            with pathlib.Path("made").open("a") as file:
                file.write("made\\n")
    assert not job.busy
    return "made"

@pytest.mark.parametrize("number", range(8))
def test_alone(number, worker_locks, database):
    with worker_locks.lock("alone", timeout=60):
        descriptor = os.open("inside", os.O_CREAT | os.O_EXCL)
        os.close(descriptor)
        os.unlink("inside")
"""


@pytest.mark.parametrize("workers", ["0", "3"])
def test_one_worker_is_inside_at_a_time(workers: str, tmp_path: Path) -> None:
    """Workers of one run exclude each other, and one of them makes what all share; without xdist it works as well."""
    (tmp_path / "test_shared.py").write_text(TESTS, encoding="utf-8")
    plugins = ["-p", "xdist", "-p", "dlock_core.pytest_plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "-n", workers, "--basetemp", "100 % of #1 ?", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed" in done.stdout
    assert (tmp_path / "made").read_text(encoding="utf-8") == "made\n"
