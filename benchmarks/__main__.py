"""Run the benchmarks, and write what was found: ``python -m benchmarks [--rounds N] [PART…]``.

Each part runs in a process of its own. ``--output`` names the page; without it the page is printed. ``--into`` names a page that stands: it
gets the sections of the parts that were run, each with the versions that it was measured on, and keeps all others.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

from benchmarks._aims import inserted, report
from benchmarks._parts import OTHERS, REDIS, RUN_ON, VERSIONS, apart
from benchmarks.bench_before import before_and_after

_EMBEDDED = [name for name in OTHERS if name.startswith(("core", "sqlite"))]
_ALL = [*_EMBEDDED, *REDIS, *(name for name in OTHERS if name not in _EMBEDDED)]


def machine() -> str:
    """Return what kind of machine this is, and how busy it was before."""
    cpus = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").is_file() else ""
    model = next((line.partition(":")[2].strip() for line in cpus.splitlines() if line.startswith("model name")), "")
    return (
        f"{os.cpu_count()} processors ({model or platform.machine()}), {platform.system()} {platform.release().partition('-')[0]}, "
        f"Python {platform.python_version()}, load before the run {os.getloadavg()[0]:.1f}"
    )


def code() -> str:
    """Return a name for the code of dlock that is measured."""
    digest = hashlib.blake2b(digest_size=4)
    for path in sorted(Path(__file__).parents[1].glob("dlock_*/**/*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def main() -> None:
    """Run what the command line names, or all."""
    parser = argparse.ArgumentParser(description="benchmarks of dlock beside each driver's floor and other libraries")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(_ALL)}")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--into", type=Path, metavar="PAGE", help="put the sections of these parts into this page")
    parser.add_argument(
        "--before", type=Path, metavar="DIR", help="also compare with the checkout in DIR, which has a .venv"
    )
    asked = parser.parse_args()
    chosen = asked.parts or _ALL
    if unknown := [name for name in chosen if name not in _ALL]:
        parser.error(f"there is no part {unknown[0]!r}")
    where = machine()
    parts = [apart(name, asked.rounds) for name in chosen]
    if asked.before is not None:
        parts.append(before_and_after(asked.before, asked.rounds))
    versions = [
        apart(name, 0) for name in VERSIONS if any(name in each or name in RUN_ON.get(each, ()) for each in chosen)
    ]
    if asked.into is not None:
        told = (
            f"Measured {datetime.now(UTC):%Y-%m-%d} by itself: dlock's code {code()}; {'; '.join([*versions, where])}."
        )
        asked.into.write_text(inserted(asked.into.read_text(encoding="utf-8"), told, parts), encoding="utf-8")
        return
    page = report(where, versions, parts)
    if asked.output is None:
        print(page)
    else:
        asked.output.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
