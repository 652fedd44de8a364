"""``dlock top``: the locks that are held, looked at again and again."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

import click

from dlock_core.command.child import ENDING
from dlock_core.command.doctor import standing_store
from dlock_core.command.listing import Look, look_up, print_locks, rows_of
from dlock_core.command.options import DURATION, client_options, connection_options, output_option
from dlock_core.command.show import OF_EACH, escape, table_of
from dlock_core.errors import StoreError

if TYPE_CHECKING:
    from rich.live import Live

    from dlock_core.client import LockClient
    from dlock_core.record import LockRecord


_CANNOT_REDRAW = ("dumb", "unknown")  # of which rich shows nothing until the end


class Board:
    """What has been seen of the locks so far.

    The renewals of a lock are the changes of its record, or of that of its session, under one token since the first look.
    """

    def __init__(self, client: LockClient, prefix: str) -> None:
        self._client, self._prefix = client, prefix
        self._seen: dict[str, tuple[LockRecord, int]] = {}
        self.seen = Look((), {})
        self.trouble: StoreError | None = None

    def look(self) -> None:
        """Look at the store; where it does not answer, the last look stays."""
        try:
            self.seen = look_up(self._client, self._prefix, everything=False)
            self.trouble = self.seen.foreign
        except StoreError as error:
            self.trouble = error
            return
        renewed = {record.key: (self.seen.beat(record) or (record,))[0] for record, _ in self.seen.records}
        self._seen = {key: (record, self._count(key, record)) for key, record in renewed.items()}

    def _count(self, key: str, record: LockRecord) -> int:
        before, count = self._seen.get(key, (record, 0))
        if (before.fencing_token, before.owner) != (record.fencing_token, record.owner):
            return 0
        return count + (before.rvn != record.rvn)

    @property
    def renewals(self) -> list[int]:
        """Those that were seen of each record."""
        return [self._seen[record.key][1] for record, _ in self.seen.records]

    def rows(self) -> tuple[list[str], list[list[object]]]:
        """Return the table of ``dlock ls``, with the renewals."""
        headings, rows = rows_of(self.seen, everything=False)
        counts = [
            count if record.members is None else OF_EACH
            for (record, _), count in zip(self.seen.records, self.renewals, strict=True)
        ]
        return [*headings, "RENEWALS"], [[*row, count] for row, count in zip(rows, counts, strict=True)]


@click.command("top", short_help="List the locks that are held, again and again.")
@click.argument("prefix_of_key", default="", metavar="[PREFIX]")
@connection_options
@click.option("--every", type=DURATION, default=2.0, metavar="TIME", help="Pause between two looks; 2s.")
@click.option("--once", is_flag=True, help="Look once, as in a pipe, on a dumb terminal, or with -o json.")
@output_option
def top(prefix_of_key: str, every: float, once: bool, output: str, **given: Any) -> None:  # noqa: FBT001  # as ls
    """Show the held locks whose key begins with PREFIX, and look again and again, until Ctrl-C. Each look reads all of them."""
    if not 0.1 <= every <= 86_400:  # noqa: PLR2004  # as the message says
        raise click.BadParameter("must be from 100ms to 1d", param_hint="'--every'")
    with standing_store(client_options(**given)) as client:
        if not (once or output == "json") and sys.stdout.isatty() and os.environ.get("TERM") not in _CANNOT_REDRAW:
            _follow(Board(client, prefix_of_key), every)
        print_locks(client, prefix_of_key, output, everything=False)


def _leave(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def _give_back_while_stopped(live: Live) -> None:
    """Have Ctrl-Z give the shell its screen and its cursor, and ``fg`` take them again."""

    def stop(number: int, _: object) -> None:
        live.stop()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # here again once resumed
        signal.signal(number, stop)
        live.start(refresh=True)

    if hasattr(signal, "SIGTSTP") and signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
        signal.signal(signal.SIGTSTP, stop)


def _follow(board: Board, every_s: float) -> NoReturn:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    for number in ENDING:
        signal.signal(number, _leave)  # a process that is killed leaves the terminal as it is
    with Live(screen=True, auto_refresh=False) as live:
        _give_back_while_stopped(live)
        while True:
            board.look()
            trouble = "" if board.trouble is None else f"  {board.trouble}"
            line = Text(escape(f"{time.strftime('%X')}  {len(board.seen.records)} held{trouble}"), no_wrap=True)
            headings, rows = board.rows()
            # To lay out thousands takes longer than the pause.
            table = table_of(headings, rows[: live.console.height], on_terminal=True)
            live.update(Group(line, "", table), refresh=True)
            time.sleep(every_s)
