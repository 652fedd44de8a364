"""The page on python-redis-lock and celery-once, with these libraries: its programs hold both locks."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.backends import url_for
from tests.documentation import ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S = 120
# What is done with the program of the page, by the library that it imports.
CHECKS = {
    "redis_lock": """
import os

url = os.environ["DLOCK_URL"]


def work() -> None:
    with redis.Redis.from_url(url) as server, connect(url) as other:
        print("old program:", redis_lock.Lock(server, "report", expire=60).acquire(blocking=False))
        print("new program:", other.try_acquire("report"))


run_alone(url, work)
with (
    redis.Redis.from_url(url) as server,
    connect(url) as other,
    redis_lock.Lock(server, "report", expire=60),
    other.lock("report", timeout=0) as lease,
):
    print("afterwards:", lease.is_valid)
""",
    "celery_once": """
from celery_once import AlreadyQueued

from dlock_core import connect


def queue() -> str:
    try:
        return "queued" if report.delay("anna") else ""
    except AlreadyQueued:
        return "refused"


print(queue(), queue())
with connect(url) as other, other.lock("report/anna"):
    print("held:", type(report.apply(("anna",)).result).__name__)
print(report.apply(("anna",)).result)
print(queue())
report.apply(("anna",))
print(app.control.purge())
""",
}
PRINTED = {
    "redis_lock": ["old program: False", "new program: None", "afterwards: True"],
    "celery_once": ["queued refused", "held: AcquireTimeoutError", "a report for anna", "queued", "2"],
}


@pytest.mark.parametrize("library", CHECKS)
def test_programs_of_the_page_keep_out_programs_with_either_lock(library: str, tmp_path: Path) -> None:
    """Each runs as it stands on the page, against a Redis server."""
    page = ROOT / "docs" / "howto" / "from-python-redis-lock.md"
    [program] = [block.text for block in blocks("python") if block.page == page and f" {library}" in block.text]
    # A database of its own: the names of these locks are those of the page.
    url = f"{url_for('redis', tmp_path).removesuffix('/0')}/{8 + list(CHECKS).index(library)}"

    done = subprocess.run(
        [sys.executable, "-c", program + CHECKS[library]],
        cwd=ROOT,
        env={**os.environ, "DLOCK_URL": url},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )

    assert (done.returncode, done.stdout.splitlines()) == (0, PRINTED[library]), done.stderr
