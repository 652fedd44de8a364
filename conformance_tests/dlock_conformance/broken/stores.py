"""Stores with one fault each, as data: proof that the suite has teeth, and a list of what goes wrong in stores of locks.

Each entry is a small patch on the memory store behind a wire, and names the clause whose tests must reject it. Many of the faults were
shipped by somebody: a release without its condition, a token that starts again after a deletion, a lost reply told as a refusal.
"""

from __future__ import annotations

import operator
import time
from dataclasses import replace

from dlock_conformance.broken import breaking, faulty, faulty_connections, faulty_lives, faulty_waiting
from dlock_conformance.broken.answers import LINKS_OF_ANSWERS, OF_ANSWERS
from dlock_conformance.broken.bounds import LINKS_OF_BOUNDS, OF_BOUNDS
from dlock_conformance.broken.branches import LINKS_OF_BRANCHES, OF_BRANCHES
from dlock_conformance.broken.breaking import STEPS, answering, around, put, saying, setting, standing, writing
from dlock_conformance.broken.cells import OF_CELLS
from dlock_conformance.broken.details import LINKS_OF_DETAILS, OF_DETAILS
from dlock_conformance.broken.ends import LINKS_OF_ENDS, OF_ENDS
from dlock_conformance.broken.faulty_clients import LINKS_OF_CLIENTS
from dlock_conformance.broken.faulty_links import BROKEN_LINKS as OF_LINKS
from dlock_conformance.broken.faulty_links import BrokenLinks
from dlock_conformance.broken.forms import OF_FORMS
from dlock_conformance.broken.lives import LINKS_OF_LIVES, OF_LIVES
from dlock_conformance.broken.requests import OF_REQUESTS
from dlock_conformance.broken.steps import OF_STEPS, Broken
from dlock_conformance.broken.together import OF_SEVERAL, lacking_a_method
from dlock_conformance.harness import Colour
from dlock_conformance.records import held
from dlock_conformance.wire.errors import NoReplyError, NoTableError, NotSentError
from dlock_conformance.wire.wired import CAPABILITIES, guarantees
from dlock_core.errors import OutcomeUnknownError, StoreUnavailableError
from dlock_core.record import State
from dlock_core.store import Capability, Reply

__all__ = ["BROKEN", "BROKEN_LINKS", "Broken", "BrokenLinks"]

BROKEN: tuple[Broken, ...] = (
    *OF_STEPS,
    *OF_SEVERAL,
    *OF_FORMS,
    *OF_CELLS,
    *OF_LIVES,
    *OF_BRANCHES,
    *OF_BOUNDS,
    *OF_ENDS,
    *OF_ANSWERS,
    *OF_DETAILS,
    *OF_REQUESTS,
    # ---- trouble
    Broken("the driver's time-out counts", "S13", setting(patience=lambda _: 2.4), on_socket=False),
    Broken(
        "a lost reply is told as certainly not applied",
        "S14",
        faulty.translating(NoReplyError, lambda verb, key: StoreUnavailableError(f"{verb} failed", key=key)),
    ),
    Broken(
        "a lost reply is told as a refusal",
        "S15",
        faulty.without_reply(lambda _: Reply(applied=False, record=None)),
        on_socket=False,
    ),
    Broken(
        "a lost reply is told as a grant",
        "S15",
        faulty.without_reply(lambda request: Reply(applied=True, record=request.record)),
        on_socket=False,
    ),
    Broken("a lost write is sent again", "S15", faulty.sending_again, on_socket=False),
    Broken("a foreign record is free", "S16", faulty.foreign_is_free),
    Broken(
        "a foreign record is absent",
        "S16",
        faulty.foreign_is(lambda verb: {"read": None, "scan": []}.get(verb, Reply(applied=False, record=None))),
    ),
    Broken("a newer format is read as ours", "S16", faulty.newer_is_ours_to()),
    Broken(
        "the driver's errors come out",
        "S17",
        faulty.translating(NoReplyError, lambda verb, _: ConnectionResetError(verb)),
    ),
    Broken(
        "the driver's time-out comes out",
        "S17",
        faulty.translating(NotSentError, lambda verb, _: TimeoutError(verb)),
        on_socket=False,
    ),
    Broken("our errors have no cause", "S17", faulty.causeless),
    # ---- connections
    Broken("connections are begun anew", "S13", faulty_connections.connections_begun_anew, on_socket=False),
    Broken("calls wait for one that has no answer", "S13", faulty_connections.one_call_at_a_time, on_socket=False),
    Broken(
        "a wait lets the driver's error out",
        "S17",
        faulty_connections.waits_that(faulty_connections.refused_by_the_driver),
        on_socket=False,
    ),
    Broken(
        "a wait outlives its time-out where nothing answers",
        "S17",
        faulty_connections.waits_that(lambda: time.sleep(2.4)),
        on_socket=False,
    ),
    Broken(
        "a cancellation is told as no reply",
        "S17",
        faulty_connections.not_cancelled(lambda: NoReplyError("cancelled")),
        colours=(Colour.ASYNC,),
        on_socket=False,
    ),
    Broken(
        "a cancellation is told as a time-out",
        "S17",
        faulty_connections.not_cancelled(TimeoutError),
        colours=(Colour.ASYNC,),
        on_socket=False,
    ),
    # ---- life
    Broken(
        "the token starts again after a deletion",
        "S18",
        writing("claim", lambda o, r, n: r.record if o and o.state is State.GONE else n),
    ),
    Broken("a token wraps at its end", "S18", around("claim", breaking.token_that_wraps)),
    Broken("a restart forgets tombstones", "S18", faulty_lives.forgetting(lambda record: not record.held)),
    Broken("a restart forgets everything", "S18", faulty_lives.forgetting(lambda _: True)),
    Broken("a restart forgets what is gone", "S18", faulty_lives.forgetting(lambda record: record.state is State.GONE)),
    Broken("a restart forgets short leases", "S18", faulty_lives.forgetting(lambda record: record.lease_ms == 1)),
    Broken("a restart forgets renewals", "S18", faulty_lives.going_back),
    Broken("a tombstone ends by itself", "S18", faulty_lives.ending(STEPS, lambda record: not record.held)),
    Broken("what is gone ends by itself", "S18", faulty_lives.ending(STEPS, lambda record: record.state is State.GONE)),
    Broken("a claim ends by itself", "S18", faulty_lives.ending("claim", lambda record: record.lease_ms is not None)),
    Broken("what is broken ends by itself", "S18", faulty_lives.ending("replace", lambda record: not record.held)),
    Broken("a renewal in a batch lets its record end", "S18", faulty_lives.ending("replace_many", lambda _: True)),
    Broken("a capability is declared that is not there", "S19", lacking_a_method, on_socket=False),
    Broken(
        "a capability is there that is not declared", "S19", setting(capabilities=CAPABILITIES - {Capability.NOTIFY})
    ),
    Broken("capabilities are plain text", "S19", setting(capabilities=frozenset({"batch_renew", "notify"}))),
    Broken("the guarantees change", "S20", faulty_lives.new_guarantees),
    Broken("the guarantees name no version", "S20", saying(version="")),
    Broken("the grade is a letter", "S20", saying(grade="A")),
    Broken("grade A forgets everything", "S20", saying(durable=False)),
    Broken("a verb makes the table", "S21", setting(lenient=True)),
    Broken("guarantees promise without a table", "S21", setting(promises=guarantees)),
    Broken(
        "a missing table is told as no reply",
        "S21",
        faulty.translating(NoTableError, lambda verb, key: OutcomeUnknownError(f"no reply to {verb}", key=key)),
    ),
    Broken("provisioning drops the table", "S21", faulty_lives.provisioning(lambda _: True)),
    Broken(
        "provisioning sweeps what is free", "S21", faulty_lives.provisioning(lambda record: record.state is State.FREE)
    ),
    Broken(
        "provisioning sweeps what is gone", "S21", faulty_lives.provisioning(lambda record: record.state is State.GONE)
    ),
    Broken(
        "a scan sweeps what is free", "S10", faulty_lives.collecting("scan", lambda record: record.state is State.FREE)
    ),
    Broken(
        "a scan sweeps what is gone", "S10", faulty_lives.collecting("scan", lambda record: record.state is State.GONE)
    ),
    Broken("a claim reads first", "S23", around("claim", faulty_lives.costing(lambda _, __: 1))),
    Broken(
        "a refused replace reads who holds the key",
        "S23",
        around("replace", faulty_lives.costing(lambda _, came: not came.applied)),
    ),
    Broken(
        "a claim of a tombstone reads it first",
        "S23",
        around("claim", faulty_lives.costing(lambda _, came: came.applied and came.record.fencing_token > 1)),
    ),
    Broken(
        "a claim that keeps the payload reads it first",
        "S23",
        around("claim", faulty_lives.costing(lambda request, _: request.keep_payload)),
    ),
    Broken(
        "a break reads first",
        "S23",
        around("replace", faulty_lives.costing(lambda request, _: not request.record.held)),
    ),
    Broken(
        "a release of what is absent looks again",
        "S23",
        around("release", faulty_lives.costing(lambda _, came: came.record is None)),
    ),
    Broken("an absent key is read twice", "S23", around("read", faulty_lives.costing(lambda _, came: came is None))),
    Broken(
        "a batch of one is read first",
        "S23",
        around("replace_many", faulty_lives.costing(lambda requests, _: len(requests) == 1)),
    ),
    Broken(
        "a batch is sent one by one",
        "S23",
        around("replace_many", faulty_lives.costing(lambda requests, _: len(requests) - 1)),
    ),
    # ---- batches
    Broken("the results of a batch are in another order", "B1", answering("replace_many", lambda _, came: came[::-1])),
    Broken(
        "a batch leaves out refusals",
        "B1",
        answering("replace_many", lambda _, came: [each for each in came if isinstance(each, Reply) and each.applied]),
    ),
    Broken(
        "a batch drops payloads",
        "B1",
        around("replace_many", lambda _, s, rs: s([r._replace(keep_payload=False) for r in rs])),
    ),
    Broken(
        "a batch drops sessions",
        "B1",
        around("replace_many", lambda _, s, rs: s([r._replace(record=replace(r.record, session=None)) for r in rs])),
    ),
    Broken("a batch takes a smaller token", "B1", breaking.in_a_batch(breaking.expecting_what_stands(operator.le))),
    Broken("a batch takes a greater token", "B1", breaking.in_a_batch(breaking.expecting_what_stands(operator.ge))),
    Broken(
        "a batch compares the token only", "B1", breaking.in_a_batch(breaking.expecting_the_rvn_of(lambda *_: True))
    ),
    Broken(
        "a batch compares RVNs without their case",
        "B1",
        breaking.in_a_batch(breaking.expecting_the_rvn_of(lambda stands, expects: expects.lower() == stands.lower())),
    ),
    Broken(
        "a batch writes the lease of its first for all",
        "B1",
        around("replace_many", faulty.all_with_the_first("lease_ms")),
    ),
    Broken(
        "a batch writes the owner of its first for all",
        "B1",
        around("replace_many", faulty.all_with_the_first("owner")),
    ),
    Broken(
        "a lost reply to a batch is told as certainly not applied",
        "S14",
        faulty.translating_a_batch(lambda verb: StoreUnavailableError(f"{verb} failed")),
    ),
    Broken(
        "the driver's errors come out of a batch",
        "S17",
        faulty.translating_a_batch(ConnectionResetError),
    ),
    Broken(
        "a batch writes over a newer format",
        "S16",
        faulty.newer_is_ours_to("replace_many"),
    ),
    Broken("a refusal in a batch is told as done", "B2", answering("replace_many", faulty.told_as_done)),
    Broken("one refusal makes all of a batch refusals", "B2", answering("replace_many", faulty.all_or_none)),
    Broken("one bad record fails the whole batch", "B2", answering("replace_many", faulty.raising_the_first)),
    Broken("a batch is cut at 25", "B3", around("replace_many", faulty.first_only(25))),
    # ---- wake-ups
    Broken("a release before the wait is missed", "N1", faulty.missing_the_release),
    Broken(
        "a release wakes before it is written",
        "N1",
        around("release", faulty.silent(before=0.05)),
        colours=(Colour.SYNC,),
    ),
    Broken("a release wakes nobody", "N1", around("release", faulty.silent())),
    Broken("a wait outlives its time-out", "N2", faulty.waiting_too_long, on_socket=False),
    Broken("a release wakes all", "N3", around("release", faulty.waking_all)),
    Broken("a waiter that left is woken in place of the next", "N3", setting(leave=lambda _, __, *, pass_on: None)),
    Broken(
        "a break wakes nobody",
        "N1",
        around("replace", lambda w, s, r: s(r) if r.record.held else faulty.silent()(w, s, r)),
    ),
    Broken("a wait is there in name only", "N3", faulty_waiting.returning_at_once),
    Broken("only the newest waiter is known", "N3", faulty_waiting.knowing(newest=True)),
    Broken("only the first waiter is known", "N3", faulty_waiting.knowing(newest=False)),
    Broken("a free key is kept for whoever waited", "N2", faulty_waiting.reserving),
    Broken("a free key is kept for a waiter that left", "N3", faulty_waiting.reserving_for_who_left),
    Broken("each renewal says wanted", "N4", answering("replace", lambda _, came: came._replace(wanted=True))),
    Broken("no renewal says wanted", "N4", answering("replace", lambda _, came: came._replace(wanted=False))),
    Broken("an absent key has an age", "C1", answering("read_age", lambda key, came: came or (held(key), 0))),
    Broken(
        "read_age hides tombstones",
        "C1",
        answering("read_age", lambda _, came: came if came and came[0].held else None),
    ),
    Broken("an age is never known", "C2", answering("read_age", lambda _, came: came and (came[0], 0))),
    Broken("a prune is there in name only", "P1", answering("prune", lambda _, __: 0)),
    Broken("an age is in seconds", "C2", answering("read_age", lambda _, came: came and (came[0], came[1] // 1000))),
    Broken(
        "a refused claim says that the record is a day old",
        "C2",
        answering("claim", lambda _, came: came if came.applied else came._replace(age_ms=86_400_000)),
    ),
    Broken("a renewal leaves the age as it was", "C2", around("replace", faulty.keeping_the_age)),
    Broken(
        "the age counts from the first write", "C2", around(("claim", "replace", "release"), faulty.keeping_the_age)
    ),
    # ---- removal
    Broken(
        "a prune removes what is held",
        "P1",
        around(
            "prune",
            faulty.pruning(
                lambda stands, listed, age_ms, least_ms: stands.version == listed.version and age_ms >= least_ms
            ),
        ),
    ),
    Broken(
        "a prune removes what has changed",
        "P1",
        around("prune", faulty.pruning(lambda stands, _, age_ms, least_ms: not stands.held and age_ms >= least_ms)),
    ),
    Broken(
        "a prune compares the RVN only",
        "P1",
        around(
            "prune",
            faulty.pruning(
                lambda stands, listed, age_ms, least_ms: (
                    not stands.held and stands.rvn == listed.rvn and age_ms >= least_ms
                )
            ),
        ),
    ),
    Broken(
        "a prune compares the token only",
        "P1",
        around(
            "prune",
            faulty.pruning(
                lambda stands, listed, age_ms, least_ms: (
                    not stands.held and stands.fencing_token == listed.fencing_token and age_ms >= least_ms
                )
            ),
        ),
    ),
    Broken(
        "a prune removes what is young",
        "P1",
        around(
            "prune", faulty.pruning(lambda stands, listed, *_: not stands.held and stands.version == listed.version)
        ),
    ),
    Broken(
        "a prune counts the age in seconds",
        "P1",
        around("prune", lambda _, step, asked: step((asked[0], asked[1] // 1000, asked[2]))),
    ),
    Broken(
        "a dry run of a prune removes", "P1", around("prune", lambda _, step, asked: step((asked[0], asked[1], False)))
    ),
    Broken("a prune counts what it was given", "P1", answering("prune", lambda asked, _: len(asked[0]))),
    Broken("a prune lets tokens go back", "P2", around("prune", faulty.forgetting_the_floor)),
    Broken("a prune keeps the floor of its last call alone", "P2", around("prune", faulty.forgetting_earlier_floors)),
    Broken("a prune is cut at 25", "P3", around("prune", lambda _, step, asked: step((asked[0][:25], *asked[1:])))),
    # ---- claims that wait
    Broken(
        "a claim that waits is never applied",
        "W1",
        around("claim_when_free", lambda wire, _, request: Reply(False, standing(wire, request))),
    ),
    Broken(
        "a claim that waits has no conditions",
        "W1",
        around("claim_when_free", lambda wire, _, request: put(wire, request.record, request.record.key)),
    ),
    Broken(
        "a claim that waits forgets what it must find, and what it keeps",
        "W1",
        around(
            "claim_when_free", lambda _, step, request: step(request._replace(must_exist=False, keep_payload=False))
        ),
    ),
    Broken("a claim that waits refuses without the record", "W1", answering("claim_when_free", faulty_waiting.hiding)),
    Broken("the newest claim that waits is served first", "W2", faulty_waiting.serving_the_newest),
    Broken("a release serves the first who waits alone", "W2", faulty_waiting.serving_once),
    Broken("a cancelled claim stays in the queue", "W3", faulty_waiting.never_leaving, colours=(Colour.ASYNC,)),
    Broken("a cancelled claim is applied later", "W3", faulty_waiting.applying_later, colours=(Colour.ASYNC,)),
    Broken("a claim is withdrawn in words alone", "W3", faulty_waiting.withdrawing_by_word, colours=(Colour.ASYNC,)),
    Broken(
        "a cancelled waiter keeps its wake-up", "N3", faulty.not_passing_on, colours=(Colour.ASYNC,), on_socket=False
    ),
)

BROKEN_LINKS: tuple[BrokenLinks, ...] = (
    *OF_LINKS,
    *LINKS_OF_LIVES,
    *LINKS_OF_BRANCHES,
    *LINKS_OF_BOUNDS,
    *LINKS_OF_ENDS,
    *LINKS_OF_ANSWERS,
    *LINKS_OF_DETAILS,
    *LINKS_OF_CLIENTS,
)
