"""``dlock elect`` on etcd: between two terms nothing of gRPC is left, so that the next command is forked at once, and in silence."""

from __future__ import annotations

import subprocess
import sys
import time


def test_the_next_term_begins_in_silence_and_soon(address: str, key: str) -> None:
    """A thread of gRPC that outlived its term would be waited for, and gRPC tells stderr of a fork beside it."""
    said = subprocess.PIPE
    url = f"etcd://{address}/tests"
    terms = [sys.executable, "-m", "dlock_core", "elect", "--url", url, key, "--", "echo", "leading"]
    with subprocess.Popen(terms, stdout=said, stderr=said) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        began = time.monotonic()
        process.stdout.readline()
        took = time.monotonic() - began
        process.terminate()
        err = process.stderr.read()

    assert took < 4
    assert b"fork" not in err
