"""The commands that the page names."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.migration.shop import PATIENCE_S, Shop, exercise


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DLOCK_")}
    return subprocess.run(
        [sys.executable, "-m", "dlock_core", *arguments],
        env=clean,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


@exercise("dlock run", any_store=True)
def dlock_run(shop: Shop) -> None:
    """A command under the lock; its exit code comes through."""
    key = f"{shop.prefix}k"
    done = run("run", "--url", shop.url, key, "--", "sh", "-c", "echo $DLOCK_KEY $DLOCK_FENCING_TOKEN; exit 7")

    if shop.url.startswith("memory:"):
        assert done.returncode == 64  # no other process would see the lock
        return
    assert done.returncode == 7, done.stderr
    said, token = done.stdout.split()
    assert said == key
    assert int(token) >= 1
