"""Stores that are right in the common form of a verb and wrong in another one, as data: most stores have a statement for each form."""

from __future__ import annotations

from dataclasses import replace

from dlock_conformance.broken import faulty, faulty_forms, faulty_lives
from dlock_conformance.broken.breaking import (
    STEPS,
    answering,
    around,
    asking,
    claim_in_two_steps,
    in_a_batch,
    saying,
    writing,
)
from dlock_conformance.broken.faulty_forms import expecting_in, matching_results, written_in_a_batch
from dlock_conformance.broken.steps import Broken
from dlock_conformance.harness import Colour
from dlock_core.record import State
from dlock_core.store import Expect, TokenOrder

__all__ = ["OF_FORMS"]

OF_FORMS: tuple[Broken, ...] = (
    # ---- versions
    Broken(
        "tokens are compared in 32 bits",
        "S5",
        asking(
            "replace", expecting_in(lambda _, __: True, token=lambda stands, expects: (expects - stands) % 2**32 == 0)
        ),
    ),
    Broken(
        "a release compares tokens as short floats",
        "S6",
        asking(
            "release",
            expecting_in(lambda _, __: True, token=lambda stands, expects: abs(expects - stands) < stands / 2**24),
        ),
    ),
    Broken("a break compares the RVN only", "S5", asking("replace", expecting_in(faulty_forms.is_a_break))),
    Broken(
        "a break compares the token only",
        "S5",
        asking(
            "replace",
            expecting_in(faulty_forms.is_a_break, rvn=lambda *_: True, token=lambda stands, expects: stands == expects),
        ),
    ),
    Broken("a takeover compares the RVN only", "S5", asking("replace", expecting_in(faulty_forms.is_a_takeover))),
    Broken(
        "a replace that keeps the payload compares the RVN only",
        "S5",
        asking("replace", expecting_in(lambda _, request: request.keep_payload)),
    ),
    Broken(
        "a release that hides the record compares the RVN only",
        "S6",
        asking("release", expecting_in(lambda _, request: request.record.state is State.GONE)),
    ),
    Broken(
        "a claim that keeps the payload compares the RVN only",
        "S2",
        asking("claim", expecting_in(lambda _, request: request.keep_payload)),
    ),
    Broken(
        "a claim with a ticket compares the RVN only",
        "S2",
        asking("claim", expecting_in(lambda _, request: request.ticket is not None)),
    ),
    Broken(
        "a claim that waits compares the RVN only", "W1", asking("claim_when_free", expecting_in(lambda _, __: True))
    ),
    Broken(
        "a claim that waits takes a tombstone for absence",
        "W1",
        asking("claim_when_free", lambda _, r: r._replace(expect=Expect.ANY) if r.expect is Expect.ABSENT else r),
    ),
    Broken(
        "a batch that keeps payloads compares RVNs only",
        "B1",
        in_a_batch(expecting_in(lambda _, request: request.keep_payload)),
    ),
    Broken("a batch that breaks compares RVNs only", "B1", in_a_batch(expecting_in(faulty_forms.is_a_break))),
    # ---- batches
    Broken(
        "a batch is atomic against other batches alone",
        "B1",
        faulty_forms.batches_of_their_own,
        colours=(Colour.SYNC,),
    ),
    Broken("results of a batch are matched by folded keys", "B1", matching_results(lambda record: record.key.lower())),
    Broken("results of a batch are matched by short keys", "B1", matching_results(lambda record: record.key[:255])),
    Broken("results of a batch are matched by owners", "B1", matching_results(lambda record: record.owner)),
    Broken(
        "None as data keeps the data in a batch",
        "B1",
        written_in_a_batch(lambda old, _, new: replace(new, data=old.data if new.data is None else new.data)),
    ),
    Broken(
        "empty data is stored as none in a batch",
        "B1",
        written_in_a_batch(lambda _, __, new: replace(new, data=new.data or None)),
    ),
    Broken(
        "a batch cuts data at 32 KiB",
        "B1",
        written_in_a_batch(lambda _, __, new: replace(new, data=new.data and new.data[:32768])),
    ),
    Broken(
        "a batch cuts what it keeps",
        "B1",
        written_in_a_batch(
            lambda _, asked, new: replace(new, attributes=new.attributes[:8]) if asked.keep_payload else new
        ),
    ),
    Broken(
        "a batch leaves held what it should free",
        "B1",
        written_in_a_batch(lambda _, __, new: replace(new, state=State.HELD)),
    ),
    Broken(
        "a refusal in a batch shows no payload",
        "B2",
        answering("replace_many", lambda _, came: [faulty_forms.without_payload(each) for each in came]),
    ),
    Broken("a batch that frees a key wakes nobody", "N1", around("replace_many", faulty_forms.silent_batch)),
    # ---- the life of records
    Broken("what was claimed with others ends by itself", "S18", faulty_lives.ending("claim_many", lambda _: True)),
    Broken("what was waited for ends by itself", "S18", faulty_lives.ending("claim_when_free", lambda _: True)),
    Broken(
        "what has no lease ends by itself",
        "S18",
        faulty_lives.ending(STEPS, lambda record: record.held and record.lease_ms is None),
    ),
    Broken("what has data ends by itself", "S18", faulty_lives.ending(STEPS, lambda record: record.data is not None)),
    Broken("the tenth renewal ends by itself", "S18", faulty_lives.ending_after(10)),
    Broken("provisioning sweeps what has lapsed", "S21", faulty_lives.provisioning(faulty_lives.has_lapsed)),
    Broken("a scan sweeps what has lapsed", "S18", faulty_lives.collecting("scan", faulty_lives.has_lapsed)),
    Broken(
        "a read sweeps what is gone", "S18", faulty_lives.collecting("read", lambda record: record.state is State.GONE)
    ),
    Broken(
        "a claim sweeps what is free elsewhere",
        "S18",
        around("claim", faulty_lives.sweeping_elsewhere(lambda record: record.state is State.FREE)),
    ),
    Broken("closing sweeps what is not held", "S18", faulty_lives.closing_swept(lambda record: not record.held)),
    Broken(
        "a restart forgets what has no lease",
        "S18",
        faulty_lives.forgetting(lambda record: record.held and record.lease_ms is None),
    ),
    Broken("a restart forgets what was claimed together", "S18", faulty_lives.forgetting_what_came_by("claim_many")),
    # ---- what is said
    Broken("tokens are said to have no order", "S20", saying(token=TokenOrder.NONE, grade=faulty_forms.LOWEST)),
    # ---- payloads
    Broken(
        "a takeover drops the payload",
        "S4",
        asking("replace", lambda o, r: r._replace(keep_payload=False) if o and faulty_forms.is_a_takeover(o, r) else r),
    ),
    Broken(
        "of kept attributes eight stay",
        "S4",
        writing(STEPS, lambda _, r, n: replace(n, attributes=n.attributes[:8]) if r.keep_payload else n),
    ),
    Broken(
        "a claim that waits cuts what it keeps",
        "W1",
        writing("claim_when_free", lambda _, r, n: replace(n, data=n.data and n.data[:4096]) if r.keep_payload else n),
    ),
    Broken("several claims cut what they keep", "M1", around("claim_many", faulty_forms.cutting_what_several_keep)),
    Broken(
        "read_age cuts the payload",
        "C1",
        answering("read_age", lambda _, y: y and (replace(y[0], data=y[0].data and y[0].data[:4096]), y[1])),
    ),
    Broken(
        "a payload is kept before the step", "S4", around("claim", faulty_forms.kept_before_the_step), (Colour.SYNC,)
    ),
    Broken("several claims share the greatest token", "M1", around("claim_many", faulty_forms.tokens_of_several)),
    # ---- races
    Broken("several claims are atomic among themselves alone", "M3", faulty_forms.several_of_their_own, (Colour.SYNC,)),
    Broken(
        "a claim that waits looks first and writes then",
        "W1",
        around("claim_when_free", claim_in_two_steps),
        (Colour.SYNC,),
    ),
    Broken(
        "a prune looks first and removes then", "P1", around("prune", faulty_forms.pruned_in_two_steps), (Colour.SYNC,)
    ),
    # ---- waiting
    Broken("waiters are known by the token that they saw", "N1", faulty_forms.known_by_their_token),
    Broken(
        "a release that keeps the payload wakes nobody",
        "N1",
        around("release", lambda w, s, r: faulty.silent()(w, s, r) if r.keep_payload else s(r)),
    ),
    Broken("a claim that waits is answered by its ticket", "W1", faulty_forms.answering_who_waits_by_the_ticket),
    Broken("a broken lock is kept for whoever has a ticket", "N2", faulty_forms.reserving_what_was_broken),
    # ---- requests
    Broken(
        "a claim with a ticket asks first",
        "S23",
        around("claim", faulty_lives.costing(lambda r, _: r.ticket is not None)),
    ),
    Broken(
        "a claim with a floor asks first",
        "S23",
        around("claim", faulty_lives.costing(lambda r, _: r.record.fencing_token > 1)),
    ),
    Broken(
        "a claim without a lease asks first",
        "S23",
        around("claim", faulty_lives.costing(lambda r, _: r.record.lease_ms is None)),
    ),
    Broken(
        "a takeover asks first",
        "S23",
        around(
            "replace",
            faulty_lives.costing(lambda r, _: r.record.held and r.record.fencing_token > r.expected.fencing_token),
        ),
    ),
    Broken(
        "much data is sent by itself",
        "S23",
        around(STEPS, faulty_lives.costing(lambda r, _: len(r.record.data or b"") > 8192)),
    ),
    Broken(
        "a refused break looks again",
        "S23",
        around("replace", faulty_lives.costing(lambda r, came: not came.applied and not r.record.held)),
    ),
    Broken(
        "a read of what is free looks again",
        "S23",
        around("read", faulty_lives.costing(lambda _, came: came is not None and came.state is State.FREE)),
    ),
    Broken("a claim that waits asks first", "W1", around("claim_when_free", faulty_lives.costing(lambda _, __: 1))),
)
