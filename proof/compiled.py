"""The machine, the simulator and the explorer, compiled from the same source for a long run: about twice as fast.

A copy is compiled by mypyc, which comes with mypy, in ``build``; that its simulator takes the very same steps is checked before it is used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from proof.simulate.runner import ROOT, run_seed

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["build", "run"]

_MODULES = (
    "dlock_core/lease.py",
    "dlock_core/states.py",
    "dlock_core/timings.py",
    "proof/watch.py",
    "proof/explore/store_model.py",
    "proof/simulate/attempt.py",
    "proof/simulate/schedule.py",
    "proof/simulate/store.py",
    "proof/explore/canonical.py",
    "proof/explore/world.py",
    "proof/explore/table.py",
)
_CHECKED = 200


def build() -> Path:
    """Return the folder of the compiled copy of this version of the code, made if it is not there yet.

    Raises: SystemExit: there is no C compiler, or the copy does not do what the source does.
    """
    place = ROOT / "build" / f"compiled-{_version()}"
    if (place / "checked").exists():
        return place
    shutil.rmtree(place, ignore_errors=True)
    for name in ("dlock_core", "proof"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "mypyc", "--ignore-missing-imports", *_MODULES]
    done = subprocess.run(command, cwd=place, env=_environment(place), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"the copy could not be compiled (is a C compiler there?); run it without: {done.stderr[-500:]}"
        )
    code = (
        "import dlock_core.lease, sys; from proof.simulate.runner import run_seed\n"
        f"print(dlock_core.lease.__file__, *(run_seed(seed).digest for seed in range({_CHECKED})))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=place, env=_environment(place), capture_output=True, text=True, check=True
    )
    file, *digests = told.stdout.split()
    if Path(file).suffix == ".py" or digests != [run_seed(seed).digest for seed in range(_CHECKED)]:
        raise SystemExit(f"the compiled copy in {place} does not do what the source does; run without it")
    (place / "checked").touch()
    return place


def _version() -> str:
    digest = hashlib.blake2b(digest_size=4)
    for path in sorted(path for name in ("dlock_core", "proof") for path in (ROOT / name).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _environment(place: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(place)}


def run(module: str, arguments: Sequence[str]) -> int:
    """Run *module* with *arguments* in the compiled copy; return its exit code."""
    place = build()
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=place, env=_environment(place), check=False).returncode
