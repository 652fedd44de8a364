"""Run the few tests that failed beside others again, alone: ``python -m tests.alone CODE``, where CODE is how pytest ended.

`make test` and `make containers` call it after a failure. A machine that stands still for longer than a real lease fails a test that is
right. So the run passes with up to `MOST` failed tests if these pass `TIMES` times alone; they are named at the end.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Twice as many as run side by side: a machine that stands still once fails one of each process.
MOST = 20
TIMES = 3
_FAILED = Path(".pytest_cache/v/cache/lastfailed")
# Without a clock or in virtual time, and some by a random seed: no busy machine excuses a failure, and the next seed hides it.
_STRICT = ("explore", "job_worlds", "lease_", "mutants", "proof", "simulate", "traces")


def refusal(failed: list[str], code: int) -> str:
    """Say why a run with these failures and this exit code has failed for good; nothing where the tests may be tried again."""
    if code != pytest.ExitCode.TESTS_FAILED:
        return f"pytest ended with {code}: the run was not whole"
    if not 0 < len(failed) <= MOST:
        return f"{len(failed)} tests failed; only 1 to {MOST} are tried again"
    strict = [
        test
        for test in failed
        if "::" not in test or test.startswith(tuple(f"tests/core/test_{name}" for name in _STRICT))
    ]
    return f"{strict[0]} does not depend on a clock" if strict else ""


def main(code: int) -> int:
    """Try the failed tests again, and return the exit code of the whole run."""
    failed = sorted(json.loads(_FAILED.read_text(encoding="utf-8"))) if _FAILED.exists() else []
    why = refusal(failed, code)
    if why:
        sys.stderr.write(f"not tried again: {why}\n")
        return code
    for _ in range(TIMES):
        again = subprocess.run([sys.executable, "-m", "pytest", *failed], check=False).returncode
        if again:
            return again
    sys.stderr.write("\n    ".join([f"failed beside others, passed {TIMES} times alone:", *failed]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
