"""What the command prints: messages, records and reports, as tables for people and JSON for programs."""

from __future__ import annotations

import base64
import json
import logging
import os
import shutil
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from dlock_core.clock import NANOS, now_ns
from dlock_core.errors import DLockError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from dlock_core.aio import AsyncLockClient
    from dlock_core.record import LockRecord

__all__ = [
    "OutputClosedError",
    "OutputError",
    "Say",
    "WaitLine",
    "escape",
    "print_facts",
    "print_json",
    "print_rows",
    "print_text",
    "record_facts",
]

_PROGRESS_S = 1.0
_WIDE = 1 << 16


def escape(text: str) -> str:
    """Return *text* with everything written out that a terminal could take for more than a character."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode() for letter in text
    )


class Say:
    """Messages on stderr, one line each, begun with the name of the program."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        """Also sets what of the library's log is shown: warnings, all with *verbose*, none with *quiet*."""
        self._quiet, self._verbose = quiet, verbose
        self.live = not quiet and sys.stderr.isatty()
        self._line_open = False
        logger = logging.getLogger("dlock")
        logger.handlers[:] = [_Lines(self)]
        logger.propagate = False
        logger.setLevel(logging.DEBUG if verbose else logging.WARNING)

    def error(self, text: str) -> None:
        """Say what went wrong."""
        self._print(text)

    def warning(self, text: str) -> None:
        """Say what may go wrong."""
        if not self._quiet:
            self._print(text)

    note = warning

    def detail(self, text: str) -> None:
        """Say what only ``--verbose`` asks for."""
        if self._verbose:
            self._print(text)

    def progress(self, text: str) -> None:
        """Write over the line of the terminal; with nothing, clear it."""
        if not self.live or not (text or self._line_open):
            return
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write("\r\x1b[K" + escape(text)[:width])
        sys.stderr.flush()
        self._line_open = bool(text)

    def _print(self, text: str) -> None:
        self.progress("")
        with suppress(OSError):  # stderr may be a terminal that has hung up
            print(f"dlock: {escape(text)}", file=sys.stderr, flush=True)  # noqa: T201  # a command talks


class _Lines(logging.Handler):
    def __init__(self, say: Say) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say.warning(record.getMessage())


class WaitLine:
    """A line on the terminal, renewed while locks are waited for: for which, who holds it, and how long that has lasted."""

    def __init__(self, client: AsyncLockClient, keys: Sequence[str], say: Say) -> None:
        """Begin, where there is a terminal."""
        self._client, self._keys, self._say = client, sorted(keys), say
        import asyncio

        self._task = asyncio.ensure_future(self._show()) if say.live else None

    def end(self) -> None:
        """Take the line away."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self._say.progress("")

    async def _show(self) -> None:
        import asyncio

        began = now_ns()
        while True:
            await asyncio.sleep(_PROGRESS_S)
            key = next((key for key in self._keys if not self._client.holds(key)), self._keys[0])
            try:
                record = await self._client.get(key)
            except DLockError:
                who = "the store does not answer"
            else:
                held = record is not None and record.held
                who = (
                    f"held by {record.owner} (token {record.fencing_token})"
                    if held and record is not None
                    else "free, next try soon"
                )
            self._say.progress(f"dlock: waiting for {key!r} for {(now_ns() - began) / NANOS:.0f} s: {who}")


def record_facts(record: LockRecord) -> dict[str, Any]:
    """Return *record* as JSON can carry it. Bytes are base64; *data* is there also as text where it is text."""
    text: str | None = None
    if record.data is not None:
        with suppress(UnicodeDecodeError):
            text = record.data.decode()
    broken = None if record.broken is None else {"by": record.broken.by, "at_ms": record.broken.at_ms}
    return {
        "key": record.key,
        "state": record.state.value,
        "fencing_token": record.fencing_token,
        "owner": record.owner,
        "lease_ms": record.lease_ms,
        "rvn": record.rvn,
        "data": text,
        "data_base64": None if record.data is None else base64.b64encode(record.data).decode(),
        "attributes": {
            name: {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
            for name, value in record.attributes
        },
        "broken": broken,
    }


class OutputClosedError(Exception):
    """Whoever read the output has enough of it."""


class OutputError(Exception):
    """The output has no place."""


def print_text(text: str) -> None:
    """Print *text* on stdout.

    Raises: OutputClosedError, OutputError.
    """
    with _writing():
        print(text, flush=True)  # noqa: T201  # a command talks


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # What is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise OutputClosedError from error
        raise OutputError(f"the output could not be written: {error.strerror}; what was asked for is done") from error


def print_json(value: object) -> None:
    """Print *value*; ASCII only, so that no terminal or locale changes it."""
    print_text(json.dumps(value, indent=2))


def print_rows(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: fitted to a terminal, one full line a row elsewhere."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    on_terminal = sys.stdout.isatty()
    table = Table(box=None, show_header=bool(headings), pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(Text(heading), overflow="fold", no_wrap=not on_terminal)
    for row in rows:
        table.add_row(*(Text(escape(str(cell))) for cell in row))
    console = Console(
        file=sys.stdout,
        width=None if on_terminal else _WIDE,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=False,
    )
    with _writing(), console.capture() as capture:
        console.print(table)
    print_text("\n".join(line.rstrip() for line in capture.get().splitlines()))


def print_facts(facts: Mapping[str, object]) -> None:
    """Print one fact a line."""
    width = max(map(len, facts), default=0)
    lines = []
    for name, value in facts.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        for position, line in enumerate(values):
            label = name if position == 0 else ""
            lines.append(f"{label:<{width}}  {escape(str(line))}".rstrip())
    print_text("\n".join(lines))
