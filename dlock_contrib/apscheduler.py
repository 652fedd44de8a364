"""APScheduler 3: an executor that runs each job on one of the hosts that schedule it, once for each scheduled time.

    scheduler = BackgroundScheduler(executors={"default": OnceExecutor(shared_client("redis://host/0"))})
    scheduler.add_job(make_report, "cron", hour=2, id="report")

All hosts run the same program. A host that dies is no gap: another one takes the job over while it watches, or at the next scheduled time.
"""

from __future__ import annotations

import datetime as dt
import inspect
import re
import time
from traceback import format_tb
from typing import TYPE_CHECKING, Any, Unpack

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, JobExecutionEvent
from apscheduler.executors.base import run_job
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.triggers.interval import IntervalTrigger

from dlock_core import ConfigurationError, DLockError, LockClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from apscheduler.job import Job

    from dlock_core import LockKeywords

__all__ = ["OnceExecutor"]

_RANDOM_ID = re.compile(r"[0-9a-f]{32}")


class _Waiting:
    """A job for which another host may be waited for: the time of that is added to its grace, since whoever takes over is not late."""

    def __init__(self, job: Job) -> None:
        self._job, self._since = job, time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def __str__(self) -> str:
        return str(self._job)

    @property
    def misfire_grace_time(self) -> float | None:
        grace: float | None = self._job.misfire_grace_time
        return None if grace is None else grace + time.monotonic() - self._since


class OnceExecutor(ThreadPoolExecutor):  # type: ignore[misc]  # apscheduler is published without types
    """A pool of threads in which a job runs only if no host has run it for the same scheduled time: by :meth:`dlock_core.LockClient.once`.

    The key is *prefix* and the job's id, the slot is the scheduled time. A job that raises leaves its time due; an error of the lock or its
    store is an EVENT_JOB_ERROR of that time. *max_workers* is the number of threads; the options are those of ``once``.

    Raises: ConfigurationError: *client* is no client of threads, or an option is wrong.
    """

    def __init__(
        self, client: LockClient, *, prefix: str = "jobs/", max_workers: int = 10, **options: Unpack[LockKeywords]
    ) -> None:
        if not isinstance(client, LockClient):
            raise ConfigurationError(f"{client!r} is not a client of threads; give OnceExecutor(shared_client(url))")
        # It runs nothing: a wrong option is refused here, and not at the first job.
        client.once(f"{prefix}report", slot="0", **options)(self.shutdown)
        super().__init__(max_workers)
        self._client, self._prefix, self._options = client, prefix, options

    def _do_submit_job(self, job: Job, run_times: Sequence[dt.datetime]) -> None:
        if _RANDOM_ID.fullmatch(job.id):
            raise ConfigurationError(
                f"job {job.name!r} has an id that APScheduler drew; give it one that all hosts know: add_job(…, id='report')"
            )
        if inspect.iscoroutinefunction(job.func):
            raise ConfigurationError(
                f"job {job.name!r} is a coroutine function, which no thread can run; give a plain one"
            )
        if _draws_times(job.trigger):
            raise ConfigurationError(
                f"job {job.name!r} has times that each host draws for itself, so each would run it; "
                "give its trigger no jitter, an interval a start_date, and a single run a run_date, both of whole seconds"
            )
        future = self._pool.submit(self._run, job, run_times)
        future.add_done_callback(lambda done: self._over(job.id, done))

    def _over(self, job_id: str, done: Any) -> None:
        error = done.exception()
        if error is None:
            self._run_job_success(job_id, done.result())
        else:
            self._run_job_error(job_id, error, error.__traceback__)

    def _run(self, job: Job, run_times: Sequence[dt.datetime]) -> list[JobExecutionEvent]:
        events: list[JobExecutionEvent] = []
        for run_time in run_times:
            try:
                events += self._run_once(job, run_time)
            except DLockError as error:  # the times before have their events, and those that follow their chance
                self._logger.exception('Job "%s" (scheduled at %s) failed', job, run_time)
                told = {"exception": error, "traceback": "".join(format_tb(error.__traceback__))}
                events.append(JobExecutionEvent(EVENT_JOB_ERROR, job.id, job._jobstore_alias, run_time, **told))
        return events

    def _run_once(self, job: Job, run_time: dt.datetime) -> list[JobExecutionEvent]:
        slot, waiting = run_time.astimezone(dt.UTC).isoformat(timespec="milliseconds"), _Waiting(job)
        with self._client.once(self._prefix + job.id, slot=slot, **self._options) as run:
            if run.lease is None:
                self._logger.info('Job "%s" (scheduled at %s) runs, or ran, elsewhere', job, run_time)
                return []
            events: list[JobExecutionEvent] = run_job(waiting, job._jobstore_alias, [run_time], self._logger.name)
            if events[-1].code != EVENT_JOB_EXECUTED:  # it raised, or this host came too late
                run.lease.release()  # the time stays due
        return events


def _draws_times(trigger: Any) -> bool:
    """Whether *trigger*, or one of which it is made, fires at random times, or from when it was made: then its time has microseconds."""
    begins = trigger.start_date if isinstance(trigger, IntervalTrigger) else getattr(trigger, "run_date", None)
    return (
        bool(getattr(trigger, "jitter", None))
        or (begins is not None and begins.microsecond % 1000 > 0)
        or any(map(_draws_times, getattr(trigger, "triggers", ())))
    )
