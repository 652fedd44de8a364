"""``manage.py run_locked KEY -- COMMAND``: run a management command while this process alone holds KEY."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management import ManagementUtility
from django.core.management.base import BaseCommand, CommandError, CommandParser

from dlock_contrib.django import locks
from dlock_core import AcquireTimeoutError, ConfigurationError, DLockError, LockLostError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Command"]

# The codes of the command `dlock`.
_USAGE, _UNAVAILABLE, _HELD, _LOST = 64, 69, 75, 76


class Command(BaseCommand):  # type: ignore[misc]  # django is published without types
    """The command."""

    help = "Run a management command while holding a lock: manage.py run_locked migrate -- migrate --noinput"
    requires_system_checks: Sequence[str] = []  # the command that is run has its own

    def add_arguments(self, parser: CommandParser) -> None:
        """Name the lock, how long to wait for it, and the command."""
        parser.add_argument("key", help="The key to hold.")
        parser.add_argument("argv", nargs="+", metavar="COMMAND", help="The management command, behind --.")
        parser.add_argument("--using", default="default", help="The name in the setting LOCKS; default by default.")
        parser.add_argument(
            "--timeout", type=float, help="How many seconds to wait for the lock; TIMEOUT of LOCKS by default."
        )
        parser.add_argument(
            "--skip-if-held", action="store_true", help="If the lock is held, do nothing, successfully."
        )

    def handle(self, *, key: str, argv: Sequence[str], using: str, skip_if_held: bool, **options: Any) -> None:
        """Run the command.

        Raises: CommandError: there is no such lock, it is held, or it was lost while the command ran.
        """
        timeout = 0 if skip_if_held and options["timeout"] is None else options["timeout"]
        try:
            client = locks[using]
            url = client.options.url
            if self._called_from_command_line and url is not None and url.get_secret_value().startswith("memory:"):
                self.stderr.write("memory:// protects nothing here: no other process sees its locks")
            lease = client.acquire(key) if timeout is None else client.acquire(key, timeout=timeout)
        except AcquireTimeoutError as error:
            if not skip_if_held:
                raise CommandError(f"{error}; {argv[0]} was not run", returncode=_HELD) from error
            self.stderr.write(f"{error}; {argv[0]} was skipped")
            return
        except (ConfigurationError, ImproperlyConfigured) as error:
            raise CommandError(str(error), returncode=_USAGE) from error
        except DLockError as error:
            raise CommandError(str(error), returncode=_UNAVAILABLE) from error
        ours, sys.argv = sys.argv, [sys.argv[0], *argv]  # runserver, which reloads, starts again what it finds there
        try:
            with lease:
                program = list(sys.argv)
                ManagementUtility(program).fetch_command(argv[0]).run_from_argv(program)
        except LockLostError as error:
            if lease.loss is None:  # the command lost a lock of its own
                raise
            raise CommandError(f"{error}; {argv[0]} may have run beside another one", returncode=_LOST) from error
        finally:
            sys.argv = ours
