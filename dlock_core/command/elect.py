"""``dlock elect``: campaign, run the command while this process leads, and campaign again.

A term is one ``dlock run``, with an event loop, a client and a guard of its own. Between two terms this process has one thread and no
connection, which is when the next command may be forked.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import click

from dlock_core.command.app import BUSY, CommandBehindDashes
from dlock_core.command.child import ENDING, FORWARDED
from dlock_core.command.options import (
    DURATION,
    SIGNALLED,
    connection_options,
    grace_option,
    grace_within,
    holding_options,
    option,
    probe_option,
)
from dlock_core.command.run import CANNOT_RUN, NOT_FOUND, Request, hold
from dlock_core.engine.client_context import EXCLUSIVE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlock_core.command.show import Say
    from dlock_core.options import ClientOptions

_START_PERIOD_S = 1.0
_THREADS_END_S = 5.0


@click.command(
    "elect",
    cls=CommandBehindDashes,
    example="dlock elect KEY -- ./leader",
    short_help="Run a command while this process leads.",
)
@click.argument("key", metavar="KEY")
@connection_options
@option("--lease", "lease_duration", type=DURATION, metavar="TIME")
@click.option("--value", type=os.fsencode, metavar="TEXT", help="Text that observers see while this process leads.")
@click.option("--once", is_flag=True, help="Lead one term, and exit with the command's code.")
@grace_option
@probe_option
@option("--clock-skew", "clock_skew", type=DURATION, metavar="TIME")
@click.pass_context
def elect(  # click hands the options over by name
    ctx: click.Context,
    /,
    *,
    key: str,
    value: bytes | None,
    once: bool,
    grace: float | None,
    say: Say,
    **given: Any,
) -> int:
    """Run COMMAND while this process leads KEY; when it has ended, campaign again. No shell is involved.

    COMMAND gets TERM when the leadership cannot be kept, and KILL before another may lead. A signal to dlock goes to COMMAND; HUP, INT,
    QUIT and TERM also end dlock, with the code of COMMAND. The other exit codes are those of 'dlock run'.

    A TIME is a number of seconds, or has a unit: 500ms, 10s, 1m, 2h.
    """
    options = holding_options(**given, data=value).with_(timeout=None, retries=None, **EXCLUSIVE)
    return _Terms(key, ctx.obj, grace_within(options, grace), say, once=once).lead(options)


class _Terms:
    """The terms of one process, one after the other."""

    def __init__(self, key: str, argv: Sequence[str], grace: float, say: Say, *, once: bool) -> None:
        self._say = say
        self._request = Request(
            (key,), argv, grace, warn_only=False, held_code=BUSY, goes_on=not once, on_signal=self._heard
        )
        self._ending: signal.Signals | None = None

    def lead(self, options: ClientOptions) -> int:
        """Return the exit code."""
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTTOU, *FORWARDED)}
        while True:
            began = time.monotonic()
            code = hold(self._request, options, self._say)
            if not self._request.goes_on or self._ending is not None or code in (CANNOT_RUN, NOT_FOUND):
                return code
            self._say.detail(f"the term has ended with code {code}; campaigning again")
            time.sleep(max(0.0, began + _START_PERIOD_S - time.monotonic()))
            _rest()
            if came := self._came():
                return SIGNALLED + min(came)
            # The next command must not inherit what this process has set for itself.
            for number, handler in handlers.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)

    def _came(self) -> set[int]:
        """Return the signals that came since the term: the end of hold() has blocked them, but for other threads that were still there."""
        return {
            *map(int, signal.sigpending().intersection(ENDING)),
            *([] if self._ending is None else [int(self._ending)]),
        }

    def _heard(self, number: signal.Signals) -> None:
        if number in ENDING:
            self._ending = number


def _rest() -> None:
    """Wait until the threads of the last term have ended: the next command is forked."""
    gc.collect()  # gRPC's thread ends with the last channel, which cycles keep alive
    until = time.monotonic() + _THREADS_END_S
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))
