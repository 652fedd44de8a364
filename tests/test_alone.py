"""What failed beside others is tried again alone, within narrow bounds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import alone

ROOT = Path(__file__).parents[1]
REAL = "tests/redis/test_it.py::test_it"


def run_all(folder: Path, test: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in `folder` on one test of a real server, and as `make test` does after that."""
    place = folder / "tests" / "redis"
    place.mkdir(parents=True)
    (place / "test_it.py").write_text(test, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    first = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=folder, env=environment, capture_output=True, check=False
    )
    return subprocess.run(
        [sys.executable, str(ROOT / "tests" / "alone.py"), str(first.returncode)],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_one_that_passes_alone_is_named_and_the_run_passes(tmp_path: Path) -> None:
    """It runs three times more."""
    test = (
        "from pathlib import Path\n"
        "def test_it():\n"
        "    tries = Path('tries')\n"
        "    before = tries.read_text() if tries.exists() else ''\n"
        "    tries.write_text(before + 'x')\n"
        "    assert before\n"
    )

    done = run_all(tmp_path, test)

    assert done.returncode == 0, done.stdout + done.stderr
    assert REAL in done.stderr
    assert len((tmp_path / "tries").read_text(encoding="utf-8")) == 1 + alone.TIMES


def test_one_that_fails_alone_fails_the_run(tmp_path: Path) -> None:
    """The exit code is pytest's."""
    assert run_all(tmp_path, "def test_it():\n    assert False\n").returncode == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    ("failed", "code", "why"),
    [
        ([REAL], pytest.ExitCode.NO_TESTS_COLLECTED, "not whole"),
        ([], pytest.ExitCode.TESTS_FAILED, "0 tests failed"),
        ([f"{REAL}[{number}]" for number in range(21)], pytest.ExitCode.TESTS_FAILED, "21 tests failed"),
        (
            [REAL, "tests/core/test_lease_early.py::test_it"],
            pytest.ExitCode.TESTS_FAILED,
            "tests/core/test_lease_early.py::test_it does not",
        ),
        (["tests/redis/test_it.py"], pytest.ExitCode.TESTS_FAILED, "tests/redis/test_it.py does not"),
    ],
)
def test_other_failures_are_not_tried_again(failed: list[str], code: int, why: str) -> None:
    """A missing store, many failures, tests in virtual time, and files that cannot be read."""
    assert why in alone.refusal(failed, code)


def test_each_strict_name_is_that_of_a_file() -> None:
    """A file that was renamed would be tried again without a word."""
    assert [name for name in alone._STRICT if not list((ROOT / "tests" / "core").glob(f"test_{name}*.py"))] == []
