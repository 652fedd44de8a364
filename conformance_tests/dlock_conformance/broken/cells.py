"""Stores that are right in all but one cell of form and state, as data."""

from __future__ import annotations

from dataclasses import replace

from dlock_conformance.broken import faulty, faulty_cells, faulty_cells_waiting
from dlock_conformance.broken.breaking import answering, around, asking, in_a_batch, saying, setting
from dlock_conformance.broken.faulty_cells import (
    a_day_old,
    creating_where_it_keeps,
    hides,
    keeps,
    newer_is_ours_in,
    one_by_one,
    recording,
    recording_several,
    refused_in_part,
    reviving,
    where,
    without_what_is_rare,
)
from dlock_conformance.broken.faulty_forms import expecting_in, is_a_break, is_a_takeover
from dlock_conformance.broken.steps import Broken
from dlock_core.record import State
from dlock_core.store import Expect, Release, Replace

__all__ = ["OF_CELLS"]

_CELLS: tuple[Broken, ...] = (
    # ---- conditions
    Broken(
        "a renewal that keeps the payload brings a released lock back",
        "S5",
        around("replace", reviving(lambda o, r: keeps(o, r) and r.record.held)),
    ),
    Broken(
        "a renewal in a batch that keeps the payload brings a released lock back",
        "B1",
        around("replace_many", one_by_one(reviving(keeps))),
    ),
    Broken("a replace that keeps the payload creates a record", "S5", around("replace", creating_where_it_keeps)),
    Broken(
        "a replace in a batch that keeps the payload creates a record",
        "B1",
        around("replace_many", one_by_one(creating_where_it_keeps)),
    ),
    Broken("a takeover brings a released lock back", "S5", around("replace", reviving(is_a_takeover))),
    Broken("a release that hides is applied to what is not held", "S6", around("release", reviving(hides))),
    Broken("a release that keeps the payload is applied to what is not held", "S6", around("release", reviving(keeps))),
    Broken("a release that keeps the payload creates a tombstone", "S6", around("release", creating_where_it_keeps)),
    Broken(
        "a release that hides and keeps the payload compares the RVN only",
        "S6",
        asking("release", expecting_in(lambda o, r: keeps(o, r) and hides(o, r))),
    ),
    Broken(
        "a claim compares RVNs without their case",
        "S2",
        asking(
            "claim",
            expecting_in(
                lambda *_: True,
                rvn=lambda stands, expects: stands.lower() == expects.lower(),
                token=lambda stands, expects: stands == expects,
            ),
        ),
    ),
    Broken(
        "a claim compares RVNs without spaces at their end",
        "S2",
        asking(
            "claim",
            expecting_in(
                lambda *_: True,
                rvn=lambda stands, expects: stands == expects.rstrip(),
                token=lambda stands, expects: stands == expects,
            ),
        ),
    ),
    Broken(
        "a break writes over a newer format",
        "S16",
        newer_is_ours_in(lambda o, r: type(r) is Replace and is_a_break(o, r)),
    ),
    Broken(
        "a renewal that keeps the payload writes over a newer format",
        "S16",
        newer_is_ours_in(lambda o, r: type(r) is Replace and keeps(o, r)),
    ),
    Broken(
        "a release that hides writes over a newer format",
        "S16",
        newer_is_ours_in(lambda o, r: type(r) is Release and hides(o, r)),
    ),
    # ---- tokens
    Broken(
        "a claim of a version keeps the token",
        "S3",
        around("claim", where(lambda _, r: isinstance(r.expect, tuple), faulty_cells.keeping_the_token)),
    ),
    Broken(
        "a claim that must exist keeps the token",
        "S3",
        around("claim", where(lambda _, r: r.must_exist, faulty_cells.keeping_the_token)),
    ),
    Broken(
        "a claim of a version is not given the least token that it asks for",
        "S3",
        asking("claim", lambda _, r: faulty_cells.asking_for_any_token(r) if isinstance(r.expect, tuple) else r),
    ),
    Broken(
        "a claim of an absent key is not given the least token that it asks for",
        "S3",
        asking("claim", lambda _, r: faulty_cells.asking_for_any_token(r) if r.expect is Expect.ABSENT else r),
    ),
    Broken(
        "a claim that waits is not given the least token that it asks for",
        "S3",
        asking("claim_when_free", lambda _, r: faulty_cells.asking_for_any_token(r)),
    ),
    Broken(
        "a claim that waits keeps the token of a key that is free",
        "S3",
        faulty_cells_waiting.keeping_the_token_unless_it_waits,
    ),
    Broken("several claims go below the floor of a prune", "P2", around("claim_many", faulty_cells.below_the_floor)),
    Broken(
        "a claim that waits goes below the floor of a prune",
        "P2",
        around("claim_when_free", faulty_cells.below_the_floor),
    ),
    Broken("a prune raises the floor by the last of its page", "P2", around("prune", faulty_cells.floor_of_the_last)),
    Broken("a restart forgets the floor of a prune", "P2", faulty_cells.restarting_without_the_floor),
    Broken(
        "several claims grant the last token again",
        "S18",
        around("claim_many", faulty_cells.granting_the_last_token_again),
    ),
    Broken(
        "a claim that waits grants the last token again",
        "S18",
        around("claim_when_free", faulty_cells.granting_the_last_token_again),
    ),
    # ---- payloads
    Broken(
        "a claim of a version drops the payload",
        "S4",
        asking("claim", lambda _, r: r._replace(keep_payload=False) if isinstance(r.expect, tuple) else r),
    ),
    Broken(
        "a claim that must exist drops the payload",
        "S4",
        asking("claim", lambda _, r: r._replace(keep_payload=False) if r.must_exist else r),
    ),
    Broken(
        "a claim with a ticket drops the payload",
        "S4",
        asking("claim", lambda _, r: r._replace(keep_payload=False) if r.ticket else r),
    ),
    Broken(
        "a claim that waits brings the payload of a gone record back",
        "S4",
        asking("claim_when_free", faulty_cells.keeping_what_is_gone),
    ),
    Broken(
        "a claim keeps who broke the lock before",
        "S4",
        asking(
            "claim",
            lambda o, r: faulty_cells.keeping(o, r, "broken", "stamp", "process", "times") if o else r,
        ),
    ),
    # ---- fields
    Broken(
        "a replace that keeps the payload keeps all that it leaves out",
        "S11",
        asking("replace", faulty_cells.keeping_what_is_left_out),
    ),
    Broken(
        "a batch that keeps payloads keeps all that it leaves out",
        "S11",
        in_a_batch(faulty_cells.keeping_what_is_left_out),
    ),
    Broken(
        "a release that keeps the payload keeps all that it leaves out",
        "S11",
        asking("release", faulty_cells.keeping_what_is_left_out),
    ),
    Broken(
        "a refused replace shows no session and no members", "S8", answering("replace", lambda _, y: refused_in_part(y))
    ),
    Broken(
        "a refused release shows no session and no members", "S8", answering("release", lambda _, y: refused_in_part(y))
    ),
    Broken(
        "a refusal in a batch shows no session and no members",
        "S8",
        answering("replace_many", lambda _, came: [refused_in_part(each) for each in came]),
    ),
    Broken(
        "read_age shows no session and no members",
        "S8",
        answering("read_age", lambda _, y: y and (without_what_is_rare(y[0]), y[1])),
    ),
    Broken("members are sorted", "S11", around(("claim", "replace"), recording(faulty_cells.members_sorted))),
    Broken("members are cut at 64", "S11", around(("claim", "replace"), recording(faulty_cells.members_cut))),
    Broken("notes are cut at 16", "S11", around(("claim", "replace"), recording(faulty_cells.notes_cut))),
    Broken("a release stores integers as floats", "S11", around("release", recording(faulty_cells.integers_as_floats))),
    Broken("a release clears the owner", "S11", around("release", recording(lambda n: replace(n, owner="")))),
    Broken(
        "a release drops times, process and who broke the lock",
        "S11",
        around("release", recording(lambda n: without_what_is_rare(n, ("times", "process", "broken")))),
    ),
    # ---- several keys
    Broken("several claims write the lease of the first", "M1", around("claim_many", faulty_cells.lease_of_the_first)),
    Broken(
        "several claims drop sessions and members", "M1", around("claim_many", recording_several(without_what_is_rare))
    ),
    Broken(
        "several claims store empty data as none",
        "M1",
        around("claim_many", recording_several(lambda n: replace(n, data=n.data or None))),
    ),
    Broken(
        "replies to several claims are matched by folded keys",
        "M1",
        around("claim_many", faulty_cells.matching_replies(lambda record: record.key.lower())),
    ),
    Broken("several claims are atomic by 25", "M2", around("claim_many", faulty_cells.in_pieces)),
    # ---- ages
    Broken(
        "a refusal of several claims says that the record is a day old",
        "C2",
        answering("claim_many", lambda _, came: [a_day_old(each) for each in came]),
    ),
    Broken(
        "a refusal of a claim that waits says that the record is a day old",
        "C2",
        answering("claim_when_free", lambda _, y: a_day_old(y)),
    ),
    Broken("a refused claim says the time since the grant", "C2", faulty_cells.age_since_the_grant),
    Broken("several claims leave the age as it was", "C2", around("claim_many", faulty_cells.keeping_the_ages)),
    Broken("a claim that waits leaves the age as it was", "C2", around("claim_when_free", faulty.keeping_the_age)),
    Broken(
        "a renewal that keeps the payload leaves the age as it was",
        "C2",
        around("replace", where(keeps, faulty.keeping_the_age)),
    ),
    Broken(
        "a takeover leaves the age as it was", "C2", around("replace", where(is_a_takeover, faulty.keeping_the_age))
    ),
    Broken("a break leaves the age as it was", "C2", around("replace", where(is_a_break, faulty.keeping_the_age))),
    Broken(
        "a batch that keeps payloads leaves the age as it was",
        "C2",
        around("replace_many", one_by_one(where(keeps, faulty.keeping_the_age))),
    ),
    Broken("an age is read without case", "C1", around("read_age", faulty_cells.age_without_case)),
    # ---- batches
    Broken("wanted of one is said of all of a batch", "N4", answering("replace_many", faulty_cells.wanted_for_all)),
    Broken(
        "one newer format fails a batch of several",
        "B2",
        around("replace_many", faulty_cells.failing_for_a_newer_format),
    ),
    # ---- waiting
    Broken(
        "a break that keeps the payload wakes nobody",
        "N1",
        around("replace", where(lambda o, r: is_a_break(o, r) and keeps(o, r), faulty.silent())),
    ),
    Broken("a break that hides wakes nobody", "N1", around("replace", where(hides, faulty.silent()))),
    Broken(
        "a member that leaves wakes nobody",
        "N1",
        asking("replace", lambda _, request: request._replace(wakes=False)),
    ),
    Broken(
        "a member that leaves in a batch wakes nobody",
        "N1",
        in_a_batch(lambda _, request: request._replace(wakes=False)),
    ),
    Broken(
        "a member that joins, and leaves room, wakes nobody",
        "N1",
        asking("replace", faulty_cells_waiting.silent_where_it_raises),
    ),
    Broken(
        "a member that joins in a batch, and leaves room, wakes nobody",
        "N1",
        in_a_batch(faulty_cells_waiting.silent_where_it_raises),
    ),
    Broken("a member that left before the wait is missed", "N1", setting(moved_on=lambda _: False)),
    Broken("a wait looks for another token alone", "N1", faulty_cells_waiting.seeing_tokens),
    Broken(
        "a wait does not see that the key is gone already",
        "N1",
        faulty_cells_waiting.need_not_wait(lambda o: o is None or o.state is State.FREE),
    ),
    Broken(
        "a wait does not see that the key was removed already",
        "N1",
        faulty_cells_waiting.need_not_wait(lambda o: o is not None and not o.held),
    ),
    Broken("waiters are known by 63 characters of the key", "N3", faulty_cells_waiting.known_by_the_start),
    Broken("claims that wait are served before other waiters", "W2", faulty_cells_waiting.serving_claims_first),
    Broken("a claim whose wait is over is applied later", "W1", faulty_cells_waiting.applied_though_refused),
    Broken("a claim whose wait is over stays in the queue", "W2", faulty_cells_waiting.queued_though_refused),
    Broken(
        "a break serves no claim that waits",
        "W1",
        faulty_cells_waiting.passing_claims_over(lambda r: type(r) is Replace and not r.record.held),
    ),
    Broken(
        "a release that hides serves no claim that waits",
        "W1",
        faulty_cells_waiting.passing_claims_over(lambda r: type(r) is Release and r.record.state is State.GONE),
    ),
    # ---- removal
    Broken(
        "a prune removes nothing of a page of which one stays",
        "P1",
        around("prune", faulty_cells.pruning_of_a_page(lambda may_go: len(may_go) if all(may_go) else 0)),
    ),
    Broken(
        "a prune ends at the first that stays",
        "P1",
        around("prune", faulty_cells.pruning_of_a_page(lambda may_go: [*may_go, False].index(False))),
    ),
    Broken("a prune looks at the age of the first alone", "P1", around("prune", faulty_cells.pruning_by_the_first_age)),
    Broken("a prune is cut at 100", "P3", around("prune", lambda _, step, asked: step((asked[0][:100], *asked[1:])))),
    Broken("a prune removes a newer format", "P1", around("prune", faulty_cells.pruning_a_newer_format)),
    # ---- scans and what is said
    Broken("a scan goes on after the last key without case", "S10", around("scan", faulty_cells.scanning_without_case)),
    Broken(
        "a scan ends at the next character, where there may be none",
        "S10",
        around("scan", faulty_cells.scanning_to_the_next_character),
    ),
    Broken("a scan of everything fails after a prune", "P1", around("scan", faulty_cells.scanning_the_floor_too)),
    Broken("the options that are refused have no reasons", "S20", saying(refuses=("lease_duration",))),
)
# Conditions are the same behind a socket: one base tells.
OF_CELLS: tuple[Broken, ...] = tuple(each._replace(on_socket=False) for each in _CELLS)
