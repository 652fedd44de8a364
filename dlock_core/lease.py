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

One attempt at a key goes through these states::

    New -> Seeking -> Held -> Releasing -> Ended
                |         `-> Lost -> Releasing -> Ended
                `-> Cleaning -> Ended            (given up while a claim was unresolved)

``TRANSITIONS`` at the end of the file is the table. An event that is not in it raises and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from dlock_core import early
from dlock_core.errors import LeaseStateError
from dlock_core.record import NO_TOKEN, Attributes, Broken, LockRecord, Loss, LossReason, OwnerState, State, Version
from dlock_core.states import (
    Abandon,
    Answer,
    Begin,
    Cleaning,
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
    Observation,
    Outcome,
    Payload,
    Probe,
    Probed,
    Read,
    Releasing,
    Renew,
    Risk,
    Seeking,
    Sent,
    Terms,
    Verb,
    Wait,
    Woken,
)
from dlock_core.store import Claim, ClaimExpect, Expect, Release, Replace
from dlock_core.timings import NEVER, Timings

__all__ = ["TRANSITIONS", "break_request", "due_at", "is_valid", "observe", "step"]

# More unresolved writes than this are not added to: the next request is a read. A lease has time for 24 back-offs.
PENDING_MAX = 32
# Conditional claims that lose to others are repeated at once this often, then at the pace of a poll.
IMMEDIATE_RETRIES_MAX = 16
# A clean-up asks again after 1, 2, 4, ... request time-outs; the exponent stops here, the clean-up ends one lease after the last send.
DOUBLINGS_MAX = 6

_HELD, _FREE, _GONE = State.HELD, State.FREE, State.GONE

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
    return transition(state, event, now)


def is_valid(state: LeaseState, now: int) -> bool:
    """Whether the holder may act: held, handed out, and neither the lease nor ``max_hold`` has run out."""
    return type(state) is Held and now < state.deadline and now < state.hold_until and state.way_back is None


def due_at(state: LeaseState) -> int:
    """Return the instant at which the state wants :class:`Due`; NEVER where only another event can change it."""
    if type(state) is Held:
        if state.way_back is not None:
            return NEVER  # whoever acquires drives it
        end = min(state.deadline, state.hold_until)
        return end if state.in_flight is not None else min(end, state.renew_at)
    if type(state) is Releasing or type(state) is Cleaning:
        return NEVER if state.in_flight is not None else state.retry_at
    return NEVER


def observe(record: LockRecord, now: int) -> Observation:
    """Begin to observe a held *record*; *now* is after the answer that showed it."""
    return Observation(record.version, NEVER if record.lease_ms is None else record.lease_ms * 1_000_000, now)


# -- seeking


def _begin(state: New, event: Begin, now: int) -> Step:
    terms = state.terms
    # A claim that expects nothing costs one request. Its late duplicate could hold the key for nobody: for one lease, or, without a
    # lease, for ever.
    sent, claim = _claim(terms, Expect.ABSENT if terms.timings.lease_ms is None else Expect.ANY, event.new_rvn, now)
    return Seeking(terms, event.give_up_at, sent, (), event.seen), (claim,)


def _claim(terms: Terms, expect: ClaimExpect, new_rvn: str, now: int) -> tuple[Sent, Claim]:
    key, ticket, timings = terms
    record = _record(key, timings, new_rvn, timings.token_floor, (timings.data, timings.attributes))
    # Stamp before sending: the lease runs from the request, not from a reply that may never come.
    sent = Sent(Verb.CLAIM, new_rvn, expect, now, timings)
    return sent, Claim(record, expect, timings.must_exist, timings.keep_payload, ticket if timings.wait_ns else None)


def _take_over(state: Seeking, version: Version, new_rvn: str, now: int) -> Step:
    timings = state.terms.timings
    token = max(version.fencing_token + 1, timings.token_floor)
    record = _record(state.terms.key, timings, new_rvn, token, (timings.data, timings.attributes))
    sent = Sent(Verb.TAKE, new_rvn, version, now, timings)
    return state._replace(in_flight=sent), (Replace(record, version, timings.keep_payload),)


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
    seeking = state._replace(in_flight=None, pending=pending, shown=record, failing_since=None)
    return _pursue(seeking, record, event, now)


def _living(pending: tuple[Sent, ...], record: LockRecord | None, timings: Timings) -> tuple[Sent, ...]:
    """Drop the writes that can no longer be applied: a version never returns, and a key that exists is never absent again.

    It may be, where records are deleted. That an answer shows another record proves nothing about a write that expects anything.
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
        missing = state.terms.timings.must_exist and (record is None or record.state is _GONE)
        if missing or state.immediate_retries >= IMMEDIATE_RETRIES_MAX or len(state.pending) >= PENDING_MAX:
            return _wait(state._replace(seen=None), event.jitter, now)
        sent, claim = _claim(state.terms, _expectation(state, record), event.new_rvn, now)
        return state._replace(in_flight=sent, seen=None, immediate_retries=state.immediate_retries + 1), (claim,)
    version, seen = record.version, state.seen
    if event.abandoned:
        return _take_over(state, version, event.new_rvn, now)
    if seen is None or seen.version != version:
        seen = observe(record, now)
        state = _extended(state._replace(seen=seen, ends_at=NEVER), seen)
    trusted = state.terms.timings.early
    ends_at = early.ends_at(record, trusted, now, wall_ms=event.wall_ms, age_ms=event.age_ms)
    state = state._replace(ends_at=min(state.ends_at, ends_at))
    if now >= _over_at(state, seen):
        return _take_over(state, version, event.new_rvn, now)
    # What was free a moment ago is young.
    if trusted.server_clock and event.age_ms is None and seen.lease_ns != NEVER and not state.immediate_retries:
        return _read(state, event.new_rvn, now)
    if early.is_probed(record, trusted):
        sent = Sent(Verb.READ, event.new_rvn, Expect.ANY, now, state.terms.timings)
        return state._replace(in_flight=sent), (Probe(record, event.new_rvn),)
    return _wait(state, event.jitter, now)


def _over_at(state: Seeking, seen: Observation) -> int:
    """When the lease that was seen has ended: by having stood unchanged so long, or by a clock that is trusted."""
    return min(seen.seen_at + seen.lease_ns, state.ends_at)


def _seek_probed(state: Seeking, event: Probed, now: int) -> Step:
    """Take over from an owner that is dead. One that may be alive is waited for."""
    _in_flight(state, event.rvn)
    state, seen = state._replace(in_flight=None), state.seen
    if event.owner is OwnerState.DEAD and seen is not None:
        return _take_over(state, seen.version, event.new_rvn, now)
    return _wait(state, event.jitter, now)


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


def _wait(state: Seeking, jitter: float, now: int) -> Step:
    timings, shown, seen = state.terms.timings, state.shown, state.seen
    if now >= state.give_up_at or state.polls >= timings.retries_max:
        return _leave(state, Outcome.DENIED, now)
    until = min(now + timings.poll_ns(state.polls, jitter), state.give_up_at)
    if seen is not None:
        until = min(until, _over_at(state, seen))
    notice = shown if timings.notify and shown is not None and shown.state is _HELD else None
    return state._replace(polls=state.polls + 1, immediate_retries=0), (Wait(until, notice),)


def _seek_due(state: Seeking, event: Due, now: int) -> Step:
    _idle(state, event)
    seen = state.seen
    if seen is not None and now >= _over_at(state, seen):
        return _take_over(state, seen.version, event.new_rvn, now)
    if now >= state.give_up_at:
        return _leave(state, Outcome.DENIED if state.failing_since is None else Outcome.UNREACHABLE, now)
    return _try_again(state, event.new_rvn, now, polling=not state.terms.timings.notify)


def _seek_woken(state: Seeking, event: Woken, now: int) -> Step:
    _idle(state, event)
    # A store may wake at each renewal, too: only waits to their end use up the polls that the options allow.
    return _try_again(state._replace(polls=state.polls - 1), event.new_rvn, now, polling=False)


def _try_again(state: Seeking, new_rvn: str, now: int, *, polling: bool) -> Step:
    """Ask once more. A poll of a held key is a read, the cheapest request; one that was told of a release claims at once."""
    held = state.shown is not None and state.shown.state is _HELD
    if state.pending or state.terms.timings.lease_ms is None or (polling and held):
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
    return _leave(state._replace(in_flight=None, pending=_unresolved(state)), Outcome.ABANDONED, now)


def _leave(state: Seeking, outcome: Outcome, now: int) -> Step:
    if not state.pending:
        return Ended(state.terms, outcome, state.shown), ()
    until = max(sent.sent_at for sent in state.pending) + state.terms.timings.lease_ns
    cleaning = Cleaning(state.terms, outcome, state.shown, until, now, state.pending)
    return cleaning, (Abandon(tuple(sent.rvn for sent in state.pending)),)


# -- the grant


def _granted(state: Seeking, sent: Sent, record: LockRecord, new_rvn: str, now: int) -> Step:
    """Hold what *sent* wrote. Token, data and lease are the record's, which may keep what it had; the time is that of the first send."""
    effects: tuple[Effect, ...] = ()
    if state.pending:
        # Every other write of this attempt is dead, its expected version being gone, but for claims that expect nothing, or, where records
        # are deleted, an absent key.
        comes = (Expect.ANY, Expect.ABSENT) if sent.timings.deletes else (Expect.ANY,)
        loose = tuple(other.rvn for other in state.pending if other.expected in comes and other.rvn != sent.rvn)
        effects = (Abandon(loose),) if loose else ()
    timings = sent.timings
    version, payload = Version(record.rvn, record.fencing_token), Payload(record.data, record.attributes)
    deadline = sent.sent_at + timings.usable_ns
    if deadline - now < timings.handout_min_ns or (timings.has_tokens and not version.fencing_token):
        way_back = state._replace(
            in_flight=None, pending=(), seen=None, polls=0, immediate_retries=0, failing_since=None
        )
        late = Held(state.terms, version, sent.sent_at, timings, payload, deadline, NEVER, NEVER, way_back=way_back)
        held, renewal = _renew(late, timings, None, new_rvn, now)
        return held, effects + renewal
    return _hand_out(state.terms, version, sent, payload, deadline=deadline, now=now), effects


def _hand_out(terms: Terms, version: Version, sent: Sent, payload: Payload, *, deadline: int, now: int) -> Held:
    timings = sent.timings
    renew_at = sent.sent_at + timings.period_ns if timings.auto_renew else NEVER
    hold_until = NEVER if timings.max_hold_ns is None else now + timings.max_hold_ns
    return Held(terms, version, sent.sent_at, timings, payload, deadline, renew_at, hold_until)


# -- held


def _renew(state: Held, timings: Timings, payload: Payload | None, new_rvn: str, now: int) -> Step:
    if len(state.pending) >= PENDING_MAX:
        return _read(state, new_rvn, now)
    terms = state.terms
    token = state.version.fencing_token
    record = _record(terms.key, timings, new_rvn, token, state.payload if payload is None else payload)
    sent = Sent(Verb.RENEW, new_rvn, state.version, now, timings, payload)
    # The deadline shrinks before the send: a shorter lease may be the one that waiters count from now on.
    deadline = min(state.deadline, now + timings.usable_ns)
    # Spelled out: a copy by names costs as much as all the rest, and many locks are renewed all the time.
    held = Held(
        terms, state.version, state.sent_at, state.timings, state.payload, deadline, state.renew_at, state.hold_until, sent,
        state.pending, state.at_risk, state.way_back,
    )  # fmt: skip
    return held, (Replace(record, state.version, payload is None),)


def _deadline(state: Held) -> int:
    """The earliest end over all writes that may be the current one, each counted from its own send."""
    ends = [sent.sent_at + sent.timings.usable_ns for sent in state.pending]
    return min([state.sent_at + state.timings.usable_ns, *ends])


def _held_answer(state: Held, event: Answer, now: int) -> Step:
    in_flight, reply = _in_flight(state, event.rvn), event.reply
    record = reply.record
    if state.way_back is None and _over(state, now):
        return _lapse(state, now)
    if reply.applied and record is not None:
        return _renewed(state, in_flight, record, event, now)
    # A grant without a token yet is known by its RVN alone; the write that is asked for now brings the token.
    token = state.version.fencing_token or (NO_TOKEN if record is None else record.fencing_token)
    if record is not None and record.fencing_token == token and record.state is _HELD:
        for sent in (in_flight, *state.pending):
            if sent.rvn == record.rvn and sent.verb is not Verb.READ:
                return _renewed(state, sent, record, event, now)
        if record.rvn == state.version.rvn:
            return _not_renewed(state, in_flight, event, now, unknown=in_flight.verb is not Verb.READ)
    if record is not None and 0 < record.fencing_token < token:
        # An older record than ours is a stale answer. It proves nothing. One without a token is another client's.
        return _not_renewed(state, in_flight, event, now, unknown=in_flight.verb is not Verb.READ)
    if in_flight.verb is not Verb.READ and not state.timings.refusals_linearizable:
        return _read(state._replace(in_flight=None, pending=(*state.pending, in_flight)), event.new_rvn, now)
    return _taken(state, record, event, now)


def _renewed(state: Held, sent: Sent, record: LockRecord, event: Answer, now: int) -> Step:
    """*sent* is the current write: all others expected a version that is gone."""
    timings = sent.timings
    payload = state.payload if sent.payload is None else Payload(record.data, record.attributes)
    version = Version(sent.rvn, state.version.fencing_token or record.fencing_token)
    deadline = sent.sent_at + timings.usable_ns
    back = state.way_back
    has_its_token = bool(version.fencing_token) or not timings.has_tokens
    if back is not None and has_its_token and deadline - now >= timings.handout_min_ns:
        return _hand_out(state.terms, version, sent, payload, deadline=deadline, now=now), ()
    renew_at = sent.sent_at + timings.period_ns if timings.auto_renew else NEVER
    held = Held(
        state.terms, version, sent.sent_at, timings, payload, deadline, renew_at, state.hold_until, way_back=back
    )
    if back is None:
        return held, (Risk(at_risk=False),) if state.at_risk else ()
    if now >= back.give_up_at:
        return _free(held, None, event.new_rvn, now)
    return _renew(held, timings, None, event.new_rvn, now)


def _not_renewed(state: Held, in_flight: Sent, event: Answer | Failure, now: int, *, unknown: bool) -> Step:
    pending = (*state.pending, in_flight) if unknown else state.pending
    timings = state.timings
    held = state._replace(
        in_flight=None,
        pending=pending,
        at_risk=True,
        renew_at=now + timings.backoff_ns if timings.auto_renew else NEVER,
    )
    held = held._replace(deadline=_deadline(held))
    back = state.way_back
    if back is None:
        return held, () if state.at_risk else (Risk(at_risk=True),)
    since = now if back.failing_since is None else back.failing_since
    held = held._replace(way_back=back._replace(failing_since=since))
    if now >= back.give_up_at or now - since >= timings.patience_ns:
        return _free(held, None, event.new_rvn, now)
    return held, (Wait(min(now + timings.backoff_ns, back.give_up_at)),)


def _held_failure(state: Held, event: Failure, now: int) -> Step:
    in_flight = _in_flight(state, event.rvn)
    if state.way_back is None and _over(state, now):
        return _lapse(state, now)
    return _not_renewed(state, in_flight, event, now, unknown=event.unknown and in_flight.verb is not Verb.READ)


def _taken(state: Held, record: LockRecord | None, event: Answer, now: int) -> Step:
    """Somebody else's record, or none, stands there by a linearizable answer: the proof of a loss."""
    if state.way_back is not None:
        return _pursue(state.way_back._replace(shown=record), record, event, now)
    reason = LossReason.BROKEN if record is not None and record.broken is not None else LossReason.STOLEN
    return _lose(state, reason, record), ()


def _held_due(state: Held, event: Due, now: int) -> Step:
    if state.way_back is not None:
        _idle(state, event)
        return _renew(state, state.timings, None, event.new_rvn, now)
    if _over(state, now):
        return _lapse(state, now)
    if now < state.renew_at or state.in_flight is not None:
        return state, ()
    return _renew(state, state.timings, None, event.new_rvn, now)


def _held_renew(state: Held, event: Renew, now: int) -> Step:
    _idle(state, event)
    if _over(state, now):
        return _lapse(state, now)
    return _renew(state, state.timings if event.timings is None else event.timings, event.payload, event.new_rvn, now)


def _over(state: Held, now: int) -> bool:
    return now >= state.deadline or now >= state.hold_until


def _lapse(state: Held, now: int) -> Step:
    if now >= state.hold_until:
        return _lose(state, LossReason.OVERRUN, None), ()
    return _lose(state, LossReason.UNREACHABLE if state.at_risk else LossReason.EXPIRED, None), ()


def _lose(state: Held, reason: LossReason, record: LockRecord | None) -> Lost:
    loss = Loss(state.terms.key, state.version.fencing_token, reason, record)
    return Lost(state.terms, state.version, loss, state.sent_at, state.timings, _unresolved(state))


# -- giving it back


def _held_free(state: Held, event: Free, now: int) -> Step:
    if _over(state, now):
        lost, _ = _lapse(state, now)
        return _lost_free(lost, event, now)
    return _free(state, event.payload, event.new_rvn, now)


def _held_give_up(state: Held, event: GiveUp, now: int) -> Step:
    # The token is known, so a release does; one that nobody waits for.
    return _free(state, None, event.new_rvn, now)


def _free(state: Held, payload: Payload | None, new_rvn: str, now: int) -> Step:
    pending = _unresolved(state)
    sent, release = _release(state.terms, state.version, payload, new_rvn, now)
    until = _last_end(state, pending)
    return Releasing(state.terms, state.version, payload, until, now, in_flight=sent, pending=pending), (release,)


def _last_end(state: Held | Lost, pending: tuple[Sent, ...]) -> int:
    """One lease after the last write that may be the current one: then nobody needs a release any more."""
    end = state.sent_at + state.timings.lease_ns
    return max(end, *(sent.sent_at + sent.timings.lease_ns for sent in pending)) if pending else end


def _lost_free(state: Lost, event: Free, now: int) -> Step:
    loss = state.loss
    if loss.reason in (LossReason.STOLEN, LossReason.BROKEN):
        return Ended(state.terms, Outcome.LOST, loss.record, loss), ()
    # Late, but the record may still be ours, and then frees the key at once. Conditional: the next holder is not touched.
    until = max(now + state.terms.timings.timeout_ns, _last_end(state, state.pending))
    releasing = Releasing(
        state.terms,
        state.version,
        event.payload,
        until=until,
        retry_at=now,
        pending=state.pending,
        loss=loss,
    )
    return _send_release(releasing, event.new_rvn, now)


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
        "",
        None,
        None if hidden else data,
        attributes,
    )
    sent = Sent(Verb.RELEASE, new_rvn, version, now, timings)
    return sent, Release(record, version, payload is None and not hidden)


def _release_answer(state: Releasing, event: Answer, now: int) -> Step:
    in_flight = _if_in_flight(state, event.rvn)
    if in_flight is None:
        return state, ()  # the answer to a renewal that was under way when the release began
    record, version = event.reply.record, state.version
    if event.reply.applied:
        return _end_release(state, None)
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
    if record is not None and 0 < record.fencing_token < version.fencing_token:
        return _release_later(state, now)  # older than the grant, so old too
    if in_flight.verb is not Verb.READ and not state.terms.timings.refusals_linearizable:
        return _read(state._replace(in_flight=None), event.new_rvn, now)
    return _end_release(state, record)


def _end_release(state: Releasing, record: LockRecord | None) -> Step:
    """End the release; *record* is what refused it, of somebody else.

    Sent before the deadline, a release that finds another's record has done its work, by a lost reply or a lapse: only a break is a loss.
    """
    loss = state.loss
    if loss is None and record is not None and record.broken is not None:
        loss = Loss(state.terms.key, state.version.fencing_token, LossReason.BROKEN, record)
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


def _release_due(state: Releasing, event: Due, now: int) -> Step:
    if state.in_flight is not None or now < state.retry_at:
        return state, ()
    if now >= state.until and state.tries > 1:
        return Ended(state.terms, Outcome.UNRESOLVED if state.loss is None else Outcome.LOST, None, state.loss), ()
    return _send_release(state, event.new_rvn, now)


# -- cleaning up after an attempt that was given up


def _clean_due(state: Cleaning, event: Due, now: int) -> Step:
    if state.in_flight is not None or now < state.retry_at:
        return state, ()
    return _read(state, event.new_rvn, now)


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
        tomb = LockRecord(record.key, _FREE, event.new_rvn, record.fencing_token, "", None)
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


# -- shared


def _record(
    key: str, timings: Timings, rvn: str, fencing_token: int, payload: tuple[bytes | None, Attributes]
) -> LockRecord:
    """Return what a holder under *timings* writes."""
    data, attributes = payload
    return LockRecord(
        key, _HELD, rvn, fencing_token, timings.owner, timings.lease_ms, data, attributes, None, timings.early.process
    )


def _read(state: Any, new_rvn: str, now: int) -> Step:
    sent = Sent(Verb.READ, new_rvn, Expect.ANY, now, state.terms.timings)
    aged = type(state) is Seeking and state.terms.timings.early.server_clock
    return state._replace(in_flight=sent), (Read(state.terms.key, new_rvn, aged),)


def _unresolved(state: Seeking | Held) -> tuple[Sent, ...]:
    """Return the writes that may still be applied, the one under way among them."""
    in_flight = state.in_flight
    return state.pending if in_flight is None or in_flight.verb is Verb.READ else (*state.pending, in_flight)


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


TRANSITIONS: dict[tuple[type, type], Callable[[Any, Any, int], Step]] = {
    (New, Begin): _begin,
    (Seeking, Answer): _seek_answer,
    (Seeking, Probed): _seek_probed,
    (Seeking, Failure): _seek_failure,
    (Seeking, Due): _seek_due,
    (Seeking, Woken): _seek_woken,
    (Seeking, GiveUp): _seek_give_up,
    (Held, Answer): _held_answer,
    (Held, Failure): _held_failure,
    (Held, Due): _held_due,
    (Held, Renew): _held_renew,
    (Held, Free): _held_free,
    (Held, GiveUp): _held_give_up,
    (Releasing, Answer): _release_answer,
    (Releasing, Failure): _release_failure,
    (Releasing, Due): _release_due,
    (Cleaning, Answer): _clean_answer,
    (Cleaning, Failure): _clean_failure,
    (Cleaning, Due): _clean_due,
    (Lost, Answer): _ignore,
    (Lost, Failure): _ignore,
    (Lost, Due): _ignore,
    (Lost, Free): _lost_free,
    (Ended, Answer): _ignore,
    (Ended, Failure): _ignore,
    (Ended, Due): _ignore,
}


# ---- breaking another's lock ----------------------------------------------------------------------------------------------------------


def break_request(
    record: LockRecord | None, *, fencing_token: int, new_rvn: str, by: Broken, free_now: bool
) -> Replace | None:
    """Return the write that breaks *record*, or None where it is not the grant *fencing_token* any more.

    Raises the token. Quarantine: the key stays held for one more lease, within which the old holder's lease ends; *free_now*, and a lock
    without a lease, frees it at once, and then the old holder may still believe in it until its next renewal.
    """
    if record is None or record.state is not _HELD or record.fencing_token != fencing_token:
        return None
    frees = free_now or record.lease_ms is None
    broken = LockRecord(
        record.key,
        _FREE if frees else _HELD,
        new_rvn,
        fencing_token + 1,
        "" if frees else by.by,
        None if frees else record.lease_ms,
        record.data,
        record.attributes,
        broken=by,
    )
    return Replace(broken, record.version, keep_payload=True)
