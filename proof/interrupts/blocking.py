"""One trial of the blocking colour: an operation of a client, and an act at one point of it; then whether all is well.

All is well if at most one lease of the key is valid, the lock of a caller that has none is free or lapses within one lease, the lock of a
caller that has one is renewed until it is released, and the client can be used and closed. Time is virtual, threads are real.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from dlock_core import DLockError, LockStore
from dlock_core.client import Lease, LockClient
from dlock_core.engine.blocking_runtime import run_blocking
from dlock_core.engine.renewals import Job
from dlock_core.testing import FakeClock, FaultyStore
from proof.interrupts.points import Tracer
from proof.interrupts.stores import AT_ONCE, KEPT, PERMIT, READER, WRITER, faulty, held_by, options_of, plain

__all__ = ["ACTS", "OPERATIONS", "Verdict", "try_point"]

LEASE_S = 20.0
FIRST = "first acquire"
_STEPS = 8
_HANG_S = 5.0
_SWITCH_S = 0.02
_REST_S = 0.5
_GLANCE_S = 0.0005
_GLANCE = threading.Event()


class Verdict(NamedTuple):
    """What a trial showed; *points* were passed."""

    points: int
    where: str
    wrong: list[str]


class Interrupt(KeyboardInterrupt):
    """What a signal handler raises. Where Python only reports it, that is noted in its argument."""


class _Scene:
    """Two clients of one store; the caller of one of them holds *leases*."""

    def __init__(self, store: LockStore, key: str, operation: str) -> None:
        self.key = key
        self.options = options_of(operation)
        # A lock that a session keeps is given back a lease after the next beat, since it does not lapse by itself.
        self.steps = (2 if operation.startswith(KEPT) else 1) * _STEPS + 3
        self.clock = FakeClock()
        self.client: LockClient = self.clock.client(faulty(store, operation), lease_duration=LEASE_S)
        self.other: LockClient = self.clock.client(FaultyStore(store), lease_duration=LEASE_S)
        self.leases: list[Lease] = []
        self.bystander = [] if operation == FIRST else [self.client.acquire(f"{key}-bystander")]
        self.threads: list[threading.Thread] = []
        self.outcome: list[str] = []  # of the interrupt
        self.wrong: list[str] = []

    def live(self) -> list[Lease]:
        """The leases of the key that the caller has and has not released."""
        return [lease for lease in self.leases if not lease._closed]

    def run_due(self) -> None:
        """Do what the renewing thread does, where it has not come to it yet."""
        engine = self.client._engine
        due: list[Job] = []
        engine.renewals.collect(due)
        for job in due:
            run_blocking(engine.renewals.run(job))
        until = time.monotonic() + _REST_S
        while any(self._in_flight(lease) for lease in self.live()) and time.monotonic() < until:
            _GLANCE.wait(_GLANCE_S)  # the client's own thread was faster, and is at it

    def end(self) -> None:
        """Note that the operation raised no interrupt."""
        if self.outcome == ["raised"]:
            self.wrong.append("the interrupt is swallowed")

    @staticmethod
    def _in_flight(lease: Lease) -> bool:
        """Whether a request for it, or for the session that keeps it, has no answer yet."""
        handle = lease._handle
        return any(getattr(each.state, "in_flight", None) is not None for each in (handle, handle.renewal))

    def attempt(self, name: str, work: Callable[[], object]) -> None:
        """Do *work*; errors that the library documents are no fault."""
        try:
            work()
        except DLockError:
            pass
        except ExceptionGroup as group:
            if group.split(DLockError)[1] is not None:
                self.wrong.append(f"{name} raised {group.exceptions!r}")
        except Exception as error:  # noqa: BLE001  # told as a finding
            self.wrong.append(f"{name} raised {error!r}")


# ---- operations


def _acquire(scene: _Scene) -> None:
    _acquire_now(scene, scene.key)


def _lock_all(scene: _Scene) -> None:
    with scene.client.lock_all([scene.key, f"{scene.key}-more"], timeout=0) as leases:
        scene.leases.append(leases[scene.key])


def _renew(scene: _Scene) -> None:
    scene.leases[0].renew()


def _release(scene: _Scene) -> None:
    scene.leases[0].release()


def _downgrade(scene: _Scene) -> None:
    scene.leases.append(scene.leases[0].downgrade())


def _upgrade(scene: _Scene) -> None:
    scene.leases += filter(None, [scene.leases[0].try_upgrade()])


def _close(scene: _Scene) -> None:
    scene.client.close()


OPERATIONS: dict[str, Callable[[_Scene], None]] = {
    "acquire": _acquire,
    FIRST: _acquire,
    "lock_all": _lock_all,
    AT_ONCE: _lock_all,
    "renew": _renew,
    "release": _release,
    "close": _close,
    "renewals": _Scene.run_due,
    f"{PERMIT}acquire": _acquire,
    f"{PERMIT}release": _release,
    f"{PERMIT}close": _close,
    f"{PERMIT}renewals": _Scene.run_due,
    f"{WRITER}downgrade": _downgrade,
    f"{READER}try_upgrade": _upgrade,
    f"{KEPT}release": _release,
    f"{KEPT}close": _close,
    f"{KEPT}renewals": _Scene.run_due,
}
_HOLDS = ("renew", "release", "close", "renewals", "downgrade", "try_upgrade")


# ---- acts


def _interrupt(scene: _Scene) -> None:
    scene.outcome.append("raised")
    raise Interrupt(scene.outcome)


def _handler_closes(scene: _Scene) -> None:
    scene.attempt("the handler's close", scene.client.close)


def _handler_releases(scene: _Scene) -> None:
    for lease in [*scene.leases, *scene.bystander]:
        scene.attempt("the handler's release", lease.release)


def _handler_acquires(scene: _Scene) -> None:
    for key in (scene.key, f"{scene.key}-again"):
        scene.attempt("the handler's acquire", partial(_acquire_now, scene, key))


def _acquire_now(scene: _Scene, key: str) -> None:
    scene.leases.append(scene.client.acquire(key, timeout=0, **scene.options))


def _thread_releases(scene: _Scene) -> None:
    def work() -> None:
        _handler_releases(scene)
        _handler_closes(scene)

    thread = threading.Thread(target=work, daemon=True)
    scene.threads.append(thread)
    thread.start()
    thread.join(_SWITCH_S)


def _collect(scene: _Scene) -> None:
    scene.bystander.clear()


ACTS: dict[str, Callable[[_Scene], None]] = {
    "raise": _interrupt,
    "handler closes": _handler_closes,
    "handler releases": _handler_releases,
    "handler acquires": _handler_acquires,
    "thread releases": _thread_releases,
    "finalizer": _collect,
}


# ---- a trial


def try_point(store: LockStore, key: str, operation: str, act: str, at: int) -> Verdict:
    """Have *act* done at point *at* of *operation*, and say what is wrong then; *at* 0 counts the points only."""
    scene = _Scene(store, key, operation)
    if plain(operation) in _HOLDS:
        scene.leases.append(scene.client.acquire(key, **held_by(operation)))
    runtime = scene.client._runtime
    if operation.startswith(KEPT):
        runtime._thread = threading.current_thread()
        for _ in range(2):  # a session is opened, and the lock is moved
            scene.clock.advance(LEASE_S / 3)
            scene.run_due()
        runtime._thread = None
    if operation.endswith("renewals"):
        runtime._thread = _ended_thread()  # in the place of the client's own, which would be faster
        scene.clock.advance(LEASE_S / 3)
    tracer = Tracer(lambda: ACTS[act](scene), at)
    done = threading.Event()

    def work() -> None:
        tracer.watch()
        try:
            scene.attempt(operation, lambda: OPERATIONS[operation](scene))
            scene.end()
        except Interrupt:
            pass
        finally:
            tracer.end()
            done.set()

    threading.Thread(target=work, daemon=True).start()
    if not done.wait(_HANG_S):
        return Verdict(tracer.count, tracer.where, ["hangs"])
    for thread in scene.threads:
        thread.join(_HANG_S)
    if operation.endswith("renewals"):
        runtime._thread = None
        runtime.arm()
    checker = threading.Thread(target=_check, args=(scene,), daemon=True)
    checker.start()
    checker.join(_HANG_S)
    wrong = [*scene.wrong, *(["the client hangs afterwards"] if checker.is_alive() else [])]
    return Verdict(tracer.count, tracer.where, wrong)


def _ended_thread() -> threading.Thread:
    """Return a thread for which a close does not wait."""
    thread = threading.Thread()
    thread.start()
    thread.join()
    return thread


def _check(scene: _Scene) -> None:
    scene.attempt("the check", lambda: _check_key(scene))
    scene.attempt("the last close", scene.client.close)
    _expect_free(scene, "after the last close", 1)
    scene.attempt("the other's close", scene.other.close)


def _check_key(scene: _Scene) -> None:
    gc.collect(0)
    if sum(lease.is_valid for lease in scene.leases if lease.key == scene.key) > 1:
        scene.wrong.append("two leases are valid")
    live = [lease for lease in scene.live() if lease.key == scene.key and lease.is_valid]
    if not live:
        _expect_free(scene, "though nobody has a lease", scene.steps)
        return
    for _ in range(_STEPS + 3):
        scene.clock.advance(LEASE_S / _STEPS)
        scene.run_due()
        taken = scene.other.try_acquire(scene.key, **scene.options)
        if taken is not None:
            if live[0].is_valid:
                scene.wrong.append("another got the lock while its lease is valid")
            elif not scene.client._engine.closed:
                scene.wrong.append("another got the lock of a live lease")
            taken.release()
            return
    if not live[0].is_valid:
        scene.wrong.append("a live lease is not renewed")
    live[0].release()
    _expect_free(scene, "after its release", 1)


def _expect_free(scene: _Scene, when: str, steps: int) -> None:
    for _ in range(steps):
        taken = scene.other.try_acquire(scene.key, **scene.options)
        if taken is not None:
            if any(lease.is_valid for lease in scene.leases if lease.key == scene.key):
                scene.wrong.append(f"two leases are valid {when}")
            taken.release()
            return
        scene.clock.advance(LEASE_S / _STEPS)
        scene.run_due()
    scene.wrong.append(f"still held {when}")


logging.getLogger("dlock").addHandler(logging.NullHandler())
