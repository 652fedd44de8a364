"""The store under test, seen through one blocking face whatever its colour, with a transcript of what was asked of it."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Sequence
from typing import Any, TypeVar, cast

from dlock_conformance.harness import AnyStore, Colour, Opening
from dlock_conformance.records import describe
from dlock_core.errors import DLockError, StoreError
from dlock_core.record import LockRecord
from dlock_core.store import Claim, Guarantees, Release, Replace, Reply

__all__ = ["TIMEOUT_S", "Loop", "Subject", "Transcript"]

T = TypeVar("T")

TIMEOUT_S = 10.0
# What a call may take beyond its own time-out before the test gives it up, so that a store that hangs fails and does not stop the run.
PATIENCE_S = 60.0


class Loop:
    """An event loop on a thread of its own, on which async stores live. It is started on first use."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run *coroutine* on the loop and return its result; many threads may do so at once."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._started()).result(PATIENCE_S)

    def finished(self, call: Callable[[], Any]) -> Any:
        """Return what *call* returns; if that is to be awaited, what comes of it on the loop, where it is also called."""
        if self._loop is None:
            came = call()
            if not inspect.isawaitable(came):
                return came
            raise AssertionError("nothing async has been opened on this loop")

        async def done() -> Any:
            came = call()
            return await came if inspect.isawaitable(came) else came

        return self.run(done())

    @property
    def thread(self) -> int | None:
        """The identifier of the thread, if it was started."""
        return None if self._thread is None else self._thread.ident

    def close(self) -> None:
        """End the loop and whatever still runs on it."""
        if self._loop is None or self._thread is None:
            return
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="conformance-loop", daemon=True)
            self._thread.start()
        return self._loop


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Transcript:
    """The last things that were asked, by all stores of one test of *clause*, and what came back."""

    def __init__(self, clause: str = "the suite") -> None:
        self.clause = clause
        self._calls: deque[tuple[str, tuple[Any, ...], dict[str, Any], object]] = deque(maxlen=12)

    def note(self, verb: str, arguments: tuple[Any, ...], options: dict[str, Any], came: object) -> None:
        """Keep a call. It becomes a line where a test fails: few do."""
        self._calls.append((verb, arguments, options, came))

    def __str__(self) -> str:
        return "\n".join(
            f"    {_asked(verb, arguments, options)}  ->  {describe(came)}"
            for verb, arguments, options, came in tuple(self._calls)  # other threads may still call
        )


class Subject:
    """One store object. Its verbs are those of :class:`~dlock_core.store.LockStore`, blocking in both colours.

    They check what every verb owes: that answers are of the right type, and that no exception but dlock's comes out.
    """

    def __init__(self, name: str, opening: Opening, colour: Colour, loop: Loop, transcript: Transcript) -> None:
        self.name = name
        self.colour = colour
        self.loop = loop
        self.transcript = transcript
        self.raw: AnyStore = loop.run(opening.aopen()) if colour is Colour.ASYNC else opening.open()

    def claim(self, request: Claim, *, timeout_s: float = TIMEOUT_S) -> Reply:
        """Ask for a conditional create."""
        return self._step("claim", request, timeout_s)

    def replace(self, request: Replace, *, timeout_s: float = TIMEOUT_S) -> Reply:
        """Ask for a conditional update."""
        return self._step("replace", request, timeout_s)

    def release(self, request: Release, *, timeout_s: float = TIMEOUT_S) -> Reply:
        """Ask for a conditional delete."""
        return self._step("release", request, timeout_s)

    def send(self, request: Claim | Replace | Release, *, timeout_s: float = TIMEOUT_S) -> Reply:
        """Ask for *request* by the verb that it belongs to."""
        match request:
            case Claim():
                return self.claim(request, timeout_s=timeout_s)
            case Replace():
                return self.replace(request, timeout_s=timeout_s)
            case Release():
                return self.release(request, timeout_s=timeout_s)

    def read(self, key: str, *, timeout_s: float = TIMEOUT_S) -> LockRecord | None:
        """Read one key."""
        came = self._ask("read", key, timeout_s=timeout_s)
        self._is(came, (LockRecord, type(None)), "read", "a LockRecord or None")
        return cast("LockRecord | None", came)

    def read_age(self, key: str, *, timeout_s: float = TIMEOUT_S) -> tuple[LockRecord, int] | None:
        """Read one key with its age."""
        came = self._ask("read_age", key, timeout_s=timeout_s)
        self._is(came, (tuple, type(None)), "read_age", "a LockRecord and its age in ms, or None")
        return cast("tuple[LockRecord, int] | None", came)

    def prune(
        self, records: Sequence[LockRecord], *, older_than_ms: int, dry_run: bool = False, timeout_s: float = TIMEOUT_S
    ) -> int:
        """Remove those of *records* that may go."""
        came = self._ask("prune", records, older_than_ms=older_than_ms, dry_run=dry_run, timeout_s=timeout_s)
        self._is(came, (int,), "prune", "how many records went")
        return cast("int", came)

    def scan(self, prefix: str, *, timeout_s: float = TIMEOUT_S) -> list[LockRecord]:
        """Read all records under *prefix*, to the end."""
        came = self._ask("scan", prefix, timeout_s=timeout_s)
        for record in came:
            self._is(record, (LockRecord,), "scan", "LockRecords")
        return cast("list[LockRecord]", came)

    def scanning(self, prefix: str, *, timeout_s: float = TIMEOUT_S) -> Generator[LockRecord, None, None]:
        """Read the records under *prefix* one by one, so that something else can happen in between."""
        came = cast("Any", self.raw).scan(prefix, timeout_s=timeout_s)
        kind = Iterator if self.colour is Colour.SYNC else AsyncIterator
        self._is(came, (kind,), "scan", f"an {kind.__name__}, as a generator is")
        if self.colour is Colour.SYNC:
            yield from came
            return
        while (record := self.loop.run(_next(came))) is not None:
            yield record

    def replace_many(self, requests: Sequence[Replace], *, timeout_s: float = TIMEOUT_S) -> list[Reply | StoreError]:
        """Ask for many conditional updates in one request."""
        came = self._ask("replace_many", requests, timeout_s=timeout_s)
        self._is(came, (Sequence,), "replace_many", "a sequence of results")
        if len(came) != len(requests):
            self.fail(
                "B1",
                f"replace_many of {len(requests)} requests returned {len(came)} results; there must be one for each",
            )
        for each in came:
            self._is(each, (Reply, StoreError), "replace_many", "a Reply or a StoreError for each request")
            self._check_parts(each, "replace_many")
        return list(came)

    def claim_many(self, requests: Sequence[Claim], *, timeout_s: float = TIMEOUT_S) -> list[Reply]:
        """Ask for several claims in one step."""
        came = self._ask("claim_many", requests, timeout_s=timeout_s)
        self._is(came, (Sequence,), "claim_many", "a sequence of replies")
        for each in came:
            self._is(each, (Reply,), "claim_many", "a Reply for each request")
            self._check_parts(each, "claim_many")
        if len(came) != len(requests) or len({reply.applied for reply in came}) > 1:
            self.fail("M1", f"claim_many of {len(requests)} returned {came!r}; a reply for each, all or none applied")
        return list(came)

    def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """Wait for a release that follows *record*."""
        self._ask("wait", record, ticket=ticket, timeout_s=timeout_s)

    def claim_when_free(self, request: Claim, *, wait_s: float, timeout_s: float = TIMEOUT_S) -> Reply:
        """Ask for a claim that waits."""
        came = self._ask("claim_when_free", request, wait_s=wait_s, timeout_s=timeout_s)
        self._is(came, (Reply,), "claim_when_free", "a Reply, also for a refusal")
        self._check_parts(came, "claim_when_free")
        return cast("Reply", came)

    def guarantees(self) -> Guarantees:
        """Ask what the store promises."""
        came = self._ask("guarantees")
        self._is(came, (Guarantees,), "guarantees", "a Guarantees")
        return cast("Guarantees", came)

    def provision(self) -> None:
        """Have the store create what it needs."""
        self._ask("provision")

    def close(self) -> None:
        """Close the store."""
        self._ask("close")

    def fail(self, clause: str, wrong: str) -> None:
        """Fail with *clause* named, and the transcript."""
        __tracebackhide__ = True
        raise AssertionError(
            f"{clause}: {wrong}\n  what was asked (the last {self.colour} calls), and what came back:\n{self.transcript}"
        )

    def calling(self, verb: str, request: object, *, timeout_s: float = TIMEOUT_S, **more: Any) -> Callable[[], Any]:
        """Return the bare call, to be made by a contender of a race: no transcript, nothing checked."""
        return lambda: self._call(verb, (request,), {"timeout_s": timeout_s, **more})

    def calling_read(self, key: str) -> Callable[[], LockRecord | None]:
        """As :meth:`calling`, of a read."""
        return lambda: cast("LockRecord | None", self._call("read", (key,), {"timeout_s": TIMEOUT_S}))

    def calling_close(self) -> Callable[[], None]:
        """As :meth:`calling`, of a close."""
        return lambda: cast("None", self._call("close", (), {}))

    def _step(self, verb: str, request: Claim | Replace | Release, timeout_s: float) -> Reply:
        came = self._ask(verb, request, timeout_s=timeout_s)
        self._is(came, (Reply,), verb, "a Reply, also for a refusal")
        self._check_parts(came, verb)
        return cast("Reply", came)

    def _ask(self, verb: str, *arguments: Any, **options: Any) -> Any:
        try:
            came = self._call(verb, arguments, options)
        except DLockError as error:
            self.transcript.note(verb, arguments, options, error)
            if not hasattr(error, "__notes__"):  # a test that does not expect it ends so
                told = f"{self.transcript.clause} could not be tried for the {self.colour} store: it raised this"
                error.add_note(f"{told}\n  what was asked, and what came back:\n{self.transcript}")
            raise
        except Exception as error:
            self.transcript.note(verb, arguments, options, error)
            wrong = f"{verb} raised {type(error).__module__}.{type(error).__qualname__}; only errors of dlock_core.errors may come out"
            message = f"S17: {wrong}, with the driver's as their cause\n  what was asked, and what came back:\n{self.transcript}"
            raise AssertionError(message) from error
        self.transcript.note(verb, arguments, options, came)
        return came

    def _call(self, verb: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        call = getattr(self.raw, verb)
        if self.colour is Colour.ASYNC:
            return self.loop.run(
                _collected(call, arguments, keywords) if verb == "scan" else _awaited(call, arguments, keywords)
            )
        came = call(*arguments, **keywords)
        return list(came) if verb == "scan" else came

    def _is(self, came: object, kinds: tuple[type, ...], verb: str, expected: str) -> None:
        if not isinstance(came, kinds):
            self.fail("the port", f"{verb} must return {expected}, and returned {type(came).__name__}: {came!r}")

    def _check_parts(self, came: Reply | StoreError, verb: str) -> None:
        """Fail unless the parts of a reply have their types: a count of rows that is not known, -1, would be a grant."""
        if isinstance(came, Reply):
            self._is(came.applied, (bool,), verb, "True or False as applied of its Reply")
            self._is(came.record, (LockRecord, type(None)), verb, "a LockRecord or None as record of its Reply")


async def _awaited(call: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return await call(*arguments, **keywords)


async def _next(scan: Any) -> LockRecord | None:
    return cast("LockRecord | None", await anext(scan, None))


async def _collected(call: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> list[Any]:
    return [record async for record in call(*arguments, **keywords)]


def _asked(verb: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> str:
    shown = [verb, *(_shown(argument) for argument in arguments)]
    if verb != "wait":  # there it is how long the store waits
        options = {name: value for name, value in options.items() if name != "timeout_s"}
    return " ".join([*shown, *(f"{name}={value}" for name, value in options.items() if name != "ticket")])


def _shown(argument: Any) -> str:
    match argument:
        case Claim():
            expect = argument.expect if isinstance(argument.expect, tuple) else argument.expect.value
            flags = "".join(f" {flag}" for flag in ("must_exist", "keep_payload") if getattr(argument, flag))
            return f"{describe(argument.record)} expect={describe(expect)}{flags}"
        case Replace() | Release():
            keep = " keep_payload" if argument.keep_payload else ""
            return f"{describe(argument.record)} expected={describe(argument.expected)}{keep}"
        case str():
            return repr(argument[-24:])
        case list() | tuple():
            return f"of {len(argument)}"
    return describe(argument)
