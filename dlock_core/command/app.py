"""The command's surface: its options, its subcommands, and which error means which exit code."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import click

from dlock_core.command.options import (
    DURATION,
    LOST,
    SIGNALLED,
    configuration_source,
    connection_options,
    grace_option,
    grace_within,
    holding_options,
    option,
    probe_option,
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
    from dlock_core.options import ClientOptions

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
    with warnings.catch_warnings():
        code = _exit_code(arguments)
    sys.exit(code)


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
    stdout = sys.stdout
    warnings.showwarning = say.python_warning
    try:
        code = command.main(arguments, prog_name="dlock", standalone_mode=False)
    except click.ClickException as error:
        say.error(f"{error.format_message().rstrip('.')}; see '{_place_of(error, arguments)} --help'")
        return USAGE
    except DLockError as error:
        say.error(str(error))
        return _code_of(error)
    except click.Abort:
        return _INTERRUPTED
    except OutputClosedError:
        return _PIPE_CLOSED
    except SystemExit as ended:  # of click, which has replaced stdout where the pipe of its help was closed
        return ended.code if sys.stdout is stdout and isinstance(ended.code, int) else _PIPE_CLOSED
    except OutputError as error:
        say.error(str(error))
        return NO_OUTPUT
    except OSError as error:
        if error.filename is not None:
            raise
        say.error(str(OutputError(error)))  # of click, which prints the help itself
        return NO_OUTPUT
    return code if isinstance(code, int) else 0


def _place_of(error: click.ClickException, arguments: list[str]) -> str:
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return error.ctx.command_path
    # click names no context where an option lacks its value, or a flag has one.
    names = command.list_commands(click.Context(command))
    return " ".join(["dlock", *(name for name in arguments[:1] if name in names)])


def _code_of(error: DLockError) -> int:
    codes: dict[type[DLockError], int] = {
        ConfigurationError: USAGE,
        StoreError: UNAVAILABLE,
        AcquireTimeoutError: BUSY,
        LockLostError: LOST,
    }
    return next((code for kind, code in codes.items() if isinstance(error, kind)), SOFTWARE)


def leave(code: int) -> NoReturn:
    """End the process with *code* at once; neither threads that hang in a request nor the teardown of the interpreter delay it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


class CommandBehindDashes(click.Command):
    """``KEY... -- argv``: what follows the first ``--`` is the command's, whatever it looks like. *example* is shown where nothing does.

    It has the options ``--quiet`` and ``--verbose``, and hands its function what they ask for as *say*.
    """

    def __init__(self, *arguments: Any, example: str, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self._example = example
        self.params += [
            click.Option(["-q", "--quiet"], is_flag=True, help="Print errors only."),
            click.Option(["-v", "--verbose"], is_flag=True, help="Print each step."),
        ]

    def invoke(self, ctx: click.Context) -> int:
        """Run the function; return the exit code."""
        quiet, verbose = ctx.params.pop("quiet"), ctx.params.pop("verbose")
        if quiet and verbose:
            raise click.UsageError("--quiet and --verbose exclude each other; give one of the two", ctx)
        if not ctx.obj:
            raise click.UsageError(f"no command is given; write it after '--', as in: {self._example}", ctx)
        if not hasattr(os, "fork"):
            raise UnsupportedError(
                f"{ctx.command_path} needs processes as POSIX systems have them; this system has none"
            )
        say = ctx.params["say"] = Say(quiet=quiet, verbose=verbose)
        say.detail(f"configuration: {configuration_source(ctx.params['url'])}")
        try:
            code: int = super().invoke(ctx)
        except OSError as error:
            if isinstance(error, DLockError):
                raise
            say.error(f"no process can be started: {error.strerror}")
            return NO_PROCESS
        return code

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command's arguments into *ctx*, and parse the others."""
        if "--" in args:
            at = args.index("--")
            ctx.obj = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the usage line with the command at its end."""
        return [*super().collect_usage_pieces(ctx), "--", "COMMAND", "[ARGUMENTS]..."]


# ---- the commands


class _Commands(click.Group):
    """Loads the commands of operators, and what they need, only where one of them is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["run", "elect", "once", *operator_commands()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "elect":
            from dlock_core.command.elect import elect

            return elect
        if cmd_name == "once":
            from dlock_core.command.once import once

            return once
        return _run if cmd_name == "run" else operator_commands().get(cmd_name)


def operator_commands() -> dict[str, click.Command]:
    """Return the commands for people who look after locks, by name."""
    from dlock_core.command import operator
    from dlock_core.command.top import top

    return {
        each.name: each
        for each in (operator.ls, top, operator.show, operator.break_, operator.prune, operator.init, operator.doctor)
        if each.name
    }


@click.group(cls=_Commands, no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(None, "-V", "--version", package_name="dlock-core", message="dlock %(version)s")
def command() -> None:
    """Hold distributed locks from the shell, and look after them.

    To begin: dlock run --url sqlite:///locks.db KEY -- COMMAND
    """


@click.command(
    "run",
    cls=CommandBehindDashes,
    example="dlock run KEY -- make deploy",
    short_help="Hold a lock, or several, while a command runs.",
)
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@connection_options
@option("--lease", "lease_duration", type=DURATION, metavar="TIME")
@option("--timeout", "timeout", type=DURATION, metavar="TIME")
@click.option("--no-wait", is_flag=True, help="Try once.")
@click.option(
    "--skip-if-held", is_flag=True, help="Exit with 0 if a lock is held; try once, unless --timeout is given."
)
@click.option("-E", "--conflict-exit-code", type=click.IntRange(0, 255), metavar="CODE", help="Exit code if held; 75.")
@click.option(
    "--on-lost",
    type=click.Choice(["term", "warn"]),
    default="term",
    help="End the command before the lease ends, which is the default, or only print a warning.",
)
@grace_option
@click.option(
    "--observations",
    metavar="FILE",
    help="File in which a run that ends keeps for the next one since when it has seen each holder unchanged, so that a dead one is found; "
    "by default in the user's state directory where the wait may end, '' for none.",
)
@probe_option
@option("--clock-skew", "clock_skew", type=DURATION, metavar="TIME")
@option("--server-clock/--no-server-clock", "server_clock", default=None)
@option("--lock-delay", "lock_delay", type=DURATION, metavar="TIME")
@option("--permits", "permits", type=int, metavar="N")
@option("--weight", "weight", type=int, metavar="N")
@click.option("--read", is_flag=True, help="Hold KEY as one of its readers.")
@click.option("--write", is_flag=True, help="Hold KEY as its only writer.")
@click.option(
    "--stall-timeout",
    type=DURATION,
    metavar="TIME",
    help="Longest time between two writes of the command to the file $DLOCK_PROGRESS; without limit by default.",
)
@option("--data", "data", " 'dlock show' shows them.", type=os.fsencode, metavar="TEXT")
@click.pass_context
def _run(  # click hands the options over by name
    ctx: click.Context,
    /,
    *,
    keys: tuple[str, ...],
    no_wait: bool,
    skip_if_held: bool,
    conflict_exit_code: int | None,
    on_lost: str,
    grace: float | None,
    say: Say,
    **given: Any,
) -> int:
    """Hold the lock KEY, or several of them, while COMMAND runs; no shell is involved.

    The exit code is that of COMMAND; 75 held, 76 lost, 69 store unreachable, 64 usage, 126 and 127 cannot run, 128+n ended by signal n.

    A TIME is a number of seconds, or has a unit: 500ms, 10s, 1m, 2h.
    """
    if no_wait and given["timeout"] is not None:
        raise click.UsageError("--no-wait means --timeout 0; give one of the two", ctx)
    if skip_if_held and conflict_exit_code is not None:
        raise click.UsageError("--skip-if-held means exit code 0; give it or --conflict-exit-code", ctx)
    if given["read"] and given["write"]:
        raise click.UsageError("--read and --write exclude each other; give one of the two", ctx)
    if no_wait or (skip_if_held and given["timeout"] is None):
        given["timeout"] = 0.0
    from dlock_core.command.run import Request, hold

    options = _run_options(given)
    if options.is_shared and len(keys) > 1:
        raise click.UsageError(f"--permits, --read and --write hold one KEY, not {len(keys)}", ctx)
    held_code = None if skip_if_held else BUSY if conflict_exit_code is None else conflict_exit_code
    return hold(Request(keys, ctx.obj, grace_within(options, grace), on_lost == "warn", held_code), options, say)


def _run_options(given: dict[str, Any]) -> ClientOptions:
    from dlock_core.command.held import keep_observations

    keeps_nothing = given["observations"] == ""
    read, write = given.pop("read"), given.pop("write")
    mode = "read" if read else "write" if write else None
    given = {**given, "observations": given["observations"] or None, "mode": mode}
    options = holding_options(**given, reentrant=False)
    return options if keeps_nothing else keep_observations(options)
