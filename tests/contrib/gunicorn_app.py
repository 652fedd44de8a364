"""The program that gunicorn loads before it forks its workers: ``gunicorn --preload tests.contrib.gunicorn_app:app``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dlock_core import shared_client

FOLDER = Path(os.environ["DLOCK_TEST_FOLDER"])
locks = shared_client(os.environ["DLOCK_TEST_URL"], prefix=f"{FOLDER}/", lease_duration=10)

# The workers inherit an open client, and a lock that is held.
lease = locks.acquire("master")


def app(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    """Hold a lock until the test says so, or say who is kept out."""
    if environ["PATH_INFO"] == "/hold":
        with locks.lock("request", timeout=0):
            (FOLDER / "inside").write_text("in", encoding="utf-8")  # pipes: each waits for the test
            (FOLDER / "go").read_text(encoding="utf-8")
        said = "held"
    else:
        said = "kept out" if locks.try_acquire("request") is None and locks.try_acquire("master") is None else "in"
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.getpid()} {said}".encode()]
