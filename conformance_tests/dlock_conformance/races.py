"""Contenders that ask for the same thing at the same instant: threads or tasks of this process, or processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from dlock_conformance.harness import Colour, Opening
from dlock_conformance.records import held, next_version, tombstone
from dlock_core.store import Claim, Expect, Release, Replace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier, Event

    from dlock_conformance.subject import Subject

__all__ = ["CONTENDERS", "Crowd", "race_of_processes", "released_elsewhere"]

CONTENDERS = 8
# Threads change places this often in a race, so that a step that is not atomic is caught in the middle.
_SWITCH_S = 1e-5
_START_S = 60.0
# What verbs take beside a request and a time-out.
_MORE: dict[str, dict[str, Any]] = {
    "claim_when_free": {"wait_s": 0.005},
    "prune": {"older_than_ms": 0, "dry_run": False},
}
_ROUND_S = 60.0


class Crowd:
    """Contenders over several store objects of one colour, which start each round together.

    A sync store is contended for by threads behind a barrier, an async one by tasks that its loop starts in one go.
    """

    def __init__(self, subjects: Sequence[Subject], size: int = CONTENDERS) -> None:
        self.size = size
        self.subjects = [subjects[place % len(subjects)] for place in range(size)]
        self._tasks = subjects[0].colour is Colour.ASYNC
        self._gate = threading.Barrier(size + 1)
        self._calls: list[Callable[[], Any]] = []
        self._came: list[Any] = [None] * size
        self._threads: list[threading.Thread] = []
        self._switch = sys.getswitchinterval()

    def __enter__(self) -> Self:
        if not self._tasks:
            sys.setswitchinterval(_SWITCH_S)
            self._threads = [
                threading.Thread(target=self._contend, args=(place,), daemon=True) for place in range(self.size)
            ]
            for thread in self._threads:
                thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        sys.setswitchinterval(self._switch)
        self._calls = []
        if self._threads:
            with suppress(threading.BrokenBarrierError):
                self._gate.wait(_ROUND_S)
        for thread in self._threads:
            thread.join()

    def round(self, asks: Sequence[tuple[str, Any]]) -> list[Any]:
        """Ask (verb, request) of each contender at once; return replies and exceptions, in order."""
        assert len(asks) == self.size
        if self._tasks:
            return self.subjects[0].loop.run(self._together(asks))
        self._calls = [
            subject.calling(verb, request, **_MORE.get(verb, {}))
            for subject, (verb, request) in zip(self.subjects, asks, strict=True)
        ]
        self._gate.wait(_ROUND_S)
        self._gate.wait(_ROUND_S)
        return list(self._came)

    async def _together(self, asks: Sequence[tuple[str, Any]]) -> list[Any]:
        calls = [
            getattr(subject.raw, verb)(request, timeout_s=_ROUND_S, **_MORE.get(verb, {}))
            for subject, (verb, request) in zip(self.subjects, asks, strict=True)
        ]
        return await asyncio.gather(*calls, return_exceptions=True)

    def _contend(self, place: int) -> None:
        with suppress(threading.BrokenBarrierError):
            while True:
                self._gate.wait()
                if not self._calls:
                    return
                try:
                    self._came[place] = self._calls[place]()
                except Exception as error:  # noqa: BLE001  # the round's caller judges it
                    self._came[place] = error
                self._gate.wait(_ROUND_S)


def race_of_processes(url: str, keys: Sequence[str], size: int = CONTENDERS) -> list[list[int | str | None]]:
    """Let *size* processes claim each key at the same instant, or replace its record, if it is held.

    Returns: for each key what each process got: a token, None where it was refused, or the text of an error.
    """
    context = _processes()
    gate, results = context.Barrier(size), context.Queue()
    given = (url, keys, dict(os.environ), gate, results)
    processes = [context.Process(target=_claim_each, args=given, daemon=True) for _ in range(size)]
    for process in processes:
        process.start()
    try:
        columns = [results.get(timeout=_START_S + len(keys)) for _ in processes]
    finally:
        for process in processes:
            process.join(_START_S)
            if process.is_alive():
                process.kill()
                process.join()
        results.close()
    return [list(row) for row in zip(*columns, strict=True)]


@contextmanager
def released_elsewhere(url: str, key: str) -> Iterator[Callable[[], object]]:
    """Start a process that opens *url*; yield what has it release the record of *key*, and returns when that was answered."""
    context = _processes()
    ready, go, done = context.Event(), context.Event(), context.Event()
    process = context.Process(target=_release, args=(url, key, dict(os.environ), (ready, go, done)), daemon=True)
    process.start()

    def release() -> None:
        go.set()
        assert done.wait(_ROUND_S), "the process that was to release the lock did not; its errors are above"

    try:
        assert ready.wait(_START_S), "the process that is to release the lock has not begun; its errors are above"
        yield release
    finally:
        process.join(_START_S if done.is_set() else 0)
        process.kill()
        process.join()


def _processes() -> Any:
    """Return what starts processes: one loads what all need, and they are copies of it; each opens a store of its own."""
    context: Any = multiprocessing.get_context(
        "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    )
    context.set_forkserver_preload([__name__])
    return context


def _release(url: str, key: str, environment: dict[str, str], signs: tuple[Event, Event, Event]) -> None:
    os.environ.update(environment)  # as below
    ready, go, done = signs
    store = Opening(url).open()
    record = store.read(key, timeout_s=_ROUND_S)
    assert record is not None
    ready.set()
    go.wait(_START_S)
    store.release(Release(tombstone(record), record.version), timeout_s=_ROUND_S)
    done.set()
    store.close()


def _claim_each(
    url: str, keys: Sequence[str], environment: dict[str, str], gate: Barrier, results: Queue[list[int | str | None]]
) -> None:
    os.environ.update(environment)  # that of an earlier test is what a copy begins with
    store = Opening(url).open()
    came: list[int | str | None] = []
    try:
        for key in keys:
            old = store.read(key, timeout_s=_ROUND_S)
            gate.wait(_START_S)
            try:
                if old is None or not old.held:
                    reply = store.claim(Claim(held(key), Expect.ANY), timeout_s=_ROUND_S)
                else:
                    new = next_version(old, fencing_token=old.fencing_token + 1)
                    reply = store.replace(Replace(new, old.version), timeout_s=_ROUND_S)
            except Exception as error:  # noqa: BLE001  # told to the process that judges
                came.append(f"{type(error).__name__}: {error}")
            else:
                came.append(reply.record.fencing_token if reply.applied and reply.record is not None else None)
    finally:
        results.put(came + ["ended early"] * (len(keys) - len(came)))
        store.close()
