"""What is known of the sessions of others, look by look, and what is written in the name of who waits for one."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import LockLostError, LockOptions
from dlock_core.engine import sessions
from dlock_core.engine.blocking_runtime import run_blocking
from dlock_core.engine.sessions import Looking, Sessions
from dlock_core.errors import AcquireTimeoutError, OutcomeUnknownError, StoreUnavailableError
from dlock_core.record import LockRecord, OwnerState, SessionRef, State, newer_format
from dlock_core.states import Observation
from dlock_core.store import Claim, Release, Replace
from dlock_core.timings import Early, Timings
from tests.core.attempts import SECOND, timings
from tests.core.test_sessions import KEEPS, moved
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World

LEASE_MS = 8_000
REF = SessionRef("s", LEASE_MS, 3)
ALIVE = LockRecord("s", State.HELD, "rvn", 3, "its owner", LEASE_MS)
HELD_BY_ANOTHER = AcquireTimeoutError("held", key="s", timeout=0.0, holder=ALIVE, outcome_unknown=False)
GONE = LockRecord("s", State.GONE, "rvn", 3, "", None)


class OneSession:
    """An engine that shows *record* under the key of a session, and notes what it is asked for."""

    def __init__(self, record: LockRecord | None) -> None:
        self.record = record
        self.at = 1_000 * SECOND
        self.runtime, self.store = SimpleNamespace(now=lambda: self.at), self
        self.timeouts_s: list[float] = []
        self.seen_at = self.at
        self.acquired: list[Any] = []
        self.ended: list[str] = []
        self.fails: BaseException | None = None
        self.release_fails: BaseException | None = None
        self.known = Sessions(self)  # type: ignore[arg-type]  # what it uses of an engine

    async def read(self, _: str, *, timeout_s: float) -> LockRecord | None:
        """As a store does."""
        self.timeouts_s.append(timeout_s)
        return self.record

    def begin_observing(self, record: LockRecord) -> Observation:
        """As an engine does."""
        return Observation(record.version, self.seen_at, LEASE_MS * 1_000_000)

    async def acquire(self, key: str, *asked: Any, view: Any) -> str:
        """As an engine does."""
        self.acquired.append((key, *asked, view))
        if self.fails is not None:
            raise self.fails
        return "the handle"

    async def release(self, handle: str, payload: None) -> None:
        """As an engine does."""
        self.ended.append(f"release {handle} {payload}")
        if self.release_fails is not None:
            raise self.release_fails

    def discard(self, handle: str) -> None:
        """As an engine does."""
        self.ended.append(f"discard {handle}")

    def is_over(self, ref: SessionRef = REF, *, began: int = 0, by: Timings | None = None) -> bool:
        """Ask, as an attempt *by* these timings that *began* then."""
        return run_blocking(self.known.is_over(ref, Looking(LockOptions(), by or timings(), began)))


def test_each_attempt_looks_once_and_all_of_them_eight_times_in_a_lease() -> None:
    """The first look of an attempt is its own; from then on that of any other will do for an eighth of the lease."""
    engine = OneSession(ALIVE)
    began = engine.at
    assert not engine.is_over(began=began)
    assert not engine.is_over(began=began)
    assert len(engine.timeouts_s) == 1
    engine.at += 1

    assert not engine.is_over(began=engine.at)
    assert not engine.is_over(began=began)
    assert len(engine.timeouts_s) == 2

    engine.at += LEASE_MS * 1_000_000 // 8 - 1
    assert not engine.is_over(began=began)
    assert len(engine.timeouts_s) == 2
    engine.at += 1
    assert not engine.is_over(began=began)
    assert len(engine.timeouts_s) == 3
    assert engine.timeouts_s[0] == timings().acquire_timeout_ns / SECOND


def test_next_look_is_due_at_whichever_session_comes_first() -> None:
    """The place of who had a short lease is free long before another's would be."""
    engine, long = OneSession(ALIVE), REF._replace(key="long", lease_ms=10 * LEASE_MS)
    for ref in (long, REF):
        assert not engine.is_over(ref)

    assert engine.known.due_at((long, REF)) == engine.at + LEASE_MS * 1_000_000 // 8


def test_session_that_is_over_is_over_for_ever() -> None:
    """A grant that has ended does not come back: it is not looked at again."""
    engine = OneSession(GONE)
    assert engine.is_over()
    engine.record = ALIVE
    engine.at += 100 * SECOND

    assert engine.is_over(began=engine.at)
    assert len(engine.timeouts_s) == 1


def test_absence_counts_from_the_answer_that_showed_it_first_and_proves_nothing_for_later() -> None:
    """Q4: a row that was removed may be written again by its owner."""
    engine = OneSession(None)
    lease_ns = LEASE_MS * 1_000_000
    assert not engine.is_over(began=engine.at)
    engine.at += lease_ns - 1
    assert not engine.is_over(began=engine.at)
    engine.at += 1
    assert engine.is_over(began=engine.at)

    engine.record = ALIVE
    engine.at += 1
    engine.seen_at = engine.at
    assert not engine.is_over(began=engine.at)
    engine.record = None
    engine.at += 1
    assert not engine.is_over(began=engine.at)
    assert len(engine.timeouts_s) == 5


def test_what_is_known_of_sessions_is_bounded_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that are over as of those that are looked at; one that is looked at again is new."""
    monkeypatch.setattr(sessions, "_KNOWN_MAX", 2)
    refs = [REF._replace(fencing_token=number) for number in range(1, 5)]
    for record, known in ((GONE, "_over"), (ALIVE, "_looked"), (None, "_absent")):
        engine = OneSession(record)
        for ref in (refs[0], refs[1]):
            engine.record = record and replace(record, fencing_token=ref.fencing_token)
            engine.is_over(ref)
        assert list(getattr(engine.known, known)) == refs[:2]
        engine.at += 100 * SECOND
        for ref in (refs[0], refs[2]):
            engine.record = record and replace(record, fencing_token=ref.fencing_token)
            engine.is_over(ref, began=engine.at)

        assert list(getattr(engine.known, known)) == ([refs[0], refs[2]] if known == "_looked" else refs[1:3])


def test_session_that_other_threads_push_out_while_it_is_noted_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """As any other: no mutex keeps the threads of a client from looking at the same time."""
    monkeypatch.setattr(sessions, "_KNOWN_MAX", 1)
    engine, other = OneSession(ALIVE), REF._replace(fencing_token=2)

    class Known(type(engine.known._looked)):  # type: ignore[misc]  # a dict
        def __setitem__(self, ref: SessionRef, at: int) -> None:
            super().__setitem__(ref, at)
            if ref is REF:
                engine.is_over(other)

    engine.known._looked = Known()

    assert not engine.is_over()
    assert len(engine.timeouts_s) == 2


@pytest.mark.parametrize(
    ("early", "asks"),
    [
        (Early(), False),
        (Early(probes=True), True),
        (Early(server_clock=True), True),
        (Early(skew_ns=0), True),
    ],
)
def test_session_is_taken_over_once_it_was_seen_unchanged_for_its_lease(early: Early, asks: bool) -> None:
    """Sooner only where its holder may be told dead sooner: the machine decides that."""
    engine = OneSession(ALIVE)
    engine.fails = HELD_BY_ANOTHER if asks else None
    engine.at = engine.seen_at + LEASE_MS * 1_000_000 - 1
    assert not engine.is_over(began=engine.at, by=timings(early))
    assert bool(engine.acquired) == asks

    engine.at += 1
    engine.fails = None
    assert engine.is_over(began=engine.at, by=timings(early))
    assert engine.ended == ["release the handle None"]


def test_session_of_a_newer_format_is_never_taken_over() -> None:
    """Nothing is known of its lease."""
    engine = OneSession(newer_format("s", 2, "rvn", 3))
    engine.at += 100 * SECOND

    assert not engine.is_over(began=engine.at)
    assert not engine.acquired


def test_session_that_somebody_else_has_meanwhile_is_not_over() -> None:
    """One try: what it shows is not waited for."""
    engine = OneSession(ALIVE)
    engine.fails = HELD_BY_ANOTHER
    engine.at += 100 * SECOND

    assert not engine.is_over(began=engine.at)
    assert len(engine.acquired) == 1
    assert not engine.ended


def test_interrupted_release_of_a_session_leaves_it_to_the_scheduler() -> None:
    """It must not stay held by a client that nobody asks to release it."""
    engine = OneSession(ALIVE)
    engine.release_fails = KeyboardInterrupt()
    engine.at += 100 * SECOND

    with pytest.raises(KeyboardInterrupt):
        engine.is_over(began=engine.at)
    assert engine.ended == ["release the handle None", "discard the handle"]


def test_takeover_and_a_release_that_is_not_confirmed_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The session is over all the same: the release is followed up."""
    engine = OneSession(ALIVE)
    engine.release_fails = OutcomeUnknownError("no answer")
    engine.at += 100 * SECOND

    with caplog.at_level(logging.DEBUG, "dlock.engine"):
        assert engine.is_over(began=engine.at)

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "the holder 'its owner' has died; its session 's' is taken over, and ended"),
        ("DEBUG", "the release of session 's' was not confirmed, it is followed up: no answer"),
    ]
    assert engine.ended == ["release the handle None"]


def test_session_that_cannot_be_looked_at_is_unknown_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Neither alive nor dead; the attempt goes on."""
    engine = OneSession(ALIVE)
    handle: Any = SimpleNamespace(
        options=LockOptions(), state=SimpleNamespace(terms=SimpleNamespace(timings=timings())), asked_at=0, name="k"
    )
    found = [run_blocking(engine.known.owner_of([REF], handle))]
    engine.at += 100 * SECOND
    engine.fails = StoreUnavailableError("down")
    with caplog.at_level(logging.DEBUG, "dlock.engine"):
        found.append(run_blocking(engine.known.owner_of([REF], handle)))
    engine.fails = None
    engine.at += 100 * SECOND
    found.append(run_blocking(engine.known.owner_of([REF], handle)))

    assert found == [OwnerState.ALIVE, OwnerState.UNKNOWN, OwnerState.DEAD]
    assert caplog.messages == ["a session that keeps lock 'k' could not be looked at: down"]


def test_errand_has_the_lease_of_the_session_and_one_try_and_leaves_nothing() -> None:
    """Whatever the attempt is for whose sake it is made."""
    engine = OneSession(ALIVE)
    engine.at += 100 * SECOND
    rich: dict[str, Any] = {
        "data": b"x",
        "attributes": {"a": 1},
        "replace_data": False,
        "timeout": 50.0,
        "max_hold": 5.0,
        "stall_timeout": 3.0,
        "lock_delay": 2.0,
        "retries": 7,
    }

    before = timings(**rich)._replace(server_wait=True)
    assert engine.is_over(began=engine.at, by=before)

    [(key, options, errand, view)] = engine.acquired
    changed = {name for name in before._fields if getattr(errand, name) != getattr(before, name)}
    assert (key, options) == ("s", LockOptions())
    assert view._caller is None
    assert (errand.lease_ms, errand.lease_ns, errand.usable_ns) == (LEASE_MS, 8 * SECOND, 4 * SECOND)
    assert (errand.delay_ms, errand.wait_ns, errand.retries_max, errand.handout_min_ns) == (0, 0, 0, 0)
    assert (errand.max_hold_ns, errand.stall_ns, errand.data, errand.attributes) == (None, None, None, ())
    assert (errand.keep_payload, errand.must_exist) == (False, True)
    assert (errand.hide_on_release, errand.server_wait) == (True, False)
    assert len(changed) == 15


@both_colours
async def test_takeover_of_a_session_writes_nothing_of_who_waits(world: World) -> None:
    """A claim that is refused, a takeover under the lease of the session, and a release that hides it."""
    written: list[Any] = []

    def note(_: str, request: Any) -> None:
        if isinstance(request, (Claim, Replace, Release)) and "~dlock/" in request.record.key:
            written.append(request)

    store, waits = world.another_store(), world.hooked_store(note)
    options: dict[str, Any] = {"lease_duration": 20, "data": b"x", "attributes": {"a": 1}, "lock_delay": 3}
    async with world.client(store, **KEEPS) as dead, world.client(waits) as live:
        (lost,) = await moved(world, dead, "k")
        with store.outage():
            waiting = world.spawn(live.acquire("k", timeout=60, **options))
            await world.live(16)
            await (await waiting.result()).release()
        await world.settle()
        with pytest.raises(LockLostError):
            await lost.release()

    claim, taken, given_back = written
    assert isinstance(claim, Claim)
    assert claim.must_exist
    assert isinstance(taken, Replace)
    assert isinstance(given_back, Release)
    assert given_back.record.state is State.GONE
    for asked in (claim, taken):
        assert not asked.keep_payload
        assert (asked.record.lease_ms, asked.record.delay_ms) == (10_000, None)
        assert (asked.record.data, asked.record.attributes) == (None, ())
