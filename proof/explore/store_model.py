"""What happens in the store: one key, executed as the clauses of :mod:`dlock_core.store` say, and checked against the record's relation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dlock_core import lease
from dlock_core.early import STEP_NS
from dlock_core.kit import removal
from dlock_core.record import Broken, LockRecord, OwnerState, State
from dlock_core.states import Break, Read, Verb
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from proof.explore.canonical import TOKEN, Store, cleared, orphaned, rebased
from proof.explore.world import (
    NEW_RVN,
    NOW,
    TICK,
    Client,
    Ghost,
    Removal,
    Request,
    Rules,
    Slot,
    expects_absence,
    ghost_of,
    is_too_late,
    rvn_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Landed", "Op", "land", "operator_move", "ops", "perform"]


class Op(NamedTuple):
    """One way in which a request of a client meets the store."""

    label: str
    cost: int
    kind: str
    place: int


class Landed(NamedTuple):
    """What it led to; tokens are already counted from the store's new one, which rose by *rise*."""

    client: Client
    store: Store
    rise: int
    notes: tuple[str, ...] = ()
    violation: str | None = None


def perform(record: LockRecord | None, request: Request, floor: int = TOKEN) -> tuple[bool, LockRecord | None]:
    """Do *request* on *record*: clauses S2 to S9. The tokens of these worlds begin at the *floor*."""
    match request:
        case Removal():
            raise AssertionError("a removal is not a step of a client")
        case Read():
            return False, record
        case Claim():
            if not _may_claim(record, request):
                return False, record
            token = max(floor if record is None else record.fencing_token + 1, request.record.fencing_token)
            kept = record if request.keep_payload and record is not None and record.state is not State.GONE else None
            return True, _written(request.record, token, kept)
        case Replace() | Release():
            if record is None or record.state is not State.HELD or record.version != request.expected:
                return False, record
            return True, _written(
                request.record, request.record.fencing_token, record if request.keep_payload else None
            )


def _may_claim(record: LockRecord | None, request: Claim) -> bool:
    if record is None:
        return not request.must_exist and request.expect in (Expect.ANY, Expect.ABSENT)
    if (
        record.state is State.HELD
        or request.expect is Expect.ABSENT
        or (request.must_exist and record.state is State.GONE)
    ):
        return False
    return request.expect is Expect.ANY or request.expect == record.version


def _written(new: LockRecord, token: int, kept: LockRecord | None) -> LockRecord:
    data, attributes = (new.data, new.attributes) if kept is None else (kept.data, kept.attributes)
    return LockRecord(
        new.key,
        new.state,
        new.rvn,
        token,
        new.owner,
        new.lease_ms,
        data,
        attributes,
        new.stamp,
        new.process,
        new.broken,
    )


def ops(client: Client, rules: Rules) -> Iterator[Op]:
    """Yield the ways in which requests of *client* may meet the store now."""
    for index, slot in enumerate(client.slots):
        if slot.probed is not None:
            for owner in OwnerState:
                yield Op(f"{slot.number}.probe-{owner.value}", 0, owner.value, index)
        if slot.request is None:
            continue
        if type(slot.request) is not Read and is_too_late(client, slot.request, slot.state.in_flight.sent_at):  # type: ignore[union-attr]
            continue
        yield Op(f"{slot.number}.apply", 0, "apply", index)
        if type(slot.request) is Read:
            continue
        if rules.copies:
            yield Op(f"{slot.number}.apply+copy", 1, "apply+copy", index)
            yield Op(f"{slot.number}.copy-first", 1, "copy", index)
        if rules.stale:
            yield Op(f"{slot.number}.stale-refusal", 1, "stale", index)
    for index, ghost in enumerate(client.ghosts):
        yield Op(f"{ghost.number}.late{index}", 0, "ghost", index)


def operator_move(store: Store, rules: Rules) -> Client | None:
    """Return the operator with a break of the record that stands on its way, or with its removal."""
    record = store.record
    if rules.late is not None:
        listed = record is not None and record.state is not State.HELD
        return Client(None, ghosts=(Ghost(0, Removal(record)),)) if listed and record is not None else None
    if record is None or record.state is not State.HELD or record.broken is not None:
        return None
    by = Broken("operator", 0)
    attempt = Break(record.key, record.fencing_token, by, free_now=rules.frees_now)
    request = lease.break_request(attempt, record, NEW_RVN)
    return None if request is None else Client(None, ghosts=(Ghost(0, request),))


def land(client: Client, op: Op, store: Store, rules: Rules) -> Landed | None:
    """Let the request meet the store; None where it makes no difference that it did."""
    slot = None if op.kind == "ghost" else client.slots[op.place]
    if slot is not None and slot.probed is not None:
        return _probed(client, op, slot, store)
    number, request = (
        (client.ghosts[op.place].number, client.ghosts[op.place].request)
        if slot is None
        else (slot.number, slot.request)
    )
    assert request is not None
    if isinstance(request, Removal):
        return _removed(client, request, store, rules)
    if op.kind == "stale":
        # A former primary looks into its own past; what it refuses is applied nowhere.
        applied, record = perform(store.previous, request)
        if applied or record is None:
            return None
    else:
        applied, record = perform(store.record, request, floor_of(store))
    reply = Reply(applied, record)
    if slot is None:
        ghosts = client.ghosts[: op.place] + client.ghosts[op.place + 1 :]
        after = client._replace(ghosts=ghosts)
    elif op.kind == "copy":
        slots = (*client.slots[: op.place], slot._replace(doubled=True), *client.slots[op.place + 1 :])
        after = client._replace(slots=slots)
    else:
        age = age_ms(store) if type(request) is Read and request.aged else None
        after = _answered(client, op, slot, reply, age)
    if op.kind == "copy" and not applied:
        return None
    if not applied or record is None:
        return Landed(after, store, 0, _refused_notes(op))
    problem = _relation(client, number, request, store, record) or _over(client, op, request)
    grant = type(request) is Claim or (
        type(request) is Replace and store.record is not None and record.fencing_token != store.record.fencing_token
    )
    rise = record.fencing_token - TOKEN
    notes = tuple(_landed_notes(client, op, request, store, grant=grant))
    after = (
        after._replace(grantee=number) if grant and client.timings is not None else (cleared(after) if grant else after)
    )
    new = rebased(Store(record, store.record if rules.stale else None, NOW), rise)
    if client.dead:
        new = orphaned(new)
    return Landed(rebased(after, rise), new, rise, notes, problem)


def _removed(operator: Client, request: Removal, store: Store, rules: Rules) -> Landed | None:
    """Remove the record as the stores do: by clause P1."""
    standing, listed = store.record, request.record
    assert rules.late is not None
    age_ms, older_than_ms = (NOW - store.written_at) // TICK, rules.late + 1
    after = operator._replace(ghosts=())
    if not removal.may_be_removed(standing, listed, age_ms, older_than_ms):
        return Landed(after, store, 0)
    assert standing is not None
    problem = (
        None if standing.version == listed.version else "I3: a record was removed that had changed since it was listed"
    )
    return Landed(after, Store(removed=True), 0, ("record removed",), problem)


def floor_of(store: Store) -> int:
    """Return the least token that the store gives: more than any that it has removed."""
    return TOKEN + store.removed


def _over(client: Client, op: Op, request: Request) -> str | None:
    """I5: no claim of an absent key is applied when its attempt is over, unless its sender knows that it may be."""
    if op.kind != "ghost" or not expects_absence(client, request):
        return None
    ghost = client.ghosts[op.place]
    known = (
        ghost.copy or rvn_of(request) in client.abandoned or any(slot.number == ghost.number for slot in client.slots)
    )
    return None if known else "I5: a write of an attempt that is over was applied"


def _probed(client: Client, op: Op, slot: Slot, store: Store) -> Landed | None:
    """Tell of the owner what is true now, or nothing; who wrote a record that is gone is anybody's guess."""
    owner, record = OwnerState(op.kind), store.record
    if record is not None and record.version == slot.probed and owner not in answers(store):
        return None
    slots = (*client.slots[: op.place], slot._replace(probed=None, owner=owner), *client.slots[op.place + 1 :])
    return Landed(client._replace(slots=slots), store, 0)


def answers(store: Store) -> tuple[OwnerState, ...]:
    """Return what a probe that is right may answer."""
    return (OwnerState.DEAD if store.dead else OwnerState.ALIVE, OwnerState.UNKNOWN)


def age_ms(store: Store) -> int:
    """Return the age of the record, by a clock that has made the longest step since it was written."""
    return 0 if store.record is None else (NOW - store.written_at + STEP_NS) // TICK


def _answered(client: Client, op: Op, slot: Slot, reply: Reply, age: int | None) -> Client:
    slots = (*client.slots[: op.place], slot._replace(reply=reply, age=age), *client.slots[op.place + 1 :])
    ghosts = client.ghosts
    if op.kind == "apply+copy" and slot.request is not None:
        ghosts = (*ghosts, ghost_of(client, slot, copy=True))
    return client._replace(slots=slots, ghosts=ghosts)


def _relation(client: Client, number: int, request: Request, store: Store, new: LockRecord) -> str | None:
    """I2 and I3: what may follow what in the record."""
    old = store.record
    if old is None and store.removed and new.fencing_token <= TOKEN:
        return "I2: a token was given again after its record was removed"
    if old is None:
        return None if type(request) is Claim else "I3: something other than a claim made the record"
    if new.rvn == old.rvn:
        return "I3: a write kept the RVN"
    step = new.fencing_token - old.fencing_token
    if type(request) is Claim:
        return None if step == 1 else f"I2: a claim changed the token by {step}"
    if step == 0:
        return None if client.grantee == number else "I3: a renewal or a release of a grant that is not the writer's"
    if step != 1:
        return f"I2: the token changed by {step}"
    if client.timings is None or old.rvn in client.abandoned or store.dead:
        return None
    if old.lease_ms is None or NOW - store.written_at < old.lease_ms * TICK:
        return "I3: a takeover before the record's lease had passed"
    return None


def _refused_notes(op: Op) -> tuple[str, ...]:
    return ("stale refusal",) if op.kind == "stale" else ()


def _landed_notes(client: Client, op: Op, request: Any, store: Store, *, grant: bool) -> Iterator[str]:
    if op.kind == "ghost":
        ghost = client.ghosts[op.place]
        kind = (
            Verb.RELEASE.value
            if type(request) is Release
            else ("claim" if type(request) is Claim else ("takeover" if grant else "renewal"))
        )
        yield f"{'copy' if ghost.copy else 'late request'} applied: {'break' if client.timings is None else kind}"
    if type(request) is Replace and grant and client.timings is not None and store.record is not None:
        yield "takeover"
        if store.record.broken is not None:
            yield "takeover after a break"
