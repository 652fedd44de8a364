"""What the command of ``dlock run`` is told in its environment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dlock_core.command.child import environment


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
