"""What the command prints: messages, records and reports, as tables for people and JSON for programs."""

from __future__ import annotations

import base64
import json
import logging
import os
import shlex
import shutil
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from dlock_core.clock import NANOS, now_ns, wall_ms
from dlock_core.engine.progress import at_in_words, holder_in_words
from dlock_core.errors import DLockError
from dlock_core.members import token_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.table import Table

    from dlock_core.aio import AsyncLockClient
    from dlock_core.record import LockRecord, Member

OF_EACH = "of each"  # of a shared lock: renewals and leases are those of its members, which "dlock show" lists
_PROGRESS_S = 1.0
_ISO = "%Y-%m-%dT%H:%M:%SZ"
_LINES_S = 60.0
_WIDE = 1 << 16
# An owner of this width leaves 10 characters of 60 to the key in "dlock ls"; longer keys are folded.
_COLUMN_MAX, _TAIL = 22, 9
_COLUMN_MIN = 4  # a terminal of less for each column has lines that are not fitted to it


def escape(text: str) -> str:
    """Return *text* with everything written out that a terminal could take for more than a character."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode() for letter in text
    )


def bounded(text: str) -> str:
    """Return *text* for a column of a table on a terminal: of a long one the beginning and the end."""
    short = len(text) <= _COLUMN_MAX or not sys.stdout.isatty()
    return text if short else f"{text[: _COLUMN_MAX - _TAIL - 1]}…{text[-_TAIL:]}"


def missing(name: str) -> str:
    """Return what to do where the system finds no command *name*: one with blanks is a line that was meant for a shell."""
    if " " in name and name.isprintable():
        return f"; no shell reads it: write its words apart, or sh -c {shlex.quote(name)}"
    return "; is it installed, and in PATH?"


class Say:
    """Messages on stderr, one line each, begun with the name of the program."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        """Also sets what of the library's log is shown: warnings, all with *verbose*, none with *quiet*."""
        self.quiet, self._verbose = quiet, verbose
        self.live = not quiet and sys.stderr.isatty()
        self._line_open = False
        logger = logging.getLogger("dlock")
        logger.handlers[:] = [_Lines(self)]
        logger.propagate = False
        logger.setLevel(logging.DEBUG if verbose else logging.WARNING)

    def error(self, text: str) -> None:
        """Say what went wrong."""
        self.progress("")
        with suppress(OSError):  # stderr may be a terminal that has hung up
            print(f"dlock: {escape(text)}", file=sys.stderr, flush=True)  # noqa: T201  # a command talks

    def warning(self, text: str) -> None:
        """Say what may go wrong."""
        if not self.quiet:
            self.error(text)

    note = warning

    def python_warning(self, message: Warning | str, *_: object, **__: object) -> None:
        """Say what Python warns of, without the place in the code, which is not the user's."""
        self.warning(str(message).removeprefix("dlock: "))

    def detail(self, text: str) -> None:
        """Say what only ``--verbose`` asks for."""
        if self._verbose:
            self.error(text)

    def progress(self, text: str) -> None:
        """Write over the line of the terminal; with nothing, clear it."""
        if not self.live or not (text or self._line_open):
            return
        width = shutil.get_terminal_size().columns - 1
        with suppress(OSError):  # as for error()
            sys.stderr.write("\r\x1b[K" + escape(text)[:width])
            sys.stderr.flush()
        self._line_open = bool(text)


class _Lines(logging.Handler):
    def __init__(self, say: Say) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say.warning(record.getMessage())


class WaitLine:
    """Tells while locks are waited for: for which, who holds it, and how long that has lasted.

    On a terminal it is one line that is renewed each second, elsewhere a line after a second and then one a minute.
    """

    def __init__(self, client: AsyncLockClient, keys: Sequence[str], say: Say) -> None:
        """Begin, unless the user wants to hear of errors only."""
        self._client, self._keys, self._say = client, sorted(keys), say
        import asyncio

        self._task = None if say.quiet else asyncio.ensure_future(self._show())

    def end(self) -> None:
        """Take the line away."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self._say.progress("")

    async def _show(self) -> None:
        import asyncio

        began = now_ns()
        await asyncio.sleep(_PROGRESS_S)
        while True:
            key = next((key for key in self._keys if not self._client.holds(key)), self._keys[0])
            try:
                record = await self._client.get(key)
            except DLockError as error:
                who = f"the store does not answer: {error}"
            else:
                health = self._client.health()
                if record is not None and record.held:
                    who = f"{holder_in_words(record)} (token {record.fencing_token}){_of_parent(key, record)}"
                elif record is None and self._client.options.only_if_exists:
                    who = "there is no such lock, and only_if_exists was asked for"
                elif health.last_error_age is not None and health.last_error_age < (now_ns() - began) / NANOS:
                    who = f"free, but a request failed: {health.last_error}"
                else:
                    who = "free, and it is being asked for"
            text = f"waiting for {key!r} for {(now_ns() - began) / NANOS:.0f} s: {who}"
            if self._say.live:
                self._say.progress(f"dlock: {text}")
            else:
                self._say.note(text)
            await asyncio.sleep(_PROGRESS_S if self._say.live else _LINES_S)


def _of_parent(key: str, record: LockRecord) -> str:
    """Add that the command which holds *key* has started this one: it may wait for our end, and we for its end."""
    holder = os.environ.get("DLOCK_OWNER"), os.environ.get("DLOCK_FENCING_TOKENS", "")
    with suppress(ValueError, AttributeError):  # anybody can set the variables, to anything
        if holder[0] == escape(record.owner) and json.loads(holder[1]).get(key) == record.fencing_token:
            return "; that is the dlock around this one: if it waits for this one to end, neither ends"
    return ""


def in_words(seconds: float) -> str:
    """Return a duration as people say it."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def renewed_in_words(record: LockRecord, age_ms: int | None) -> str:
    """Say when *record* was last written: by its age, of the store's clock, or else, with a ``~``, by the wall clocks of two hosts."""
    if age_ms is not None:
        return f"{in_words(age_ms / 1000)} ago"
    return "-" if record.times is None else f"~{in_words(max(0.0, _wall_s() - record.times.written_at_s))} ago"


def held_in_words(record: LockRecord) -> str:
    """Say how long the lock is held, or was when it was released, as far as *record* tells by the wall clocks of hosts."""
    if record.times is None:
        return "-"
    end = _wall_s() if record.held and record.broken is None else record.times.written_at_s
    return in_words(max(0.0, end - record.times.granted_at_s))


def _wall_s() -> float:
    return wall_ms() / 1000


def lease_in_words(record: LockRecord, age_ms: int | None) -> str:
    """Say how much of the lease of *record* is left, or since when its holder must be taken for dead."""
    if record.members is not None:
        return OF_EACH
    if record.lease_ms is None:
        return "none" if record.held else "-"
    if age_ms is None:
        return in_words(record.lease_ms / 1000)
    left_s = (record.lease_ms - age_ms) / 1000
    return f"{in_words(left_s)} left" if left_s > 0 else f"ended {in_words(-left_s)} ago"


def record_facts(record: LockRecord, age_ms: int | None = None) -> dict[str, Any]:
    """Return *record* and its age as JSON can carry them. Bytes are base64; *data* is there also as text where it is text."""
    text: str | None = None
    if record.data is not None:
        with suppress(UnicodeDecodeError):
            text = record.data.decode()
    broken = None if record.broken is None else {"by": record.broken.by, "at_ms": record.broken.at_ms}
    granted_at, written_at = (
        (None, None) if record.times is None else [at_in_words(at_s, _ISO) for at_s in record.times]
    )
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
        "granted_at": granted_at,
        "written_at": written_at,
        "waiters": record.waiters,
        "session": None if record.session is None else record.session.key,
        "members": None if record.members is None else [_member_facts(record, each) for each in record.members.members],
        "age_ms": age_ms,
    }


def _member_facts(record: LockRecord, member: Member) -> dict[str, Any]:
    assert record.members is not None  # it is theirs
    session = record.members.sessions[member.session]
    facts = {"mode": member.mode, "fencing_token": token_of(record, member), "slot": member.slot}
    return facts | {"weight": member.weight, "session": session.key, "lease_ms": session.lease_ms}


class OutputClosedError(Exception):
    """The reader of the output has closed the pipe."""


class OutputError(Exception):
    """The output could not be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the output could not be written: {error.strerror}; what was asked for is done")


def print_text(text: str) -> None:
    """Print *text* on stdout.

    Raises: OutputClosedError, OutputError.
    """
    with writing_output():
        print(text, flush=True)  # noqa: T201  # a command talks


@contextmanager
def writing_output() -> Iterator[None]:
    """Do in the block what writes on stdout. Raises: OutputClosedError, OutputError."""
    try:
        yield
    except OSError as error:
        # What is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise OutputClosedError from error
        raise OutputError(error) from error


def print_json(value: object) -> None:
    """Print *value*; ASCII only, so that no terminal or locale changes it."""
    print_text(json.dumps(value, indent=2))


def print_as(output: str, value: object, facts: Mapping[str, object]) -> None:
    """Print *value* for programs, or *facts* for people, as *output* says."""
    print_json(value) if output == "json" else print_facts(facts)


def print_rows(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: fitted to a terminal that is wide enough, one full line a row elsewhere."""
    from rich.console import Console

    on_terminal = sys.stdout.isatty() and shutil.get_terminal_size().columns >= _COLUMN_MIN * len(headings)
    table = table_of(headings, rows, on_terminal=on_terminal)
    console = Console(file=sys.stdout, width=None if on_terminal else _WIDE)
    with writing_output(), console.capture() as capture:
        console.print(table)
    print_text("\n".join(line.rstrip() for line in capture.get().splitlines()))


def table_of(headings: Sequence[str], rows: Iterable[Sequence[object]], *, on_terminal: bool) -> Table:
    """Return a table for a console of rich."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(Text(heading), overflow="fold", no_wrap=not on_terminal)
    for row in rows:
        table.add_row(*(Text(_as_written(escape(str(cell)))) for cell in row))
    return table


def _as_written(text: str) -> str:
    """Return *text* as it will stand on stdout: a column has the width of that, also where the encoding lacks a letter."""
    # The stdout of dlock top is in the hands of rich, whose file in its place has no encoding.
    encoding = getattr(sys.stdout, "rich_proxied_file", sys.stdout).encoding
    return text.encode(encoding, "backslashreplace").decode(encoding)


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
