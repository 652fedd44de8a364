"""Jobs that run once per slot, for threads. The twin for asyncio is :mod:`dlock_core.aio_once`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from dlock_core.client import Lease
from dlock_core.engine.blocking_runtime import run_blocking
from dlock_core.engine.jobs import JobRun
from dlock_core.engine.user_calls import check_colour, check_ended

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlock_core.client import LockClient

__all__ = ["Once"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Once(JobRun):
    """One run of a job: a context manager, for one use, and a decorator. Entering decides, and leaving finishes the slot.

    A body that raises leaves the slot due. At most one process runs a job at a time; a run that was not seen to finish is run again.
    """

    def __init__(self, client: LockClient, *job: Any) -> None:
        super().__init__(client._context, *job)
        self._client = client
        self._job = job

    @property
    def lease(self) -> Lease | None:
        """The lease while this process runs the job: its fencing token, ``stopping``, ``progress()``."""
        return self._lease if isinstance(self._lease, Lease) else None

    def finish(self, result: bytes | None = None) -> None:
        """Finish the slot: release the job with the slot and its *result*, at most 64 KiB, in one write.

        Raises: LockLostError: the job had been lost, and another process may run it. A StoreError: no answer within one request time-out;
            it is followed up. LeaseStateError: it is not running here.
        """
        run_blocking(self._finish(result))

    def __enter__(self) -> Self:
        """Read the record and, if the slot is due, take the job: ``due`` says so.

        Raises: as :meth:`LockClient.acquire`; RecordError: the record carries what no job has left there. ConfigurationError: the slot is
            of another type than the last. LockLostError: the job was lost before the block began, as where the process stood still.
        """
        self._is_idle = False
        client, engine = self._client, self._client._open_engine
        try:
            run_blocking(self._decide(engine, lambda: Lease(client._context, engine, self.key)))
        except BaseException:
            self._leave_to_scheduler()
            raise
        return self

    def __exit__(self, kind: object, body_error: BaseException | None, trace: object) -> None:
        """Finish the slot; where the body raised, release the job and leave the slot due."""
        lease = self.lease
        if lease is None:
            return
        if body_error is not None or not self._runs(lease):
            lease.__exit__(kind, body_error, trace)
            return
        leaving = run_blocking(self._end(lease))
        if leaving is not None:
            raise leaving

    def __call__(self, function: Callable[_P, _R], /) -> Callable[_P, _R | None]:
        """Return *function* as a job: each call runs it if the slot is due then, and returns None otherwise. Bytes are kept as the result.

        Raises: ConfigurationError: it is a coroutine function.
        """
        self._is_idle = False
        check_colour(function, asynchronous=False, key=self._job[0])

        @functools.wraps(function)
        def call(*args: _P.args, **keywords: _P.kwargs) -> _R | None:
            with Once(self._client, *self._job) as job:
                if not job.due:
                    return None
                value = function(*args, **keywords)
                check_ended(function, value)
                if isinstance(value, bytes):
                    job.finish(value)
                return value

        return call
