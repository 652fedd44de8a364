"""What the tests of the operator's commands share."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dlock_core.command import app as cli


class Command:
    """Runs the command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Return the exit code and what was printed."""
        with pytest.raises(SystemExit) as ended:
            cli.run(list(arguments))
        out, err = self._capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    def json(self, *arguments: str) -> Any:
        """Return the parsed output of a command that succeeds."""
        code, out, err = self(*arguments, "-o", "json")
        assert code == 0, err
        return json.loads(out)
