"""Questions to functions of the user, each on a daemon thread of its own: one that hangs keeps nobody, not even the end of the program."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

__all__ = ["begun"]


def begun(question: Callable[[Any], Any], argument: Any) -> Future[Any]:
    """Begin to ask *question*; return what will hold its answer."""
    answer: Future[Any] = Future()

    def ask() -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(question(argument))
        except BaseException as error:  # noqa: BLE001  # handed on to whoever waits
            answer.set_exception(error)

    try:
        threading.Thread(target=ask, name="dlock-question", daemon=True).start()
    except RuntimeError as error:
        # The interpreter is shutting down, and starts no thread any more.
        answer.set_exception(error)
    return answer
