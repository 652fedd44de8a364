"""Tests that pass only in company are found: each runs as if it were the only one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_apart(folder: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the plugin on one file of *tests*."""
    (folder / "test_it.py").write_text(tests, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.apart", "-p", "no:cacheprovider", "--apart", "0", *options],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_one_that_needs_another_before_it_fails(tmp_path: Path) -> None:
    """In whatever order they are drawn."""
    tests = "done = []\ndef test_first():\n    done.append(1)\ndef test_second():\n    assert done\n"

    done = run_apart(tmp_path, tests)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED test_it.py::test_second" in done.stdout
    assert "1 failed, 1 passed" in done.stdout


def test_one_that_ends_its_process_fails_and_the_others_go_on(tmp_path: Path) -> None:
    """Its exit code is told."""
    done = run_apart(tmp_path, "import os\ndef test_ends():\n    os._exit(7)\ndef test_stays():\n    pass\n")

    assert done.returncode == 1
    assert "the process of the test ended with code 7" in done.stdout
    assert "1 failed, 1 passed" in done.stdout


def test_the_seed_is_printed_and_draws_the_same_tests(tmp_path: Path) -> None:
    """One case of each function is drawn."""
    tests = "import pytest\n@pytest.mark.parametrize('n', range(50))\ndef test_it(n):\n    print('case', n)\n"

    first = run_apart(tmp_path, tests, "--apart-seed", "5", "-rP")
    second = run_apart(tmp_path, tests, "--apart-seed", "5", "-rP")

    assert "--apart-seed 5" in first.stdout
    case = next(line for line in first.stdout.splitlines() if line.startswith("case "))
    assert case in second.stdout
    assert "1 passed, 49 deselected" in first.stdout
