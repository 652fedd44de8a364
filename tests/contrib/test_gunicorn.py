"""A client that a program makes where gunicorn or uWSGI loads it, before it forks the workers."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest

from dlock_core import connect
from tests.backends import url_for

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
LIMIT_S = 20
APP = "tests.contrib.gunicorn_app:app"
BIN = Path(sys.executable).parent


def gunicorn(socket: Path) -> tuple[list[str], str]:
    """Return the command, and what it logs when a worker begins."""
    options = ["--preload", "--workers=2", f"--bind=unix:{socket}", "--log-level=info"]
    return [str(BIN / "gunicorn"), *options, APP], "Booting worker"


def uwsgi(socket: Path) -> tuple[list[str], str]:
    """As gunicorn's."""
    options = [
        "--master",
        "--processes=2",
        "--enable-threads",
        "--py-call-uwsgi-fork-hooks",
        "--need-app",
        "--die-on-term",
        f"--home={sys.prefix}",
    ]
    return [str(BIN / "uwsgi"), *options, f"--http-socket={socket}", f"--module={APP}"], "spawned uWSGI worker"


def get(folder: Path, path: str) -> tuple[int, str]:
    """Return which worker answered, and what it said."""
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=f"{folder}/socket"), timeout=LIMIT_S) as web:
        worker, _, said = web.get(f"http://a{path}").text.partition(" ")
    return int(worker), said


PROGRAMS = [gunicorn, uwsgi] if (BIN / "uwsgi").exists() else [gunicorn]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_preloaded_workers_have_clients_of_their_own(
    store: str, program: Callable[[Path], tuple[list[str], str]], tmp_path: Path
) -> None:
    """One worker holds a lock, the other is kept out of it and of the master's; the locks are free when the server has ended."""
    url = url_for(store, tmp_path)
    for name in ("inside", "go"):
        os.mkfifo(tmp_path / name)
    command, begins = program(tmp_path / "socket")
    with (
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "DLOCK_TEST_FOLDER": str(tmp_path), "DLOCK_TEST_URL": url},
            stderr=subprocess.PIPE,
            text=True,
        ) as server,
        ThreadPoolExecutor() as pool,
    ):
        assert server.stderr is not None
        log = next(line for line in server.stderr if begins in line)
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
    # The master of uWSGI frees nothing when it ends: its lock lapses.
    wait_s = LIMIT_S * 3 if program is uwsgi else 0
    with (
        connect(url, prefix=f"{tmp_path}/") as client,
        client.lock_all(["master", "request"], timeout=wait_s) as leases,
    ):
        assert all(lease.is_valid for lease in leases.values())
