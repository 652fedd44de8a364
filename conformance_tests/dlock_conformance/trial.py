"""What each test of the suite is given: stores to ask, keys of its own, and a way to fail that tells an author what to mend."""

from __future__ import annotations

import itertools
import secrets
import textwrap
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Self

import pytest

from dlock_conformance.clauses import clause_of, clauses
from dlock_conformance.faults import Fault
from dlock_conformance.harness import Colour, Opening, StoreHarness
from dlock_conformance.races import Crowd
from dlock_conformance.records import describe, differences, held, next_version, tombstone
from dlock_conformance.subject import Loop, Subject, Transcript
from dlock_core.errors import StoreError
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, ClaimExpect, Expect, Release, Replace, Reply

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SLACK_S", "Trial", "batch_size"]

# Store objects that the contenders of a race share: more than one, so that a mutex inside an object hides nothing.
RACING_STORES = 4
# What a call may take beyond its time-out: in one of so many tries, and in each of them on a busy machine.
LATE_S, TRIES = 0.4, 5
SLACK_S = 2.0
# What a waiter is given to begin its wait, at most: where the harness has a short ``soon_s``, a part of that.
SETTLES_S = 0.1
_BESIDE = """the harness has faults=, and the store does not go that way: no fault can meet it. Open it through the proxy:
StoreHarness(f"mystore://{proxy.address}", faults=proxy), or give through_faults=Opening(f"mystore://{proxy.address}")"""


class Trial:
    """One test over one harness in one colour. Opens what it is asked for, and closes it at the end."""

    def __init__(self, harness: StoreHarness, colour: Colour, test: str) -> None:
        self.harness = harness
        self.colour = colour
        self.clause = clause_of(test) or "the suite"
        self.facts: dict[str, Any] = {}
        self.transcript = Transcript(self.clause)
        self._loop = Loop()
        self._opened: list[Subject] = []
        self._planted: list[str] = []
        self._prefix = f"conformance/{secrets.token_hex(8)}/"
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        if self.harness.reset is not None:
            self.harness.reset()
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            if self.harness.faults is not None:
                self.harness.faults.heal()
            for subject in self._opened:
                subject.close()
            if self.harness.remove is not None:
                for key in self._planted:
                    self.harness.remove(key)
        finally:
            self._loop.close()

    # ---- what a test asks for

    @property
    def store(self) -> Subject:
        """The store; opened on first use."""
        return self._opened[0] if self._opened else self.open()

    @property
    def other(self) -> Subject:
        """A second object of the same store: what one writes the other sees."""
        first = self.store
        return next((subject for subject in self._opened if subject is not first), None) or self.open()

    def open(self, opening: Opening | None = None, colour: Colour | None = None) -> Subject:
        """Open one more object of the store."""
        name = f"store {len(self._opened)}"
        subject = Subject(name, opening or self.harness, colour or self.colour, self._loop, self.transcript)
        self._opened.append(subject)
        return subject

    @property
    def settles_s(self) -> float:
        """How long those who have begun to wait are given to come as far as that: of many stores there is no sign of it."""
        return min(SETTLES_S, self.harness.soon_s / 20)

    def key(self, end: str = "") -> str:
        """Return a key that nobody has used; *end* is how it ends."""
        return f"{self._prefix}{next(self._numbers)}{end and '/'}{end}"

    def plant(self, *more: Any) -> str:
        """Put a foreign record, or with a version one of a newer format, under a new key; return the key."""
        put = self.hook("plant_newer" if more else "plant_foreign")
        key = self.key()
        self.store.read(key)  # what the store makes on first use is there then
        put(key, *more)
        self._planted.append(key)
        return key

    def crowd(self) -> Crowd:
        """Return contenders over several objects of the store."""
        while len(self._opened) < RACING_STORES:
            self.open()
        return Crowd(self._opened[:RACING_STORES])

    @contextmanager
    def fault(self, fault: Fault) -> Iterator[None]:
        """Disturb the way to the server, and heal it at the end."""
        faults = self.harness.faults
        assert faults is not None
        faults.begin(fault)
        try:
            yield
        finally:
            faults.heal()

    def disturbed(self, fault: Fault) -> Subject:
        """Return a store on a way that can have *fault*, which the test says that it needs; each verb was used on it.

        The first use may take another way, as where a server has to be taught a script: the fault is to meet the common one. It is never
        the ``store`` of the test, which looks at what came of the fault: a connection that was cut may fail once more.
        """
        assert self.harness.gives(fault)
        self.tried(lambda: self.store.read(self.key()))  # a fault before this one may have cut its connection
        subject = self.open(self.harness.through_faults)
        record = self.renew(self.hold(self.key(), store=subject), store=subject)
        subject.read(self.free(record, store=subject).key)
        if self.harness.gives("atomic_multi"):
            subject.claim_many([Claim(held(self.key()), Expect.ANY)])
        if not getattr(self.harness.faults, "used", True):
            raise AssertionError(_BESIDE)
        return subject

    # ---- steps that must succeed before the fact of the test can be looked at

    def hold(
        self, key: str, *, store: Subject | None = None, expect: ClaimExpect = Expect.ANY, **fields: Any
    ) -> LockRecord:
        """Claim a key that is free, and return the record that stands."""
        return self.granted(
            (store or self.store).claim(Claim(held(key, **fields), expect)), "a claim of a key that nobody holds"
        )

    def renew(
        self, record: LockRecord, *, store: Subject | None = None, keep: bool = False, **changes: Any
    ) -> LockRecord:
        """Replace *record*, which stands, by its next version."""
        request = Replace(next_version(record, **changes), record.version, keep)
        return self.granted((store or self.store).replace(request), "a replace that expects the version that stands")

    def free(
        self,
        record: LockRecord,
        state: State = State.FREE,
        *,
        store: Subject | None = None,
        keep: bool = False,
        **changes: Any,
    ) -> LockRecord:
        """Release *record*, which stands."""
        request = Release(tombstone(record, state, **changes), record.version, keep)
        return self.granted((store or self.store).release(request), "a release that expects the version that stands")

    def tried(self, ask: Callable[[], Any]) -> Any:
        """Return what *ask* returns, or the :class:`~dlock_core.errors.StoreError` that it raises."""
        try:
            return ask()
        except StoreError as error:
            return error

    def ended(self, ask: Callable[[], Any], within_s: float) -> Any:
        """As :meth:`tried`, for a call that may hang: fail if it has not ended after *within_s*."""
        return self.all_ended({"call": ask}, within_s)["call"][0]

    def all_ended(self, asked: Mapping[str, Callable[[], Any]], within_s: float) -> dict[str, tuple[Any, float]]:
        """As :meth:`ended`, for calls at once; return by their names what came of each, and after how many seconds."""
        came: dict[str, tuple[Any, float]] = {}

        def call(name: str, ask: Callable[[], Any]) -> None:
            began = time.monotonic()
            try:
                answer = self.tried(ask)
            except BaseException as error:  # noqa: BLE001  # raised again below, in the thread of the test
                answer = error
            came[name] = answer, time.monotonic() - began

        threads = {name: threading.Thread(target=call, args=(name, ask), daemon=True) for name, ask in asked.items()}
        until = time.monotonic() + within_s
        for thread in threads.values():
            thread.start()
        for thread in threads.values():
            thread.join(max(0.0, until - time.monotonic()))
        if hung := [name for name, thread in threads.items() if thread.is_alive()]:
            if self.harness.faults is not None:
                self.harness.faults.heal()
            threads[hung[0]].join(within_s)
            blocks = "; does the store block its event loop?" if self.colour is Colour.ASYNC else ""
            self.fail(f"a {hung[0]} had not ended after {within_s:.1f} s{blocks}")
        for answer, _ in came.values():
            if isinstance(answer, BaseException) and not isinstance(answer, StoreError):
                raise answer
        return came

    def in_time(self, what: str, limit_s: float, took: Callable[[], float]) -> None:
        """Fail if each of a few tries took longer than *limit_s*, or any much longer.

        A busy machine is late now and then; a store that adds something to a time-out is late each time.
        """
        times: list[float] = []
        while len(times) < TRIES:
            times.append(took())
            if times[-1] > limit_s + SLACK_S:
                break
            if times[-1] <= limit_s + LATE_S:
                return
        self.fail(f"{what} took {min(times):.2f} s and more; at most {limit_s:g} s are allowed")

    # ---- verdicts

    def granted(self, reply: Reply | StoreError, what: str) -> LockRecord:
        """Return the record of a grant; fail if it was refused."""
        if isinstance(reply, StoreError) or not reply.applied or reply.record is None:
            self.fail(f"{what} must be applied and carry the record as written", came=reply)
        return reply.record

    def as_given(self, request: Replace | Release, came: LockRecord) -> LockRecord:
        """Return the record of *request* with the token that *came*, where a floor of the store's own may have raised that (S5)."""
        record, least = request.record, request.record.fencing_token
        is_minted = record.held and least != request.expected.fencing_token
        has_floor = self.harness.token_floor and is_minted
        return replace(record, fencing_token=max(came.fencing_token, least)) if has_floor else record

    def refused(self, reply: Reply | StoreError, what: str, standing: LockRecord | None) -> None:
        """Fail unless *reply* is a refusal, and *standing* is what still stands under the key."""
        if isinstance(reply, StoreError) or reply.applied:
            ended = "raised" if isinstance(reply, StoreError) else "was applied"
            self.fail(f"{what} {ended}; it must be refused and change nothing", expected=standing, came=reply)
        if standing is not None:
            self.exactly(standing, self.store.read(standing.key), f"{what} was refused, and yet changed the record")

    def exactly(self, written: LockRecord, came: LockRecord | None, wrong: str) -> None:
        """Fail with *wrong* unless the two records are the same in every field and type, as far as the store can carry them."""
        right = self._carried(written)
        assert right is not None, f"the harness says of {describe(written)} that the store cannot keep it"
        if found := differences(right, came):
            self.fail(f"{wrong} ({found})", expected=right, came=came)

    def carries(self, record: LockRecord) -> bool:
        """Whether the store can keep *record*; of each test at least one record must be left."""
        return self._carried(record) is not None

    def _carried(self, record: LockRecord) -> LockRecord | None:
        return record if self.harness.carried is None else self.harness.carried(record)

    def require(self, fact: object, wrong: str, *, came: object = None) -> None:
        """Fail with *wrong* unless *fact* is true."""
        if not fact:
            self.fail(wrong, came=came)

    def fail(self, wrong: str, *, expected: object = None, came: object = None) -> NoReturn:
        """Fail: say which clause, what it says, what was done, and what came back."""
        __tracebackhide__ = True
        lines = [f"{self.clause} does not hold for the {self.colour} store: {wrong}"]
        if text := clauses().get(self.clause):
            lines += textwrap.wrap(text, 110, initial_indent=f"  {self.clause}  ", subsequent_indent="      ")
        if expected is not None:
            lines.append(f"  expected:   {describe(expected)}")
        if came is not None:
            lines.append(f"  came back:  {describe(came)}")
        if transcript := str(self.transcript):
            lines.append(f"  what was asked, and what came back:\n{transcript}")
        raise AssertionError("\n".join(lines))

    def skip(self, reason: str) -> NoReturn:
        """Say that the clause does not apply, and why, in one line."""
        __tracebackhide__ = True
        pytest.skip(f"{self.clause} does not apply: {reason}")

    def hook(self, name: str) -> Any:
        """Return what the harness gives under *name*, which the test says that it needs."""
        given = getattr(self.harness, name)
        assert given is not None
        return given


def batch_size(trial: Trial, most: int) -> int:
    """Return how many requests a batch may have, at most *most*."""
    return max(1, min(most, getattr(trial.store.raw, "batch_limit", 1)))
