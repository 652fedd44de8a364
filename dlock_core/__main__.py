"""The command ``dlock``, also as ``python -m dlock_core``."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import NoReturn

__all__ = ["main"]

_USAGE = 64
_SIGNALLED = 128


def main() -> None:
    """Run the command and exit with its code. Without the extra ``cli``, say how to install it, and exit with 64."""
    # An interrupt ends the process as any signal does, without a traceback; `dlock run` handles it once it can hold a lock.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.getpid() == 1:
        _heed_signals()
    # Loading makes no garbage, and looking for some takes a tenth of the start.
    gc.disable()
    try:
        import click  # noqa: F401  # to see that it is there
        import rich  # noqa: F401  # as click
    except ImportError as error:
        print(  # noqa: T201  # a command talks
            f"dlock: the command needs {error.name}, which is not installed: pip install 'dlock-core[cli]'",
            file=sys.stderr,
        )
        sys.exit(_USAGE)
    from dlock_core.command.app import leave, run

    try:
        run(sys.argv[1:])
    except SystemExit as ended:
        leave(ended.code if isinstance(ended.code, int) else 0)


def _heed_signals() -> None:
    """Let signals end this process, the first one of a container: the kernel drops those for which that has no handler."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def _end(number: int, _: object) -> NoReturn:
    os._exit(_SIGNALLED + number)


if __name__ == "__main__":
    main()
