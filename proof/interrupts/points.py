"""The points of our code, and of the drivers, at which Python may run something else, and a tracer that acts at one of them.

Python runs signal handlers and switches threads after a call, on entry to a function, and at a jump back; nowhere else. An act that
raises must leave from where Python would: a point whose next instruction has another exception handler than the call is moved
to the instruction before the call.
"""

from __future__ import annotations

import dis
import queue
import site
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

__all__ = ["Tracer", "points_of"]

_CALLS = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "RESUME"}
_ROOT = Path(__file__).parents[2]
_OURS = tuple(f"{path}/" for path in _ROOT.glob("dlock_*") if path.is_dir())
_DRIVERS = ("boto3", "botocore", "grpc", "kazoo", "psycopg", "pymongo", "pymysql", "redis")
_PACKAGES = tuple(f"{Path(folder) / name}/" for folder in site.getsitepackages() for name in _DRIVERS)
# A driver's mutex may be one that Python implements: interrupted on the way in or out, it stays held for ever.
_MUTEXES = tuple(module.__file__ or "" for module in (threading, queue))
# The tools of a test: what they do has no twin in production.
_NOT_OURS = (str(_ROOT / "dlock_core" / "testing.py"),)
# By identity, with the code kept: its hash is computed anew from all that it consists of, each time.
_known: dict[int, tuple[frozenset[int], CodeType]] = {}


def points_of(code: CodeType) -> frozenset[int]:
    """Return the offsets of the instructions before which something else may run in *code*.

    None, if it is neither ours, nor a driver's, nor that of a mutex.
    """
    known = _known.get(id(code))
    if known is None:
        known = _known[id(code)] = _points_of(code), code
    return known[0]


def _points_of(code: CodeType) -> frozenset[int]:
    if not code.co_filename.startswith(_OURS + _PACKAGES + _MUTEXES) or code.co_filename.startswith(_NOT_OURS):
        return frozenset()
    if code.co_name == "RLock":  # it makes a mutex, which nobody holds yet. CPython 3.14 calls it within such tools
        return frozenset()
    bytecode = dis.Bytecode(code)
    entries: list[Any] = bytecode.exception_entries  # type: ignore[attr-defined]  # there since 3.11

    def handler(offset: int) -> int | None:
        return next((entry.target for entry in reversed(entries) if entry.start <= offset < entry.end), None)

    found: set[int] = set()
    listed = list(bytecode)
    # From Python 3.12 on every await ends there; only one into which an exception was thrown comes by a jump back.
    ends = {each.offset for each in listed if each.opname == "END_SEND"}
    for before, here in pairwise(listed):
        # The jump without interrupts lets nothing in: CPython 3.15 goes by one from a handler to the exit of the with block around it.
        if before.opname.startswith("JUMP_BACKWARD") and before.opname != "JUMP_BACKWARD_NO_INTERRUPT":
            found |= {int(before.argval)} - ends
        elif before.opname in _CALLS:
            found.add(here.offset if handler(before.offset) == handler(here.offset) else before.offset)
    return frozenset(found)


class Tracer:
    """Calls *act* at the point number *at* of what it watches, in the thread that is there; counts them all if *at* is 0."""

    def __init__(self, act: Callable[[], object], at: int) -> None:
        self._act = act
        self._at = at
        self.count = 0
        self.where = ""
        # Kept here: CPython 3.11 may call a bound method that settrace(None) has let go of, and crash.
        self._on_call = self._call
        self._on_opcode = self._local

    def watch(self) -> None:
        """Begin, in this thread."""
        # CPython 3.12 hands out the events of opcodes only where a frame wanted them before.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self._on_call)

    def end(self) -> None:
        """End, in this thread."""
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        if not points_of(frame.f_code):
            return None
        # CPython 3.14 heeds f_trace_opcodes only in a frame that has a tracer.
        frame.f_trace, frame.f_trace_lines, frame.f_trace_opcodes = self._on_opcode, False, True
        return self._on_opcode

    def _local(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode" and frame.f_lasti in points_of(frame.f_code):
            self.count += 1
            if self.count == self._at:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
                sys.settrace(None)
                self._act()
        return self._on_opcode
