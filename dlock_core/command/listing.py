"""What the commands for operators list: locks, and the sessions that keep them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from dlock_core.command.show import (
    OF_EACH,
    bounded,
    held_in_words,
    lease_in_words,
    print_json,
    print_rows,
    record_facts,
    renewed_in_words,
)
from dlock_core.errors import RecordError
from dlock_core.members import members_in_words
from dlock_core.record import RESERVED, State
from dlock_core.store import Capability

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dlock_core.client import LockClient
    from dlock_core.record import LockRecord, SessionRef

    Aged = tuple[LockRecord, int | None]


class Look(NamedTuple):
    """What one look shows.

    Records in the order of their keys and the sessions that keep some of them, by key, each with its age in ms if known; and the first
    record that cannot be read.
    """

    records: Sequence[Aged]
    sessions: Mapping[str, Aged | None]
    foreign: RecordError | None = None

    def beat(self, record: LockRecord) -> Aged | None:
        """Return the session that keeps *record*, and its age; None where none does, or where it is over."""
        return None if record.session is None else standing(record.session, self.sessions[record.session.key])


def print_locks(client: LockClient, prefix: str, output: str, *, everything: bool) -> None:
    """Print the locks as one look shows them, those that can be read also where another record cannot."""
    look = look_up(client, prefix, everything=everything)
    if output == "json":
        print_json([record_facts(record, age_ms) for record, age_ms in look.records])
    else:
        print_rows(*rows_of(look, everything=everything))
    if look.foreign is not None:
        raise look.foreign


def look_up(client: LockClient, prefix: str, *, everything: bool) -> Look:
    """Look at the locks whose key begins with *prefix*."""
    records: list[Aged] = []
    foreign = None
    try:
        for listed in client.scan(prefix):
            if listed.held or everything:
                found = aged(client, listed.key, listed)
                if found is not None and (found[0].held or everything):
                    records.append(found)
    except RecordError as error:
        foreign = _incomplete(error)
    sessions = {record.session.key for record, _ in records if record.session is not None}
    records.sort(key=lambda aged: aged[0].key)
    return Look(records, {key: read_aged(client, key) for key in sorted(sessions)}, foreign)


def _incomplete(error: RecordError) -> RecordError:
    return RecordError(f"{error}; the list is NOT complete: it has what could be read")


def print_sessions(client: LockClient, prefix: str, output: str) -> None:
    """Print the sessions that keep a lock whose key begins with *prefix*, with their number of such locks; without one, all sessions."""
    keeps, keys, foreign = Counter[str](), list[str](), None
    context = client._context
    try:
        for record in client._store.scan(context.full_prefix(""), timeout_s=context.store_timeout_s()):
            if RESERVED in record.key:
                keys.append(record.key)
            elif record.key.startswith(context.full_prefix(prefix)):
                keeps.update(ref.key for ref in _sessions_of(record))
    except RecordError as error:
        foreign = _incomplete(error)
    looked = [read_aged(client, key) for key in sorted(keys) if keeps[key] or not prefix]
    records = [each for each in looked if each is not None and each[0].held]
    if output == "json":
        print_json([record_facts(record, age_ms) | {"keeps": keeps[record.key]} for record, age_ms in records])
    else:
        (_, *headings), rows = rows_of(Look(records, {}), everything=False)
        counted = [[*row, keeps[record.key]] for row, (record, _) in zip(rows, records, strict=True)]
        print_rows(["SESSION", *headings, "KEEPS"], counted)
    if foreign is not None:
        raise foreign


def _sessions_of(record: LockRecord) -> Sequence[SessionRef]:
    if record.members is not None:
        return record.members.sessions
    return () if record.session is None else (record.session,)


def rows_of(look: Look, *, everything: bool) -> tuple[list[str], list[list[object]]]:
    """Return the headings and the rows of a table of what *look* shows."""
    more = ("STATE", "TOKEN") if everything else ()
    waited_for = any(record.waiters for record, _ in look.records)
    rows = [
        [
            record.key,
            *((state_in_words(record), record.fencing_token) if everything else ()),
            _holder(record),
            held_in_words(record),
            renewed_in_words(*(look.beat(record) or (record, age_ms))) if record.members is None else OF_EACH,
            lease_left(record, age_ms, look.beat(record)),
            *((record.waiters or "-",) if waited_for else ()),
        ]
        for record, age_ms in look.records
    ]
    return ["KEY", *more, "OWNER", "HELD", "RENEWED", "LEASE", *(("WAIT",) if waited_for else ())], rows


def _holder(record: LockRecord) -> str:
    if record.members is not None:
        return members_in_words(record.members)
    return "nobody" if is_quarantined(record) else bounded(record.owner) or "-"


def is_quarantined(record: LockRecord) -> bool:
    """Whether an operator broke the lock, and nobody gets it before its lease is over."""
    return record.held and record.broken is not None


def state_in_words(record: LockRecord) -> str:
    """Return the state of *record* for people."""
    return "quarantined" if is_quarantined(record) else record.state.value


def standing(ref: SessionRef, session: Aged | None) -> Aged | None:
    """Return *session* if it is the one that *ref* names, and goes on."""
    # A break raises the token of the session, too; nobody gets what it keeps before the end of its lease.
    stands = session and session[0].held and (session[0].fencing_token == ref.fencing_token or session[0].broken)
    return session if stands else None


def lease_left(record: LockRecord, age_ms: int | None, beat: Aged | None = None) -> str:
    """Say what is left of the lease of *record*, or of that of the session that keeps it: *beat*, None where it is over."""
    if is_quarantined(record):
        return f"quarantined, {lease_in_words(record, age_ms)}"
    if record.session is None:
        return lease_in_words(record, age_ms)
    return "over, with its session" if beat is None else f"{lease_left(*beat)}, of its session"


def aged(client: LockClient, key: str, listed: LockRecord | None = None) -> Aged | None:
    """Return the record under *key* and its age in ms, by the store's clock; without such a clock *listed*, or what a read shows."""
    if listed is not None and Capability.SERVER_CLOCK not in client._store.capabilities:
        return listed, None
    read = read_aged(client, client._context.full_key(key))
    return None if read is None else (client._context.strip(read[0]), read[1])


def read_aged(client: LockClient, full_key: str) -> Aged | None:
    """Return the record under *full_key*, unless it is hidden, and its age in ms where the store tells it."""
    store: Any = client._store  # of the same package
    timeout_s = client._context.store_timeout_s()
    if Capability.SERVER_CLOCK in store.capabilities:
        record, age_ms = store.read_age(full_key, timeout_s=timeout_s) or (None, None)
    else:
        record, age_ms = store.read(full_key, timeout_s=timeout_s), None
    return None if record is None or record.state is State.GONE else (record, age_ms)
