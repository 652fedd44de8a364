"""Calls of what belongs to the user: callbacks, owner probes, the filters of logging. None of them may end or delay our own work."""

from __future__ import annotations

import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable, MutableMapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter

__all__ = ["Callbacks", "guarded_logger", "run_in_daemon_thread"]

CALLBACK_LIMIT_S = 0.25


class _GuardedLogger(_Adapter):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "stacklevel": kwargs.get("stacklevel", 1) + 1}

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        try:
            super().log(level, msg, *args, **kwargs)
        except Exception:  # noqa: BLE001  # a filter of the user; where to tell, if not by logging?
            traceback.print_exc()


def guarded_logger(name: str) -> _GuardedLogger:
    """Return the logger *name*; what a filter or handler of the user raises goes to stderr, and does not end what we do."""
    return _GuardedLogger(logging.getLogger(name), {})


_log = guarded_logger("dlock.engine")


def run_in_daemon_thread(function: Callable[[Any], Any], argument: Any) -> Future[Any]:
    """Run a *function* of the user in a daemon thread: one that hangs keeps nobody, not even the end of the program.

    Returns: what will hold its answer; RuntimeError if no thread can be started.
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
        threading.Thread(target=run, name="dlock-question", daemon=True).start()
    except RuntimeError as error:
        answer.set_exception(error)
    return answer


class Callbacks:
    """Runs the user's callbacks in order, each on a thread of its own.

    A callback is waited for for :data:`CALLBACK_LIMIT_S`. While one takes longer the others are not waited for at all.
    """

    def __init__(self) -> None:
        self._queue: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._turn = threading.Lock()  # held by the thread that empties the queue, and never waited for

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing runs that is waited for."""
        return not self._queue and not self._turn.locked()

    def post(self, callback: Callable[[Any], object], argument: Any) -> None:
        """Run *callback* with *argument* soon."""
        self._queue.append((callback, argument))
        self.start()

    def start(self) -> None:
        """Empty the queue on a thread, unless one does; where no thread can be started, :meth:`start` has to be called again."""
        if not self._queue or not self._turn.acquire(blocking=False):
            return
        try:
            threading.Thread(target=self._run, name="dlock-callbacks", daemon=True).start()
        except RuntimeError as error:
            self._turn.release()
            _log.warning("callback %r is not called yet: %s", self._queue[0][0], error)
        except BaseException:
            self._turn.release()
            raise

    def _run(self) -> None:
        late: list[threading.Event] = []
        try:
            while self._queue:
                late = [done for done in late if not done.is_set()]
                callback, argument = self._queue[0]
                done = threading.Event()
                threading.Thread(
                    target=_call, args=(callback, argument, done), name="dlock-callback", daemon=True
                ).start()
                self._queue.popleft()
                if not late and done.wait(CALLBACK_LIMIT_S):
                    continue
                if not late:
                    _log.warning(
                        "callback %r still runs after %g s; the others do not wait for it", callback, CALLBACK_LIMIT_S
                    )
                late.append(done)
        except RuntimeError as error:
            _log.warning("callback %r is not called yet: %s", self._queue[0][0], error)
            return
        finally:
            self._turn.release()
        self.start()  # for what was posted since the last look


def _call(callback: Callable[[Any], object], argument: Any, done: threading.Event) -> None:
    try:
        callback(argument)
    except Exception:  # noqa: BLE001  # the user's code; what it raises is logged
        _log.exception("callback %r raised", callback)
    finally:
        done.set()
