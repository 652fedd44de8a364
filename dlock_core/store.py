"""The port: what a store does, and exactly what it promises.

A store adapter implements :class:`LockStore` or :class:`AsyncLockStore` (or both) from this page alone. A store compares and writes. It
takes no protocol decision: the core knows whose lease has ended, when to try again and who owns a key.

Each clause has a number, and the conformance suite has tests for each number. The store kit, :mod:`dlock_core.kit`, does most of them:
``outcome`` decides S2 to S8, the codec does S11 and S16, and the faces of an exchange do S13, S17 and S22.

**The steps**

S1   Atomic. ``claim``, ``replace`` and ``release`` are one atomic step in the store each. Of any number of racing requests that expect the
     same version, at most one is applied.
S2   Claim condition. A claim is applied if the key is absent, or its record is not held (``free`` or ``gone``); and *expect* agrees:
     ``Expect.ANY`` always, ``Expect.ABSENT`` only if the key is absent altogether (a tombstone is not absence), a :class:`Version` only if
     the record that is not held has exactly this RVN and token. A store that gives waiters their turn may, for a bounded time after a
     release, refuse claims with another *ticket* than that of the waiter whose turn it is; it shows the record as held. With
     *must_exist* an absent key and a ``gone`` record refuse.
S3   Claim token. The token is minted in the same step: ``max(previous token + 1, floor, record.fencing_token)``; *previous* is the
     token of the record that stood there, *floor* the store's own (often none). Where the store cannot hold a greater token, the claim
     raises :class:`~dlock_core.errors.StoreUnavailableError`, and the key is never granted again.
S4   Payload. With *keep_payload* the data and the attributes of the record that stood there stay, unless there was none or it was
     ``gone``; otherwise, and without *keep_payload*, those of *request.record* are written. All other fields come from *request.record*.
S5   Replace condition. A replace is applied if the record is ``held`` and has exactly the expected RVN and token. It writes
     *request.record* with the token it carries (S4 for the payload); where the record stays held, and that token is not the expected
     one, as in a takeover, a store with a *floor* (S3) may raise it to that. It never creates a record, and never writes
     over one of a higher format version. A replace that frees the key (a break), or that *wakes* (one who leaves a shared lock has made
     room), wakes one waiter, as a release does.
S6   Release condition. A release is applied if the record is ``held`` and has exactly the expected RVN and token. It writes
     *request.record*, a tombstone (``free`` or ``gone``) with a fresh RVN and the same token (S4 for the payload). It never deletes the
     token, and it wakes one waiter where the store can notify.
S7   A grant carries the record as written: ``Reply(True, record)``, with the minted token and the payload that stands.
S8   A refusal is a value, not an exception: ``Reply(False, record)``, with the record that refused, read in the same step, or None where
     the key is absent.

**Reading**

S9   ``read`` is linearizable: it shows every write whose answer was given before it began. ``free`` and ``gone`` records are shown as
     they are.
S10  ``scan`` gives each record whose key starts with the prefix (compared by code points, nothing is a wildcard), page by page. It may be
     stale, and is never the basis of a write. It is an iterator that may be read slowly, and by one thread after the other.
S11  Exact. What is read is what was written: every field, binary data of 0 to 64 KiB (None is not empty), every kind of attribute value,
     session, beat and members. A field that a write leaves out is removed, whatever stood there, alone and in a batch.
S12  Keys are opaque. Two keys that differ in any byte are two keys: no folding, normalising, trimming or cutting, up to 1024 bytes.
     The core asks about no key, and sends no owner, that has no form in UTF-8.

**Trouble**

S13  Each verb ends within *timeout_s* (seconds, more than 0), by an answer or by an exception. A connection that takes longer to make is
     kept for the next verb, so that it is had in the end.
S14  :class:`~dlock_core.errors.StoreUnavailableError` means: certainly not applied, now or later.
S15  :class:`~dlock_core.errors.OutcomeUnknownError` means anything less certain, also a write that was applied with an answer that cannot
     be read. A store never reports an unknown outcome as a grant or a refusal, and never sends a write twice by itself. Each write that it
     is asked for has an RVN of its own, so a record with that RVN shows that the write was applied.
S16  A record that cannot be read (foreign, damaged) raises :class:`~dlock_core.errors.RecordError` from every verb that meets it. It is
     never free and never overwritten; a scan may end at it or pass it over. A higher format version is not damage: it is shown as held,
     without a lease (:func:`~dlock_core.record.newer_format`), and refuses every claim, replace and release.
S17  Nothing of the driver leaks: every error is one of :mod:`dlock_core.errors`, with the driver's as its ``__cause__``.

**Life**

S18  The token of a key never goes back: not by release, takeover, deletion or collection, and not by a restart where ``guarantees()`` says
     durable.
S19  ``capabilities`` are exactly the optional Protocols that the store implements.
S20  ``guarantees()`` says what the topology promises, from what the store can see of it.
S21  No verb provisions. Where a table, index or right is missing, it raises :class:`~dlock_core.errors.StoreSetupError`, which names the
     command that mends it; so does ``guarantees()`` where the table is missing. ``provision()`` may be repeated.
S22  ``close()`` may be repeated, and ends within 10 s, also while calls have no answer. It closes what the store opened itself, never a
     client it was given. After it every verb raises :class:`~dlock_core.errors.StoreUnavailableError`. Before it, too, a store keeps no
     connection and no thread for a caller that has ended. In a forked child a store begins anew, or raises a
     :class:`~dlock_core.errors.StoreError` from every call; its parent feels nothing of what the child does.
S23  Each verb costs one request to the server; more only where a step is refused, in a batch or by a server whose refusals show no record.

**Batch renewal** (:class:`BatchRenew`)

B1   ``replace_many`` does each request as ``replace`` does, each atomic by itself; the results come in the order of the requests. The
     grant of one that keeps the payload may show that of the request in its place.
B2   A refusal or an error of one is its own result and touches no other. An exception stands for all of them.
B3   At most ``batch_limit`` requests come in one call, no key twice.

**Notification** (:class:`Notify`)

N1   ``wait`` returns soon after the key was freed, or a replace that *wakes* was applied, also when that came before the call: where a held
     record is not in the version of *record* any more, it may return at once. Where another client has taken the key since, it may go on
     until the next release.
N2   It may return early, and returns at *timeout_s* at the latest. No caller depends on it for correctness. A store should also wake the
     first waiter at each renewal: a waiter that saw the last renewal early takes over early when the holder dies.
N3   A release wakes one waiter, and so does a replace that *wakes*. A waiter that ends without having returned passes its wake-up on.
N4   A store that keeps a queue may say in the answer to a ``replace``, alone or in a batch, that somebody waits there: ``wanted``. It is
     never said once all have left, and costs no request, no write and no version. It is a hint; False says nothing.

**Claims that wait** (:class:`ClaimWait`, of a store that is also a :class:`Notify`)

W1   ``claim_when_free`` is a slow ``claim``: it is applied as a claim is, when the key is free or becomes free within *wait_s*; else it is
     refused with the record that stands. It may be refused early, and is at *wait_s* at the latest. It is one request.
W2   Of those who wait, by this or by ``wait``, the first is served first. A release serves one.
W3   A call that ended without an answer may be applied, as any claim. One whose caller is gone, as the store knows, is not, and takes no
     turn of the others with it. Where the store is sure of that by the time that an interrupt leaves the call, it says so by
     :func:`mark_withdrawn`: then nobody needs to follow the claim up.

**Several keys at once** (:class:`AtomicMulti`)

M1   ``claim_many`` applies all of *requests* in one atomic step, each as ``claim`` does (S2 to S4), or none of them. The replies come in
     the order of the requests. It is one request.
M2   If one is refused, all are: nothing is written, and each reply shows what stands under its key. An exception stands for all of them.
     Where the store cannot reach the keys in one step, it raises :class:`~dlock_core.errors.StoreUnavailableError`.
M3   Of two calls at once that have a key in common at most one is applied, and neither waits for the other beyond its time-out.
M4   At most ``CLAIM_MANY_MAX`` requests come in one call, no key twice, all with ``Expect.ANY``.

**Age** (:class:`ServerClock`)

C1   ``read_age`` reads as ``read`` does, and gives the same record with its age; None where the key is absent.
C2   The age is the whole ms since the last write of the record, both instants by one clock of the store; 0 where it is not known. It is
     never more than the time since the write was sent, but for a step of that clock. A claim that was refused may carry the age of the
     record that refused it, measured in the same way.

**Removal** (:class:`Prune`)

P1   ``prune`` removes each of *records* that, in the step that removes it, is not held, has the version that is given, and was last written
     *older_than_ms* ago or earlier by a clock of the store (C2). All others stay. It returns how many went; with *dry_run* it only counts.
P2   The first token that is given after a removal is greater than each that the key had (S3, S18): a floor that the claim reads in its own
     step is above it. Where that rests on the server's clock, only what has a token below that of *older_than_ms* ago is removed.
P3   At most ``PRUNE_MAX`` records come in one call, no key twice. An exception says that some may have gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from dlock_core.errors import StoreUnavailableError
from dlock_core.record import TOKEN_MAX, LockRecord, Version

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from dlock_core.errors import StoreError

__all__ = [
    "AsyncAtomicMulti",
    "AsyncBatchRenew",
    "AsyncClaimWait",
    "AsyncLockStore",
    "AsyncNotify",
    "AsyncPrune",
    "AsyncServerClock",
    "AtomicMulti",
    "BatchRenew",
    "Capability",
    "Claim",
    "ClaimWait",
    "Connections",
    "Expect",
    "Grade",
    "Guarantees",
    "LockStore",
    "Notify",
    "Prune",
    "Release",
    "Replace",
    "Reply",
    "ServerClock",
    "TokenOrder",
    "Version",
    "is_withdrawn",
    "mark_withdrawn",
    "tokens_exhausted",
]


class Capability(StrEnum):
    """What a store can do beyond the five verbs; each has a Protocol."""

    BATCH_RENEW = "batch_renew"
    NOTIFY = "notify"
    SERVER_CLOCK = "server_clock"
    ATOMIC_MULTI = "atomic_multi"
    CLAIM_WAIT = "claim_wait"
    PRUNE = "prune"


PRUNE_MAX = 500
"""The most records in one call of ``prune``."""


CLAIM_MANY_MAX = 64
"""The most keys in one call of ``claim_many``."""


class Grade(StrEnum):
    """``A``: the promises hold in the documented failure model; ``B``: unless a disk is lost; ``C``: a failover can grant twice."""

    A = "A"
    B = "B"
    C = "C"


class TokenOrder(StrEnum):
    """``ordered``: every grant has a greater token; ``timed``: so far as clock rates are bounded.

    ``none``: there is no token; every record says :data:`~dlock_core.record.NO_TOKEN` and a version is the RVN alone.
    """

    ORDERED = "ordered"
    TIMED = "timed"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Guarantees:
    """What a store promises, for people (*failover*, *clock*, *notes*) and for programs (the rest).

    *deletes* is true where others than :class:`Prune` remove records, as programs that share them do: a claim that expects absence may then
    still be applied after a tombstone was seen. *durable*: what was answered survives an end of the server (S18).
    *refusal_linearizable* is false where a refusal may show an older record: the core then confirms a loss by a read.
    *unsafe* holds (name, reason) of each trait that must be accepted by name in ``allow_unsafe`` before a client is built.
    A store's attribute ``unsafe_traits`` names those that it may have on another day.
    *refuses* holds (lock option, reason) of each option that the store has no place for: whoever sets it is refused before anything is
    sent. ``lease_duration`` there means any lock that is not ``fail_closed``, ``attributes.NAME`` an attribute of that name, and
    ``owner_probe`` the one that needs the process in the record.
    """

    store: str
    version: str
    grade: Grade
    token: TokenOrder
    deletes: bool
    refusal_linearizable: bool
    durable: bool
    failover: str
    clock: str
    notes: tuple[str, ...] = ()
    unsafe: tuple[tuple[str, str], ...] = ()
    refuses: tuple[tuple[str, str], ...] = ()


class Expect(Enum):
    """What a claim expects of the key when it names no version."""

    ANY = "any"
    ABSENT = "absent"


ClaimExpect: TypeAlias = Version | Expect


class Claim(NamedTuple):
    """Conditional create. *record.fencing_token* is the least token it may give; *ticket* names the attempt that waits (a hint).

    *wait_ns*: how long it may wait in the server for the key to become free, where the store can (:class:`ClaimWait`).
    """

    record: LockRecord
    expect: ClaimExpect
    must_exist: bool = False
    keep_payload: bool = False
    ticket: str | None = None
    wait_ns: int = 0


class Replace(NamedTuple):
    """Conditional update: renewal, takeover, change of data, break, members that come and go. *wakes*: one who waits may have room now."""

    record: LockRecord
    expected: Version
    keep_payload: bool = False
    wakes: bool = False


class Release(NamedTuple):
    """Conditional delete: *record* is the tombstone that stays."""

    record: LockRecord
    expected: Version
    keep_payload: bool = False


class Reply(NamedTuple):
    """Whether a step was applied, and the record that stands after it: what was written, or what refused.

    *age_ms* is the age of a record that refused a claim (C2), where the store can tell it without another request; None elsewhere.
    *wanted*, of a renewal that was applied: somebody waits for the key (N4); False where the store does not know.
    """

    applied: bool
    record: LockRecord | None
    age_ms: int | None = None
    wanted: bool = False


class Connections(NamedTuple):
    """How many connections carry a request, how many others are open, and how many there may be: ``connections``, if a store has it."""

    busy: int
    idle: int
    limit: int


class LockStore(Protocol):
    """A store, called from threads. The clauses above are its contract. All methods may be called from any thread at the same time."""

    capabilities: frozenset[Capability]

    def claim(self, request: Claim, *, timeout_s: float) -> Reply:
        """Create the record if nobody holds the key (S1-S4, S7, S8)."""

    def replace(self, request: Replace, *, timeout_s: float) -> Reply:
        """Replace the held record if its version is still the expected one (S1, S4, S5, S7, S8)."""

    def release(self, request: Release, *, timeout_s: float) -> Reply:
        """Put the tombstone if the record is held in the expected version, and wake one waiter (S1, S4, S6-S8)."""

    def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """Return the record under *key*, or None where the key is absent; linearizable (S9)."""

    def scan(self, prefix: str, *, timeout_s: float) -> Iterator[LockRecord]:
        """Yield the records whose key starts with *prefix*; *timeout_s* bounds each page (S10)."""

    def guarantees(self) -> Guarantees:
        """Say what this store's topology promises (S20)."""

    def provision(self) -> None:
        """Create what the store needs: table, index. May be repeated (S21)."""

    def close(self) -> None:
        """Give back what the store opened (S22)."""


class AsyncLockStore(Protocol):
    """A store in one event loop, which no call blocks. Clauses as of :class:`LockStore`; a cancelled verb may or may not be applied."""

    capabilities: frozenset[Capability]

    async def claim(self, request: Claim, *, timeout_s: float) -> Reply:
        """As :meth:`LockStore.claim`."""

    async def replace(self, request: Replace, *, timeout_s: float) -> Reply:
        """As :meth:`LockStore.replace`."""

    async def release(self, request: Release, *, timeout_s: float) -> Reply:
        """As :meth:`LockStore.release`."""

    async def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """As :meth:`LockStore.read`."""

    def scan(self, prefix: str, *, timeout_s: float) -> AsyncIterator[LockRecord]:
        """As :meth:`LockStore.scan`."""

    async def guarantees(self) -> Guarantees:
        """As :meth:`LockStore.guarantees`."""

    async def provision(self) -> None:
        """As :meth:`LockStore.provision`."""

    async def close(self) -> None:
        """As :meth:`LockStore.close`."""


@runtime_checkable
class BatchRenew(Protocol):
    """Many replaces in one request, each with its own result (B1-B3)."""

    batch_limit: int

    def replace_many(self, requests: Sequence[Replace], *, timeout_s: float) -> Sequence[Reply | StoreError]:
        """Do each request as ``replace`` does; results in the same order."""


@runtime_checkable
class AsyncBatchRenew(Protocol):
    """The async twin of :class:`BatchRenew`."""

    batch_limit: int

    async def replace_many(self, requests: Sequence[Replace], *, timeout_s: float) -> Sequence[Reply | StoreError]:
        """As :meth:`BatchRenew.replace_many`."""


@runtime_checkable
class Notify(Protocol):
    """Waiting for a release without polling (N1-N3)."""

    def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """Return when a claim of *record.key* is worth trying: the key was released or renewed after *record*, or *timeout_s* passed.

        *ticket* is the one of the attempt's claims: a store may keep the waiter's place under it. Where each wait writes a place, a store
        may also have a method ``wait_keeping_place``, with the same arguments: an attempt that will wait again calls it.
        """


@runtime_checkable
class AsyncNotify(Protocol):
    """The async twin of :class:`Notify`."""

    async def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """As :meth:`Notify.wait`; when cancelled with a wake-up unused, it passes it on."""


@runtime_checkable
class ClaimWait(Protocol):
    """A claim that waits in the server until the key is free (W1-W3)."""

    def claim_when_free(self, request: Claim, *, wait_s: float, timeout_s: float) -> Reply:
        """Claim the key when it is free, within *wait_s*; *timeout_s* bounds the request itself, beside the wait.

        The request names a ticket, as those who wait by :meth:`Notify.wait` do.
        """


def wait_of(store: Any, *, returns: bool) -> Any:
    """Return the method of *store* by which an attempt waits, which *returns* to wait again or not."""
    return getattr(store, "wait_keeping_place", store.wait) if returns else store.wait


def mark_withdrawn(interrupt: BaseException, request: Claim) -> None:
    """Note on *interrupt*, which ends a call of ``claim_when_free``, that *request* was not applied and never will be (W3)."""
    interrupt.dlock_withdrawn = request.record.rvn  # type: ignore[attr-defined]


def is_withdrawn(interrupt: BaseException, rvn: str) -> bool:
    """Whether the store has said so of the claim that would write *rvn*."""
    return getattr(interrupt, "dlock_withdrawn", None) == rvn


@runtime_checkable
class AsyncClaimWait(Protocol):
    """The async twin of :class:`ClaimWait`."""

    async def claim_when_free(self, request: Claim, *, wait_s: float, timeout_s: float) -> Reply:
        """As :meth:`ClaimWait.claim_when_free`."""


@runtime_checkable
class ServerClock(Protocol):
    """The age of a record, measured by the server's clock."""

    def read_age(self, key: str, *, timeout_s: float) -> tuple[LockRecord, int] | None:
        """Return the record and the ms since its last write, or None where the key is absent."""


@runtime_checkable
class AsyncServerClock(Protocol):
    """The async twin of :class:`ServerClock`."""

    async def read_age(self, key: str, *, timeout_s: float) -> tuple[LockRecord, int] | None:
        """As :meth:`ServerClock.read_age`."""


@runtime_checkable
class AtomicMulti(Protocol):
    """Several keys in one atomic step (M1-M4)."""

    def claim_many(self, requests: Sequence[Claim], *, timeout_s: float) -> Sequence[Reply]:
        """Apply all claims or none; a reply for each, in order."""


@runtime_checkable
class AsyncAtomicMulti(Protocol):
    """The async twin of :class:`AtomicMulti`."""

    async def claim_many(self, requests: Sequence[Claim], *, timeout_s: float) -> Sequence[Reply]:
        """As :meth:`AtomicMulti.claim_many`."""


@runtime_checkable
class Prune(Protocol):
    """Removal of records that are free and old (P1-P3)."""

    def prune(self, records: Sequence[LockRecord], *, older_than_ms: int, dry_run: bool, timeout_s: float) -> int:
        """Remove those of *records* that are free, unchanged and old enough; return how many they are."""


@runtime_checkable
class AsyncPrune(Protocol):
    """The async twin of :class:`Prune`."""

    async def prune(self, records: Sequence[LockRecord], *, older_than_ms: int, dry_run: bool, timeout_s: float) -> int:
        """As :meth:`Prune.prune`."""


def tokens_exhausted(key: str) -> StoreUnavailableError:
    """Return the error of a claim for which no greater token can be stored (clause S3)."""
    return StoreUnavailableError(
        f"the fencing token of key {key!r} has reached its end, {TOKEN_MAX}; use another key", key=key
    )
