"""The process of ``dlock run`` that becomes the command, and what it is told in its environment."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dlock_core.command.child import environment

DISMISSED = """
import os
from dlock_core.command.child import Child

Child(("true",)).dismiss()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child is left")
"""


def test_a_term_that_never_began_leaves_no_process() -> None:
    """An election goes on for months."""
    ended = subprocess.run((sys.executable, "-c", DISMISSED), capture_output=True, text=True, check=True)

    assert ended.stdout == "no child is left\n"


@pytest.mark.parametrize(
    ("lease", "name", "told"),
    [
        ({"owner": "a\u202eb"}, "DLOCK_OWNER", "a\\u202eb"),
        ({"slot": 0}, "DLOCK_SLOT", "0"),
        ({"slot": None}, "DLOCK_SLOT", ""),
    ],
)
def test_environment_of_the_command(lease: dict[str, Any], name: str, told: str) -> None:
    """What does not print is written out; a lock without slots has an empty one, whatever was inherited."""
    held: Any = SimpleNamespace(**({"owner": "o", "slot": None, "fencing_token": 1} | lease))

    assert environment({"k": held})[name] == told
