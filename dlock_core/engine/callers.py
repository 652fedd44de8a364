"""Which thread makes a call, and which place in the program."""

from __future__ import annotations

import contextlib
import sys
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

_PASSED_OVER = (
    str(Path(__file__).parents[1]),
    contextlib.__file__,
    str(Path(contextlib.__file__).with_name("asyncio")),
)


def thread_identities() -> Callable[[], object]:
    """Return a function that returns an object that stands for the calling thread and, unlike the thread's number, for no later one."""
    here = threading.local()  # made with each client: gevent may have replaced it since dlock was imported

    def identity() -> object:
        try:
            return here.identity
        except AttributeError:  # a signal handler may come to the same line
            return here.__dict__.setdefault("identity", object())

    return identity


class Place(NamedTuple):
    """A place in a program, as every acquire notes it: which line that is, is worked out only for a message."""

    code: CodeType
    instruction: int

    def __str__(self) -> str:
        lines = (line for start, end, line in self.code.co_lines() if line and start <= self.instruction < end)
        return f"{self.code.co_filename}:{next(lines, self.code.co_firstlineno)}"


def calling_place() -> Place:
    """Return the place in the program that is making a lease."""
    frame = sys._getframe(3)  # above this function and the two makers of a lease
    while _is_passed_over((code := frame.f_code).co_filename) and frame.f_back is not None:
        frame = frame.f_back
    return Place(code, frame.f_lasti)


def calling_line() -> tuple[str, int]:
    """Return the file and the line of the program that is calling dlock, also from within pydantic's validation."""
    frame = sys._getframe(1)
    while frame.f_back is not None and ("pydantic" in (file := frame.f_code.co_filename) or _is_passed_over(file)):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


@cache
def _is_passed_over(file: str) -> bool:
    """Whether *file* is one of those between the user's line and the making of a lease."""
    return file.startswith(_PASSED_OVER)
