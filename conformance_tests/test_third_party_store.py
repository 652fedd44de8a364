"""A stranger's store passes the suite in a clean virtual environment, from the built wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "third_party_store"
DISTRIBUTION = "dlock_core"


def run(*command: str | Path, cwd: Path) -> str:
    """Run *command* with nothing of this checkout on its path; fail with its output."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DLOCK", "COV"))}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout[-3000:]}{done.stderr[-1000:]}"
    return done.stdout


@pytest.mark.slow
def test_the_example_passes_from_the_wheel(tmp_path: Path) -> None:
    """Only what the wheel ships, and the example's own three files."""
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, cwd=ROOT)
    [wheel] = tmp_path.glob(f"{DISTRIBUTION}-*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    # A pip of its own would cost as much as all else that is installed.
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile")
    run(*pip, f"{wheel}[conformance]", EXAMPLE, cwd=tmp_path)
    tests = tmp_path / "test_directory.py"
    tests.write_text((EXAMPLE / "test_directory.py").read_text(encoding="utf-8"), encoding="utf-8")

    told = run(
        python, "-m", "pytest", "-q", "-p", "dlock_conformance.plugin", "--dlock-require=directory", tests, cwd=tmp_path
    )

    assert "TestDirectoryStore (sync): directory 1, grade A" in told
    assert " failed" not in told
