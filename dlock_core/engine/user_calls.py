"""Calls of what belongs to the user: callbacks, owner probes, the filters of logging. None of them may end or delay our own work."""

from __future__ import annotations

import inspect
import logging
import queue
import re
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from dlock_core.engine.process import DaemonThread
from dlock_core.engine.seats import Seat, Seats
from dlock_core.errors import ConfigurationError, StoreUnavailableError

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter

CALLBACK_LIMIT_S = 0.25
_BRACED = re.compile(r"\{(\w+)\}")
_BACKLOG_MAX = 1_000
_LOOK_S = 0.01
_LINGER_S = 1.0


def check_colour(function: Any, *, asynchronous: bool, key: str = "") -> None:
    """Check that the asyncio client is given a coroutine function, and the blocking client any other, to be called under *key*.

    Raises: ConfigurationError: it is the other way round, a generator function, whose body runs only after its call has returned, a class,
        a class method or static method, which no call can be made of, or *key* looks as if arguments were put into it.
    """
    if isinstance(function, (classmethod, staticmethod)):
        kind = type(function).__name__
        raise ConfigurationError(f"a {kind} is no function yet: write @{kind} above the decorator of the lock")
    if isinstance(function, type):
        raise ConfigurationError(
            f"{function!r} is a class, whose call makes an object and runs no method of it; give a function or a method"
        )
    if not callable(function):
        raise ConfigurationError(f"{function!r} is no function, and cannot be called")
    is_one = inspect.isroutine(function) or isinstance(function, partial)
    called = function if is_one else type(function).__call__  # what the call of an object comes to
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise ConfigurationError(
            f"{function!r} is a generator function, whose body would run after the lock was given back; write the with block inside of it"
        )
    if inspect.iscoroutinefunction(called) != asynchronous:
        what, client = (
            ("not a coroutine function", "blocking client, of connect()")
            if asynchronous
            else ("a coroutine function", "asyncio client, of aconnect()")
        )
        raise ConfigurationError(f"{function!r} is {what}; it is for the {client}")
    for name in _BRACED.findall(key):
        if name in inspect.signature(function).parameters:
            raise ConfigurationError(
                f"key {key!r} is used as it is written, and the argument {name!r} is not put into it; write a with block in the function"
            )


def check_ended(function: object, result: object) -> None:
    """Raise ConfigurationError if *result*, what *function* returned, is a coroutine: a wrapper hid that it only makes one."""
    if inspect.iscoroutine(result):
        result.close()
        raise ConfigurationError(
            f"{function!r} returned a coroutine, whose body would run after the lock was given back; use the asyncio client"
        )


_here = threading.local()  # *post* hands a log record over, in a thread that no handler may delay


class _GuardedLogger(_Adapter):
    def log(self, level: int, msg: object, *args: Any, exc_info: Any = None, extra: Any = None, **kwargs: Any) -> None:
        logger = self.logger
        if not logger.isEnabledFor(level):
            return
        path, line, function, _ = logger.findCaller(stacklevel=2)
        if exc_info is True:
            exc_info = sys.exc_info()
        elif isinstance(exc_info, BaseException):
            exc_info = (type(exc_info), exc_info, exc_info.__traceback__)
        try:
            record = logger.makeRecord(logger.name, level, path, line, msg, args, exc_info, function, extra)
        except Exception:  # noqa: BLE001  # a factory of the user, as of one that looks for the request at work
            traceback.print_exc()
            return
        post = getattr(_here, "post", None)
        if post is None:
            self._handle(record)
        else:
            post(self._handle, record)

    def _handle(self, record: logging.LogRecord) -> None:
        try:
            self.logger.handle(record)
        except Exception:  # noqa: BLE001  # a filter of the user; where to tell, if not by logging?
            traceback.print_exc()


def guarded_logger(name: str) -> _GuardedLogger:
    """Return the logger *name*; what a filter, handler or record factory of the user raises goes to stderr, and does not end what we do."""
    return _GuardedLogger(logging.getLogger(name), {})


def log_elsewhere(post: Callable[[Callable[[Any], object], Any], object]) -> None:
    """Have *post* hand on what guarded loggers log in this thread, so that no handler of the user delays it."""
    _here.post = post


_log = guarded_logger("dlock.engine")


def run_in_daemon_thread(function: Callable[[Any], Any], argument: Any) -> Future[Any]:
    """Run a *function* of the user in a daemon thread: one that hangs keeps nobody, not even the end of the program.

    Returns: what will hold its answer; StoreUnavailableError if no thread can be started.
    """
    answer: Future[Any] = Future()

    def run() -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(function(argument))
        except BaseException as error:  # noqa: BLE001  # handed on to whoever waits
            answer.set_exception(error)

    try:
        DaemonThread("dlock-question", run).begin()
    except StoreUnavailableError as error:
        answer.set_exception(error)
    return answer


class _Calls:
    """Calls that wait in a queue, and the thread that empties it, by ``_run``."""

    _thread: str
    _run: Callable[[Seat], None]

    def __init__(self, most: int | None = None) -> None:
        self._queue: deque[tuple[Callable[[Any], object], Any]] = deque(maxlen=most)
        self._turns = Seats(1)  # of the thread; one that an interrupt drops is free again

    def start(self) -> None:
        """Empty the queue on a thread, unless one does; where no thread can be started, :meth:`start` has to be called again."""
        if not self._queue or (turn := self._turns.take(0)) is None:
            return
        try:
            DaemonThread(self._thread, self._run, turn).begin()
        except BaseException as error:
            del turn  # the traceback keeps this frame
            if not isinstance(error, StoreUnavailableError):
                raise
            _log.warning("callback %r is not called yet: %s", self._queue[0][0], error)


class Callbacks(_Calls):
    """Runs the user's callbacks in order, each on a thread of its own.

    A callback is waited for for :data:`CALLBACK_LIMIT_S`. While one takes longer the others are not waited for at all.
    """

    _thread = "dlock-callbacks"

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing runs that is waited for."""
        return not self._queue and not self._turns.taken

    def post(self, callback: Callable[[Any], object], argument: Any) -> None:
        """Run *callback* with *argument* soon."""
        self._queue.append((callback, argument))
        self.start()

    def _run(self, turn: Seat) -> None:
        late: list[threading.Event] = []
        try:
            while self._queue:
                late = [done for done in late if not done.is_set()]
                callback, argument = self._queue[0]
                done = threading.Event()
                DaemonThread("dlock-callback", _call, callback, argument, done).begin()
                self._queue.popleft()
                if not late and done.wait(CALLBACK_LIMIT_S):
                    continue
                if not late:
                    _log.warning(
                        "callback %r still runs after %g s; the others do not wait for it", callback, CALLBACK_LIMIT_S
                    )
                late.append(done)
        except StoreUnavailableError as error:
            _log.warning("callback %r is not called yet: %s", self._queue[0][0], error)
            return
        finally:
            self._turns.leave(turn)
        self.start()  # for what was posted since the last look


def _call(callback: Callable[[Any], object], argument: Any, done: threading.Event) -> None:
    try:
        callback(argument)
    except Exception:  # noqa: BLE001  # the user's code; what it raises is logged
        _log.exception("callback %r raised", callback)
    finally:
        done.set()


class Feed(_Calls):
    """Runs functions in order on one thread, however long they take; of too many that wait the oldest are forgotten.

    The thread looks for more every :data:`_LOOK_S` while there is more, so that a busy program wakes nobody. Then it sleeps until it is
    woken, and ends after :data:`_LINGER_S`. The functions may not raise.
    """

    _thread = "dlock-feed"

    def __init__(self) -> None:
        super().__init__(_BACKLOG_MAX)
        # Not an Event, whose mutex a signal handler that closes the client could find held by its own thread.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_busy = self._is_asleep = self._is_closed = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self._queue and not self._is_busy

    def post(self, function: Callable[[Any], object], argument: Any) -> None:
        """Run *function* with *argument* soon."""
        self._queue.append((function, argument))
        if self._is_asleep or len(self._queue) == _BACKLOG_MAX // 2:
            self._wake.put(None)
        elif not self._turns.taken:
            self.start()

    def close(self) -> None:
        """End the thread after what waits; a later post starts another one, which ends as soon."""
        self._is_closed = True
        self._wake.put(None)

    def _run(self, turn: Seat) -> None:
        try:
            is_awake = True
            while is_awake:
                self._empty()
                is_awake = self._has_more(_LOOK_S) or self._sleep()
        finally:
            self._turns.leave(turn)
        self.start()  # for what was posted since the last look

    def _empty(self) -> None:
        self._is_busy = True
        try:
            while self._queue:
                function, argument = self._queue.popleft()
                function(argument)
        finally:
            self._is_busy = False

    def _has_more(self, wait_s: float) -> bool:
        if not self._is_closed:
            with suppress(queue.Empty):
                self._wake.get(timeout=wait_s)
        return bool(self._queue)

    def _sleep(self) -> bool:
        """Return whether something was posted before the thread has to end."""
        self._is_asleep = True
        try:
            return bool(self._queue) or self._has_more(_LINGER_S)
        finally:
            self._is_asleep = False
            while not self._wake.empty():
                self._wake.get()
