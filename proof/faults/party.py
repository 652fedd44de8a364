"""What a party does: a process that works on many keys at once, each in a thread or a task: acquire, have effects, release.

It is forked by ``nursery.py``. The kinds: ``sync``, ``async``, ``run`` (``dlock run`` around commands that have effects), ``hasty`` (a
negative control that takes over after half a lease), ``reopening`` (opens its store for each turn), ``cancelled`` (asyncio, whose tasks
are cancelled at any await), ``leader``, ``aleader`` and ``deaf`` (elections), ``runner``, ``arunner``, ``deaf-runner`` and ``forgetful``
(jobs), ``peer…`` (redis-py's Lock). SIGUSR1 lets a party keep its
interpreter's lock to itself for two leases, SIGUSR2 lets it fork where it stands.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Coroutine
from contextlib import closing
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from dlock_core import LockClient, aconnect, connect
from dlock_core.backend import backend_for
from dlock_core.errors import AcquireTimeoutError, DLockError, LeaseStateError, LockLostError, StoreError
from proof.faults.book_line import Line

if TYPE_CHECKING:
    from dlock_core import AsyncLease, AsyncLockClient, Lease
    from dlock_core.keywords import ClientKeywords
    from dlock_core.record import LockRecord
    from dlock_core.states import Observation

__all__ = ["Order", "Scene", "in_threads", "now", "opened", "told", "use", "work"]

_COMPUTES = 6  # parts of a lease that a holder computes for, between looking and writing
_HOLDS = (0.5, 3.0)  # leases that a holder holds for
_AFTER = 1.5  # leases after which a holder who has lost still writes what it had computed
_WAITS_S = 20
_HOG_LEASES = 2.0
_CHILD_S = 300
_LOOKS_S = 0.02
# The kinds of parties that have a module of their own: its name, and the function that does the work.
_IN_MODULES = {
    "run": ("dlock_run", "run"),
    **dict.fromkeys(("peer", "peer-default", "peer-cancelled"), ("redis_py", "peer")),
    **dict.fromkeys(("leader", "deaf"), ("leaders", "lead")),
    "aleader": ("leaders", "lead_in_tasks"),
    **dict.fromkeys(("runner", "deaf-runner", "forgetful"), ("job_runners", "run_jobs")),
    "arunner": ("job_runners", "run_in_tasks"),
    "cancelled": ("cancelled", "cancelled"),
}


class Order(NamedTuple):
    """What a party is to do, at which store, telling whom."""

    kind: str
    url: str
    keys: tuple[str, ...]
    book: str
    lease_s: float
    poll_s: float | None
    options: ClientKeywords | None = None


class Scene:
    """What the threads or tasks of one party share."""

    def __init__(self, order: Order, line: Line) -> None:
        self.order, self.who = order, str(os.getpid())
        self.lines = [line]
        self.leases: dict[str, Lease | AsyncLease] = {}
        self.client: LockClient | AsyncLockClient | None = None
        self.asked_to_fork = threading.Event()

    def line(self, who: str | None = None) -> Line:
        """Open a connection to the book."""
        self.lines.append(Line(self.order.book, who or self.who))
        return self.lines[-1]

    def holds_until(self) -> int:
        """How long to hold."""
        return now() + int(random.uniform(*_HOLDS) * self.order.lease_s * 1e9)

    def computes_s(self) -> float:
        """How long to compute."""
        return random.random() * 2 * self.order.lease_s / _COMPUTES

    def later(self, line: Line, key: str, token: int) -> None:
        """Have an effect of the naive now, and another when somebody else may have the lock."""
        line.tell("naive", key, token)
        timer = threading.Timer(_AFTER * self.order.lease_s, line.tell, ("naive", key, token))
        timer.daemon = True
        timer.start()


def now() -> int:
    """Return the instant, in ns, as all processes of this machine count it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def work(order: Order, line: Line) -> None:
    """Be a party until killed; *line* is a connection to the book, which a fork has to close as any other."""
    scene = Scene(order, line)
    logging.getLogger("dlock").setLevel(logging.CRITICAL)  # warnings of losses are what is provoked here
    signal.signal(signal.SIGUSR1, lambda *_: _keep_the_gil(order.lease_s))
    # Not in the handler: it may have interrupted a thread that has a mutex which a fork takes.
    signal.signal(signal.SIGUSR2, lambda *_: scene.asked_to_fork.set())
    if order.kind in _IN_MODULES:
        module, function = _IN_MODULES[order.kind]
        works = getattr(import_module(f"proof.faults.{module}"), function)(scene)
        if isinstance(works, Coroutine):
            asyncio.run(works)
    elif order.kind == "async":
        asyncio.run(_async(scene))
    elif order.kind == "reopening":
        in_threads(scene, _reopening_key)
    else:
        if order.kind == "hasty":
            _make_hasty()
        _sync(scene)


def in_threads(scene: Scene, target: object, *arguments: object) -> None:
    """Run *target* for each key in a thread; the first that fails ends the process, with its error told."""
    assert callable(target)
    over = threading.Event()
    failed: list[BaseException] = []

    def guarded(key: str) -> None:
        try:
            target(scene, key, *arguments)
        except BaseException as error:  # noqa: BLE001  # whatever it is, the run has to end with it
            failed.append(error)
            over.set()

    for key in scene.order.keys:
        threading.Thread(target=guarded, args=(key,), daemon=True).start()
    while not over.wait(_LOOKS_S):  # signals come in between
        if scene.asked_to_fork.is_set():
            _fork(scene)
    raise failed[0]


def opened(order: Order) -> ClientKeywords:
    """Return the options of a party's client."""
    return {"lease_duration": order.lease_s, "poll_period": order.poll_s, **(order.options or {})}


def _sync(scene: Scene) -> None:
    scene.client = client = connect(scene.order.url, **opened(scene.order))
    in_threads(scene, _sync_key, client)


def _sync_key(scene: Scene, key: str, client: LockClient) -> None:
    line = scene.line()
    while True:
        _turn(scene, key, client, line)


def _reopening_key(scene: Scene, key: str) -> None:
    """Open the store anew for each turn."""
    line = scene.line()
    backend = backend_for(scene.order.url)  # which reads the installed packages' files, once
    options = backend.options.from_url(scene.order.url)
    while True:
        try:
            with closing(backend.open(options)) as store, LockClient(store, **opened(scene.order)) as client:
                _turn(scene, key, client, line)
        except DLockError as error:
            told(line, error)
            time.sleep(scene.computes_s())


def _turn(scene: Scene, key: str, client: LockClient, line: Line) -> None:
    line.tell("wait", key, now())
    try:
        lease = client.acquire(key, timeout=_WAITS_S)
    except DLockError as error:
        told(line, error)
        time.sleep(scene.computes_s())
        return  # the store is stopped, killed or cut off: try again
    token = lease.fencing_token
    line.ask("grant", key, token, now())
    scene.leases[key] = lease
    until = scene.holds_until()
    try:
        while (at := now()) < until:
            lease.ensure()
            deadline = at + int(lease.remaining * 1e9)
            seen = line.ask("fence", key, token)
            time.sleep(scene.computes_s())  # the work of the holder
            line.tell("use", key, token, at, deadline, seen)
        line.tell("end", key, token, "released", now())
        lease.release()
        time.sleep(scene.computes_s())  # the others have their turn
    except LockLostError:
        line.tell("end", key, token, "lost", now())
        scene.later(line, key, token)
    except DLockError as error:
        told(line, error)  # of the release, nothing is known
    finally:
        scene.leases.pop(key, None)


async def _async(scene: Scene) -> None:
    async with aconnect(scene.order.url, **opened(scene.order)) as client, asyncio.TaskGroup() as tasks:
        scene.client = client
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, _fork, scene)
        for key in scene.order.keys:
            tasks.create_task(_async_key(scene, key, client))


async def _async_key(scene: Scene, key: str, client: AsyncLockClient) -> None:
    line = scene.line()
    while True:
        line.tell("wait", key, now())
        try:
            lease = await client.acquire(key, timeout=_WAITS_S)
        except DLockError as error:
            told(line, error)
            await asyncio.sleep(scene.computes_s())
            continue  # the store is stopped, killed or cut off: try again
        token = lease.fencing_token
        line.ask("grant", key, token, now())
        scene.leases[key] = lease
        try:
            await use(scene, key, lease, line)
            line.tell("end", key, token, "released", now())
            await lease.release()
            await asyncio.sleep(scene.computes_s())  # the others have their turn
        except LockLostError:
            line.tell("end", key, token, "lost", now())
            scene.later(line, key, token)
        except DLockError as error:
            told(line, error)  # of the release, nothing is known
        finally:
            scene.leases.pop(key, None)


async def use(scene: Scene, key: str, lease: AsyncLease, line: Line) -> None:
    """Have effects under *lease*, until it has been held for long enough."""
    until = scene.holds_until()
    while (at := now()) < until:
        token = await lease.ensure()
        deadline = at + int(lease.remaining * 1e9)
        seen = line.ask("fence", key, token)
        await asyncio.sleep(scene.computes_s())
        line.tell("use", key, token, at, deadline, seen)


def told(line: Line, error: DLockError) -> None:
    """Count an error that a caller has got, by its type."""
    line.tell("note", f"errors: {type(error).__name__}")
    if isinstance(error, StoreError):
        line.tell("note", "errors of the store")
    elif not isinstance(error, (AcquireTimeoutError, LockLostError)):
        line.tell("note", "errors that no fault explains")


# ---- what happens to a party


def _keep_the_gil(lease_s: float) -> None:
    """Call C code that does not give the interpreter's lock back while it runs."""
    ctypes.PyDLL(None).usleep(int(_HOG_LEASES * lease_s * 1e6))


def _fork(scene: Scene) -> None:
    """Fork in the middle of whatever the other threads do. The child tries to use what it has inherited, tells, and stays."""
    scene.asked_to_fork.clear()
    held = dict(scene.leases)
    # The control: what a copy would believe that only compared the deadline with the clock, as it is in the parent.
    believed = sum(lease.is_valid for lease in held.values())
    if os.fork():
        return
    try:
        signal.alarm(_CHILD_S)  # nobody else ends it, if the run is broken off
        wrong = sum(not _is_dead(lease) for lease in held.values()) + (not _is_refused(scene.client))
        for line in scene.lines:
            line.close()
        line = scene.line(f"child {os.getpid()}")
        line.tell("note", "copies asked", len(held))
        line.tell("note", "copies that were valid in the parent", believed)
        line.tell("note", "copies in use", wrong)
        line.tell("child", scene.who, os.getpid())
        signal.pause()  # alive, until it is killed
    except BaseException:  # noqa: BLE001  # whatever it is, the run has to end with it
        Line(scene.order.book, f"child {os.getpid()}").tell("broken", traceback.format_exc()[-2000:])
    finally:
        os._exit(1)


def _is_dead(lease: Lease | AsyncLease) -> bool:
    """Whether a child's copy of a lease says that it is none."""
    try:
        used = lease.ensure()
        if isinstance(used, Coroutine):
            used.send(None)
    except LeaseStateError:
        return not lease.is_valid
    except StopIteration:
        return False
    return False


def _is_refused(client: LockClient | AsyncLockClient | None) -> bool:
    """Whether a child's copy of a client lets nobody in."""
    assert client is not None
    try:
        tried = client.try_acquire("a key of nobody")
        if isinstance(tried, Coroutine):
            tried.send(None)
    except LeaseStateError:
        return True
    except StopIteration:
        return False
    return False


def _make_hasty() -> None:
    """Plant a bug: this waiter counts half of a lease."""
    from dlock_core import lease

    observe = lease.observe

    def hasty(record: LockRecord, now: int) -> Observation:
        seen = observe(record, now)
        return seen._replace(lease_ns=seen.lease_ns // 2)

    lease.observe = hasty
