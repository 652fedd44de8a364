"""C1 and C2: the age of a record by the store's own clock, for stores that declare it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dlock_conformance.needs import needs
from dlock_conformance.records import fresh, held, next_version
from dlock_conformance.store_clauses.claiming import LARGE
from dlock_conformance.store_clauses.forms import (
    LONG_MS,
    claims,
    claims_of_held,
    looks,
    releases,
    replaces,
    replaces_by,
)
from dlock_conformance.store_clauses.sessions import KEPT_BY
from dlock_conformance.trial import Trial
from dlock_core.errors import RecordError, StoreError
from dlock_core.record import LockRecord, State, Times, Version
from dlock_core.store import Claim, Expect, Replace, Reply

__all__ = ["AgeClauses"]

WAIT_S = 0.05
RENEWALS = 8
# What two clocks may differ by in so short a time, and what rounding adds.
CLOCKS_MS = 20


@needs("server_clock")
class AgeClauses:
    """Clauses of ``read_age``."""

    def test_c1_read_age_shows_what_read_shows(self, trial: Trial) -> None:
        """Held, free and gone."""
        written = [trial.hold(trial.key(), **LARGE)]
        written.append(trial.free(trial.hold(trial.key())))
        written.append(trial.free(trial.hold(trial.key()), State.GONE))

        for record in written:
            came = trial.store.read_age(record.key)

            trial.require(came is not None, "read_age shows nothing where a record stands")
            trial.exactly(record, came and came[0], "read_age shows another record than read")
            trial.exactly(record, trial.store.read(record.key), "read_age changed the record")

    def test_c1_an_absent_key_has_no_age(self, trial: Trial) -> None:
        """As a read of it gives None."""
        came = trial.store.read_age(trial.key())

        trial.require(came is None, "read_age of an absent key must give None", came=came)

    @needs("plant_foreign")
    def test_c1_a_foreign_record_has_no_age(self, trial: Trial) -> None:
        """It is an error, as S16 says."""
        key = trial.plant()

        came = trial.tried(lambda: trial.store.read_age(key))

        trial.require(isinstance(came, RecordError), "read_age of what is no record must raise RecordError", came=came)

    @needs("plant_newer")
    def test_c1_a_record_of_a_newer_format_is_shown_held(self, trial: Trial) -> None:
        """Without a lease, so that its age means nothing."""
        key = trial.plant(Version(fresh(), 7))

        came = trial.store.read_age(key)

        trial.require(
            came is not None and came[0].held and came[0].lease_ms is None,
            "a record of a newer format must be shown as held, without a lease",
            came=came,
        )

    def test_c2_the_age_begins_anew_with_each_write(self, trial: Trial) -> None:
        """A claim, a renewal, a release, and the next claim; never older than since the write was sent."""
        key = trial.key()
        standing: list[LockRecord] = []

        def renew() -> LockRecord:
            return trial.renew(standing[-1])

        def renew_in_a_batch() -> LockRecord:
            change = next_version(standing[-1])
            trial.store.replace_many([Replace(change, standing[-1].version)])
            return change

        # What the writer says of its own clock counts for nothing.
        writes: list[Callable[[], LockRecord]] = [lambda: trial.hold(key, times=Times(1, 2)), renew, renew]
        if "batch_renew" in trial.harness.capabilities:
            writes.append(renew_in_a_batch)
        writes += [lambda: trial.free(standing[-1]), lambda: trial.hold(key)]
        for write in writes:
            sent = time.monotonic()
            standing.append(write())
            written = time.monotonic()
            time.sleep(WAIT_S)  # a record gets older in real time only
            self._is_of(trial, key, sent, written)

    @needs("atomic_multi")
    def test_c2_each_of_several_refusals_has_an_age_of_its_own(self, trial: Trial) -> None:
        """Who holds the one key may have died, while the other is renewed."""
        old = trial.hold(trial.key())
        time.sleep(2 * WAIT_S)  # as above
        sent = time.monotonic()
        young = trial.hold(trial.key())

        for records in ((old, young), (young, old)):
            replies = trial.store.claim_many([Claim(held(record.key), Expect.ANY) for record in records])
            age_ms = replies[records.index(young)].age_ms
            if age_ms is not None:
                self._is_at_most(trial, age_ms, sent, "the refusal of one of several claims")

    def test_c2_a_refused_claim_carries_no_other_age(self, trial: Trial) -> None:
        """It may carry none, or the age of the record that refused it."""
        sent = time.monotonic()
        standing = trial.hold(trial.key())
        written = time.monotonic()
        time.sleep(WAIT_S)  # as above
        asked = time.monotonic()

        reply = trial.store.claim(Claim(held(standing.key), Expect.ANY))

        trial.refused(reply, "a claim of a key that is held", standing)
        if reply.age_ms is not None:
            self._fits(trial, reply.age_ms, sent, written, asked)

    def test_c2_each_form_of_a_write_makes_it_young(self, trial: Trial) -> None:
        """A record that looks older than its last write is taken from a holder who renews it."""
        standing: dict[str, LockRecord] = {}
        writes: dict[str, Callable[[LockRecord], Reply | StoreError]] = {}
        for what, fields in KEPT_BY.items():
            for way, ask in replaces_by(trial).items():
                for form in replaces(held("k"), Version(fresh(), 1)):
                    name = form + way + what
                    standing[name] = trial.hold(trial.key(), **fields)
                    writes[name] = lambda old, form=form, ask=ask: ask(replaces(old, old.version)[form])  # type: ignore[misc]
        for form in releases(held("k"), Version(fresh(), 1)):
            standing[form] = trial.hold(trial.key())
            writes[form] = lambda old, form=form: trial.store.release(releases(old, old.version)[form])  # type: ignore[misc]
        for form in claims(trial, None, held("k")):
            standing[form] = trial.free(trial.hold(trial.key()))
            writes[form] = lambda old, form=form: _claimed(trial, old, form)  # type: ignore[misc]
        time.sleep(3 * WAIT_S)  # as above

        for form, write in writes.items():
            sent = time.monotonic()
            record = trial.granted(write(standing[form]), form)
            came = trial.store.read_age(record.key)
            self._is_at_most(trial, came and came[1], sent, f"after {form} read_age")

    def test_c2_a_record_and_its_age_are_of_one_step(self, trial: Trial) -> None:
        """A record that was renewed just now, with the age of the one before it, looks like that of a holder who has died."""
        began = time.monotonic()
        record = trial.hold(trial.key())
        sent, done, wrong = {record.rvn: began}, threading.Event(), list[str]()
        store = trial.other

        def look(ask: Callable[[], Any]) -> None:
            while not done.is_set() and not wrong:
                seen, age_ms = ask()
                if seen is not None and age_ms is not None:
                    most = (time.monotonic() - sent[seen.rvn]) * 1000 + CLOCKS_MS
                    if age_ms > most:
                        wrong.append(
                            f"a record that was written {most:.0f} ms ago was shown with an age of {age_ms} ms"
                        )

        def refused() -> tuple[LockRecord | None, int | None]:
            reply = store.calling("claim", Claim(held(record.key), Expect.ANY))()
            return reply.record, reply.age_ms

        asks: list[Callable[[], Any]] = [store.calling("read_age", record.key), refused]
        threads = [threading.Thread(target=look, args=(ask,), daemon=True) for ask in asks]
        for thread in threads:
            thread.start()
        standing = record
        for _ in range(RENEWALS):
            time.sleep(WAIT_S)  # a record gets older in real time only
            new = next_version(standing)
            sent[new.rvn] = time.monotonic()
            standing = trial.granted(trial.store.replace(Replace(new, standing.version)), "a renewal")
        done.set()
        for thread in threads:
            thread.join()

        trial.require(not wrong, "; ".join(wrong[:1]))

    def test_c2_no_refusal_tells_of_another_age(self, trial: Trial) -> None:
        """It counts from the last renewal, and not from the grant."""
        record = trial.hold(trial.key())
        time.sleep(2 * WAIT_S)  # as above
        sent = time.monotonic()
        record = trial.renew(record)

        for form, ask in claims_of_held(trial, record.key).items():
            reply = ask()
            trial.refused(reply, form, record)
            if reply.age_ms is not None:
                self._is_at_most(trial, reply.age_ms, sent, f"the refusal of {form}")

    @needs("claim_wait")
    def test_c2_a_claim_that_waited_tells_the_age_of_what_stands_at_its_end(self, trial: Trial) -> None:
        """A record that was renewed while it waited, with an age that began before that, looks like that of a holder who has died."""
        record, came = trial.hold(trial.key()), list[Any]()
        request = Claim(held(record.key), Expect.ANY, ticket=fresh())
        sent = {record.rvn: time.monotonic()}

        def wait() -> None:
            came.append(trial.tried(lambda: trial.other.claim_when_free(request, wait_s=RENEWALS * WAIT_S)))

        waiter = threading.Thread(target=wait, daemon=True)
        waiter.start()
        while waiter.is_alive():
            began = time.monotonic()
            record = trial.renew(record)
            sent[record.rvn] = began
            waiter.join(WAIT_S)

        trial.refused(came[0], "a claim that waited for a key that is held", None)
        if came[0].age_ms is not None:
            self._is_at_most(trial, came[0].age_ms, sent[came[0].record.rvn], "the refusal of a claim that waited")

    def test_c2_nothing_but_a_write_makes_it_young(self, trial: Trial) -> None:
        """Otherwise who looks, or is refused, again and again would keep a holder alive that has died."""
        old: dict[str, tuple[LockRecord, float, float]] = {}
        calls = looks(trial)
        for what in calls:
            sent = time.monotonic()
            record = trial.hold(trial.key())
            old[what] = record, sent, time.monotonic()
        time.sleep(2 * WAIT_S)  # as above

        for what, (record, sent, written) in old.items():
            calls[what](record)
            self._is_of(trial, record.key, sent, written, when=f"after {what} ")

    @needs("refuse")
    def test_c2_the_clock_of_the_caller_is_none_of_the_store_s(self, trial: Trial) -> None:
        """It may be set, and differs from host to host: neither an age nor a removal goes by it, where there is a server."""
        sent = time.monotonic()
        record, free = trial.hold(trial.key()), trial.free(trial.hold(trial.key()))
        for by_ms in (LONG_MS, -LONG_MS):
            with clock_set(trial, by_ms / 1000):
                self._is_at_most(trial, age_of(trial, record), sent, "for a caller whose clock was set read_age")
                sent, record = time.monotonic(), trial.renew(record)
            self._is_at_most(trial, age_of(trial, record), sent, "of what such a caller wrote read_age")
            if by_ms > 0 and trial.harness.gives("prune"):
                with clock_set(trial, 2 * by_ms / 1000):
                    count = trial.store.prune([free], older_than_ms=LONG_MS)
                trial.require(count == 0, "a prune removed what is young, for a caller whose clock was set", came=count)

    def test_c2_provisioning_leaves_the_age(self, trial: Trial) -> None:
        """It may be repeated at any time (S21)."""
        self._is_left(trial, "provision()", trial.other.provision)

    @needs("restart")
    def test_c2_a_restart_makes_nothing_old(self, trial: Trial) -> None:
        """The clock of the server may begin anew."""
        if not trial.store.guarantees().durable:
            trial.skip("guarantees() says that the store is not durable")

        self._is_left(trial, "a restart", trial.hook("restart"))

    def _is_left(self, trial: Trial, what: str, act: Callable[[], object]) -> None:
        sent = time.monotonic()
        record, free = trial.hold(trial.key()), trial.free(trial.hold(trial.key()))

        act()

        store = trial.open()
        came = store.read_age(record.key)
        self._is_at_most(trial, came and came[1], sent, f"after {what} read_age")
        if trial.harness.gives("prune"):
            count = store.prune([free], older_than_ms=LONG_MS)
            trial.require(count == 0, f"after {what} a prune removed what is young", came=count)

    def _is_at_most(self, trial: Trial, age_ms: object, sent: float, what: str) -> None:
        most = (time.monotonic() - sent) * 1000 + CLOCKS_MS
        good = type(age_ms) is int and age_ms <= most
        trial.require(
            good, f"{what} says that the record is older than its last write, of {most:.0f} ms ago", came=age_ms
        )

    def _is_of(self, trial: Trial, key: str, sent: float, written: float, *, when: str = "") -> None:
        asked = time.monotonic()
        came = trial.store.read_age(key)
        self._fits(trial, came and came[1], sent, written, asked, when=when)

    def _fits(self, trial: Trial, age_ms: object, sent: float, written: float, asked: float, *, when: str = "") -> None:
        answered = time.monotonic()
        most, least = (answered - sent) * 1000 + CLOCKS_MS, (asked - written) * 1000 - CLOCKS_MS
        trial.require(
            type(age_ms) is int and least <= age_ms <= most,
            f"{when}the age must be whole ms since the last write, here {least:.0f} to {most:.0f}",
            came=age_ms,
        )


def age_of(trial: Trial, record: LockRecord) -> object:
    """Return the age of *record*, which stands."""
    came = trial.store.read_age(record.key)
    return came and came[1]


@contextmanager
def clock_set(trial: Trial, by_s: float) -> Iterator[None]:
    """Have :mod:`time` tell the threads that call the store of another time of day; a server of this process keeps its own."""
    usual, usual_ns = time.time, time.time_ns
    callers = {threading.get_ident(), trial.store.loop.thread}

    def shift_s() -> float:
        return by_s if threading.get_ident() in callers else 0

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "time", lambda: usual() + shift_s())
        patched.setattr(time, "time_ns", lambda: usual_ns() + int(shift_s() * 10**9))
        yield


def _claimed(trial: Trial, old: LockRecord, form: str) -> Reply:
    request, ask = claims(trial, old, held(old.key))[form]
    return ask(request)
