"""Programs that run in a process of their own: what forks, exits or is signalled must not do so here."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import NamedTuple

__all__ = ["Ended", "run_program", "start_program"]

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0

PRELUDE = """
import asyncio, atexit, contextlib, mmap, os, signal, struct, sys, threading, time
from dlock_core import *
from dlock_core.client import LockClient
from dlock_core.aio import AsyncLockClient
from dlock_core.memory import AsyncMemoryStore, MemorySpace, MemoryStore

ME = os.getpid()
calls = mmap.mmap(-1, 16)  # shared with forked children: calls of the first process, calls of others

def count(verb):
    at = 0 if os.getpid() == ME else 8
    calls[at : at + 8] = struct.pack("q", struct.unpack("q", calls[at : at + 8])[0] + 1)

class Store(MemoryStore):
    '''Counts calls by process, and says aloud what is released.'''
    def claim(self, request, *, timeout_s):
        count("claim")
        return super().claim(request, timeout_s=timeout_s)
    def replace(self, request, *, timeout_s):
        count("replace")
        return super().replace(request, timeout_s=timeout_s)
    def replace_many(self, requests, *, timeout_s):
        count("replace")
        return super().replace_many(requests, timeout_s=timeout_s)
    def release(self, request, *, timeout_s):
        count("release")
        os.write(1, f"released {request.record.key}\\n".encode())
        return super().release(request, timeout_s=timeout_s)
    def read(self, key, *, timeout_s):
        count("read")
        return super().read(key, timeout_s=timeout_s)

def counted():
    return struct.unpack("qq", calls[:])
"""


class Ended(NamedTuple):
    """What a program left behind."""

    code: int
    out: str
    err: str
    seconds: float


def start_program(text: str, *flags: str, measured: bool = True) -> subprocess.Popen[str]:
    """Start *text*, after a prelude, in a new interpreter; where it is not *measured*, coverage is left out of it."""
    program = PRELUDE + textwrap.dedent(text)
    return subprocess.Popen(
        [sys.executable, *flags, "-c", program],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if measured or not name.startswith("COVERAGE")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_program(text: str, *flags: str, measured: bool = True) -> Ended:
    """Run *text* to its end."""
    begun = time.monotonic()
    process = start_program(text, *flags, measured=measured)
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"the program hung; it had said {out!r} and {err!r}") from None
    return Ended(process.returncode, out, err, time.monotonic() - begun)
