"""The ten tasks of a newcomer, each a short program under ``examples/tasks``: it does what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends import url_for

ROOT = Path(__file__).parents[1]
TASKS = ROOT / "examples" / "tasks"
LINES_MAX = 32
LIMIT_S = 60
PRINTED = {
    "asyncio_tasks.py": ["one at a time: True"],
    "busy_answer.py": ["200 paid", "409 the order is being paid already"],
    "cron_once.py": ["the report is written"],
    "deploy.sh": ["deploying as holder of deploy"],
    "fenced_write.py": ["the new holder writes: True", "the old holder writes: False"],
    "from_redis_py.py": ["held by both: True"],
    "leader.py": ["leading", "resigned"],
    "thread_pool.py": ["[('anna', 10), ('boris', 10)]"],
    "two_keys.py": ["{'anna': 80, 'boris': 120}"],
    "worker.py": ["the second worker did ['invoice-1', 'invoice-3']"],
}


def run(name: str, url: str, *before: str) -> list[str]:
    """Run the program on the store of *url*; return what it prints."""
    # The command is the one of this project, wherever it is installed.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = ["sh" if name.endswith(".sh") else sys.executable, *before, str(TASKS / name)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "DLOCK_URL": url, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", PRINTED)
def test_task_does_what_it_says(name: str, tmp_path: Path) -> None:
    """On a SQLite file, or on Redis where the task is about it; nothing is warned of."""
    # A database of its own: redis-py's lock waits for any value under its name, also for a record that another test has left.
    url = f"{url_for('redis', tmp_path).removesuffix('/0')}/7" if "redis" in name else url_for("sqlite", tmp_path)
    strict = () if name.endswith(".sh") else ("-W", "error")

    assert run(name, url, *strict) == PRINTED[name]


def test_tasks_are_ten_and_short() -> None:
    """Whoever looks for one reads it at once."""
    files = [file for file in TASKS.iterdir() if file.suffix in (".py", ".sh")]

    assert {file.name for file in files} == PRINTED.keys()
    assert len(files) == 10
    lengths = {file.name: len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert {name: lines for name, lines in lengths.items() if lines > LINES_MAX} == {}
