"""``dlock once``: run the command once per slot, on whichever host comes first."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click

from dlock_core.command.app import BUSY, UNAVAILABLE, CommandBehindDashes
from dlock_core.command.options import (
    DURATION,
    LOST,
    connection_options,
    grace_option,
    grace_within,
    holding_options,
    option,
)
from dlock_core.command.run import Request, Run, hold
from dlock_core.command.show import WaitLine, writing_output
from dlock_core.engine.hints import naming
from dlock_core.engine.progress import at_in_words, holder_in_words
from dlock_core.errors import ConfigurationError, LockLostError, StoreError
from dlock_core.record import DATA_MAX_BYTES, LossReason

if TYPE_CHECKING:
    from dlock_core.aio import AsyncLockClient
    from dlock_core.aio_once import AsyncOnce
    from dlock_core.command.show import Say


_LONGEST = "--at-most-for"


@click.command(
    "once",
    cls=CommandBehindDashes,
    example='dlock once KEY --slot "$(date +%F)" -- make report',
    short_help="Run a command once for each slot of a job.",
)
@click.argument("key", metavar="KEY")
@connection_options
@click.option("--slot", required=True, metavar="TEXT", help="Name of this run; slots grow, as dates do.")
@option("--lease", "lease_duration", type=DURATION, metavar="TIME")
@click.option(
    "--timeout",
    type=DURATION,
    metavar="TIME",
    help="Seconds to wait for the end of another run; by default until that was seen to be alive.",
)
@click.option(
    "--at-least-for",
    type=DURATION,
    default=0,
    metavar="TIME",
    help="No other run begins so soon after the beginning of this one, by the wall clocks.",
)
@click.option("--at-most-for", type=DURATION, metavar="TIME", help="Longest time of a run; max_hold by default.")
@click.option(
    "--keep-output", is_flag=True, help="Keep stdout of COMMAND, at most 64 KiB, and print it where the slot is done."
)
@grace_option
@option("--lock-delay", "lock_delay", type=DURATION, metavar="TIME")
@click.pass_context
def once(  # click hands the options over by name
    ctx: click.Context,
    /,
    *,
    key: str,
    slot: str,
    timeout: float | None,
    at_least_for: float,
    at_most_for: float | None,
    keep_output: bool,
    grace: float | None,
    say: Say,
    **given: Any,
) -> int:
    """Run COMMAND unless the slot of the job KEY was finished, here or elsewhere; no shell is involved.

    The exit code is 0 where the slot was finished before, or the last run began too short a time ago (--at-least-for), 75 where another
    process is at it, else that of COMMAND. A COMMAND that ends with another code than 0 leaves the slot due. The other exit codes are those
    of 'dlock run'.

    A TIME is a number of seconds, or has a unit: 500ms, 10s, 1m, 2h.
    """
    with naming("max_hold", None if at_most_for is None else _LONGEST):
        options = holding_options(**given, max_hold=at_most_for)
        request = Request((key,), ctx.obj, grace_within(options, grace), warn_only=False, held_code=BUSY)
    job = _Job(slot, timeout, at_least_for, at_most_for, None)
    if not keep_output:
        return hold(request, options, say, partial(_OnceRun, job))
    with _temporary_file() as output:
        code = hold(request, options, say, partial(_OnceRun, job._replace(output=output)), stdout=output.fileno())
        output.seek(0)
        with writing_output():
            shutil.copyfileobj(output, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        return code


def _temporary_file() -> BinaryIO:
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise ConfigurationError(
            f"--keep-output needs a place for the output while the command runs; set TMPDIR to a directory: {error.strerror}"
        ) from error


class _Job(NamedTuple):
    """What ``dlock once`` adds to a run. *output* is the file that stdout of the command goes to."""

    slot: str
    timeout: float | None
    at_least_for: float
    at_most_for: float | None
    output: BinaryIO | None


class _OnceRun(Run):
    """A run whose lock is that of a job; it finishes the slot when the command has ended with 0."""

    def __init__(self, job: _Job, *run: Any) -> None:
        super().__init__(*run)
        self._job = job
        if job.at_most_for is not None:
            self._bounds = {**self._bounds, LossReason.OVERRUN: _LONGEST}

    async def _locked(self, client: AsyncLockClient) -> int:
        [key] = self._request.keys
        job = self._job
        waiting: dict[str, Any] = {} if job.timeout is None else {"timeout": job.timeout}
        self._say.detail(f"looking at {self._name()}")
        limits: dict[str, Any] = {"at_least_for": job.at_least_for, "at_most_for": job.at_most_for}
        line = WaitLine(client, [key], self._say)
        try:
            async with client.once(key, slot=job.slot, **limits, **waiting) as run:
                line.end()
                if self._signal is not None:
                    raise asyncio.CancelledError
                return await self._run(run) if run.due else self._skip(run)
        finally:
            line.end()

    def _skip(self, run: AsyncOnce) -> int:
        job, holder = self._job, run._holder  # its other half
        if run.busy:
            who = "another process is at it"
            if holder is not None and holder.held:
                who += f": {holder_in_words(holder)} (token {holder.fencing_token})"
            self._say.error(f"{self._name()} is not known to be done, and {who}; nothing was run")
            return BUSY
        if str(run.last_slot) < job.slot:
            until = at_in_words(-(-run._finished.not_before_ms // 1000))  # its other half
            self._say.note(
                f"{self._name()} stays due, and nothing was run: slot {run.last_slot!r} was begun too short a time ago "
                f"(--at-least-for); no run begins before {until}"
            )
            return 0
        self._say.detail(f"nothing was run: {run.last_slot!r} of {self._names()} was finished")
        if job.output is not None:
            job.output.write(run.result or b"")
        return 0

    async def _run(self, run: AsyncOnce) -> int:
        lease = run.lease
        assert lease is not None  # it is due
        self._running = True
        code = await self._command({run.key: lease})
        self._over = True
        try:
            if code == 0:
                await run.finish(self._result())
            else:
                await lease.release()
        except LockLostError as error:
            return self._lost_code(error, code)
        except StoreError as error:
            if code == 0:
                self._say.error(
                    f"{self._name()} may be run again: the command ended with code 0, but the store has not confirmed that: {error}"
                )
                return UNAVAILABLE
            self._say.warning(f"the release of {self._names()} was not confirmed; it lapses at worst: {error}")
        if code:
            why = "" if code == LOST else f": the command ended with code {code}"  # a loss is told before
            self._say.note(f"{self._name()} stays due{why}")
        return code

    def _result(self) -> bytes | None:
        if self._job.output is None:
            return None
        result = os.pread(self._job.output.fileno(), DATA_MAX_BYTES + 1, 0)
        if len(result) > DATA_MAX_BYTES:
            self._say.warning(f"the output is longer than {DATA_MAX_BYTES} bytes (64 KiB); only so much of it is kept")
        return result[:DATA_MAX_BYTES]

    def _name(self) -> str:
        return f"slot {self._job.slot!r} of {self._names()}"
