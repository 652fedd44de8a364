"""A client that a program makes where gunicorn preloads it, before it forks the workers."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from dlock_core import connect
from tests.backends import url_for

ROOT = Path(__file__).parents[2]
LIMIT_S = 20


def get(folder: Path, path: str) -> tuple[int, str]:
    """Return which worker answered, and what it said."""
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=f"{folder}/socket"), timeout=LIMIT_S) as web:
        worker, _, said = web.get(f"http://a{path}").text.partition(" ")
    return int(worker), said


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_preloaded_workers_have_clients_of_their_own(store: str, tmp_path: Path) -> None:
    """One worker holds a lock, the other is kept out of it and of the master's; when the server ends, all locks are free."""
    url = url_for(store, tmp_path)
    for name in ("inside", "go"):
        os.mkfifo(tmp_path / name)
    command = ["gunicorn", "--preload", "--workers=2", f"--bind=unix:{tmp_path}/socket", "--log-level=info"]
    with (
        subprocess.Popen(
            [sys.executable, "-m", *command, "tests.contrib.gunicorn_app:app"],
            cwd=ROOT,
            env={**os.environ, "DLOCK_TEST_FOLDER": str(tmp_path), "DLOCK_TEST_URL": url},
            stderr=subprocess.PIPE,
            text=True,
        ) as server,
        ThreadPoolExecutor() as pool,
    ):
        assert server.stderr is not None
        log = next(line for line in server.stderr if "Booting worker" in line)
        held = pool.submit(get, tmp_path, "/hold")
        assert (tmp_path / "inside").read_text(encoding="utf-8") == "in", log
        other, said = get(tmp_path, "/")
        (tmp_path / "go").write_text("go", encoding="utf-8")
        holder, ended = held.result(LIMIT_S)
        server.terminate()
        rest = server.stderr.read()

    assert (said, ended, server.returncode) == ("kept out", "held", 0), rest
    assert holder != other
    assert "Traceback" not in rest
    with connect(url, prefix=f"{tmp_path}/") as client, client.lock_all(["master", "request"], timeout=0) as leases:
        assert all(lease.is_valid for lease in leases.values())
