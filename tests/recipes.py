"""Run what the documentation shows for programs that are too large, or too new, for the environment of the tests: ``make recipes``.

Each gets an environment of its own, with that program, this project, and what runs the page's piece there.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.documentation import ROOT, Block, shown

LOADED = """
loaded = []


def load(table):
    from dlock_core import shared_client

    locks = shared_client("memory://")
    with locks.lock(f"warehouse/{table}", timeout=30):
        loaded.append(table)
    locks.close()

"""
# Two schedulers of which each would run the job, as on two hosts that share nothing but the store of the jobs.
TWO_HOSTS = """
import asyncio
import contextlib
from datetime import timedelta

from apscheduler.triggers.date import DateTrigger
from dlock_core import connect

URL = "memory://two-hosts"
done = []


def job(name, *, customer):
    done.append((name, customer))


async def host(at):
    async with AsyncScheduler(job_executors={"once": OnceExecutor(connect(URL))}) as scheduler:
        given = {"args": ["job"], "kwargs": {"customer": "anna"}}
        await scheduler.add_schedule(job, DateTrigger(at), id="report", job_executor="once", **given)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(scheduler.run_until_stopped(), 4)


async def two_hosts():
    at = dt.datetime.now(dt.UTC) + timedelta(seconds=1)
    await asyncio.gather(host(at), host(at))


asyncio.run(two_hosts())
assert done == [("job", "anna")], done
"""


class Recipe(NamedTuple):
    """What is installed, the page's *block*, and what runs before and after it."""

    package: str
    block: Block
    before: str
    after: str


RECIPES = (
    Recipe("apscheduler==4.0.0a6", shown("docs/howto/schedulers.md", "class OnceExecutor"), "", TWO_HOSTS),
    Recipe(
        "dagster==1.13.29",
        shown("docs/howto/airflow-dagster.md", "import dagster"),
        LOADED,
        'assert dagster.materialize([orders]).success\nassert loaded == ["orders"]\n',
    ),
    Recipe(
        "apache-airflow-task-sdk==1.3.2",
        shown("docs/howto/airflow-dagster.md", "airflow.sdk"),
        LOADED,
        'load_orders.function()\nassert loaded == ["orders"]\n',
    ),
)


def main() -> int:
    """Run all; 1 if one fails."""
    failed = 0
    for recipe in RECIPES:
        with tempfile.TemporaryDirectory() as folder:
            environment = Path(folder) / "venv"
            subprocess.run([sys.executable, "-m", "venv", environment], check=True)
            python = environment / "bin" / "python"
            subprocess.run([python, "-m", "pip", "install", "--quiet", recipe.package, ROOT], check=True)
            program = Path(folder) / "recipe.py"
            program.write_text(recipe.before + recipe.block.text + recipe.after, encoding="utf-8")
            failed += (code := subprocess.run([python, program], cwd=folder, check=False).returncode) != 0
        sys.stdout.write(f"{recipe.package}: {recipe.block.where} {'runs' if not code else f'ends with {code}'}\n")
        sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
