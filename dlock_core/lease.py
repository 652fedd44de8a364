"""The lease/RVN protocol as a pure function: ``step(state, event, now)`` gives the next state and the effects to perform.

Theory of operation. A key has one record {state, RVN, token, lease}. Each write has a fresh RVN (record version number) and is
conditional on the RVN and the token that it expects, so of two writers that saw the same record one wins. A holder renews: each renewal
changes the RVN. A waiter that sees one RVN unchanged for a whole lease, on its own clock, takes the record over. No clock of another host
is ever read. This is the protocol of the AWS DynamoDB Lock Client; the rules for lost replies, late duplicates and abandoned attempts are
this project's.

Rule 1: every protocol decision is in this file. Rule 2: nothing here waits, reads a clock, draws a random number, logs or touches a
store: times (integer nanoseconds of one clock), RVNs and jitter come in with the events, requests go out as effects. States are frozen
and hashable, so the same code is simulated, explored exhaustively and shipped.

The two clocks that matter run in opposite directions, both on the safe side: a holder counts its lease from *before* the first send of
the write that set the current RVN, and uses ``L(1 - 2r)`` of it; a waiter counts ``L`` from *after* the answer that first showed the RVN.
Clock rates may differ by the drift bound *r*.

One attempt at a key goes through these states (:data:`TRANSITIONS`, at the end of the file, has the events)::

    New        -> Seeking
    Seeking    -> Confirming, Held, Cleaning, Ended
    Confirming -> Seeking, Held, Releasing, Ended
    Held       -> Releasing, Lost
    Releasing  -> Ended
    Cleaning   -> Ended
    Lost       -> Releasing, Ended

*Confirming*: the grant was seen so late that it is renewed before anybody acts on it. *Cleaning*: the caller gave up while a claim was
unresolved. An event that is not in the table raises and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from enum import Enum, auto
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from dlock_core import early
from dlock_core.errors import (
    LeaseStateError,
    OutcomeUnknownError,
    RecordError,
    StoreError,
    StoreSetupError,
    StoreUnavailableError,
)
from dlock_core.members import keeping_sessions
from dlock_core.record import (
    NO_TOKEN,
    NOTES_MAX,
    Attributes,
    Beat,
    BeatNote,
    LockRecord,
    Loss,
    LossReason,
    NewerRecord,
    OwnerState,
    SessionRef,
    State,
    Times,
    Version,
)
from dlock_core.states import (
    NOTHING,
    Abandon,
    Answer,
    Begin,
    Break,
    Cease,
    Cleaning,
    Confirming,
    Due,
    Effect,
    Ended,
    Event,
    Failure,
    Free,
    GiveUp,
    Held,
    LeaseState,
    Lost,
    New,
    Noted,
    Observation,
    Outcome,
    Payload,
    Probe,
    Probed,
    Progress,
    Read,
    Releasing,
    Renew,
    Retry,
    Risk,
    Seeking,
    Sent,
    Stop,
    Terms,
    Verb,
    Wait,
    Woken,
)
from dlock_core.store import Claim, ClaimExpect, Expect, Release, Replace, Reply
from dlock_core.timings import NANOS, NEVER, Timings, slow_poll_ns

# With so many unresolved writes a renewal is sent only after a read was answered. A lease has time for 24 back-offs.
PENDING_MAX = 32
# With so many, which is a caller who renews in a loop, only reads are sent.
PENDING_LIMIT = 256
# Conditional claims that lose to others are repeated at once this often, then at the pace of a poll.
IMMEDIATE_RETRIES_MAX = 16
# A clean-up looks again after 1, 2, 4, ... request time-outs; the exponent stops here, the clean-up ends one lease after the last send.
DOUBLINGS_MAX = 6
# A break is tried so often against a holder that renews at the same moments.
BREAK_TRIES_MAX = 10

_HELD, _FREE, _GONE = State.HELD, State.FREE, State.GONE

# After these errors the store has certainly not applied the request; after any other StoreError it may have.
_CERTAIN = (StoreUnavailableError, StoreSetupError, RecordError)

_shared_times = lru_cache(maxsize=256)(Times)  # many locks are granted and renewed in the same seconds

Step: TypeAlias = tuple[Any, tuple[Effect, ...]]


# ---- the machine ----------------------------------------------------------------------------------------------------------------------


def step(state: LeaseState, event: Event, now: int) -> tuple[LeaseState, tuple[Effect, ...]]:
    """Return what *state* becomes by *event* at *now* (ns), and the effects to perform, at most two.

    Raises: LeaseStateError: the event cannot come in this state; nothing is changed.
    """
    transition = TRANSITIONS.get((type(state), type(event)))
    if transition is None:
        message = f"the lease of lock {state.terms.key!r} is {type(state).__name__.lower()}; {type(event).__name__.lower()} is not possible"
        raise LeaseStateError(message)
    return transition[0](state, event, now)


def heard(
    rvn: str,
    result: Reply | StoreError,
    new_rvn: str,
    jitter: float = 0.0,
    abandoned: Collection[str] = (),
    *,
    wall_ms: int | None = None,
    seen: Observation | None = None,
) -> Answer | Failure:
    """Return the event that *result* is, with which the store or its adapter met the request *rvn*.

    *abandoned*: the RVNs of the writes that this client has given up; *seen*: its last observation of the key. A reply that grants without
    a record breaks clause S7 of the port, so its outcome counts as unknown.
    """
    if isinstance(result, StoreError):
        return Failure(rvn, not isinstance(result, _CERTAIN), new_rvn, jitter)
    record = result.record
    if result.applied:
        return Failure(rvn, unknown=True, new_rvn=new_rvn) if record is None else Answer(rvn, result, new_rvn)
    return Answer(
        rvn, result, new_rvn, record is not None and record.rvn in abandoned, jitter, wall_ms, result.age_ms, seen
    )


def is_valid(state: LeaseState, now: int) -> bool:
    """Whether the holder may act: held, and neither the lease nor ``max_hold`` nor ``stall_timeout`` has run out."""
    return type(state) is Held and now < state.deadline and now < state.hold_until


def is_applied(state: LeaseState, event: Renew, rvns: Collection[str], since: int) -> bool:
    """Whether the lock is held by the write of one of *rvns*, each for *event*: a second renewal may show that the first one was applied.

    One that was sent after *since*, as by another thread, does as well if it has what *event* asks for.
    """
    if type(state) is not Held:
        return False
    has_all = event.timings in (None, state.timings) and event.payload in (None, state.payload)
    return state.version.rvn in rvns or (has_all and state.sent_at > since)


def may_be_sent(state: LeaseState, request: object, now: int) -> bool:
    """Whether *request*, which has waited for its turn, may still be sent. No renewal is sent after the deadline."""
    return type(request) is not Replace or (type(state) is Held and now < state.deadline)


def due_at(state: LeaseState) -> int:
    """Return the instant at which the state wants :class:`Due`; NEVER where only another event can change it."""
    if type(state) is Held:
        end = _stop_at(state) if state.stopping is None else min(state.deadline, state.hold_until)
        return end if state.in_flight is not None else min(end, state.renew_at)
    if type(state) is Releasing or type(state) is Cleaning:
        return NEVER if state.in_flight is not None else state.retry_at
    return state.leaves_at if type(state) is Lost else NEVER


def is_kept(state: Held) -> bool:
    """Whether a session keeps the lock, or may do so by a write whose outcome is not known: then it bounds the lock, too (Q2)."""
    return _session_of(state.timings, _unresolved(state)) is not None


def timings_of(state: LeaseState) -> Timings:
    """Return the timings that count now: a renewal may have changed the lease, and with it how long a request may take."""
    return state.timings if type(state) is Held else state.terms.timings


def observe(record: LockRecord, now: int) -> Observation:
    """Begin to observe a held *record*; *now* is after the answer that showed it."""
    return Observation(observed_version(record), NEVER if record.lease_ms is None else record.lease_ms * 1_000_000, now)


def observed_version(record: LockRecord) -> Version:
    """Return the version that the holder of *record* wrote last: a note that others left for it is no sign of life (Q7)."""
    return record.version if record.beat is None else Version(record.beat.own, record.fencing_token)


# ---- new ------------------------------------------------------------------------------------------------------------------------------


def _begin(state: New, event: Begin, now: int) -> Step:
    terms = state.terms
    # A claim that expects nothing costs one request. Its late duplicate could hold the key for nobody: for one lease, or, without a
    # lease, for ever.
    sent, claim = _claim(terms, Expect.ABSENT if terms.timings.lease_ms is None else Expect.ANY, event.new_rvn, now)
    return Seeking(terms, event.give_up_at, sent, (), event.seen), (claim,)


# ---- seeking --------------------------------------------------------------------------------------------------------------------------


def _seek_answer(state: Seeking, event: Answer, now: int) -> Step:
    in_flight, reply = _in_flight(state, event.rvn), event.reply
    record = reply.record
    if reply.applied and record is not None:
        return _granted(state, in_flight, record, event.new_rvn, now)
    if record is not None and record.state is _HELD:
        # Adoption is by what this attempt itself has sent, never by owner, and never once the attempt was given up.
        for sent in (in_flight, *state.pending):
            if sent.rvn == record.rvn and sent.verb is not Verb.READ:
                return _granted(state, sent, record, event.new_rvn, now)
    pending = state.pending
    if pending and (in_flight.verb is Verb.READ or state.terms.timings.refusals_linearizable):
        pending = _living(pending, record, state.terms.timings)
    timings = state.terms.timings
    waited = timings.server_wait and now - in_flight.sent_at >= timings.fallback_ns // 2
    retries = 0 if waited else state.immediate_retries
    seeking = state._replace(
        in_flight=None, pending=pending, shown=record, immediate_retries=retries, failing_since=None
    )
    return _pursue(seeking, record, event, now)


def _living(pending: tuple[Sent, ...], record: LockRecord | None, timings: Timings) -> tuple[Sent, ...]:
    """Drop the writes that can no longer be applied: a version never returns, and a key that exists is never absent again.

    A key may be absent again where records are deleted. An answer that shows another record proves nothing about a write that expects
    anything.
    """
    version = None if record is None else record.version
    return tuple(
        sent
        for sent in pending
        if sent.expected is Expect.ANY
        or ((record is None or timings.deletes) if sent.expected is Expect.ABSENT else sent.expected == version)
    )


def _pursue(state: Seeking, record: LockRecord | None, event: Answer, now: int) -> Step:
    """Decide on what the store has just shown: claim what nobody holds, take over what has not changed for a lease, or wait."""
    if record is None or record.state is not _HELD:
        return _claim_free(state, record, event, now)
    if event.abandoned:
        return _take_over(state, record.version, event.new_rvn, now)
    state, seen = _observed(state, record, event, now)
    if now >= _over_at(state, seen):
        return _take_over(state, record.version, event.new_rvn, now)
    trusted = state.terms.timings.early
    # What was free a moment ago is young.
    if trusted.server_clock and event.age_ms is None and seen.lease_ns != NEVER and not state.immediate_retries:
        return _read(state, event.new_rvn, now)
    if keeping_sessions(record) or early.is_probed(record, trusted):
        probing, _ = _read(state, event.new_rvn, now)
        return probing, (Probe(record, event.new_rvn),)
    return _wait(state, event, now)


def _claim_free(state: Seeking, record: LockRecord | None, event: Answer, now: int) -> Step:
    """Claim the key that nobody holds, as *record* shows, but not one that must exist and does not, nor again and again at once."""
    missing = state.terms.timings.must_exist and (record is None or record.state is _GONE)
    state = state._replace(seen=None)
    if missing or state.immediate_retries >= IMMEDIATE_RETRIES_MAX or len(state.pending) >= PENDING_MAX:
        return _wait(state, event, now)
    sent, claim = _claim(state.terms, _expectation(state, record), event.new_rvn, now)
    return state._replace(in_flight=sent, immediate_retries=state.immediate_retries + 1), (claim,)


def _observed(state: Seeking, record: LockRecord, event: Answer, now: int) -> tuple[Seeking, Observation]:
    """Go on observing the held *record*, or begin to.

    A version never returns, so what this client has seen of the same version before counts, whatever other answers came between: one that
    says "absent" by mistake must not begin the wait anew.
    """
    seen, version = state.seen, observed_version(record)
    if seen is None or seen.version != version:
        earlier = event.seen
        seen = earlier if earlier is not None and earlier.version == version else observe(record, now)
        state = _extended(state._replace(seen=seen, ends_at=NEVER), seen)
    trusted = state.terms.timings.early
    ends_at = early.ends_at(record, trusted, now, wall_ms=event.wall_ms, age_ms=event.age_ms)
    return state._replace(ends_at=min(state.ends_at, ends_at)), seen


def _over_at(state: Seeking, seen: Observation) -> int:
    """When the lease that was seen has ended: by having stood unchanged so long, or by a clock that is trusted."""
    return min(seen.seen_at + seen.lease_ns, state.ends_at)


def _extended(state: Seeking, seen: Observation) -> Seeking:
    """Add the lease of the first holder seen to the wait, once, where the options say so; a single try stays one."""
    timings = state.terms.timings
    if not timings.wait_after_lease or timings.wait_ns == 0 or state.extended or seen.lease_ns == NEVER:
        return state
    return state._replace(give_up_at=state.give_up_at + seen.lease_ns, extended=True)


def _expectation(state: Seeking, record: LockRecord | None) -> ClaimExpect:
    """A claim expects nothing only while no write of its attempt is unresolved, and never for a lock without a lease."""
    if state.terms.timings.lease_ms is not None and not state.pending:
        return Expect.ANY
    return Expect.ABSENT if record is None else record.version


def _claim(terms: Terms, expect: ClaimExpect, new_rvn: str, now: int) -> tuple[Sent, Claim]:
    timings = terms.timings
    record = _record(terms, timings, new_rvn, timings.token_floor, (timings.data, timings.attributes), now)
    # Stamp before sending: the lease runs from the request, not from a reply that may never come.
    sent = Sent(Verb.CLAIM, new_rvn, expect, now, timings)
    return sent, Claim(
        record, expect, timings.must_exist, timings.keep_payload, terms.ticket if timings.wait_ns else None
    )


def _take_over(state: Seeking, version: Version, new_rvn: str, now: int) -> Step:
    timings = state.terms.timings
    token = max(version.fencing_token + 1, timings.token_floor)
    record = _record(state.terms, timings, new_rvn, token, (timings.data, timings.attributes), now)
    sent = Sent(Verb.TAKE, new_rvn, version, now, timings)
    return state._replace(in_flight=sent), (Replace(record, version, timings.keep_payload),)


def _wait(state: Seeking, event: Answer | Probed, now: int) -> Step:
    timings = state.terms.timings
    if now >= state.give_up_at or state.polls >= timings.retries_max:
        return _leave(state, Outcome.DENIED, now)
    notice = state.shown if timings.notify and _shows_held(state) else None
    if _waits_in_server(state):
        # Not the claim at once: its lease counts from when it is made, and the turn of this attempt may come later.
        return state, (Wait(now, notice),)
    until = _poll_at(state, event.jitter, now)
    return state._replace(polls=state.polls + 1, immediate_retries=0), (Wait(until, notice),)


def _poll_at(state: Seeking, jitter: float, now: int) -> int:
    """When to ask again where nothing is told before: at the next poll, unless the patience or the lease that was seen ends earlier."""
    at = min(now + state.terms.timings.poll_ns(state.polls, jitter), state.give_up_at)
    return at if state.seen is None else min(at, _over_at(state, state.seen))


def _shows_held(state: Seeking) -> bool:
    return state.shown is not None and state.shown.state is _HELD


def _waits_in_server(state: Seeking) -> bool:
    """Whether the next claim of a key that was seen held may wait in the server; not again and again where it is refused at once."""
    may_wait = state.terms.timings.server_wait and not state.pending
    return may_wait and _shows_held(state) and state.immediate_retries < IMMEDIATE_RETRIES_MAX


def _claim_when_free(state: Seeking, event: Due, now: int) -> Step:
    """Send a claim that waits in the server: a slow claim, whose refusal is the next poll.

    The lease counts from before the send, as ever, so the wait is short beside it: what is granted at its end has more than half of its
    use left, and is handed out without a renewal.
    """
    sent, claim = _claim(state.terms, Expect.ANY, event.new_rvn, now)
    wait_ns = min(_poll_at(state, event.jitter, now) - now, slow_poll_ns(state.terms.timings.own_lease_ns))
    waiting = state._replace(in_flight=sent, polls=state.polls + 1, immediate_retries=state.immediate_retries + 1)
    return waiting, (claim._replace(wait_ns=wait_ns),)


def _seek_probed(state: Seeking, event: Probed, now: int) -> Step:
    """Take over from an owner that is dead, when the delay of its lock is over. One that may be alive is waited for."""
    _in_flight(state, event.rvn)
    state, seen = state._replace(in_flight=None), state.seen
    if event.owner is OwnerState.DEAD and seen is not None:
        delay_ms = (state.shown and state.shown.delay_ms) or 0
        state = state._replace(ends_at=min(state.ends_at, now + delay_ms * 1_000_000))
        if now >= _over_at(state, seen):
            return _take_over(state, seen.version, event.new_rvn, now)
    return _wait(state, event, now)


def _seek_due(state: Seeking, event: Due, now: int) -> Step:
    _idle(state, event)
    seen = state.seen
    if seen is not None and now >= _over_at(state, seen):
        return _take_over(state, seen.version, event.new_rvn, now)
    if now >= state.give_up_at:
        return _leave(state, Outcome.DENIED if state.failing_since is None else Outcome.UNREACHABLE, now)
    if _waits_in_server(state):
        return _claim_when_free(state, event, now)
    return _try_again(state, event.new_rvn, now, polling=not state.terms.timings.notify)


def _seek_woken(state: Seeking, event: Woken, now: int) -> Step:
    _idle(state, event)
    # A store may wake at each renewal, too: only waits to their end use up the polls that the options allow.
    return _try_again(state._replace(polls=state.polls - 1), event.new_rvn, now, polling=False)


def _try_again(state: Seeking, new_rvn: str, now: int, *, polling: bool) -> Step:
    """Ask once more. A poll of a held key is a read, the cheapest request; one that was told of a release claims at once."""
    if state.pending or state.terms.timings.lease_ms is None or (polling and _shows_held(state)):
        return _read(state, new_rvn, now)
    sent, claim = _claim(state.terms, Expect.ANY, new_rvn, now)
    return state._replace(in_flight=sent), (claim,)


def _seek_failure(state: Seeking, event: Failure, now: int) -> Step:
    in_flight = _in_flight(state, event.rvn)
    pending = state.pending
    if event.unknown and in_flight.verb is not Verb.READ:
        pending = (*pending, in_flight)
    since = now if state.failing_since is None else state.failing_since
    state = state._replace(in_flight=None, pending=pending, failing_since=since)
    timings = state.terms.timings
    if event.unknown and in_flight.verb is not Verb.READ and len(pending) == 1:
        # A reply was lost: the answer to one read tells whether the key is ours, even where no time is left to wait.
        return _read(state, event.new_rvn, now)
    if now >= state.give_up_at or now - since >= timings.patience_ns:
        return _leave(state, Outcome.UNREACHABLE, now)
    until = min(now + timings.backoff_ns + int(event.jitter * timings.backoff_ns), state.give_up_at)
    return state, (Wait(until),)


def _seek_give_up(state: Seeking, event: GiveUp, now: int) -> Step:  # every transition takes the event
    return _leave(state._replace(pending=_unresolved(state)), Outcome.ABANDONED, now)


def _leave(state: Seeking, outcome: Outcome, now: int) -> Step:
    if not state.pending:
        return Ended(state.terms, outcome, state.shown), ()
    until = max(sent.sent_at for sent in state.pending) + state.terms.timings.lease_ns
    cleaning = Cleaning(state.terms, outcome, state.shown, until, now, state.pending)
    return cleaning, (Abandon(tuple(sent.rvn for sent in state.pending)),)


def _granted(state: Seeking, sent: Sent, record: LockRecord, new_rvn: str, now: int) -> Step:
    """Hold what *sent* wrote, or confirm it first. Token, data and lease are the record's; the lease counts from the first send."""
    effects: tuple[Effect, ...] = ()
    if state.pending:
        # Every other write of this attempt is dead, its expected version being gone, but for claims that expect nothing, or, where records
        # are deleted, an absent key.
        comes = (Expect.ANY, Expect.ABSENT) if sent.timings.deletes else (Expect.ANY,)
        loose = tuple(other.rvn for other in state.pending if other.expected in comes and other.rvn != sent.rvn)
        effects = (Abandon(loose),) if loose else ()
    timings = sent.timings
    version, payload = Version(record.rvn, record.fencing_token), NOTHING
    if record.data is not None or record.attributes:
        payload = Payload(record.data, record.attributes)
    deadline = sent.sent_at + timings.usable_ns
    terms = state.terms
    if terms.wall_ns is not None:
        granted_at_s = (sent.sent_at + terms.wall_ns) // NANOS
        terms = Terms(terms.key, terms.ticket, terms.timings, terms.wall_ns, granted_at_s)
    if deadline - now < timings.handout_min_ns or (timings.has_tokens and not version.fencing_token):
        grant = _holding(terms, version, sent, payload, deadline)._replace(renew_at=NEVER)  # it is renewed now
        seeking = state._replace(
            in_flight=None, pending=(), seen=None, polls=0, immediate_retries=0, failing_since=None
        )
        confirming, renewal = _confirm(Confirming(grant, seeking), new_rvn, now)
        return confirming, effects + renewal
    return _handed_out(_holding(terms, version, sent, payload, deadline), now), effects


def _holding(terms: Terms, version: Version, sent: Sent, payload: Payload, deadline: int) -> Held:
    timings = sent.timings
    renew_at = sent.sent_at + timings.period_ns if timings.auto_renew else NEVER
    return Held(terms, version, sent.sent_at, timings, payload, deadline, renew_at, NEVER)


def _handed_out(state: Held, now: int) -> Held:
    """Bound the hold, which begins now, by ``max_hold`` and ``stall_timeout``."""
    timings = state.timings
    if timings.max_hold_ns is None and timings.stall_ns is None:
        return state
    overrun_at = NEVER if timings.max_hold_ns is None else now + timings.max_hold_ns
    return state._replace(overrun_at=overrun_at, hold_until=_hold_until(timings, overrun_at, now))


def _hold_until(timings: Timings, overrun_at: int, progress_at: int) -> int:
    return overrun_at if timings.stall_ns is None else min(overrun_at, progress_at + timings.stall_ns)


# ---- confirming: a grant that was seen late is renewed before it is handed out -----------------------------------------------------------


def _confirm(state: Confirming, new_rvn: str, now: int) -> Step:
    grant, effects = _renew(state.grant, state.grant.timings, None, new_rvn, now)
    return Confirming(grant, state.seeking), effects


def _confirm_answer(state: Confirming, event: Answer, now: int) -> Step:
    grant = state.grant
    in_flight = _in_flight(grant, event.rvn)
    found = _shown(grant, in_flight, event.reply)
    if type(found) is Sent:
        return _confirmed(state, _renewed(grant, found, event.reply.record), event, now)
    if found is _Shown.UNCHANGED:
        return _not_confirmed(state, in_flight, event, now, unknown=in_flight.verb is not Verb.READ)
    if found is _Shown.UNPROVEN:
        grant, effects = _prove(grant, in_flight, event.new_rvn, now)
        return Confirming(grant, state.seeking), effects
    # Nobody was told of the grant, so its end is no loss: the attempt goes on.
    record = event.reply.record
    return _pursue(state.seeking._replace(shown=record), record, event, now)


def _confirmed(state: Confirming, held: Held, event: Answer, now: int) -> Step:
    """Hand out *held* if it has its token and enough time; else renew again, within the caller's patience."""
    timings = held.timings
    has_its_token = bool(held.version.fencing_token) or not timings.has_tokens
    if has_its_token and held.deadline - now >= timings.handout_min_ns:
        return _handed_out(held, now), ()
    if now >= state.seeking.give_up_at:
        return _free(held, None, event.new_rvn, now)
    return _confirm(Confirming(held, state.seeking), event.new_rvn, now)


def _confirm_failure(state: Confirming, event: Failure, now: int) -> Step:
    in_flight = _in_flight(state.grant, event.rvn)
    return _not_confirmed(state, in_flight, event, now, unknown=event.unknown and in_flight.verb is not Verb.READ)


def _not_confirmed(state: Confirming, in_flight: Sent, event: Answer | Failure, now: int, *, unknown: bool) -> Step:
    grant, _ = _not_renewed(state.grant, in_flight, now, unknown=unknown)
    seeking, timings = state.seeking, grant.timings
    since = now if seeking.failing_since is None else seeking.failing_since
    if now >= seeking.give_up_at or now - since >= timings.patience_ns:
        return _free(grant, None, event.new_rvn, now)
    until = min(now + timings.backoff_ns, seeking.give_up_at)
    return Confirming(grant, seeking._replace(failing_since=since)), (Wait(until),)


def _confirm_due(state: Confirming, event: Due, now: int) -> Step:
    _idle(state.grant, event)
    return _confirm(state, event.new_rvn, now)


def _confirm_end(state: Confirming, event: Free | GiveUp, now: int) -> Step:
    # The token is known, so a release does; nobody waits for its end.
    return _free(state.grant, None, event.new_rvn, now)


# ---- held -----------------------------------------------------------------------------------------------------------------------------


def _renew(state: Held, timings: Timings, payload: Payload | None, new_rvn: str, now: int) -> Step:
    if len(state.pending) >= PENDING_MAX:
        return _read(state, new_rvn, now)
    return _send_renewal(state, timings, payload, new_rvn, now)


def _send_renewal(state: Held, timings: Timings, payload: Payload | None, new_rvn: str, now: int) -> Step:
    terms = state.terms
    token = state.version.fencing_token
    record = _record(terms, timings, new_rvn, token, state.payload if payload is None else payload, now)
    sent = Sent(Verb.RENEW, new_rvn, state.version, now, timings, payload)
    # The deadline shrinks before the send: a shorter lease may be the one that waiters count from now on.
    deadline = min(state.deadline, now + timings.usable_ns)
    # Spelled out: a copy by names costs as much as all the rest, and many locks are renewed all the time.
    held = Held(
        terms, state.version, state.sent_at, state.timings, state.payload, deadline, state.renew_at, state.hold_until, sent,
        state.pending, state.at_risk, state.stopping, state.overrun_at,
    )  # fmt: skip
    return held, (Replace(record, state.version, payload is None),)


class _Shown(Enum):
    """What an answer shows of a grant, where it does not show one of the grant's writes applied."""

    NOTED = auto()  # a note that somebody left on one of the grant's writes: it is this grant all the same (Q7)
    UNCHANGED = auto()  # the version that stood before, or an older one, which proves nothing
    UNPROVEN = auto()  # another record, by an answer that may be stale
    ENDED = auto()  # another record, or none, by a linearizable answer


def _shown(state: Held, in_flight: Sent, reply: Reply) -> Sent | _Shown:
    """Return the write of this grant that is now the current one, by *reply*; else what the reply shows."""
    record = reply.record
    if reply.applied:
        return in_flight
    # A grant without a token yet is known by its RVN alone; the write in flight brings the token.
    token = state.version.fencing_token or (NO_TOKEN if record is None else record.fencing_token)
    if record is not None and record.fencing_token == token and record.state is _HELD:
        for sent in (in_flight, *state.pending):
            if sent.rvn == record.rvn and sent.verb is not Verb.READ:
                return sent
        if record.rvn == state.version.rvn:
            return _Shown.UNCHANGED
        if record.beat is not None and record.beat.own in _own_rvns(state, in_flight):
            return _Shown.NOTED
    if record is not None and 0 < record.fencing_token < token:
        # An older record than ours is a stale answer. It proves nothing. One without a token is another client's.
        return _Shown.UNCHANGED
    if in_flight.verb is not Verb.READ and not state.timings.refusals_linearizable:
        return _Shown.UNPROVEN
    return _Shown.ENDED


def _own_rvns(state: Held | Releasing, in_flight: Sent) -> tuple[str, ...]:
    """Return the RVNs of this grant's writes that may stand, or have stood, under the key."""
    return state.version.rvn, in_flight.rvn, *(sent.rvn for sent in state.pending)


def _held_answer(state: Held, event: Answer, now: int) -> Step:
    in_flight, record = _in_flight(state, event.rvn), event.reply.record
    if _over(state, now):
        return _lapse(state, now)
    found = _shown(state, in_flight, event.reply)
    if type(found) is Sent:
        return _renewed(state, found, record), (Risk(at_risk=False),) if state.at_risk else ()
    if found is _Shown.UNCHANGED:
        if in_flight.verb is Verb.READ and PENDING_MAX <= len(state.pending) < PENDING_LIMIT:
            # The store answers: a renewal has a chance again.
            return _send_renewal(state, state.timings, None, event.new_rvn, now)
        return _not_renewed(state, in_flight, now, unknown=in_flight.verb is not Verb.READ)
    if found is _Shown.UNPROVEN:
        return _prove(state, in_flight, event.new_rvn, now)
    if found is _Shown.NOTED and record is not None:
        return _renew_noted(state, in_flight, record, event.new_rvn, now)
    broken = record is not None and record.broken is not None
    return _lose(state, LossReason.BROKEN if broken else LossReason.STOLEN, record, now), ()


def _renew_noted(state: Held, in_flight: Sent, record: LockRecord, new_rvn: str, now: int) -> Step:
    """Hear the notes of *record*, and renew it, without them.

    The lease counts from the own write on which the notes were left, not from the notes (Q7). Whatever else was on its way expected a
    version that is gone.
    """
    assert record.beat is not None  # seen by the caller
    own = next((sent for sent in (in_flight, *state.pending) if sent.rvn == record.beat.own), None)
    if own is not None:
        state = _renewed(state, own, record)._replace(at_risk=state.at_risk)
    noted = state._replace(version=record.version, pending=())
    held, effects = _send_renewal(noted._replace(deadline=_deadline(noted)), noted.timings, None, new_rvn, now)
    return held, (Noted(record.beat.notes), *effects)


def _renewed(state: Held, sent: Sent, record: LockRecord | None) -> Held:
    """*sent* is the current write, which *record* shows: all others expected a version that is gone."""
    timings = sent.timings
    assert record is not None  # heard() makes a failure of a reply without one
    payload = state.payload if sent.payload is None else Payload(record.data, record.attributes)
    version = Version(sent.rvn, state.version.fencing_token or record.fencing_token)
    deadline = sent.sent_at + timings.usable_ns
    held = _holding(state.terms, version, sent, payload, deadline)
    if state.hold_until == NEVER and state.stopping is None:
        return held
    # A renewal moves neither bound of the hold, and a body that was told to stop is not told to go on.
    return held._replace(hold_until=state.hold_until, overrun_at=state.overrun_at, stopping=state.stopping)


def _not_renewed(state: Held, in_flight: Sent, now: int, *, unknown: bool) -> Step:
    pending = (*state.pending, in_flight) if unknown else state.pending
    timings = state.timings
    repeats = timings.auto_renew or timings.session is not None  # data of a lock that its session keeps
    held = state._replace(
        in_flight=None,
        pending=pending,
        at_risk=True,
        renew_at=now + timings.backoff_ns if repeats else NEVER,
    )
    return held._replace(deadline=_deadline(held)), () if state.at_risk else (Risk(at_risk=True),)


def _deadline(state: Held) -> int:
    """The earliest end over all writes that may be the current one, each counted from its own send."""
    ends = [sent.sent_at + sent.timings.usable_ns for sent in state.pending]
    return min([state.sent_at + state.timings.usable_ns, *ends])


def _prove(state: Held, in_flight: Sent, new_rvn: str, now: int) -> Step:
    """Read before a refusal is believed that may be stale."""
    return _read(state._replace(pending=(*state.pending, in_flight)), new_rvn, now)


def _held_failure(state: Held, event: Failure, now: int) -> Step:
    in_flight = _in_flight(state, event.rvn)
    if _over(state, now):
        return _lapse(state, now)
    return _not_renewed(state, in_flight, now, unknown=event.unknown and in_flight.verb is not Verb.READ)


def _held_due(state: Held, event: Due, now: int) -> Step:
    if _over(state, now):
        return _lapse(state, now)
    effects: tuple[Effect, ...] = ()
    if now >= _stop_at(state):
        # It is renewed all the same: the body needs the lock until it has ended.
        reason = _end_reason(state, now + state.timings.stop_grace_ns)
        state, effects = state._replace(stopping=reason), (Stop(reason),)
    if now < state.renew_at or state.in_flight is not None:
        return state, effects
    held, requests = _renew(state, state.timings, None, event.new_rvn, now)
    return held, effects + requests


def _held_renew(state: Held, event: Renew, now: int) -> Step:
    _idle(state, event)
    if _over(state, now):
        return _lapse(state, now)
    return _renew(state, state.timings if event.timings is None else event.timings, event.payload, event.new_rvn, now)


def _held_progress(state: Held, event: Progress, now: int) -> Step:  # every transition takes the event
    if _over(state, now):
        return _lapse(state, now)
    return state._replace(hold_until=_hold_until(state.timings, state.overrun_at, now)), ()


def _held_cease(state: Held, event: Cease, now: int) -> Step:
    lost = _lose(state, event.reason, event.record, now)
    return (lost if event.alone else lost._replace(leaves_at=NEVER)), ()


def _held_free(state: Held, event: Free, now: int) -> Step:
    if _over(state, now):
        lost, _ = _lapse(state, now)
        return _lost_free(lost, event, now)
    return _free(state, event.payload, event.new_rvn, now)


def _held_give_up(state: Held, event: GiveUp, now: int) -> Step:
    # The token is known, so a release does; one that nobody waits for.
    return _free(state, None, event.new_rvn, now)


def _over(state: Held, now: int) -> bool:
    return now >= state.deadline or now >= state.hold_until


def _stop_at(state: Held) -> int:
    """Return when the holder has to be told to stop, which is the end itself where no grace was asked for; NEVER once it was told."""
    end = min(state.deadline, state.hold_until)
    return NEVER if end == NEVER or state.stopping is not None else end - state.timings.stop_grace_ns


def _lapse(state: Held, now: int) -> Step:
    return _lose(state, _end_reason(state, now), None, now), ()


def _end_reason(state: Held, now: int) -> LossReason:
    """Return why the lock is over at *now*."""
    if now >= state.hold_until:
        return LossReason.OVERRUN if now >= state.overrun_at else LossReason.STALLED
    return LossReason.UNREACHABLE if state.at_risk else LossReason.EXPIRED


def _lose(state: Held, reason: LossReason, record: LockRecord | None, now: int) -> Lost:
    loss = Loss(state.terms.key, state.version.fencing_token, reason, record)
    pending = _unresolved(state)
    session = _session_of(state.timings, pending)
    # Its record would stand as long as the session goes on. Its body may go on for a lease, as that of a lock that lapses (Q3).
    leaves_at = NEVER if session is None else now + session.lease_ms * 1_000_000
    return Lost(state.terms, state.version, loss, state.sent_at, state.timings, pending, leaves_at)


# ---- lost -----------------------------------------------------------------------------------------------------------------------------


def _lost_due(state: Lost, event: Due, now: int) -> Step:
    return (state, ()) if now < state.leaves_at else _lost_free(state, Free(event.new_rvn), now)


def _lost_free(state: Lost, event: Free, now: int) -> Step:
    loss = state.loss
    if loss.reason in (LossReason.STOLEN, LossReason.BROKEN) and state.timings.session is None:
        return Ended(state.terms, Outcome.LOST, loss.record, loss), ()
    # Late, but the record may still be ours, and then frees the key at once. Conditional: the next holder is not touched. The payload
    # stays: the caller is told of the loss, so what it hands over, such as the mark of a job, must not stand as done.
    until = max(now + state.terms.timings.timeout_ns, _last_end(state, state.pending))
    releasing = Releasing(state.terms, state.version, None, until, now, pending=state.pending, loss=loss)
    return _send_release(releasing, event.new_rvn, now)


# ---- releasing ------------------------------------------------------------------------------------------------------------------------


def _free(state: Held, payload: Payload | None, new_rvn: str, now: int) -> Step:
    pending = _unresolved(state)
    sent, release = _release(state.terms, state.version, payload, new_rvn, now)
    until, in_flight = _last_end(state, pending), sent._replace(timings=state.timings)
    return Releasing(state.terms, state.version, payload, until, now, in_flight=in_flight, pending=pending), (release,)


def _last_end(state: Held | Lost, pending: tuple[Sent, ...]) -> int:
    """One lease after the last write that may be the current one: then nobody needs a release any more."""
    end = state.sent_at + state.timings.lease_ns
    return max(end, *(sent.sent_at + sent.timings.lease_ns for sent in pending)) if pending else end


def _send_release(state: Releasing, new_rvn: str, now: int) -> Step:
    sent, release = _release(state.terms, state.version, state.payload, new_rvn, now)
    return state._replace(in_flight=sent), (release,)


def _release(terms: Terms, version: Version, payload: Payload | None, new_rvn: str, now: int) -> tuple[Sent, Release]:
    timings = terms.timings
    data, attributes = payload or (None, ())
    hidden = timings.hide_on_release
    record = LockRecord(
        terms.key,
        _GONE if hidden else _FREE,
        new_rvn,
        version.fencing_token,
        timings.owner,
        None,
        None if hidden else data,
        attributes,
        times=_times(terms, now),
    )
    sent = Sent(Verb.RELEASE, new_rvn, version, now, timings)
    return sent, Release(record, version, payload is None and not hidden)


def _release_answer(state: Releasing, event: Answer, now: int) -> Step:
    in_flight = _if_in_flight(state, event.rvn)
    if in_flight is None:
        return state, ()  # the answer to a renewal that was under way when the release began
    record, version = event.reply.record, state.version
    if event.reply.applied:
        return _end_release(state, in_flight, None, now)
    # A grant that never got its token is known by its RVN alone.
    own = record is not None and (not version.fencing_token or record.fencing_token == version.fencing_token)
    if own and record is not None and record.state is _HELD:
        for sent in state.pending:
            if sent.rvn == record.rvn:
                # A renewal of ours was applied after all: follow it.
                return _send_release(state._replace(version=record.version, pending=()), event.new_rvn, now)
        if record.rvn == version.rvn:
            # A read shows that no release was applied; a refusal that shows the same is old.
            repeats = in_flight.verb is Verb.READ
            return _send_release(state, event.new_rvn, now) if repeats else _release_later(state, now)
        if record.beat is not None and record.beat.own in _own_rvns(state, in_flight):
            return _send_release(state._replace(version=record.version, pending=()), event.new_rvn, now)
    if record is not None and 0 < record.fencing_token < version.fencing_token:
        return _release_later(state, now)  # older than the grant, so old too
    if in_flight.verb is not Verb.READ and not state.terms.timings.refusals_linearizable:
        return _read(state, event.new_rvn, now)
    return _end_release(state, in_flight, record, now)


def _end_release(state: Releasing, in_flight: Sent, record: LockRecord | None, now: int) -> Step:
    """End the release; *record* is what refused it, of somebody else.

    Sent before the deadline, a release that finds another's record has done its work, by a lost reply or a lapse. A loss is a break, and a
    later grant where neither can be: the store has lost the record meanwhile, and two held the lock.
    """
    loss, held, timings = state.loss, state.version.fencing_token, in_flight.timings
    if loss is None and record is not None:
        lasts = now < state.until - (timings.lease_ns - timings.usable_ns) and timings.session is None
        first = not (state.tries or state.pending)
        stolen = first and lasts and record.fencing_token > held > 0
        reason = LossReason.BROKEN if record.broken is not None else LossReason.STOLEN if stolen else None
        loss = None if reason is None else Loss(state.terms.key, held, reason, record)
    return Ended(state.terms, Outcome.RELEASED if loss is None else Outcome.LOST, record, loss), ()


def _release_failure(state: Releasing, event: Failure, now: int) -> Step:
    return (state, ()) if _if_in_flight(state, event.rvn) is None else _release_later(state, now)


def _release_later(state: Releasing, now: int) -> Step:
    timings = state.terms.timings
    # The first time at once: most often a connection broke, and the next one tells.
    delay = 0 if state.tries == 0 else timings.backoff_ns << min(state.tries - 1, DOUBLINGS_MAX)
    # The last try is made when the last lease has run out, and not after it.
    retry_at = min(now + delay, max(state.until, now))
    return state._replace(in_flight=None, retry_at=retry_at, tries=state.tries + 1), ()


def _release_due(state: Releasing, event: Due | Retry, now: int) -> Step:
    if state.in_flight is not None or now < state.retry_at:
        return state, ()
    if now >= state.until and state.tries > 1:
        return Ended(state.terms, Outcome.UNRESOLVED if state.loss is None else Outcome.LOST, None, state.loss), ()
    return _send_release(state, event.new_rvn, now)


def _release_retry(state: Releasing, event: Retry, now: int) -> Step:
    return (state, ()) if state.in_flight is not None else _release_due(state._replace(retry_at=now), event, now)


# ---- cleaning up after an attempt that was given up -------------------------------------------------------------------------------------


def _clean_due(state: Cleaning, event: Due, now: int) -> Step:
    if state.in_flight is not None or now < state.retry_at:
        return state, ()
    return _read(state, event.new_rvn, now)


def _clean_retry(state: Cleaning, event: Retry, now: int) -> Step:
    return (state, ()) if state.in_flight is not None else _read(state, event.new_rvn, now)


def _clean_answer(state: Cleaning, event: Answer, now: int) -> Step:
    in_flight = _if_in_flight(state, event.rvn)
    if in_flight is None:
        return state, ()
    record = event.reply.record
    state = state._replace(in_flight=None)
    if in_flight.verb is Verb.RELEASE and not event.reply.applied and record is not None and record.held:
        return _clean_later(state, now)  # not the record that was read before: look again
    if (
        in_flight.verb is Verb.READ
        and record is not None
        and record.held
        and any(sent.rvn == record.rvn for sent in state.pending)
    ):
        tomb = LockRecord(
            record.key, _FREE, event.new_rvn, record.fencing_token, record.owner, None, times=record.times
        )
        release = Sent(Verb.RELEASE, event.new_rvn, record.version, now, state.terms.timings)
        return state._replace(in_flight=release), (Release(tomb, record.version, keep_payload=True),)
    if event.reply.applied and state.terms.timings.deletes and isinstance(in_flight.expected, Version):
        # What was seen to stand, and is removed now, does not come again.
        freed = in_flight.expected.rvn
        state = state._replace(pending=tuple(sent for sent in state.pending if sent.rvn != freed))
    if in_flight.verb is Verb.READ or event.reply.applied or state.terms.timings.refusals_linearizable:
        state = state._replace(pending=_living(state.pending, record, state.terms.timings))
    if not state.pending:
        return Ended(state.terms, state.outcome, state.holder), ()
    return _clean_later(state, now)


def _clean_failure(state: Cleaning, event: Failure, now: int) -> Step:
    if _if_in_flight(state, event.rvn) is None:
        return state, ()
    return _clean_later(state._replace(in_flight=None), now)


def _clean_later(state: Cleaning, now: int) -> Step:
    """Ask again, the last time one lease after the last send: a write that lands later is met by its RVN, which stays abandoned."""
    if now >= state.until:
        return Ended(state.terms, state.outcome, state.holder), ()
    delay = state.terms.timings.timeout_ns << min(state.tries, DOUBLINGS_MAX)
    return state._replace(retry_at=min(now + delay, state.until), tries=state.tries + 1), ()


# ---- shared by several states ---------------------------------------------------------------------------------------------------------


def _record(  # noqa: PLR0917  # each write gives them all
    terms: Terms,
    timings: Timings,
    rvn: str,
    fencing_token: int,
    payload: tuple[bytes | None, Attributes],
    now: int,
) -> LockRecord:
    """Return what a holder under *timings* writes."""
    data, attributes = payload
    return LockRecord(
        terms.key,
        _HELD,
        rvn,
        fencing_token,
        timings.owner,
        timings.lease_ms,
        data,
        attributes,
        process=timings.early.process if timings.session is None else None,
        session=timings.session,
        delay_ms=timings.delay_ms or None,
        times=_times(terms, now),
    )


def _times(terms: Terms, now: int) -> Times | None:
    """Return the times in a record that is written *now*; a write before the grant may become it."""
    if terms.wall_ns is None:
        return None
    written_at_s = (now + terms.wall_ns) // NANOS
    return _shared_times(written_at_s if terms.granted_at_s is None else terms.granted_at_s, written_at_s)


def _read(state: Any, new_rvn: str, now: int) -> Step:
    sent = Sent(Verb.READ, new_rvn, Expect.ANY, now, (state.in_flight or state.terms).timings)
    aged = type(state) is Seeking and state.terms.timings.early.server_clock
    return state._replace(in_flight=sent), (Read(state.terms.key, new_rvn, aged),)


def _unresolved(state: Seeking | Held) -> tuple[Sent, ...]:
    """Return the writes that may still be applied, the one under way among them."""
    in_flight = state.in_flight
    return state.pending if in_flight is None or in_flight.verb is Verb.READ else (*state.pending, in_flight)


def _session_of(timings: Timings, pending: tuple[Sent, ...]) -> SessionRef | None:
    """Return the session under which the lock is by its current write, or would be by one that is pending."""
    return next((each.session for each in (timings, *(sent.timings for sent in pending)) if each.session), None)


def _if_in_flight(state: Seeking | Held | Releasing | Cleaning, rvn: str) -> Sent | None:
    """Return the request under way if it is *rvn*."""
    in_flight = state.in_flight
    return in_flight if in_flight is not None and in_flight.rvn == rvn else None


def _in_flight(state: Seeking | Held, rvn: str) -> Sent:
    in_flight = _if_in_flight(state, rvn)
    if in_flight is None:
        raise LeaseStateError(f"lock {state.terms.key!r}: an answer to request {rvn!r}, which was not asked")
    return in_flight


def _idle(state: Seeking | Held, event: Event) -> None:
    if state.in_flight is not None:
        raise LeaseStateError(f"lock {state.terms.key!r}: {type(event).__name__.lower()} while a request is under way")


def _ignore(state: Any, event: Event, now: int) -> Step:  # every transition has the same parameters
    return state, ()


class Transition(NamedTuple):
    """What an event does in a state: the function that decides, and the states to which it may lead."""

    handler: Callable[[Any, Any, int], Step]
    leads_to: tuple[type, ...]


TRANSITIONS: dict[tuple[type, type], Transition] = {
    (New, Begin): Transition(_begin, (Seeking,)),
    (Seeking, Answer): Transition(_seek_answer, (Seeking, Confirming, Held, Cleaning, Ended)),
    (Seeking, Probed): Transition(_seek_probed, (Seeking, Cleaning, Ended)),
    (Seeking, Failure): Transition(_seek_failure, (Seeking, Cleaning, Ended)),
    (Seeking, Due): Transition(_seek_due, (Seeking, Cleaning, Ended)),
    (Seeking, Woken): Transition(_seek_woken, (Seeking,)),
    (Seeking, GiveUp): Transition(_seek_give_up, (Cleaning, Ended)),
    (Confirming, Answer): Transition(_confirm_answer, (Confirming, Held, Seeking, Releasing, Ended)),
    (Confirming, Failure): Transition(_confirm_failure, (Confirming, Releasing)),
    (Confirming, Due): Transition(_confirm_due, (Confirming,)),
    (Confirming, Free): Transition(_confirm_end, (Releasing,)),
    (Confirming, GiveUp): Transition(_confirm_end, (Releasing,)),
    (Held, Answer): Transition(_held_answer, (Held, Lost)),
    (Held, Failure): Transition(_held_failure, (Held, Lost)),
    (Held, Due): Transition(_held_due, (Held, Lost)),
    (Held, Renew): Transition(_held_renew, (Held, Lost)),
    (Held, Progress): Transition(_held_progress, (Held, Lost)),
    (Held, Cease): Transition(_held_cease, (Lost,)),
    (Held, Free): Transition(_held_free, (Releasing,)),
    (Held, GiveUp): Transition(_held_give_up, (Releasing,)),
    (Lost, Answer): Transition(_ignore, (Lost,)),
    (Lost, Failure): Transition(_ignore, (Lost,)),
    (Lost, Due): Transition(_lost_due, (Lost, Releasing)),
    (Lost, Free): Transition(_lost_free, (Releasing, Ended)),
    (Releasing, Answer): Transition(_release_answer, (Releasing, Ended)),
    (Releasing, Failure): Transition(_release_failure, (Releasing,)),
    (Releasing, Due): Transition(_release_due, (Releasing, Ended)),
    (Releasing, Retry): Transition(_release_retry, (Releasing, Ended)),
    (Cleaning, Answer): Transition(_clean_answer, (Cleaning, Ended)),
    (Cleaning, Failure): Transition(_clean_failure, (Cleaning, Ended)),
    (Cleaning, Due): Transition(_clean_due, (Cleaning,)),
    (Cleaning, Retry): Transition(_clean_retry, (Cleaning,)),
    (Ended, Answer): Transition(_ignore, (Ended,)),
    (Ended, Failure): Transition(_ignore, (Ended,)),
    (Ended, Due): Transition(_ignore, (Ended,)),
    (Ended, Retry): Transition(_ignore, (Ended,)),
}


# ---- breaking another's lock ----------------------------------------------------------------------------------------------------------


def break_step(
    attempt: Break, record: LockRecord | None, new_rvn: str, longest_ms: int = 0
) -> tuple[Break, Replace] | bool:
    """Return the next write of a break, by the *record* that a read has just shown; True: it is broken, False: that grant is gone.

    Raises: OutcomeUnknownError: the holder renewed between each read and the write after it.
    """
    if record is not None and record.rvn in attempt.sent:
        return True
    if attempt.rvn is not None and (record is None or record.rvn != attempt.rvn):
        return False
    request = break_request(attempt, record, new_rvn, longest_ms)
    if request is None:
        return False
    if len(attempt.sent) == BREAK_TRIES_MAX:
        raise OutcomeUnknownError(
            f"lock {attempt.key!r} was renewed {BREAK_TRIES_MAX} times while it was being broken; try again",
            key=attempt.key,
        )
    return attempt._replace(sent=(*attempt.sent, new_rvn)), request


def break_request(attempt: Break, record: LockRecord | None, new_rvn: str, longest_ms: int = 0) -> Replace | None:
    """Return the write by which *attempt* breaks *record*, or None where it is not the grant that was meant any more.

    The write raises the token. Quarantine: the key stays held for one more lease, within which the old holder's lease ends: *longest_ms* is
    the longest that a session of its members has by now. ``free_now`` frees it at once, and then the old holder may still believe in it
    until its next renewal. So does the break of a lock that has no lease, its own or that of a session: nobody could wait for the end.
    """
    if record is None or record.state is not _HELD or record.fencing_token != attempt.fencing_token:
        return None
    by = attempt.by
    lease_ms = max(quarantine_ms(record) or 0, longest_ms) or None
    frees = attempt.free_now or (lease_ms is None and record.members is None)
    broken = LockRecord(
        record.key,
        _FREE if frees else _HELD,
        new_rvn,
        attempt.fencing_token + 1,
        record.owner if frees else by.by,
        None if frees else lease_ms,
        record.data,
        record.attributes,
        broken=by,
        times=record.times and Times(record.times.granted_at_s, by.at_ms // 1000),
    )
    return Replace(broken, record.version, keep_payload=True)


def quarantine_ms(record: LockRecord) -> int | None:
    """Return the lease within which a holder of *record* notices: its own, or the longest of the sessions that keep it."""
    return max((session.lease_ms for session in keeping_sessions(record)), default=record.lease_ms)


# ---- sessions that keep locks ---------------------------------------------------------------------------------------------------------


def is_session_over(ref: SessionRef, record: LockRecord | None, began: int, absent_since: int | None) -> bool | None:
    """Whether the session *ref* is over, by *record*, which a linearizable read that *began* then has shown under its key; in ns.

    None: it is held, so the end of its lease decides, as of any lock. *absent_since*: since when this reader has seen no record there.
    """
    if record is None:
        # Somebody may have removed the row of a holder, who hears of it at the next renewal (Q4).
        return absent_since is not None and began - absent_since >= ref.lease_ms * 1_000_000
    if record.state is not _HELD:
        return True
    # One that an operator has broken stays closed for its lease: until then its holder may not have heard of it. Of a newer format
    # nothing is known.
    if record.fencing_token != ref.fencing_token and record.broken is None and not isinstance(record, NewerRecord):
        return True
    return None


def note_request(session: LockRecord | None, note: BeatNote, ref_token: int, new_rvn: str) -> Replace | bool:
    """Return the write that leaves *note* in the record of the session of the token *ref_token*, as a read has just shown it.

    False: that session is over, and nobody would hear of it; True: the note stands there already. The owner's lease goes on as before:
    waiters count it from the owner's own last write.

    Raises: OutcomeUnknownError: there is no room before the owner has read the notes of others.
    """
    if session is None or session.state is not _HELD or session.fencing_token != ref_token:
        return False
    beat = session.beat or Beat(session.rvn)
    if note in beat.notes:
        return True
    if len(beat.notes) == NOTES_MAX:
        raise OutcomeUnknownError(
            f"the session of lock {note.key!r} has {NOTES_MAX} notes that its owner has not read; try again",
            key=note.key,
        )
    noted = replace(session, rvn=new_rvn, beat=Beat(beat.own, (*beat.notes, note)))
    return Replace(noted, session.version, keep_payload=True)
