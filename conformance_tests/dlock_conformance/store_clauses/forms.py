"""The forms that the requests of a verb have. Many stores have a statement for each, so each is tried with each state of the key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dlock_conformance.records import fresh, held, next_version, tombstone
from dlock_conformance.store_clauses.claim_waiting import served
from dlock_conformance.store_clauses.claiming import OLD, OTHER_FIELDS
from dlock_conformance.store_clauses.sessions import SESSIONS
from dlock_conformance.trial import Trial, batch_size
from dlock_core.errors import StoreError
from dlock_core.record import LockRecord, State, Version
from dlock_core.store import Claim, Expect, Release, Replace, Reply

__all__ = [
    "FIELDS",
    "LONG_MS",
    "STOOD",
    "changes",
    "claims",
    "claims_of_held",
    "granted_in_each_form",
    "looks",
    "making_room",
    "releases",
    "replaces",
    "replaces_by",
]

FIELDS: dict[str, dict[str, Any]] = {
    **SESSIONS,
    "with a stamp, a process and a mark": {name: OTHER_FIELDS[name] for name in ("stamp", "process", "broken")},
}
"""What few records have: a statement for the common ones may leave it out, or leave it in."""

# Older than any record of a test.
LONG_MS = 3_600_000
# Above what a claim may ask for that is not given it.
STOOD = 7

Asking = Callable[[Claim], Reply]


def replaces(record: LockRecord, expected: Version) -> dict[str, Replace]:
    """Return a replace of *record* in each form."""
    above = record.fencing_token + 1
    return {
        "a renewal": Replace(next_version(record), expected),
        "a renewal that keeps the payload": Replace(next_version(record), expected, keep_payload=True),
        "a renewal that writes data": Replace(next_version(record, data=b"new"), expected),
        "a takeover": Replace(next_version(record, fencing_token=above), expected, keep_payload=True),
        "a renewal that wakes": Replace(next_version(record), expected, wakes=True),
        "a renewal that wakes and keeps the payload": Replace(
            next_version(record), expected, keep_payload=True, wakes=True
        ),
        "a break": Replace(tombstone(record, fencing_token=above), expected),
        "a break that keeps the payload": Replace(tombstone(record, fencing_token=above), expected, keep_payload=True),
        "a break that hides the record": Replace(
            tombstone(record, State.GONE, fencing_token=above), expected, keep_payload=True
        ),
    }


def making_room(record: LockRecord, *, keep: bool = False, raised: int = 0) -> Replace:
    """Return what a member of the shared lock *record* writes that leaves; or that joins where there is still room: its token is *raised*.

    Either wakes one who waits.
    """
    changed = next_version(record, fencing_token=record.fencing_token + raised)
    return Replace(changed, record.version, keep, wakes=True)


def releases(record: LockRecord, expected: Version) -> dict[str, Release]:
    """Return a release of *record* in each form."""
    return {
        "a release": Release(tombstone(record), expected),
        "a release that keeps the payload": Release(tombstone(record), expected, keep_payload=True),
        "a release that writes data": Release(tombstone(record, data=b"left"), expected),
        "a release that hides the record": Release(tombstone(record, State.GONE), expected),
        "a release that hides the record and keeps the payload": Release(
            tombstone(record, State.GONE), expected, keep_payload=True
        ),
    }


def changes(record: LockRecord, expected: Version) -> dict[str, Replace | Release]:
    """Return a replace and a release of *record* in each form."""
    return {**replaces(record, expected), **releases(record, expected)}


def replaces_by(trial: Trial) -> dict[str, Callable[[Replace], Reply | StoreError]]:
    """Return how a replace can be sent: by itself, in a batch of its own, and behind another renewal."""
    ways: dict[str, Callable[[Replace], Reply | StoreError]] = {"": trial.store.replace}
    if trial.harness.gives("batch_renew"):
        ways[" in a batch"] = lambda request: trial.store.replace_many([request])[0]
        if batch_size(trial, 2) == 2:
            ways[" behind another in a batch"] = lambda request: _behind_another(trial, request)
    return ways


def _behind_another(trial: Trial, request: Replace) -> Reply | StoreError:
    other = trial.hold(trial.key())
    return trial.store.replace_many([Replace(next_version(other), other.version), request])[1]


def claims(trial: Trial, old: LockRecord | None, record: LockRecord) -> dict[str, tuple[Claim, Asking]]:
    """Return a claim that writes *record* in each form, where *old* stands, which nobody holds; and how it is sent."""
    seen: Version | Expect = Expect.ABSENT if old is None else old.version
    kept = Claim(record, Expect.ANY, keep_payload=True)
    ticketed = kept._replace(ticket=fresh())
    forms: dict[str, tuple[Claim, Asking]] = {
        "a claim": (Claim(record, Expect.ANY), trial.store.claim),
        "a claim of what was seen": (Claim(record, seen), trial.store.claim),
        "a claim of what was seen that keeps the payload": (Claim(record, seen, keep_payload=True), trial.store.claim),
        "a claim with a ticket that keeps the payload": (ticketed, trial.store.claim),
    }
    if old is not None and old.state is State.FREE:
        forms["a claim of what must exist that keeps the payload"] = kept._replace(must_exist=True), trial.store.claim
    if trial.harness.gives("claim_wait"):
        forms["a claim that waits"] = ticketed, lambda request: served(trial.store, request, trial.harness.soon_s)
    if trial.harness.gives("atomic_multi"):
        forms["one of several claims"] = kept, lambda request: trial.store.claim_many([request])[0]
    return forms


def claims_of_held(trial: Trial, key: str, claim: Claim | None = None) -> dict[str, Callable[[], Reply]]:
    """Return a call of a claim of *key*, which is held, or of this *claim*, in each way that it can be sent: it is refused soon."""
    plain = claim or Claim(held(key), Expect.ANY)
    asked: dict[str, Callable[[], Reply]] = {"a claim": lambda: trial.store.claim(plain)}
    if trial.harness.gives("atomic_multi"):
        asked["one of several claims"] = lambda: trial.store.claim_many([plain])[0]
    if trial.harness.gives("claim_wait"):
        ticketed = plain._replace(ticket=plain.ticket or fresh())
        asked["a claim that waits"] = lambda: trial.store.claim_when_free(ticketed, wait_s=0.001)
    return asked


def looks(trial: Trial) -> dict[str, Callable[[LockRecord], object]]:
    """Return calls that do not write to a record that is held, by what they are."""
    store = trial.store

    def refused(kind: type[Replace | Release], record: LockRecord) -> object:
        write = next_version if kind is Replace else tombstone
        return store.send(kind(write(record), Version(fresh(), record.fencing_token)))

    calls: dict[str, Callable[[LockRecord], object]] = {
        "a read": lambda record: store.read(record.key),
        "a scan": lambda record: list(store.scan(record.key)),
        "a refused replace": lambda record: refused(Replace, record),
        "a refused release": lambda record: refused(Release, record),
    }
    if trial.harness.gives("server_clock"):
        calls["read_age"] = lambda record: store.read_age(record.key)
    for form in claims_of_held(trial, "k"):
        calls[f"the refusal of {form}"] = lambda record, form=form: claims_of_held(trial, record.key)[form]()  # type: ignore[misc]
    if trial.harness.gives("batch_renew"):
        stale = Version(fresh(), 1)
        calls["a refusal in a batch"] = lambda record: store.replace_many([Replace(next_version(record), stale)])
    if trial.harness.gives("prune"):
        calls["a prune"] = lambda record: store.prune([record], older_than_ms=LONG_MS)
    return calls


def granted_in_each_form(
    trial: Trial, state: State | None, before: dict[str, Any], payload: dict[str, Any] = OLD, **asked: Any
) -> Iterator[tuple[str, LockRecord | None, Claim, LockRecord]]:
    """Yield the form, what stood, the request and the grant of a claim in each form, each of a key of its own.

    The key is in *state*, or absent; a record that stands there has the *payload* and the fields *before*.
    """

    def prepared() -> tuple[str, LockRecord | None]:
        if state is None:
            return trial.key(), None
        free = trial.free(trial.hold(trial.key(), token=STOOD, **payload), state, keep=True, **before)
        return free.key, free

    key, old = prepared()
    for form in claims(trial, old, held(key)):
        request, ask = claims(trial, old, held(key, **asked))[form]
        yield form, old, request, trial.granted(ask(request), form)
        key, old = prepared()
