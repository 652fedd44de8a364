"""``dlock run``: hold locks while a command runs.

One event loop in the main thread; signals arrive as its callbacks, so that none is lost between two phases:

- *waiting*: the wait is cancelled, what it may have written is cleaned up, and nothing is run;
- *running*, from before the child is told to become the command: the signal goes to the command's process group;
- *releasing*: the command is over. The release is finished, within its time-out, and the code is the command's.

The lease is the clock of everything else. The command is asked to end *grace* before the lease does, on what the lease says now, not when
the loss is a fact; the guard process (see ``dlock_core.command.child``) has the same deadlines and stands in where this process cannot run.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dlock_core.aio import aconnect
from dlock_core.clock import NANOS, now_ns
from dlock_core.command.child import FORWARDED, Child, Guard, Progress, can_be_resumed, end_by_interrupt, environment
from dlock_core.command.held import EarlierLooks
from dlock_core.command.options import GRACE, LOST, SIGNALLED
from dlock_core.command.show import Say, WaitLine, missing
from dlock_core.engine.opening import whole_commands
from dlock_core.engine.progress import holder_in_words
from dlock_core.engine.raised import LOSS_REASONS
from dlock_core.errors import AcquireTimeoutError, DLockError, LockLostError
from dlock_core.record import LossReason
from dlock_core.states import Held
from dlock_core.timings import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from dlock_core.aio import AsyncLease, AsyncLockClient
    from dlock_core.options import ClientOptions
    from dlock_core.record import Loss

CANNOT_RUN = 126
NOT_FOUND = 127

_log = logging.getLogger("dlock.command")
# The group is killed, and has a fiftieth of the lease to be gone; the guard comes in when half of that has passed.
_MARGIN = 50
# How often to look whether what a shell has left has ended, too, when it was asked to end: nobody tells that.
_OTHERS_S = 0.1
# By the exit codes of a command that it has ended, what is typed as Ctrl-C or Ctrl-\: the command has the terminal, and dlock is not told.
_TYPED = {code: each for each in FORWARDED if each.name in ("SIGINT", "SIGQUIT") for code in (-each, SIGNALLED + each)}


class Request(NamedTuple):
    """What ``dlock run`` has to do. *grace* is the time between TERM and KILL, in seconds.

    *held_code* is the exit code where a lock is held by another; None: the command is skipped, which is no failure.
    *goes_on* says that dlock does not exit after a loss. *on_signal* is called with each signal.
    """

    keys: Sequence[str]
    argv: Sequence[str]
    grace: float
    warn_only: bool
    held_code: int | None
    goes_on: bool = False
    on_signal: Callable[[signal.Signals], object] = lambda _: None


def hold(
    request: Request,
    options: ClientOptions,
    say: Say,
    make: Callable[..., Run] | None = None,
    *,
    stdout: int | None = None,
) -> int:
    """Run the command under its locks; return the exit code, to exit with: signals stay blocked from the moment when it is settled.

    On a terminal, an interrupt that has ended the command, or the wait, ends this process in the same way.

    *make* makes the run, where it is another kind than :class:`Run`; *stdout* is the file that the command writes to.

    Raises: DLockError: the locks were not obtained. OSError: no process can be had.
    """
    # All is loaded, and stays: see __main__. Once: what an earlier term of an election has left is garbage.
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    # Forked here: this process has one thread yet, and no connection.
    progress = None if options.stall_timeout is None else Progress()
    child = Child(request.argv, stdout)
    try:
        guard = Guard(child, grace_s=request.grace)
        try:
            # The command's group may hold the terminal: writing to it from behind, or taking it back, must not stop us.
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            run = (make or Run)(request, options, say, child, guard, progress)
            with whole_commands(options):
                code = asyncio.run(run.main())
        finally:
            guard.dismiss()
    finally:
        child.dismiss()
        if progress is not None:
            progress.close()
    if run.interrupt is not None and code == SIGNALLED + signal.SIGINT and stdout is None:
        end_by_interrupt(group=run.interrupt == "typed")
    return code


class Run:
    """One run, from the wait to the release."""

    # The options that end a hold, by what a lock is lost for that is held on.
    _bounds: Mapping[LossReason | None, str] = {LossReason.OVERRUN: "max_hold", LossReason.STALLED: "stall_timeout"}

    def __init__(  # noqa: PLR0917  # called by hold() alone
        self,
        request: Request,
        options: ClientOptions,
        say: Say,
        child: Child,
        guard: Guard,
        progress: Progress | None,
    ) -> None:
        self._request, self._options, self._say = request, options, say
        self._child, self._guard, self._progress = child, guard, progress
        self._hold_s = float(options.max_hold or "inf")  # type: ignore[arg-type]  # checked: seconds
        self._stall_s = float(options.stall_timeout or "inf")  # type: ignore[arg-type]  # as above
        self._task: asyncio.Task[Any] | None = None
        self._running = False
        self._over = False
        self._signal: signal.Signals | None = None
        self.interrupt: Literal["typed", "heard"] | None = None  # to the command in the foreground, or by this process
        self._wake = asyncio.Event()
        self._status: int | None = None
        self._terminated = self._warned = False
        self._limit = ""  # the option that ends the hold, where it is not the lease
        self._deadline = self._kill_at = NEVER

    async def main(self) -> int:
        """Return the exit code."""
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._signalled, number)
                signal.signal(number, self._heard)  # at once: the loop hears of it too, unless it ends before
        loop.add_signal_handler(signal.SIGCHLD, self._child_changed)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})  # whoever started us may have blocked it
        loop.add_signal_handler(signal.SIGCONT, self._continued)
        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGTSTP, self._suspended)
        try:
            return await self._connected()
        except asyncio.CancelledError:
            if self._signal is None:
                raise
            self._say.note(
                f"{self._signal.name} while waiting for {self._names()}: gave up; nothing is held, nothing was run"
            )
            return SIGNALLED + self._signal
        finally:
            # The code is settled: a signal from now on must not replace it, nor one that a thread gets which does not have this mask.
            signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
            for number in FORWARDED:
                if loop.remove_signal_handler(number):
                    signal.signal(number, self._heard)

    async def _connected(self) -> int:
        client = aconnect(self._options)
        # The command works on when this process is killed: whoever probes for the owner must know of both.
        client._context.include_group(self._child.pid)
        await client
        try:
            return await self._locked(client)
        finally:
            try:
                await client.close()
            except ExceptionGroup as group:
                for error in group.exceptions:
                    self._say.error(str(error))

    async def _locked(self, client: AsyncLockClient) -> int:
        self._say.detail(f"asking for {self._names()}")
        earlier = EarlierLooks(client, self._request.keys)
        line = WaitLine(client, self._request.keys, self._say)
        code: int | None = None
        try:
            async with self._held(client) as leases:
                line.end()
                if self._signal is not None:
                    raise asyncio.CancelledError
                self._running = True
                code = await self._command(leases)
                self._over = True
        except AcquireTimeoutError as error:
            line.end()
            return await self._refused(error, earlier)
        except LockLostError as error:
            if code is None:
                raise
            code = self._lost_code(error, code)
        finally:
            line.end()
        assert code is not None  # the block ended
        return code

    @asynccontextmanager
    async def _held(self, client: AsyncLockClient) -> AsyncIterator[Mapping[str, AsyncLease]]:
        keys = self._request.keys
        if self._options.is_shared:
            async with client.lock(keys[0]) as lease:
                yield {keys[0]: lease}
        else:
            async with client.lock_all(keys) as leases:
                yield leases

    def _lost_code(self, error: LockLostError, code: int) -> int:
        """Return the exit code where the lock was lost, and the command had ended with *code*."""
        if self._request.warn_only:
            self._say.warning(str(error))
            return code
        if code != LOST:
            self._say.error(f"{error}; the command had ended with code {code}")
        return LOST

    async def _refused(self, error: AcquireTimeoutError, earlier: EarlierLooks) -> int:
        code = self._request.held_code
        if code is None:
            holder = error.holder
            who = "held by another" if holder is None else f"{holder_in_words(holder)} (token {holder.fencing_token})"
            self._say.note(f"skipped: lock {error.key!r} is {who}{await earlier.last_renewal(error.key)}")
        else:
            self._say.error(f"{error}{await earlier.last_renewal(error.key)}; nothing was run")
        if advice := earlier.advice(error):
            self._say.note(advice)
        return code or 0

    def _names(self) -> str:
        return ", ".join(repr(key) for key in self._request.keys)

    # ---- signals

    def _heard(self, number: int, _: object) -> None:
        self._request.on_signal(signal.Signals(number))

    def _signalled(self, number: signal.Signals) -> None:
        self.interrupt = "heard" if number == signal.SIGINT else self.interrupt
        if self._running:
            if self._is_at_work():
                self._child.signal(number)
                if number == signal.SIGTERM:
                    self._guard.spare_no_time()
            return
        self._signal = self._signal or signal.Signals(number)
        if self._task is not None:
            self._task.cancel()

    def _child_changed(self) -> None:
        """Take note of what became of the child; a stop by the terminal's job control stops this process too."""
        for status in self._child.changes():
            if not os.WIFSTOPPED(status):
                self._status = os.waitstatus_to_exitcode(status)
                if self._child.has_terminal and (typed := _TYPED.get(self._status)):
                    self._request.on_signal(typed)
                    self.interrupt = "typed" if self._status == -signal.SIGINT else None
                self._wake.set()
            elif self._child.stopped_by(os.WSTOPSIG(status)):
                self._stop(resume=os.WSTOPSIG(status) == signal.SIGTSTP)

    def _suspended(self) -> None:
        """Stop after the command: Ctrl-Z does not reach it where it is not in the foreground."""
        if not (self._is_at_work() and self._child.suspend()):
            self._stop(resume=False)

    def _stop(self, *, resume: bool) -> None:
        """Stop as the shell expects it. The lease goes on ending: the guard sees to the command if nobody resumes it in time.

        With *resume* the command goes on where this process cannot stop: in an orphaned group, where nobody could resume it.
        """
        self._child.take_terminal()
        left = max(0.0, (self._deadline - now_ns()) / NANOS - self._request.grace)
        if self._is_at_work() and not self._request.warn_only and self._deadline != NEVER and can_be_resumed():
            self._say.note(
                f"stopped with lock {self._names()} held: resume it within {left:.0f} s, or the command is ended"
            )
        heeded = asyncio.get_running_loop().remove_signal_handler(signal.SIGTSTP)
        os.killpg(os.getpgrp(), signal.SIGTSTP)
        # Here again once resumed, of which SIGCONT tells; or at once.
        if heeded:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTSTP, self._suspended)
        if resume:
            self._continued()

    def _continued(self) -> None:
        if self._is_at_work():
            self._child.offer_terminal()
            self._child.signal(signal.SIGCONT)
            self._wake.set()

    def _is_at_work(self) -> bool:
        return self._running and not self._over and (self._status is None or self._others_are_left())

    # ---- the command

    async def _command(self, leases: Mapping[str, AsyncLease]) -> int:
        """Run it to its end; return its code, or 76 where it was ended because of the lease."""
        tokens = ", ".join(f"{key!r} (token {lease.fencing_token})" for key, lease in leases.items())
        self._say.detail(f"holding {tokens}; running {self._request.argv[0]!r} as process {self._child.pid}")
        for lease in leases.values():
            lease.on_lost(self._told)
            lease.on_risk(self._told)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._guard.acts, self._guard_acted)
        told = environment(leases)
        if self._progress is not None:
            told["DLOCK_PROGRESS"] = self._progress.path
            loop.add_reader(self._progress.read_end, self._note_progress, self._progress, leases)
        try:
            self._look(leases)
            self._child.start(told)
            await self._until_over(leases)
        finally:
            self._child.take_terminal()
        return self._code(leases)

    async def _until_over(self, leases: Mapping[str, AsyncLease]) -> None:
        while self._status is None or self._others_are_left():
            pause = self._look(leases) if self._status is None else min(self._look(leases), _OTHERS_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            self._wake.clear()

    def _others_are_left(self) -> bool:
        """Whether the command was asked to end, and others of its group have neither ended nor been killed."""
        asked = self._guard.look() or (self._status == -signal.SIGTERM and self._guard.spares_no_time)
        return (self._kill_at != NEVER if self._terminated else asked) and self._child.has_others()

    def _told(self, subject: AsyncLease | Loss) -> None:
        _log.debug("look at the leases: %s", subject)
        self._wake.set()

    def _guard_acted(self) -> None:
        if self._guard.look():
            self._wake.set()
        elif not self._over:
            self._say.warning(
                "the guard process is gone: if dlock is stopped or killed from now on, the command may outlive its lock"
            )
        asyncio.get_running_loop().remove_reader(self._guard.acts)

    def _note_progress(self, progress: Progress, leases: Mapping[str, AsyncLease]) -> None:
        os.read(progress.read_end, 65536)
        for lease in leases.values():
            with suppress(DLockError):  # lost, which the next look at the leases finds
                lease.progress()

    def _look(self, leases: Mapping[str, AsyncLease]) -> float:
        """Compare the leases with the clock, and do what is due; return in how many seconds to look again."""
        now = now_ns()
        shortest = min(leases.values(), key=lambda lease: lease.remaining)
        lease_s = min(shortest.lease_duration, self._hold_s, self._stall_s, 86400.0)
        if shortest.is_valid:
            remaining = shortest.remaining
            self._deadline = NEVER if remaining == float("inf") else now + round(remaining * NANOS)
        if self._request.warn_only:
            self._warn(shortest)
            return lease_s / GRACE
        margin, grace = round(lease_s * NANOS / _MARGIN), round(self._request.grace * NANOS)
        if not self._terminated:
            left = self._deadline - margin - grace - now if shortest.is_valid else 0
            if left > 0 and not self._guard.look():
                if self._deadline != NEVER:
                    self._guard.order(self._deadline - margin // 2 - grace, self._deadline - margin // 2)
                return min(left / NANOS, lease_s / GRACE)
            self._terminate(shortest, now, min(now + grace, self._deadline - margin))
        if now >= self._kill_at:
            self._kill_at = NEVER
            self._child.signal(signal.SIGKILL)
        return min(lease_s, (self._kill_at - now) / NANOS)

    def _terminate(self, lease: AsyncLease, now: int, kill_at: int) -> None:
        self._terminated, self._kill_at = True, max(now, kill_at)
        self._guard.order(NEVER, self._kill_at)
        what = f"lock {lease.key!r} (token {lease.fencing_token})"
        state, reason = lease._handle.state, None if lease.loss is None else lease.loss.reason
        if type(state) is Held and state.hold_until <= lease._handle.deadline:
            reason = LossReason.OVERRUN if state.hold_until == state.overrun_at else LossReason.STALLED
        self._limit = self._bounds.get(reason, "")
        if self._guard.look():
            end = f"came to the end of its {self._limit}" if self._limit else "was not renewed in time"
            self._say.error(f"{what} {end}, and this process stood still: the guard has sent TERM to the command")
            return
        if lease.loss is not None:
            why = f"{what} was lost ({lease.loss.reason.value})"
        elif lease.is_valid and self._limit:
            limit_s = self._hold_s if reason is LossReason.OVERRUN else self._stall_s
            why = f"{what} must be released within {lease.remaining:.1f} s: its {self._limit} of {limit_s:g} s ends"
        elif lease.is_valid:
            why = f"{what} could not be renewed and ends in {lease.remaining:.1f} s"
        else:
            why = f"{what} ran out while this process could not run"
        self._child.terminate()
        self._say.error(f"{why}: the command gets TERM, and KILL after {(self._kill_at - now) / NANOS:.1f} s")

    def _warn(self, lease: AsyncLease) -> None:
        if not lease.is_valid and not self._warned:
            self._warned = True
            reason = "expired" if lease.loss is None else lease.loss.reason.value
            self._say.warning(
                f"lock {lease.key!r} (token {lease.fencing_token}) was lost ({reason}); the command runs on without it"
            )

    def _code(self, leases: Mapping[str, AsyncLease]) -> int:
        assert self._status is not None  # waited for
        name = self._request.argv[0]
        if trouble := int(os.read(self._child.exec_error, 32) or b"0"):
            found = not isinstance(OSError(trouble, ""), (FileNotFoundError, NotADirectoryError))
            self._say.error(f"cannot run {name!r}: {os.strerror(trouble)}" + ("" if found else missing(name)))
            return CANNOT_RUN if found else NOT_FOUND
        code = self._status if self._status >= 0 else SIGNALLED - self._status
        if self._request.warn_only:
            self._warn(min(leases.values(), key=lambda lease: lease.remaining))
            return code
        if self._terminated or self._guard.look():
            names = ", ".join(f"{key!r} (token {lease.fencing_token})" for key, lease in leases.items())
            loss = next((lease.loss for lease in leases.values() if lease.loss is not None), None)
            verb = "had no progress" if self._limit == "stall_timeout" else "was held"
            ending = f"{verb} for its {self._limit}" if self._limit else "could not be kept"
            why = f"lock {names} " + (f"was lost: {LOSS_REASONS[loss.reason]}" if loss and not self._limit else ending)
            exit_code = "" if self._request.goes_on else f"; exit code {LOST}"
            self._say.error(f"the command was ended (code {code}) because {why}{exit_code}")
            return LOST
        return code
