"""Makes each mistake, and writes down what it meets."""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import os
import pickle
import re
import shlex
import socket
import warnings
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import redis
from dlock_conformance.servers import resolve

import dlock_core
from dlock_core.command import app, show
from dlock_core.engine import hints
from dlock_core.memory import MemorySpace, MemoryStore
from tests.messages.mistakes import MISTAKES

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TABLE", "table"]

TABLE = Path(__file__).with_name("messages.txt")
_HEADING = """What each mistake of a first use meets. Made by `python -m tests.update_messages`, compared by tests/test_messages.py.

Read it as somebody who has never seen the project: does each message say what is wrong, and what to do?
"""


def table(folder: Path) -> str:
    """Make all mistakes in *folder* and return what they meet."""
    parts = [_HEADING]
    for subject, mistakes in MISTAKES.items():
        parts.append(f"\n## {subject}\n")
        for mistake in mistakes:
            shown = "\n".join(f"    {line}" for line in mistake.splitlines())
            parts.append(f"\n{shown}\n{_met(mistake, folder)}\n")
    return "".join(parts)


def _met(mistake: str, folder: Path) -> str:
    place = folder / "folder"
    place.mkdir(exist_ok=True)
    server = resolve("redis").url if "REDIS" in mistake else ""
    text = mistake.replace("FOLDER", str(place)).replace("REDIS", server)
    met = _commanded(text[2:], folder) if text.startswith("$ ") else _executed(text)
    return _plain(met.replace(server, "REDIS") if server else met, place)


def _commanded(text: str, folder: Path) -> str:
    words = shlex.split(text)
    settings = {"DLOCK_URL": f"sqlite:///{folder}/locks.db", "XDG_STATE_HOME": str(folder)}
    holder: AbstractContextManager[None] = nullcontext()
    while words[0] != "dlock":
        name, _, value = words.pop(0).partition("=")
        if name == "HELD":
            holder = _held(settings["DLOCK_URL"])
        else:
            settings[name] = value
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DLOCK_")} | settings
    out, err = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    code: object = None
    with (
        holder,
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(show, "_PROGRESS_S", 60.0),  # a busy machine may take long enough for the line of a wait
        redirect_stdout(out),
        redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("default")
        # Python 3.12 warns of a fork beside other threads; the command alone has none when it forks.
        warnings.filterwarnings("ignore", "This process .* multi-threaded", DeprecationWarning)
        try:
            app.run(words[1:])
        except SystemExit as ended:
            code = ended.code
    streams = [_read(stream) for stream in (out, err)]
    return "".join(streams) + f"(exit code {code})"


@contextmanager
def _held(url: str) -> Iterator[None]:
    with dlock_core.connect(url, owner="somebody") as client, client.lock("busy"):
        yield


def _read(stream: io.TextIOWrapper) -> str:
    stream.flush()
    stream.seek(0)
    return stream.read()


def _executed(text: str) -> str:
    logged: list[str] = []
    untold = mock.patch.object(hints, "_told", set[str]())
    with warnings.catch_warnings(record=True) as warned, untold, _Log(logged), _Clients() as names:
        warnings.simplefilter("always")
        try:
            exec(text, names)  # noqa: S102  # the mistakes are ours
            ended = "(nothing is raised)"
        except Exception as error:  # noqa: BLE001  # whatever a person would see
            ended = f"{type(error).__name__}: {error}"
        names.clear()
        gc.collect()
    told = [f"warns: {warning.message}" for warning in warned] + [f"logs: {line}" for line in logged]
    return "\n".join([ended, *dict.fromkeys(told)])


class _Log(logging.Handler):
    """Collects what the library logs."""

    def __init__(self, lines: list[str]) -> None:
        """Begin with *lines*."""
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Take note of a record."""
        self._lines.append(record.getMessage())

    def __enter__(self) -> None:
        """Begin to listen."""
        logging.getLogger("dlock").addHandler(self)

    def __exit__(self, *_: object) -> None:
        """End listening."""
        logging.getLogger("dlock").removeHandler(self)


class _Clients:
    """What a mistake finds, closed after it."""

    def __enter__(self) -> dict[str, Any]:
        """Return the names."""
        space = MemorySpace()
        self._clients = [dlock_core.LockClient(MemoryStore(space), owner=name) for name in ("me", "other")]
        public = {name: getattr(dlock_core, name) for name in dlock_core.__all__}
        return public | {
            "client": self._clients[0],
            "other": self._clients[1],
            "asyncio": asyncio,
            "pickle": pickle,
            "redis": redis,
        }

    def __exit__(self, *_: object) -> None:
        """Close the clients."""
        for client in self._clients:
            with suppress(ExceptionGroup):  # a lock that was broken on purpose
                client.close()


def _plain(text: str, place: Path) -> str:
    """Return *text* without what differs from one machine or run to the next."""
    replaced = {
        str(place): "FOLDER",
        str(place.parent): "PARENT",
        str(Path(__file__).parents[2]): "PROJECT",
        socket.gethostname(): "HOST",
    }
    for found, name in replaced.items():
        text = text.replace(found, name)
    patterns = {
        r"0x[0-9a-f]{6,}": "0x…",
        r"HOST:\d+:[0-9a-f]{6}": "HOST:PID:RANDOM",
        r"\d+\.\d+ ms": "N ms",
        r"in \d+\.\d s": "in N s",
        r"\d+ s ago": "N s ago",
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC(, renewed \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC)?": "DATE TIME UTC",
    }
    for pattern, name in patterns.items():
        text = re.sub(pattern, name, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
