"""The command's surface: its options, its subcommands, and which error means which exit code."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

import click

from dlock_core.command.options import (
    LOST,
    SIGNALLED,
    client_options,
    configuration_source,
    connection_options,
    early_options,
    early_takeover,
)
from dlock_core.command.show import OutputClosedError, OutputError, Say
from dlock_core.errors import (
    AcquireTimeoutError,
    ConfigurationError,
    DLockError,
    LockLostError,
    StoreError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from dlock_core.options import LockKeywords

__all__ = ["command", "run"]

USAGE = 64
UNAVAILABLE = 69
SOFTWARE = 70
NO_PROCESS = 71
NO_OUTPUT = 74
BUSY = 75
_INTERRUPTED = SIGNALLED + 2
_PIPE_CLOSED = SIGNALLED + 13
_STDERR = 2


def run(arguments: list[str]) -> NoReturn:
    """Run the command line *arguments* and exit."""
    _open_standard_files()
    for stream in (sys.stdout, sys.stderr):
        # A key is printable, which the terminal's encoding may not know.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a text stream of the interpreter
    _leave(_exit_code(arguments))


def _open_standard_files() -> None:
    """Put nothing where a standard file is closed: a pipe would stand there, and be taken for it. A command finds it closed still."""
    while (file := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    sys.stdin, sys.stdout, sys.stderr = (
        stream or os.fdopen(os.dup(file), mode)
        for stream, mode in ((sys.stdin, "r"), (sys.stdout, "w"), (sys.stderr, "w"))
    )
    os.close(file)


def _exit_code(arguments: list[str]) -> int:
    say = Say()
    try:
        code = command.main(arguments, prog_name="dlock", standalone_mode=False)
    except click.ClickException as error:
        path = "dlock" if not isinstance(error, click.UsageError) or error.ctx is None else error.ctx.command_path
        say.error(f"{error.format_message().rstrip('.')}; see '{path} --help'")
        return USAGE
    except DLockError as error:
        say.error(str(error))
        return _code_of(error)
    except click.Abort:
        return _INTERRUPTED
    except OutputClosedError:
        return _PIPE_CLOSED
    except OutputError as error:
        say.error(str(error))
        return NO_OUTPUT
    return code if isinstance(code, int) else 0


def _code_of(error: DLockError) -> int:
    codes: dict[type[DLockError], int] = {
        ConfigurationError: USAGE,
        StoreError: UNAVAILABLE,
        AcquireTimeoutError: BUSY,
        LockLostError: LOST,
    }
    return next((code for kind, code in codes.items() if isinstance(error, kind)), SOFTWARE)


def _leave(code: int) -> NoReturn:
    """Exit with *code*; threads that hang in a request to a store are not waited for."""
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon]
    for thread in others:
        thread.join(0.1)
    if any(thread.is_alive() for thread in others):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


class _RunCommand(click.Command):
    """``KEY... -- argv``: what follows the first ``--`` is the command's, whatever it looks like."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.obj = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "--", "COMMAND", "[ARGUMENTS]..."]


# ---- the commands


class _Commands(click.Group):
    """Loads the commands of operators, and what they need, only where one of them is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["run", *operator_commands()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _run if cmd_name == "run" else operator_commands().get(cmd_name)


def operator_commands() -> dict[str, click.Command]:
    """Return the commands for people who look after locks, by name."""
    from dlock_core.command import operator

    return {
        each.name: each
        for each in (operator.ls, operator.show, operator.break_, operator.init, operator.doctor)
        if each.name
    }


@click.group(cls=_Commands, no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(None, "-V", "--version", package_name="dlock-core", message="dlock %(version)s")
def command() -> None:
    """Hold distributed locks from the shell, and look after them."""


@click.command("run", cls=_RunCommand)
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@connection_options
@click.option(
    "--lease", type=float, metavar="SECONDS", help="A lock of ours that has died is free this long after. Default: 20."
)
@click.option("--timeout", type=float, metavar="SECONDS", help="Wait at most so long. Default: for ever.")
@click.option("--no-wait", is_flag=True, help="Try once.")
@click.option("--skip-if-held", is_flag=True, help="If it is held, exit with 0; try once, where no --timeout is given.")
@click.option(
    "-E", "--conflict-exit-code", type=click.IntRange(0, 255), metavar="CODE", help="Exit code when held. Default: 75."
)
@click.option(
    "--on-lost",
    type=click.Choice(["term", "warn"]),
    default="term",
    help="End the command before the lease ends, or say so only.",
)
@click.option(
    "--grace",
    type=float,
    metavar="SECONDS",
    help="Between TERM and KILL, both within the lease. Default: a quarter of it.",
)
@early_options
@click.option("--data", metavar="TEXT", help="Data for the record, shown by 'dlock show'.")
@click.option("-q", "--quiet", is_flag=True, help="Errors only.")
@click.option("-v", "--verbose", is_flag=True, help="Say what is done.")
@click.pass_context
def _run(ctx: click.Context, /, keys: tuple[str, ...], **given: Any) -> int:
    """Hold the lock KEY, or several of them, while COMMAND runs; no shell is involved.

    The exit code is that of COMMAND; 75 held, 76 lost, 69 store unreachable, 64 usage, 126 and 127 cannot run, 128+n ended by signal n.
    """
    if not hasattr(os, "fork"):
        raise UnsupportedError("dlock run needs processes as POSIX systems have them; this system has none")
    from dlock_core.command.run import Request, grace_within, hold

    argv: list[str] = ctx.obj or []
    if not argv:
        raise click.UsageError("no command is given; write it after '--', as in: dlock run KEY -- make deploy", ctx)
    if given["quiet"] and given["verbose"]:
        raise click.UsageError("--quiet and --verbose exclude each other", ctx)
    say = Say(quiet=given["quiet"], verbose=given["verbose"])
    conflict = _conflict_code(ctx, given)
    names = ("url", "prefix", "owner", "allow_unsafe")
    options = client_options(
        **{name: given[name] for name in names},
        **early_takeover(given),
        lease_duration=given["lease"],
        **_waiting(ctx, given),
    )
    try:
        grace = grace_within(options.lease_duration, given["grace"], options.max_hold)  # type: ignore[arg-type]  # checked: seconds
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    say.detail(f"configuration: {configuration_source(given['url'])}")
    lock: LockKeywords = {"auto_renew": True, "cancel_on_loss": False, "reentrant": False}
    if given["data"] is not None:
        lock["data"] = os.fsencode(given["data"])
    request = Request(keys, argv, grace, given["on_lost"] == "warn", lock)
    try:
        return hold(request, options, say)
    except AcquireTimeoutError as error:
        if not given["skip_if_held"]:
            say.error(f"{error}; nothing was run")
        else:
            say.detail(f"{error}; skipped")
        return conflict
    except OSError as error:
        if isinstance(error, DLockError):
            raise
        say.error(f"no process can be started: {error.strerror}")
        return NO_PROCESS


def _conflict_code(ctx: click.Context, given: dict[str, Any]) -> int:
    code: int | None = given["conflict_exit_code"]
    if given["skip_if_held"] and code is not None:
        raise click.UsageError("--skip-if-held means exit code 0; leave one of it and --conflict-exit-code out", ctx)
    if given["skip_if_held"]:
        return 0
    return BUSY if code is None else code


def _waiting(ctx: click.Context, given: dict[str, Any]) -> dict[str, float]:
    timeout: float | None = given["timeout"]
    if given["no_wait"] and timeout is not None:
        raise click.UsageError("--no-wait is --timeout 0; leave one of them out", ctx)
    if given["no_wait"] or (given["skip_if_held"] and timeout is None):
        return {"timeout": 0.0}
    return {} if timeout is None else {"timeout": timeout}
