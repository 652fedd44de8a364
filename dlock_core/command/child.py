"""The command that runs under the lock, and the guard that ends it in time: two processes, forked early.

Early is before the store is opened: while there is no second thread, whose locks a forked child would inherit, and no connection. So the
child may run a few lines of Python before it becomes the command, which a fork beside other threads must not. The *child* makes itself the
leader of a process group, has the kernel end it when dlock dies (``PR_SET_PDEATHSIG``, which follows the thread that forked: the main
one), and waits on a pipe. What comes is its environment, and it becomes the command; if the pipe closes instead, it ends, and nothing
was run.

The *guard* holds the end of a pipe and a deadline. It ends the child's group when the deadline comes near and dlock has not moved it
(stopped, starved, swapped out), and when dlock is gone. It is the reason why no command outlives its lease in silence.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import stat
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from dlock_core.clock import NANOS, now_ns
from dlock_core.command.show import escape
from dlock_core.timings import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dlock_core.aio import AsyncLease


def _signals(*names: str) -> tuple[signal.Signals, ...]:
    """Return the signals of these names that the system has; Windows lacks most of them."""
    return tuple(signal.Signals[name] for name in names if name in signal.Signals.__members__)


FORWARDED = _signals("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")
# Of those, what ends a program that does not handle it, as its user or a supervisor wants.
ENDING = _signals("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM")
_WANT_TERMINAL = _signals("SIGTTIN", "SIGTTOU")
# Python ignores these for itself; a command must not inherit that.
_RESTORED = _signals("SIGPIPE", "SIGXFSZ")
_PR_SET_PDEATHSIG = 1
_ORDER = struct.Struct("=qq?")
_ORPHAN_LOOKS_NS = NANOS // 10
_LOOKS_NS = NANOS
_STDIN, _STDOUT, _STDERR = range(3)
_TERMINAL = Path("/dev/tty")
_STAT = Path("/proc/self/stat")


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; False if it is gone, or belongs to another user by now."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def environment(leases: Mapping[str, AsyncLease]) -> dict[str, str]:
    """Return what the command is told. Keys hold no control characters, so that lines separate them without doubt.

    What does not print in an owner is written out.
    """
    slots = [lease.slot for lease in leases.values() if lease.slot is not None]
    return {
        "DLOCK_SLOT": str(slots[0]) if slots else "",
        "DLOCK_KEY": "\n".join(leases),
        "DLOCK_OWNER": escape(next(iter(leases.values())).owner),
        "DLOCK_FENCING_TOKEN": "\n".join(str(lease.fencing_token) for lease in leases.values()),
        "DLOCK_FENCING_TOKENS": json.dumps({key: lease.fencing_token for key, lease in leases.items()}),
    }


class Child:
    """A process that is ready to become the command."""

    def __init__(self, argv: Sequence[str], stdout: int | None = None) -> None:
        """Fork it, with the file *stdout* as its stdout, where one is given.

        Raises: OSError: no process can be had.
        """
        parent = os.getpid()
        orders, self._start = os.pipe()
        self.exec_error, trouble = os.pipe()
        # A signal that comes before the child has reset its handlers would run Python code of the parent in it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._start)
            os.close(self.exec_error)
            if stdout is not None:
                os.dup2(stdout, _STDOUT)
            _become(argv, orders, trouble, parent=parent, mask=mask)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(orders)
        os.close(trouble)
        # Both sides do it, so that the group exists whoever comes first.
        with suppress(OSError):
            os.setpgid(self.pid, self.pid)
        self.has_terminal = False  # whether the command was given the foreground of the terminal
        self._suspended = False

    def start(self, environment: Mapping[str, str]) -> None:
        """Have it become the command, with *environment* put over what it inherited; ``exec_error`` then tells the errno, or closes."""
        self.offer_terminal()
        start, self._start = self._start, -1
        with suppress(BrokenPipeError), os.fdopen(start, "wb") as order:  # it was killed: its status will tell
            order.write(json.dumps(dict(environment)).encode())

    def dismiss(self) -> None:
        """End it if it was not started; what was open for it is closed, since an election has many."""
        if self._start >= 0:
            os.close(self._start)
            with suppress(ChildProcessError):  # it was killed before, which changes() has told
                os.waitpid(self.pid, 0)
        os.close(self.exec_error)

    def changes(self) -> Iterator[int]:
        """Yield what ``waitpid`` says anew of the command. A container's first process is given orphans, and buries those of the group."""
        for whose in (self.pid, -self.pid):
            with suppress(ChildProcessError):
                while (change := os.waitpid(whose, os.WNOHANG | os.WUNTRACED))[0]:
                    if change[0] == self.pid:
                        yield change[1]

    def signal(self, number: int) -> bool:
        """Send a signal to the command and all of its group."""
        return signal_group(self.pid, number)

    def has_others(self) -> bool:
        """Whether others of its group are at work when the command has ended; those that nobody buries are not."""
        return self.signal(0) and (not _STAT.exists() or any(map(self._is_other, _STAT.parents[1].glob("[0-9]*/stat"))))

    def _is_other(self, path: Path) -> bool:
        with suppress(OSError):  # it has ended
            state, _, group, *_ = path.read_bytes().rpartition(b")")[2].split()
            return int(group) == self.pid and state not in (b"Z", b"X")
        return False

    def terminate(self) -> None:
        """Ask the group to end; one that is stopped is continued, or it could not hear it."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)

    def suspend(self) -> bool:
        """Have the group stop, as Ctrl-Z does in the foreground; False if it is gone."""
        self._suspended = self.signal(signal.SIGTSTP)
        return self._suspended

    def stopped_by(self, number: int) -> bool:
        """Take note of its stop by a signal; whether this process has to stop, too.

        A command that is stopped for want of the terminal gets it and goes on, where this process stands in the foreground.
        """
        suspended, self._suspended = self._suspended, False
        if number in _WANT_TERMINAL:
            if not self.give_terminal():
                return True
            self.signal(signal.SIGCONT)
            return False
        return number == signal.SIGTSTP and (self.has_terminal or suspended)

    def offer_terminal(self) -> None:
        """Give the command the terminal on stdin. In a pipeline it has to ask, by reading: another program there may read instead."""
        with suppress(OSError):
            if os.isatty(_STDIN) and not any(stat.S_ISFIFO(os.fstat(file).st_mode) for file in (_STDOUT, _STDERR)):
                self.give_terminal()

    def give_terminal(self) -> bool:
        """Put the command into the foreground of the terminal, if that is where this process stands; whether it does."""
        with suppress(OSError), _TERMINAL.open("rb", buffering=0) as terminal:
            if os.tcgetpgrp(terminal.fileno()) == os.getpgrp():
                os.tcsetpgrp(terminal.fileno(), self.pid)
                self.has_terminal = True
                return True
        return False

    def take_terminal(self) -> None:
        """Take the foreground back, if the command had it."""
        if self.has_terminal:
            self.has_terminal = False
            with suppress(OSError), _TERMINAL.open("rb", buffering=0) as terminal:
                os.tcsetpgrp(terminal.fileno(), os.getpgrp())


def can_be_resumed() -> bool:
    """Whether the parent is of this session, as a shell is: without one the kernel lets no stop from a terminal stop this process."""
    with suppress(ProcessLookupError):  # the parent has just ended
        return os.getsid(os.getppid()) == os.getsid(0)
    return False


def end_by_interrupt(*, group: bool) -> None:
    """End as an interrupt from the keyboard ends a process, with all of its *group* if that has not got the signal, if this is a terminal.

    A script or a loop of the shell goes on after a mere exit code. Returns elsewhere, and in a container's first process.
    """
    with suppress(OSError):
        if os.tcgetpgrp(_STDIN) == os.getpgrp():
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            os.killpg(os.getpgrp(), signal.SIGINT) if group else os.kill(os.getpid(), signal.SIGINT)


def _become(
    argv: Sequence[str], orders: int, trouble: int, *, parent: int, mask: set[int | signal.Signals]
) -> NoReturn:
    try:
        os.setpgid(0, 0)
        _die_with(parent)
        for number in (*FORWARDED, *_RESTORED):
            # What whoever started us has ignored (nohup) stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN or number in _RESTORED:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        with os.fdopen(orders, "rb") as given:
            order = given.read()
        try:
            os.execvpe(argv[0], list(argv), {**_inherited(), **json.loads(order)})  # noqa: S606  # no shell is the point
        except OSError as error:
            os.write(trouble, str(error.errno).encode())
        except ValueError:  # a name of no character; or no order, and nobody reads this
            os.write(trouble, str(errno.ENOENT).encode())
    finally:
        os._exit(127)


def _inherited() -> dict[str, str]:
    """Return the environment that dlock was started with: in the locale C, Python sets LC_CTYPE for itself (PEP 538)."""
    inherited = dict(os.environ)
    with suppress(OSError):  # only Linux tells
        begun_with = Path("/proc/self/environ").read_bytes()
        if not any(each.startswith(b"LC_CTYPE=") for each in begun_with.split(b"\0")):
            inherited.pop("LC_CTYPE", None)
    return inherited


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        import ctypes  # here, in the child, so that dlock itself does not wait for it

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(127)  # it died before the kernel was told


class Progress:
    """A pipe to which the command writes, by the name *path*, when a part of its work is done."""

    def __init__(self) -> None:
        """Open it, before the command is forked."""
        self.read_end, self._write_end = os.pipe()
        # The end of this process: a program may close what it inherits before it starts another, whose file of that number is its own.
        self.path = f"/proc/{os.getpid()}/fd/{self._write_end}"
        if not Path(self.path).exists():  # no Linux
            os.set_inheritable(self._write_end, True)  # noqa: FBT003  # its parameter has no name
            self.path = f"/dev/fd/{self._write_end}"

    def close(self) -> None:
        """Close it."""
        os.close(self.read_end)
        os.close(self._write_end)


class Guard:
    """The process that ends the child's group when dlock cannot."""

    def __init__(self, child: Child, *, grace_s: float) -> None:
        """Fork it.

        Raises: OSError: no process can be had.
        """
        orders, self._orders = os.pipe()
        self.acts, acts = os.pipe()
        os.set_blocking(self.acts, False)
        os.set_blocking(self._orders, False)
        self.acted = False
        self._due, self.spares_no_time = (NEVER, NEVER), False
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _seclude(keep={orders, acts})
                _watch(orders, acts, child.pid, round(grace_s * NANOS))
            finally:
                os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(orders)
        os.close(acts)

    def order(self, terminate_at: int, kill_at: int) -> None:
        """Have the group end at these instants (ns) unless they are moved before."""
        self._due = terminate_at, kill_at
        with suppress(
            BrokenPipeError, BlockingIOError
        ):  # somebody has killed or stopped it; what dlock itself does remains
            os.write(self._orders, _ORDER.pack(*self._due, self.spares_no_time))

    def spare_no_time(self) -> None:
        """Have the group killed at once if dlock is killed from now on: the command was asked to end, and has had its time.

        A dlock around this one kills only this process, and the command must not outlive the lock of that one.
        """
        self.spares_no_time = True
        self.order(*self._due)

    def look(self) -> bool:
        """Whether the guard has acted."""
        with suppress(BlockingIOError):
            self.acted = os.read(self.acts, 1) == b"!" or self.acted
        return self.acted

    def dismiss(self) -> None:
        """End the guard; the command is over."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._orders)
        os.close(self.acts)


def _seclude(keep: set[int]) -> None:
    """Leave the session, so that nothing sent to the others ends the guard, and hold nothing open that somebody waits to see closed."""
    os.setsid()
    for number in FORWARDED:
        signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    folder = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
    for path in list(Path(folder).iterdir()):
        if int(path.name) > 2 and int(path.name) not in keep:  # noqa: PLR2004  # stderr
            with suppress(OSError):  # the listing's own
                os.close(int(path.name))


def _watch(orders: int, acts: int, group: int, grace_ns: int) -> None:
    """Wait for orders and deadlines. Ends when the group was killed, or is gone after dlock is; otherwise dlock ends it."""
    terminate_at = kill_at = NEVER
    orphaned = acted = spares_no_time = False
    while True:
        now = now_ns()
        if not acted and (orphaned or now >= min(terminate_at, kill_at)):
            acted, kill_at = True, min(kill_at, now + (0 if orphaned and spares_no_time else grace_ns))
            with suppress(BrokenPipeError):
                os.write(acts, b"!")
            signal_group(group, signal.SIGTERM)
            signal_group(group, signal.SIGCONT)
        if now >= kill_at:
            signal_group(group, signal.SIGKILL)
            return
        if orphaned and not signal_group(group, 0):
            return
        # select measures by a clock that stands still while the machine is suspended, and the deadline does not: look again in between.
        longest = _ORPHAN_LOOKS_NS if orphaned else _LOOKS_NS
        pause_s = min(longest, (kill_at if acted else min(terminate_at, kill_at)) - now) / NANOS
        if select.select([] if orphaned else [orders], [], [], pause_s)[0]:
            received = os.read(orders, 256 * _ORDER.size)
            orphaned = not received
            if received and not acted:
                terminate_at, kill_at, spares_no_time = _ORDER.unpack(received[-_ORDER.size :])
