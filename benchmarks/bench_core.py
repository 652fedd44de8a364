"""What the core itself costs, on ``memory://``: a cycle, many held locks, a wake-up."""

from __future__ import annotations

import asyncio
import logging
import platform
import statistics
import threading
import time
from typing import TYPE_CHECKING, Literal

import pydantic

from benchmarks._aims import AIMS
from benchmarks._figures import Part, Section, Shown, atimed, compared, in_turn, percentile, resident_kib, timed
from dlock_core import AsyncLockClient, LockClient
from dlock_core.memory import AsyncMemoryStore, MemorySpace, MemoryStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlock_core import LockRecord, Replace, Reply, StoreError

__all__ = ["cycles", "held", "kept", "version", "wake"]

_CYCLES, _WAKE_UPS, _HELD_S = 1_000, 150, 12.0
_LEASES_S = {10_000: 6.0, 100_000: 20.0}
_KEPT, _KEPT_LEASE_S, _KEPT_S = (10, 1_000, 10_000, 100_000), 20.0, 20.0
_GROWING, _GROWING_LEASE_S = (100, 1_000, 10_000, 30_000, 100_000), 20.0


def version() -> str:
    """Return what the core runs on."""
    return f"memory:// on {platform.python_implementation()} {platform.python_version()}, pydantic {pydantic.VERSION}"


def cycles(rounds: int) -> Part:
    """Acquire and release, both colours, beside a dictionary under a mutex."""
    mutex, table = threading.Lock(), dict[str, int]()

    def bare() -> None:
        with mutex:
            table["bench/1"] = 1
        with mutex:
            del table["bench/1"]

    with (
        LockClient(MemoryStore()) as client,
        LockClient(MemoryStore(), on_event=lambda _: None) as told,
        asyncio.Runner() as runner,
    ):

        def blocking() -> None:
            with client.lock("bench/1"):
                pass

        def observed() -> None:
            with told.lock("bench/1"):
                pass

        aclient = AsyncLockClient(AsyncMemoryStore())

        async def native() -> None:
            async with aclient.lock("bench/1"):
                pass

        runner.run(aclient.__aenter__())
        sides = {
            "dictionary under a mutex": timed(bare),
            "dlock": timed(blocking),
            "dlock, with an event hook": timed(observed),
            "dlock, asyncio": atimed(runner, native),
        }
        taken = in_turn(sides, rounds=rounds, cycles=_CYCLES)
        runner.run(aclient.close())
    how = (
        "One process, one key, `with client.lock(key)`; the lock is renewed, fenced and watched, the dictionary is not."
    )
    part = compared("Memory, one uncontended cycle", how, taken, aims={}, digits=1)
    return part._replace(shown=(Shown("core-cycle", tuple(each * 1e6 for each in taken["dlock"])),))


def held(rounds: int) -> Part:
    """Hold many locks over several heartbeats: CPU of the renewals, threads, memory. Each count is held once, whatever *rounds*."""
    logging.getLogger("dlock").setLevel(logging.ERROR)  # what is lost is counted
    lines, shown = [], []
    for count, lease_s in _LEASES_S.items():
        share, threads, kib, lost = _hold(count, lease_s)
        lines.append((f"{count:,}", f"{lease_s:g}", f"{share:.1%}", str(threads), str(lost), f"{kib:.2f} KiB"))
        shown += [Shown("core-held-kib", (kib,)), Shown("core-held-threads", (float(threads),))]
    how = f"One client holds them for {_HELD_S:g} s and renews them; CPU is that of the whole process meanwhile."
    head = ("locks", "lease, s", "CPU", "threads", "lost", "memory a lock")
    growing = [(f"{count:,}", f"{_hold(count, _GROWING_LEASE_S)[0]:.2%}") for count in _GROWING]
    grows = Section(
        "Memory, as the number of held locks grows",
        f"As above, each with a lease of {_GROWING_LEASE_S:g} s.",
        ("locks", "CPU"),
        tuple(growing),
    )
    return Part((Section("Memory, many held locks", how, head, tuple(lines)), grows), tuple(shown[-2:]))


def kept(rounds: int) -> Part:
    """Hold many locks, each renewed by itself and then all by a session: CPU and requests. Each count is held once, whatever *rounds*."""
    logging.getLogger("dlock").setLevel(logging.ERROR)
    lines, shown = [], []
    for count in _KEPT:
        (own, own_requests), (session, requests) = _keep(count, "lock"), _keep(count, "session")
        cells = (f"{own:.2%}", f"{own_requests:,.0f}", f"{session:.2%}", f"{requests:,.0f}")
        lines.append((f"{count:,}", *cells))
        if f"core-kept-{count}" in AIMS:
            shown.append(Shown(f"core-kept-{count}", (session * 100,)))
    how = (
        f"One client, leases of {_KEPT_LEASE_S:g} s; CPU of the whole process, and requests a minute, over {_KEPT_S:g} s. "
        "A batch of renewals, or a read of the audit, is one request."
    )
    head = ("locks", "each by itself: CPU", "requests a minute", "by a session: CPU", "requests a minute")
    return Part((Section("Memory, locks that a session keeps", how, head, tuple(lines)),), tuple(shown))


def _keep(count: int, renewal: Literal["lock", "session"]) -> tuple[float, float]:
    """Return the share of a core, and the requests a minute."""
    store = _Counting()
    with LockClient(store, lease_duration=_KEPT_LEASE_S, renewal=renewal, session_locks_max=count) as client:
        leases = [client.acquire(f"bench/{number}") for number in range(count)]
        time.sleep(_KEPT_LEASE_S * 0.7)  # two heartbeats: the session is opened, and the locks are moved
        cpu, began, before = time.process_time(), time.monotonic(), store.requests
        time.sleep(_KEPT_S)
        took = time.monotonic() - began
        assert all(lease.is_valid for lease in leases)
        return (time.process_time() - cpu) / took, (store.requests - before) / took * 60


class _Counting(MemoryStore):
    requests = 0

    def replace(self, request: Replace, *, timeout_s: float) -> Reply:
        self.requests += 1
        return super().replace(request, timeout_s=timeout_s)

    def replace_many(self, requests: Sequence[Replace], *, timeout_s: float) -> Sequence[Reply | StoreError]:
        self.requests += 1
        return super().replace_many(requests, timeout_s=timeout_s)

    def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        self.requests += 1
        return super().read(key, timeout_s=timeout_s)


def _hold(count: int, lease_s: float) -> tuple[float, int, float, int]:
    """Return the share of a core, the threads, the KiB a lock, and how many locks were lost."""
    threads_before = threading.active_count()
    with LockClient(MemoryStore(), lease_duration=lease_s) as client:
        client.acquire("warm-up").release()
        before = resident_kib()
        leases = [client.acquire(f"bench/{number}") for number in range(count)]
        grown = resident_kib() - before
        cpu, began = time.process_time(), time.monotonic()
        time.sleep(_HELD_S)
        share = (time.process_time() - cpu) / (time.monotonic() - began)
        lost = sum(not lease.is_valid for lease in leases)
        return share, threading.active_count() - threads_before, grown / count, lost


def wake(rounds: int) -> Part:
    """From the call of a release to the return of the ``acquire`` that waits; as often, whatever *rounds*."""
    delays: list[float] = []
    space = MemorySpace()
    with LockClient(MemoryStore(space)) as holder, LockClient(MemoryStore(space)) as waiter:
        for _ in range(_WAKE_UPS):
            lease = holder.acquire("bench/1")
            granted: list[float] = []

            def wait(granted: list[float] = granted) -> None:
                taken = waiter.acquire("bench/1")
                granted.append(time.perf_counter())
                taken.release()

            thread = threading.Thread(target=wait)
            thread.start()
            while not space.waiters.get("bench/1"):
                time.sleep(0.001)  # until it waits
            began = time.perf_counter()
            lease.release()
            thread.join()
            delays.append((granted[0] - began) * 1e3)
    middle = statistics.median(delays)
    how = f"From the call of `release` to the return of `acquire` in another thread that waits, {_WAKE_UPS} times."
    line = ("dlock", f"{middle:.2f}", f"{percentile(delays, 0.99):.2f}")
    section = Section("Memory, wake-up of a lone waiter", how, ("", "p50, ms", "p99, ms"), (line,))
    return Part((section,), (Shown("core-wake", (middle,)),))
