"""What both clients are, colourless: what they know without a request, and how they are left."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dlock_core.clock import SYSTEM_CLOCK, Clock
from dlock_core.engine.client_context import describe
from dlock_core.engine.engine import Engine
from dlock_core.engine.event_hook import EventHook
from dlock_core.engine.raised import closed_error
from dlock_core.errors import LeaseStateError
from dlock_core.record import RESERVED, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dlock_core.engine.client_context import ClientContext
    from dlock_core.engine.handle import Runtime
    from dlock_core.health import Health
    from dlock_core.options import ClientOptions
    from dlock_core.record import LockRecord
    from dlock_core.store import AsyncLockStore


class ClientView:
    """What both clients are: the options, and the view of one engine."""

    options: ClientOptions
    _clock: Clock = SYSTEM_CLOCK
    _context: ClientContext

    if TYPE_CHECKING:  # an attribute of one client, and a property of the other

        @property
        def _engine(self) -> Engine: ...

    def holds(self, key: str) -> bool:
        """Whether this client holds *key* now. No I/O."""
        return self._engine.holds(self._context.full_key(key))

    def health(self) -> Health:
        """Say how the renewals of this client are doing: how late they are, which failed, and the last error. No I/O."""
        self._context.check_process()
        return self._engine.renewals.health(self._context.prefix)

    def __repr__(self) -> str:
        """Name the store, without secrets, and the owner."""
        return f"<{type(self).__name__} {describe(self.options)} owner {self._context.owner!r}>"

    def __reduce__(self) -> Any:
        """Refuse: threads, tasks and connections belong to one process."""
        raise LeaseStateError("a client cannot be pickled or copied; send its URL, and connect there")

    def _check_open(self) -> None:
        """Raise LeaseStateError where the client is closed, not open yet, or of the process that was forked."""
        self._context.check_process()
        if self._engine.closed:
            raise closed_error()

    @property
    def _open_engine(self) -> Engine:
        self._check_open()
        return self._engine

    def _new_engine(self, store: AsyncLockStore, runtime: Runtime) -> Engine:
        engine = Engine(store, runtime, self._context)
        if self.options.on_event is not None:
            engine.driver.hook = EventHook(self.options.on_event)
        return engine


def is_listed(record: LockRecord) -> bool:
    """Whether a scan shows *record*: it is not hidden from reads, and not one of dlock's own records."""
    return record.state is not State.GONE and RESERVED not in record.key


@contextmanager
def noting_failures(leaving: tuple[object, ...]) -> Iterator[None]:
    """Have what fails as a client is closed become a note of the exception that leaves its block, if one does."""
    try:
        yield
    except ExceptionGroup as group:
        error = leaving[1] if len(leaving) > 1 else None
        if not isinstance(error, BaseException):
            raise
        error.add_note(f"closing the client failed too: {group.exceptions!r}")
