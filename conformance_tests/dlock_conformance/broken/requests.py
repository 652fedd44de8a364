"""Stores whose fault meets what few requests bring or expect, and what happens while somebody waits, as data."""

from __future__ import annotations

from dlock_conformance.broken import faulty_requests as faulty
from dlock_conformance.broken.breaking import answering, around, asking, writing
from dlock_conformance.broken.faulty import scanning
from dlock_conformance.broken.faulty_branches import storing
from dlock_conformance.broken.faulty_forms import expecting_in, matching_results
from dlock_conformance.broken.steps import Broken
from dlock_core.record import RESERVED, State
from dlock_core.store import Expect

__all__ = ["OF_REQUESTS"]

_CONDITIONS: tuple[Broken, ...] = (
    Broken("a replace that wakes compares the RVN only", "S5", asking("replace", expecting_in(lambda _, r: r.wakes))),
    Broken(
        "a replace that wakes compares the token only",
        "S5",
        asking("replace", expecting_in(lambda _, r: r.wakes, rvn=lambda *_: True, token=int.__eq__)),
    ),
    Broken("a note gives way to who has not seen it", "S5", asking("replace", faulty.below_a_note)),
    Broken(
        "a renewal compares RVNs as numbers",
        "S5",
        asking("replace", expecting_in(faulty.anything, rvn=faulty.same_number, token=int.__eq__)),
    ),
    Broken(
        "a release compares RVNs as numbers",
        "S6",
        asking("release", expecting_in(faulty.anything, rvn=faulty.same_number, token=int.__eq__)),
    ),
    Broken(
        "a claim compares RVNs as numbers",
        "S2",
        asking("claim", expecting_in(faulty.anything, rvn=faulty.same_number, token=int.__eq__)),
    ),
    Broken(
        "a claim of a shared lock expects nothing",
        "S2",
        asking("claim", faulty.any_version_for(lambda new: new.members is not None)),
    ),
    Broken(
        "a claim of a session expects nothing",
        "S2",
        asking("claim", faulty.any_version_for(lambda new: new.beat is not None)),
    ),
    Broken(
        "a claim under a session that waits expects nothing",
        "S2",
        asking("claim_when_free", faulty.any_version_for(lambda new: new.session is not None)),
    ),
    Broken(
        "who held a lock last is given its token again",
        "S3",
        writing(("claim", "claim_when_free"), faulty.known_by_its_owner),
    ),
    Broken(
        "a claim that waits gives the last holder its token again",
        "S3",
        writing("claim_when_free", faulty.known_by_its_owner),
    ),
    Broken("a prune compares no RVN of what is gone", "P1", around("prune", faulty.what_is_gone_whatever_its_rvn)),
    Broken("a prune of more than 256 counts what it leaves", "P3", around("prune", faulty.of_a_page_256)),
)
_BATCHES: tuple[Broken, ...] = (
    Broken("the token of a session has 15 digits", "S11", storing(faulty.WRITES, faulty.in_15_digits)),
    Broken("the token of a session has 15 digits in a batch", "B1", storing("replace_many", faulty.in_15_digits)),
    Broken(
        "shared locks of one size share their members in a batch",
        "B1",
        around("replace_many", faulty.as_the_first("members", faulty.by_their_number)),
    ),
    Broken(
        "sessions of one key are one in a batch",
        "B1",
        around("replace_many", faulty.as_the_first("session", faulty.by_its_key)),
    ),
    Broken(
        "shared locks of one size share their members in several claims",
        "M1",
        around("claim_many", faulty.as_the_first("members", faulty.by_their_number)),
    ),
    Broken(
        "sessions of one key are one in several claims",
        "M1",
        around("claim_many", faulty.as_the_first("session", faulty.by_its_key)),
    ),
    Broken(
        "results of a batch are matched by what was expected", "B1", faulty.matched_by(lambda request: request.expected)
    ),
    Broken(
        "results of a batch are matched by the start of their RVNs",
        "B1",
        matching_results(lambda record: record.rvn[:8]),
    ),
    Broken("a batch ends at a MiB of data, and is told as done", "B3", around("replace_many", faulty.up_to_a_mib)),
    Broken(
        "a scan passes over the keys of dlock's own",
        "S10",
        scanning(lambda record, prefix: record.key.startswith(prefix) and RESERVED not in record.key),
    ),
    Broken(
        "a refusal of several claims hides what is gone",
        "M2",
        answering(
            "claim_many",
            lambda _, came: [
                each._replace(record=None)
                if not each.applied and each.record and each.record.state is State.GONE
                else each
                for each in came
            ],
        ),
    ),
    Broken(
        "a renewal under a session leaves the age",
        "C2",
        around("replace", faulty.as_old_as_before(lambda r: r.record.session is not None)),
    ),
    Broken(
        "a renewal of a session leaves the age",
        "C2",
        around("replace", faulty.as_old_as_before(lambda r: r.record.beat is not None)),
    ),
    Broken(
        "a batch leaves the age of shared locks",
        "C2",
        around("replace_many", faulty.as_old_as_before(lambda r: r.record.members is not None)),
    ),
    Broken("a claim that waited tells an age that began before the renewal", "C2", faulty.aged_since_its_begin),
)
_WAITING: tuple[Broken, ...] = (
    Broken("a release under a session wakes nobody", "N1", around("release", faulty.silent(faulty.under_a_session))),
    Broken("a release under a session serves nobody", "W1", around("release", faulty.silent(faulty.under_a_session))),
    Broken(
        "a break of a shared lock wakes nobody",
        "N1",
        around(
            "replace", faulty.silent(lambda old, r: old is not None and old.members is not None and not r.record.held)
        ),
    ),
    Broken(
        "a move under a session forgets who waits",
        "N1",
        around("replace", faulty.forgetting_who_waits(lambda r, _: r.record.session is not None)),
    ),
    Broken(
        "a takeover in a batch forgets who waits",
        "W1",
        around(
            "replace_many",
            faulty.forgetting_who_waits(
                lambda rs, _: any(r.record.fencing_token > r.expected.fencing_token for r in rs)
            ),
        ),
    ),
    Broken(
        "the third renewal in a batch forgets who waits",
        "N1",
        around("replace_many", faulty.forgetting_who_waits(faulty.after(3))),
    ),
    Broken(
        "several claims that are refused forget who waits",
        "N1",
        around("claim_many", faulty.forgetting_who_waits(lambda _, came: not came[0].applied)),
    ),
    Broken("a scan forgets who waits", "N1", around("scan", faulty.forgetting_who_waits(lambda *_: True))),
    Broken("a refused release takes a waiter from its place", "N1", around("release", faulty.taking_one)),
    Broken("a refused replace takes a claim from its place", "W1", around("replace", faulty.taking_one)),
    Broken(
        "a claim that waited forgets its least token",
        "W1",
        faulty.when_it_has_waited(lambda r: faulty.brought(r, fencing_token=1)),
    ),
    Broken(
        "a claim that waited forgets its marks",
        "W1",
        faulty.when_it_has_waited(lambda r: faulty.brought(r, times=None, process=None, stamp=None)),
    ),
    Broken(
        "a claim that waited forgets its attributes",
        "W1",
        faulty.when_it_has_waited(lambda r: faulty.brought(r, attributes=())),
    ),
    Broken(
        "a claim that waited forgets to keep the payload",
        "W1",
        faulty.when_it_has_waited(lambda r: r._replace(keep_payload=False)),
    ),
    Broken(
        "a claim that waited forgets what it expects",
        "W1",
        faulty.when_it_has_waited(lambda r: r._replace(expect=Expect.ANY)),
    ),
    Broken("a claim that waited is refused with what stood at first", "W1", faulty.refused_as_at_first),
)

OF_REQUESTS = (*_CONDITIONS, *_BATCHES, *_WAITING)
