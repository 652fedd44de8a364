"""Celery: tasks that must not overlap.

A task of the class :class:`LockedTask` holds a lock while it runs, whichever worker runs it. The key is made of the task's arguments.
"""

from __future__ import annotations

import inspect
import logging
from contextvars import ContextVar
from string import Formatter
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from celery import Celery, Task

from dlock_core import (
    AcquireKeywords,
    AcquireTimeoutError,
    ConfigurationError,
    LeaseStateError,
    LockClient,
    StoreError,
    shared_client,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dlock_core import Lease

__all__ = ["LockedTask"]

_log = logging.getLogger("dlock.celery")
_NO_LEASES: Mapping[str, Lease] = {}
# By the names of their tasks, since a task may call another.
_running: ContextVar[Mapping[str, Lease]] = ContextVar("dlock_celery_leases", default=_NO_LEASES)


class LockedTask(Task):  # type: ignore[misc]  # celery is published without types
    """The base of a task that holds a lock while it runs: ``@app.task(base=LockedTask, lock_key="report/{customer}")``.

    *lock_key* is the key, with the names of arguments in braces. *lock_client* is a client of :func:`dlock_core.shared_client`; by default,
    that of ``DLOCK_URL``. *lock_options* are options of ``acquire``; without a ``timeout`` the task does not wait for the lock.

    *when_held* says what happens while another task holds the lock. "retry": the task comes back after ``default_retry_delay`` seconds, but
    only ``max_retries`` times, and then fails with AcquireTimeoutError. "ignore": the task is dropped, and its result is None.

    A StoreError of the acquire fails the task, or brings it back so where its ``autoretry_for`` names that error.
    """

    abstract = True
    lock_key: ClassVar[str | None] = None
    lock_client: ClassVar[LockClient | None] = None
    lock_options: ClassVar[AcquireKeywords] = {}
    when_held: ClassVar[Literal["retry", "ignore"]] = "retry"
    _signature: ClassVar[inspect.Signature]  # of the function, without the task itself

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Check the task's settings when its app registers it.

        Raises: ConfigurationError: the task has no key, or a setting is wrong.
        """
        signature = inspect.signature(cls.run)
        arguments = list(signature.parameters.values())
        if not isinstance(inspect.getattr_static(cls, "run"), staticmethod):
            del arguments[0]  # the task itself
        cls._signature = signature.replace(parameters=arguments)
        parameters = list(cls._signature.parameters)
        if not cls.lock_key:
            key = "/".join([cls.__name__, *(f"{{{name}}}" for name in parameters[:1])])
            raise ConfigurationError(
                f"task {cls.name} has no lock_key; write @app.task(base=LockedTask, lock_key={key!r})"
            )
        for field in _fields(cls.lock_key, cls.name):
            if field not in parameters:
                raise ConfigurationError(
                    f"lock_key {cls.lock_key!r} of task {cls.name} names {field!r}, which is not an argument of the task; "
                    f"it has {', '.join(parameters) or 'none'}"
                )
        if cls.when_held not in ("retry", "ignore"):
            raise ConfigurationError(f"when_held={cls.when_held!r} of task {cls.name} must be 'retry' or 'ignore'")
        cls.lock_client = _client(cls.lock_client, cls.name)
        if not isinstance(cls.lock_options, dict):
            raise ConfigurationError(
                f"lock_options={cls.lock_options!r} of task {cls.name} must be a dict of options, as {{'timeout': 5}}"
            )
        try:
            cls.lock_client.locked(cls.lock_key, **cls.lock_options)  # checks them, and sends nothing
        except ConfigurationError as error:
            raise ConfigurationError(f"lock_options of task {cls.name}: {error}") from error
        try:
            cls.lock_client.locked("task")(cls.run)  # refuses what runs only after the task has returned it
        except ConfigurationError as error:
            raise ConfigurationError(f"task {cls.name}: {error}") from error

    @property
    def lease(self) -> Lease:
        """The lease of the run that asks: its fencing token, ``ensure()``. With ``bind=True`` the task's first argument has it.

        Raises: LeaseStateError: the task does not run.
        """
        lease = _running.get().get(self.name)
        if lease is None:
            raise LeaseStateError(f"task {self.name} does not run here, so it holds no lock")
        return lease

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task under its lock."""
        assert self.lock_client is not None  # the class was bound to an app
        assert self.lock_key is not None
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        try:
            key = self.lock_key.format_map(bound.arguments)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"lock_key {self.lock_key!r} of task {self.name} does not fit its arguments: {error}"
            ) from error
        options = self.lock_options
        if "timeout" not in self.lock_client.options.model_fields_set:
            options = {"timeout": 0, **options}
        try:
            lease = self.lock_client.acquire(key, **options)
        except AcquireTimeoutError as error:
            if self.when_held == "retry":
                # A retry of an eager task would come at once, inside of this call: with max_retries=None without an end.
                if self.request.is_eager:
                    raise
                raise self.retry(exc=error) from error
            _log.info("task %s is dropped: %s", self.name, error)
            return None
        except StoreError as error:
            # Celery's autoretry goes around the body, which has not begun.
            if self.request.is_eager or not isinstance(error, tuple(getattr(self, "autoretry_for", ()))):
                raise
            raise self.retry(exc=error, **getattr(self, "retry_kwargs", {})) from error
        with lease:
            token = _running.set({**_running.get(), self.name: lease})
            try:
                return super().__call__(*args, **kwargs)
            finally:
                _running.reset(token)


def _fields(key: object, task: str) -> list[str]:
    """Return the arguments that *key* names.

    Raises: ConfigurationError: *key* is no text, or its braces cannot be read.
    """
    if not isinstance(key, str):
        raise ConfigurationError(
            f"lock_key of task {task} must be a str with names of arguments in braces, not {key!r}"
        )
    try:
        named = [field for _, field, _, _ in Formatter().parse(key) if field is not None]
    except ValueError as error:
        raise ConfigurationError(
            f"lock_key {key!r} of task {task} cannot be read: {error}; write {{{{ for a brace of the key itself"
        ) from error
    return [field.partition(".")[0].partition("[")[0] for field in named]


def _client(client: object, task: str) -> LockClient:
    """Return *client*, or the one of ``DLOCK_URL``.

    Raises: ConfigurationError: it is no client, or there is none.
    """
    if client is None:
        try:
            return shared_client()
        except ConfigurationError as error:
            raise ConfigurationError(f"task {task} has no lock_client=shared_client(url), and {error}") from error
    if not isinstance(client, LockClient):
        raise ConfigurationError(f"lock_client of task {task} must be a client: lock_client=shared_client(url)")
    return client
