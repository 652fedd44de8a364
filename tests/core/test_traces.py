"""Both colours do the same: random scripts of calls, faults and time give identical traces of requests and outcomes."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import re
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from dlock_core import (
    AsyncLockClient,
    Broken,
    DLockError,
    LockClient,
    LockRecord,
    OutcomeUnknownError,
    RecordError,
    Reply,
    State,
    StoreUnavailableError,
)
from dlock_core.engine.blocking_runtime import run_blocking
from dlock_core.memory import MemorySpace, MemoryStore
from dlock_core.testing import FakeClock
from dlock_core.timings import NANOS, nanoseconds

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

KEYS = ("a", "b")
RANDOM = re.compile(r"\b[0-9a-f]{32}\b")
FAULTS = ("apply",) * 12 + (
    "lost",
    "lost",
    "vanished",
    "unsent",
    "unsent",
    "late",
    "slow",
    "stolen",
    "broken",
    "gone",
    "unreadable",
)


class Trace:
    """What was asked and what came of it, with random ids replaced by the order in which they appeared."""

    def __init__(self) -> None:
        self.lines: list[Any] = []
        self.told: list[Any] = []
        self._names: dict[str, str] = {}

    def name(self, rvn: str) -> str:
        """Return the name of a random id."""
        return self._names.setdefault(rvn, f"#{len(self._names)}")

    def plain(self, value: Any) -> Any:
        """Return *value* without random ids."""
        if isinstance(value, str):
            return RANDOM.sub(lambda found: self.name(found.group()), value)
        if isinstance(value, LockRecord):
            return (
                value.key,
                value.state.value,
                self.name(value.rvn),
                value.fencing_token,
                value.owner,
                value.lease_ms,
                value.data,
            )
        if isinstance(value, Reply):
            return value.applied, self.plain(value.record)  # its age is of the real clock of the store in memory
        if isinstance(value, tuple):
            return tuple(map(self.plain, value))
        if isinstance(value, BaseException):
            loss = getattr(value, "loss", None)
            return (
                type(value).__name__,
                self.plain(str(value).split(" (record changed")[0]),
                None if loss is None else loss.reason.value,
            )
        return value


class Scripted:
    """A store whose every answer is drawn from the script; both faces of it do the same."""

    def __init__(self, seed: str, clock: FakeClock, trace: Trace) -> None:
        self.space, self.clock, self.trace = MemorySpace(), clock, trace
        self._inner = MemoryStore(self.space)
        self._random = random.Random(seed)
        self._late: list[tuple[str, Any]] = []
        self.quiet = False

    def step(self, verb: str, request: Any) -> Any:
        """Do as the script says."""
        fault = "apply" if self.quiet else self._random.choice(FAULTS)
        self.trace.lines.append(
            (self.clock.now(), verb, self.trace.plain(tuple(request) if verb != "read" else request), fault)
        )
        key = request if verb == "read" else request.record.key
        for late_verb, late in self._late:
            getattr(self._inner, late_verb)(late, timeout_s=1)
        self._late.clear()
        if fault in ("stolen", "broken", "gone"):
            self._meddle(key, fault)
        if fault == "slow":
            self.clock.advance(self._random.choice([0.2, 1.1, 4.2, 9.0]))
        if fault == "unsent":
            raise StoreUnavailableError("unsent", key=key)
        if fault == "unreadable" and verb == "read":
            raise RecordError("unreadable", key=key)
        if fault in ("vanished", "late"):
            if fault == "late" and verb != "read":
                self._late.append((verb, request))
            raise OutcomeUnknownError("no answer", key=key)
        answer = getattr(self._inner, verb)(request, timeout_s=1)
        if fault == "lost":
            raise OutcomeUnknownError("no answer", key=key)
        self.trace.lines.append(self.trace.plain(answer))
        return answer

    def _meddle(self, key: str, fault: str) -> None:
        record = self.space.records.get(key)
        if fault == "gone":
            self.space.records.pop(key, None)
        elif record is not None and record.held:
            broken = Broken("op", 0) if fault == "broken" else None
            rvn = f"{self._random.getrandbits(128):032x}"
            self.space.records[key] = LockRecord(
                key, State.HELD, rvn, record.fencing_token + 1, "other", 2_000, b"other", broken=broken
            )


class Sync:
    """The blocking face."""

    capabilities: frozenset[Any] = frozenset()

    def __init__(self, script: Scripted) -> None:
        self._script = script

    def claim(self, request: Any, *, timeout_s: float) -> Any:
        """Claim."""
        return self._script.step("claim", request)

    def replace(self, request: Any, *, timeout_s: float) -> Any:
        """Replace."""
        return self._script.step("replace", request)

    def release(self, request: Any, *, timeout_s: float) -> Any:
        """Release."""
        return self._script.step("release", request)

    def read(self, key: str, *, timeout_s: float) -> Any:
        """Read."""
        return self._script.step("read", key)

    def scan(self, prefix: str, *, timeout_s: float) -> Any:
        """Scan nothing."""
        return iter(())

    def guarantees(self) -> Any:
        """Promise what memory does."""
        return MemoryStore().guarantees()

    def provision(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Async(Sync):
    """The asyncio face."""

    async def claim(self, request: Any, *, timeout_s: float) -> Any:
        """Claim."""
        return self._script.step("claim", request)

    async def replace(self, request: Any, *, timeout_s: float) -> Any:
        """Replace."""
        return self._script.step("replace", request)

    async def release(self, request: Any, *, timeout_s: float) -> Any:
        """Release."""
        return self._script.step("release", request)

    async def read(self, key: str, *, timeout_s: float) -> Any:
        """Read."""
        return self._script.step("read", key)

    async def guarantees(self) -> Any:
        """Promise what memory does."""
        return MemoryStore().guarantees()

    async def close(self) -> None:  # type: ignore[override]  # the twin
        """Do nothing."""


class Call(NamedTuple):
    """One step of a script."""

    name: str
    key: str
    argument: Any


def draw(seed: str) -> tuple[dict[str, Any], list[Call]]:
    """Return the client's options and the calls of a script."""
    rng = random.Random(seed)
    options: dict[str, Any] = {
        "owner": "me",
        "lease_duration": rng.choice([8, 8, 8.008]),
        "auto_renew": rng.random() < 0.7,
    }
    for name, chance in (("delete_on_release", 0.1), ("fail_closed", 0.1), ("reentrant", 0.2), ("replace_data", 0.8)):
        if rng.random() < chance:
            options[name] = name != "replace_data" or rng.random() < 0.8
    if "fail_closed" in options:
        del options["lease_duration"]  # the two exclude each other
    if "reentrant" in options:
        options["reentrant"] = "client"  # on a loop each call of the script is a task of its own
    if rng.random() < 0.1:
        options["max_hold"] = rng.choice([3, 11])
    calls = [Call("acquire", rng.choice(KEYS), rng.choice([0, 0, 1.3, 5]))]
    for _ in range(rng.randint(2, 9)):
        name = rng.choice(
            (
                "acquire",
                "renew",
                "renew_for",
                "renew_data",
                "ensure",
                "ensure_more",
                "release",
                "release_data",
                "pass",
                "pass",
                "get",
            )
        )
        argument = {"acquire": rng.choice([0, 1.3, 5]), "pass": rng.choice([0.3, 1.7, 2.1, 4.4, 9.7])}.get(
            name, rng.choice([2, 5, 30])
        )
        calls.append(Call(name, rng.choice(KEYS), argument))
    return options, calls


async def perform(call: Call, client: Any, leases: dict[str, Any], trace: Trace) -> Any:
    """Make one call; both clients in the shape of the asyncio one."""
    lease = leases.get(call.key)
    if call.name == "acquire":
        if lease is not None and not client.options.reentrant:
            return None
        got = await client.acquire(call.key, timeout=call.argument, data=b"mine")
        got.on_lost(lambda loss: trace.told.append(("lost", loss.reason.value)))
        got.on_risk(lambda risky: trace.told.append(("risk", risky.key)))
        leases[call.key] = got
        leases.setdefault("all", []).append(got)
        return got.fencing_token
    if call.name == "get":
        return await client.get(call.key)
    if lease is None:
        return None
    if call.name in ("release", "release_data"):
        del leases[call.key]
    requests: dict[str, Callable[[], Any]] = {
        "renew": lease.renew,
        "renew_for": lambda: lease.renew(lease_duration=call.argument),
        "renew_data": lambda: lease.renew(data=bytes([call.argument])),
        "ensure": lease.ensure,
        "ensure_more": lambda: lease.ensure(call.argument),
        "release": lease.release,
        "release_data": lambda: lease.release(data=b"last"),
    }
    return await requests[call.name]()


def note(trace: Trace, call: Call, outcome: Any, leases: dict[str, Any]) -> None:
    """Write down what came of *call*, and how the leases look."""
    shown = []
    for lease in leases.get("all", []):
        loss = lease.loss
        shown.append(
            (
                lease.key,
                lease.fencing_token,
                lease.is_valid,
                lease.remaining,
                lease.lease_duration,
                lease.data,
                loss and loss.reason.value,
            )
        )
    trace.lines.append((call.name, call.key, trace.plain(outcome), shown, sorted(map(str, trace.told))))


# ---- the blocking colour, its scheduler turned by hand


class SteppedClock(FakeClock):
    """Whoever waits makes the time pass, with what is due meanwhile done in its time."""

    pump: Callable[[int], None]

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        """Let the time pass."""
        self.pump(self.now() + nanoseconds(seconds))


class Face:
    """A blocking object whose calls can be awaited."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name not in ("acquire", "get", "renew", "ensure", "release"):
            return value

        async def call(*args: Any, **options: Any) -> Any:
            result = value(*args, **options)
            return Face(result) if name == "acquire" else result

        return call


def run_sync(seed: str) -> list[Any]:
    """Return the trace of the blocking client."""
    trace, clock = Trace(), SteppedClock()
    script = Scripted(f"{seed} answers", clock, trace)
    options, calls = draw(seed)
    kind = type("LockClient", (LockClient,), {"_clock": clock})
    client: LockClient = kind(Sync(script), **options)
    runtime, engine = client._runtime, client._engine
    runtime._start = lambda: None  # type: ignore[method-assign]  # no thread: turned by hand
    posted: list[tuple[Any, Any]] = []
    runtime._callbacks.post = lambda callback, argument: posted.append((callback, argument))  # type: ignore[method-assign]

    def pump(until: int) -> None:
        # A request that took too long woke whoever waited for that: it goes before what has come to be due meanwhile.
        ahead = until > clock.now()
        while not ahead or clock.now() < until:
            first = engine.driver.timers.first()
            if first is None or first.due > max(until, clock.now()):
                break
            clock._now = max(clock._now, first.due)
            due: list[Any] = []
            engine.renewals.collect(due)
            for job in due:
                run_blocking(engine.renewals.run(job))
        clock._now = max(clock._now, until)
        while posted:
            callback, argument = posted.pop(0)
            callback(argument)

    clock.pump = pump
    leases: dict[str, Any] = {}
    for call in calls:
        outcome: Any = None
        try:
            if call.name == "pass":
                pump(clock.now() + nanoseconds(call.argument))
            else:
                outcome = run_blocking(perform(call, Face(client), leases, trace))
        except DLockError as error:
            outcome = error
        pump(clock.now())
        note(trace, call, outcome, leases)
    script.quiet = True
    pump(clock.now() + 17 * NANOS)
    _close(client.close, trace)
    trace.lines.append([trace.plain(record) for record in script.space.records.values()])
    return trace.lines


def _close(close: Callable[[], Any], trace: Trace) -> None:
    try:
        close()
    except ExceptionGroup as group:
        trace.lines.append([trace.plain(error) for error in group.exceptions])


# ---- the asyncio colour


async def run_async(seed: str) -> list[Any]:  # noqa: C901  # the twin of run_sync, in one piece like it
    """Return the trace of the asyncio client."""
    trace, clock = Trace(), FakeClock()
    script = Scripted(f"{seed} answers", clock, trace)
    options, calls = draw(seed)
    kind = type("AsyncLockClient", (AsyncLockClient,), {"_clock": clock})
    client: AsyncLockClient = await kind(Async(script), **options)

    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]  # empty while this task runs: nothing is left to be done

    async def turn() -> None:
        await asyncio.sleep(0)
        while ready:  # noqa: ASYNC110  # the loop's own queue has no event
            await asyncio.sleep(0)

    async def pump(until: int, stop: Callable[[], bool] = lambda: False) -> None:
        await turn()
        while not stop():
            # What is late by now has rung already; each next instant is met exactly, as a real timer would.
            due = min((timer.due for timer in clock._timers), default=None)
            if due is None or due > until:
                break
            # Of two that are due at one instant either may come first; here it is the scheduler, in both colours.
            scheduler = [timer for timer in clock._timers if timer in client._runtime._timers]
            clock._timers = dict.fromkeys([*scheduler, *clock._timers])
            clock.advance(max(0, due - clock.now()) / NANOS)
            await turn()
        if not stop() and until > clock.now():
            clock.advance((until - clock.now()) / NANOS)

    leases: dict[str, Any] = {}
    for call in calls:
        outcome: Any = None
        try:
            if call.name == "pass":
                await pump(clock.now() + nanoseconds(call.argument))
            else:
                task = asyncio.ensure_future(perform(call, client, leases, trace))
                await pump(1 << 62, task.done)
                outcome = await task
        except DLockError as error:
            outcome = error
        await pump(clock.now())
        note(trace, call, outcome, leases)
    script.quiet = True
    await pump(clock.now() + 17 * NANOS)
    try:
        await client.close()
    except ExceptionGroup as group:
        trace.lines.append([trace.plain(error) for error in group.exceptions])
    trace.lines.append([trace.plain(record) for record in script.space.records.values()])
    return trace.lines


@pytest.mark.parametrize("scripts", [1_000, pytest.param(9_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_both_colours_make_identical_traces(scripts: int, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random scripts, ten thousand in all: every request, its instant and contents, every outcome and every lease agree."""
    monkeypatch.setattr("dlock_core.engine.driver.jitter", lambda: 0.37)
    monkeypatch.setattr("dlock_core.engine.renewals.jitter", lambda: 0.37)
    logging.disable(logging.WARNING)

    async def all_of_them() -> int:
        lines = 0
        for _ in range(scripts):
            seed = f"{rng.getrandbits(64):x}"
            mine, theirs = run_sync(seed), await run_async(seed)
            differing = next((pair for pair in itertools.zip_longest(mine, theirs) if pair[0] != pair[1]), None)
            assert differing is None, f"script {seed!r}: {draw(seed)}"
            lines += len(mine)
        return lines

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            lines = asyncio.run(all_of_them())
    finally:
        logging.disable(logging.NOTSET)
    assert lines > 10 * scripts
