"""What the tests of the operator's commands share."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dlock_core import connect
from dlock_core.command import app as cli
from dlock_core.errors import UnsafeStoreError


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

    def refused(self, url: str, name: str, *, accepted: int = 0) -> str:
        """Return what ``dlock doctor`` prints of a store that ``connect`` refuses for *name*.

        With the trait accepted, it exits with *accepted*.
        """
        with pytest.raises(UnsafeStoreError, match=f"{name}.*'dlock doctor' names a remedy"):
            connect(url)

        code, out, err = self("doctor", "--url", url)
        second, _, _ = self("doctor", "--url", url, "--allow-unsafe", name)

        assert (code, err, second) == (1, "", accepted)
        for words in ("REFUSED", f"{name}: ", "remedy: ", f"--allow-unsafe {name}", " -> "):
            assert words in out
        return out

    def json(self, *arguments: str) -> Any:
        """Return the parsed output of a command that succeeds."""
        code, out, err = self(*arguments, "-o", "json")
        assert code == 0, err
        return json.loads(out)
