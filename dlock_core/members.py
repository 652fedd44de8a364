"""Shared locks: who may join the members of a record, and what joining and leaving writes. Pure, as :mod:`dlock_core.lease` is.

One record lists the members of a read/write lock or a semaphore. Nothing in it is renewed. Each member hangs on a *session*, a lock of
its own under :func:`session_key`, which the machine renews, loses and takes over as any other: a member is valid while its session is.

The rules, each of which a test breaks (protocol-notes: B1 to B7, Q4):

- Each write of the record is conditional on its version, the first claim too: one that arrives late can't let in who has left (B3).
- A member is known by its id in whatever version stands, since others may have joined on top of a write without an answer (B1).
- A member is left out only when its session is over: it was seen not held, or absent for a lease, or it was taken over; or whoever joins
  holds that session now (B6, Q4). So each member that is valid stands in the record, and the limit holds.
- There must be room by the session that is held when the write is made. Another client may have the session of who was stopped, and be a
  member by it: by the lost session that one does not count (B6).
- Readers of one phase share a token, since a resource must not refuse one for another (B4); the first of a phase raises it, which fences
  the writer before (B5). A writer and a permit raise it, too. Permits are fenced each within its *slot*: N holders have no order.
- A writer that waits says so by a member of its own, ``want``, behind which new readers wait. A writer that leaves takes all of them out,
  so the readers that waited for it have their turn before the next writer.
- A writer that goes on as a reader joins *beside* its own member, which leaves after that; so it excludes others until it is surely a
  reader. A sole reader that goes on as the writer takes the place of its own member in one write: a write that is late, or whose answer is
  lost, must not raise the token of a phase that goes on (B4). Nobody has the lock in between.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from dlock_core.errors import RecordError
from dlock_core.record import MEMBERS_MAX, RESERVED, LockRecord, Member, Members, NewerRecord, SessionRef, State
from dlock_core.store import Claim, Expect, Release, Replace

if TYPE_CHECKING:
    from collections.abc import Collection

READ, WRITE, WANT, PERMIT = "read", "write", "want", "permit"
_KINDS = {"rw": "a read/write lock", "permits": "a semaphore", "": "an exclusive lock"}


def session_key(key: str, number: int) -> str:
    """Return the key of the session *number* of the shared lock *key*."""
    return f"{key}{RESERVED}session/{number}"


def shared_key(key: str) -> str:
    """Return the key of the shared lock of which *key* is a session; any other key as it is."""
    return key.partition(RESERVED)[0]


class Wish(NamedTuple):
    """What one attempt wants of the shared lock *key*: to be there as the member *member_id*, one of ``READ``, ``WRITE``, ``PERMIT``.

    *permits* is how many there are, and *weight* how many it takes. One that *reads_already* is not kept out by a writer that waits.
    *session* is the key and the lease of its session, once it has one. The member *beside* is its own, and will leave after it.
    """

    key: str
    mode: str
    member_id: str
    owner: str
    permits: int = 0
    weight: int = 1
    token_floor: int = 1
    reads_already: bool = False
    session: SessionRef | None = None
    beside: str | None = None

    @property
    def kind(self) -> str:
        """The kind of the record."""
        return "permits" if self.mode == PERMIT else "rw"


def keeping_sessions(record: LockRecord) -> tuple[SessionRef, ...]:
    """Return the sessions that keep *record*: that of a lock, or those of the members of a shared lock."""
    if record.session is not None:
        return (record.session,)
    return () if record.members is None else record.members.sessions


def kind_error(record: LockRecord | None, kind: str) -> RecordError | None:
    """Return the error of asking for the key of *record* as of another *kind* than it is held; None where that fits.

    A key that was broken is of no kind until its quarantine ends, and of a newer record nobody knows.
    """
    if record is None or not record.held or record.broken is not None or isinstance(record, NewerRecord):
        return None
    held = "" if record.members is None else record.members.kind
    if held == kind:
        return None
    return RecordError(
        f"lock {record.key!r} is held as {_KINDS[held]}, and was asked for as {_KINDS[kind]}; use it in one way, or take another key; if "
        "its holder has died, ask again after its lease, or break it",
        key=record.key,
    )


def in_the_way(wish: Wish, record: LockRecord | None, over: Collection[str]) -> tuple[SessionRef, ...] | None:
    """Return the sessions for which *wish* must wait; None if there is room. Members with an id in *over* don't count.

    A record without members is an exclusive lock, or in quarantine, which is over for who has its RVN in *over*; or of a newer format,
    which never is. While a lock of another kind is held, there is no room.
    """
    if record is None or not record.held:
        return None
    members = record.members
    if members is None:
        return None if record.rvn in over else keeping_sessions(record)
    others = _others(wish, members, over)
    if members.kind != wish.kind:
        blocking = others
    elif wish.mode == PERMIT:
        has_room = sum(member.weight for member in others) + wish.weight <= wish.permits
        blocking = () if has_room else others
    else:
        passed = (WANT,) if wish.mode == WRITE else (READ, WANT) if wish.reads_already else (READ,)
        blocking = tuple(member for member in others if member.mode not in passed and member.member_id != wish.beside)
    if not blocking and len(others) < MEMBERS_MAX:
        return None
    return tuple(members.sessions[member.session] for member in blocking or others)


def join(wish: Wish, record: LockRecord | None, over: Collection[str], rvn: str) -> Claim | Replace:
    """Return the write by which *wish* becomes a member under its session; *record* is what stands, and shows that it may.

    A token that rises is minted by the store, or raised to its floor: that member carries none, which means the record's, until the next
    write.
    """
    session = wish.session
    assert session is not None  # who asks has one
    if record is None or not record.held:
        me = Member(wish.member_id, wish.mode, _slot(wish, ()), None, wish.weight, 0)
        claimed = _record(wish, wish.token_floor, rvn, Members(wish.kind, (session,), (me,)))
        return Claim(claimed, Expect.ABSENT if record is None else record.version)
    others = () if record.members is None else _others(wish, record.members, over)
    rises = wish.mode in (PERMIT, WRITE) or (wish.mode == READ and all(member.mode != READ for member in others))
    token = max(record.fencing_token + 1, wish.token_floor) if rises else record.fencing_token
    me = Member(wish.member_id, wish.mode, _slot(wish, others), None if rises else token, wish.weight, 0)
    members = Members(wish.kind, (session,), (me,)) if not others else _members(record, others, (me, session))
    return Replace(_record(wish, token, rvn, members), record.version, wakes=_has_more_room(wish, members))


def pass_on(wish: Wish, record: LockRecord | None, rvn: str) -> Replace | None:
    """Return the write that only wakes another one, since the claim by which *wish* came in wakes nobody; None without room for one."""
    if record is None or record.members is None or not _has_more_room(wish, record.members):
        return None
    return Replace(replace(record, rvn=rvn), record.version, wakes=True)


def leave(record: LockRecord | None, member_id: str, rvn: str, *, hides: bool) -> Replace | Release | None:
    """Return the write that takes the member *member_id* out of *record*; None if it is not there.

    The last one leaves a tombstone, which *hides* says to be deleted for readers.
    """
    me = None if record is None else member_of(record, member_id)
    if record is None or record.members is None or me is None:
        return None
    others = _kept(record.members, member_id, ())
    if me.mode == WRITE:
        others = tuple(member for member in others if member.mode != WANT)
    token = record.fencing_token
    if not others:
        state = State.GONE if hides else State.FREE
        return Release(LockRecord(record.key, state, rvn, token, record.owner, None), record.version)
    left = LockRecord(record.key, State.HELD, rvn, token, record.owner, None, members=_members(record, others, None))
    return Replace(left, record.version, wakes=True)


def member_of(record: LockRecord, member_id: str) -> Member | None:
    """Return the member of *record* that has the id."""
    members = () if record.members is None or not record.held else record.members.members
    return next((member for member in members if member.member_id == member_id), None)


def token_of(record: LockRecord, member: Member) -> int:
    """Return the fencing token of *member*."""
    return record.fencing_token if member.fencing_token is None else member.fencing_token


def members_in_words(members: Members) -> str:
    """Say how many hold a shared lock, and in which way: ``2 holders with 3 permits``, ``1 reader, and 1 writer waits``."""
    listed = members.members
    if members.kind == "permits":
        return f"{_counted(len(listed), 'holder')} with {_counted(sum(member.weight for member in listed), 'permit')}"
    counts = {mode: sum(member.mode == mode for member in listed) for mode in (WRITE, READ, WANT)}
    held = [_counted(counts[mode], name) for mode, name in ((WRITE, "writer"), (READ, "reader")) if counts[mode]]
    waits = f"{_counted(counts[WANT], 'writer')} wait{'s' if counts[WANT] == 1 else ''}"
    return ", and ".join([*(held or ["nobody"]), *([waits] if counts[WANT] else [])])


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _others(wish: Wish, members: Members, over: Collection[str]) -> tuple[Member, ...]:
    """Return the members beside *wish*. Whoever has a session now is the only one whose member it keeps."""
    own = None if wish.session is None else wish.session.key
    return tuple(each for each in _kept(members, wish.member_id, over) if members.sessions[each.session].key != own)


def _kept(members: Members, but: str, over: Collection[str]) -> tuple[Member, ...]:
    return tuple(each for each in members.members if each.member_id != but and each.member_id not in over)


def _has_more_room(wish: Wish, members: Members) -> bool:
    """Whether another one that wants the same as *wish*, which is one of *members*, may join them."""
    if wish.mode == PERMIT:
        return sum(member.weight for member in members.members) + wish.weight <= wish.permits
    return wish.mode == READ


def _slot(wish: Wish, others: tuple[Member, ...]) -> int | None:
    """Return the lowest slot that no permit has."""
    if wish.mode != PERMIT:
        return None
    taken = {member.slot for member in others}
    return next(slot for slot in range(len(others) + 1) if slot not in taken)


def _record(wish: Wish, token: int, rvn: str, members: Members) -> LockRecord:
    return LockRecord(wish.key, State.HELD, rvn, token, wish.owner, None, members=members)


def _members(record: LockRecord, others: tuple[Member, ...], more: tuple[Member, SessionRef] | None) -> Members:
    """Return *others* of *record*, and one *more*, each with its own token written out before the record's changes."""
    assert record.members is not None  # they are its
    old = record.members.sessions
    kept = [(member._replace(fencing_token=token_of(record, member)), old[member.session]) for member in others]
    listed = [*kept, *([] if more is None else [more])]
    return Members(
        record.members.kind,
        tuple(session for _, session in listed),
        tuple(member._replace(session=place) for place, (member, _) in enumerate(listed)),
    )
