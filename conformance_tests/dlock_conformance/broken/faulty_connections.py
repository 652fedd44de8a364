"""Faults of connections, and of what shares them: the conditions of these stores are right."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from dlock_conformance.broken.breaking import Patch, Step, around, setting
from dlock_conformance.wire.wired import Wire
from dlock_core.record import LockRecord


def late_answers(wire: Wire) -> None:
    """Take the answer to a call that was given up for the answer to the next one."""
    ask, read = wire.ask, wire.steps["read"]
    late: list[Any] = []

    def shifted(verb: str, request: Any) -> Any:
        try:
            came = ask(verb, request)
        except TimeoutError:
            if verb == "read":
                late.append(read(request))
            raise
        return late.pop() if late and verb == "read" else came

    setting(ask=shifted)(wire)


def one_answer_for_all(wire: Wire) -> None:
    """Answer with what was asked for last, by whichever thread."""
    latest: list[str] = []

    def read(_: Wire, step: Step, key: str) -> Any:
        latest[:] = [key]
        time.sleep(0.001)
        return step(latest[0])

    around("read", read)(wire)


def one_call_at_a_time(wire: Wire) -> None:
    """Hold a mutex while there is no answer."""
    hangs, ahangs = wire.hangs, wire.ahangs
    mutex, turn = threading.Lock(), asyncio.Lock()

    def alone(timeout_s: float) -> None:
        with mutex:
            hangs(timeout_s)

    async def alone_in_loop(timeout_s: float) -> None:
        async with turn:
            await ahangs(timeout_s)

    setting(hangs=alone, ahangs=alone_in_loop)(wire)


def connections_begun_anew(wire: Wire) -> None:
    """Leave a connection that was not made in the time of a call, and begin another with the next."""
    setting(connected=lambda: False)(wire)


def waits_that(fail: Callable[[], None]) -> Patch:
    """Have a wait meet the fault of the way."""

    def patch(wire: Wire) -> None:
        enter = wire.enter

        def disturbed(record: LockRecord, wake: Callable[[], object]) -> bool:
            if wire._fault is not None:
                fail()
            return enter(record, wake)

        wire.enter = disturbed

    return patch


def refused_by_the_driver() -> None:
    """Raise as a driver does."""
    raise ConnectionRefusedError


def not_cancelled(error: Callable[[], BaseException]) -> Patch:
    """Make another error of a cancellation."""

    def patch(wire: Wire) -> None:
        ahangs = wire.ahangs

        async def stubborn(timeout_s: float) -> None:
            try:
                await ahangs(timeout_s)
            except asyncio.CancelledError:
                raise error() from None

        setting(ahangs=stubborn)(wire)

    return patch


def leaving_a_thread(_: Any) -> None:
    """Leave a thread that nobody ends for a while."""
    threading.Thread(target=time.sleep, args=(300,), daemon=True).start()


def leaving_a_descriptor(_: Any) -> None:
    """Leave an open file."""
    os.open(os.devnull, os.O_RDONLY)
