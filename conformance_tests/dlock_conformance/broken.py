"""Stores with one fault each, as data: proof that the suite has teeth, and a list of what goes wrong in stores of locks.

Each entry is a small patch on the memory store behind a wire, and names the clause whose tests must reject it. Many of the faults were
shipped by somebody: a release without its condition, a token that starts again after a deletion, a lost reply told as a refusal.
"""

from __future__ import annotations

from dataclasses import replace

from dlock_conformance import _breaking, _faulty
from dlock_conformance._breaking import answering, around, saying, setting, writing
from dlock_conformance._broken_steps import OF_STEPS, Broken
from dlock_conformance.harness import Colour
from dlock_conformance.records import held
from dlock_conformance.wired import CAPABILITIES, NoReplyError, NoTableError, NotSentError
from dlock_core.errors import OutcomeUnknownError, StoreUnavailableError
from dlock_core.record import State
from dlock_core.store import Capability, Reply

__all__ = ["BROKEN", "Broken"]

BROKEN: tuple[Broken, ...] = (
    *OF_STEPS,
    # ---- trouble
    Broken("the driver's time-out counts", "S13", setting(patience=lambda _: 2.4)),
    Broken(
        "a lost reply is told as certainly not applied",
        "S14",
        _faulty.translating(NoReplyError, lambda verb, key: StoreUnavailableError(f"{verb} failed", key=key)),
    ),
    Broken(
        "a lost reply is told as a refusal", "S15", _faulty.without_reply(lambda _: Reply(applied=False, record=None))
    ),
    Broken(
        "a lost reply is told as a grant",
        "S15",
        _faulty.without_reply(lambda request: Reply(applied=True, record=request.record)),
    ),
    Broken("a lost write is sent again", "S15", _faulty.sending_again),
    Broken("a foreign record is free", "S16", _faulty.foreign_is_free),
    Broken(
        "a foreign record is absent",
        "S16",
        _faulty.foreign_is(lambda verb: {"read": None, "scan": []}.get(verb, Reply(applied=False, record=None))),
    ),
    Broken("a newer format is read as ours", "S16", _faulty.newer_is_ours),
    Broken(
        "the driver's errors come out",
        "S17",
        _faulty.translating(NoReplyError, lambda verb, _: ConnectionResetError(verb)),
    ),
    Broken(
        "the driver's time-out comes out", "S17", _faulty.translating(NotSentError, lambda verb, _: TimeoutError(verb))
    ),
    Broken("our errors have no cause", "S17", _faulty.causeless),
    # ---- life
    Broken(
        "the token starts again after a deletion",
        "S18",
        writing("claim", lambda o, r, n: r.record if o and o.state is State.GONE else n),
    ),
    Broken("a token wraps at its end", "S18", around("claim", _breaking.token_that_wraps)),
    Broken("a restart forgets tombstones", "S18", _faulty.forgetting(lambda record: not record.held)),
    Broken("a restart forgets everything", "S18", _faulty.forgetting(lambda _: True)),
    Broken(
        "a capability is declared that is not there",
        "S19",
        setting(capabilities=CAPABILITIES | {Capability.ATOMIC_MULTI}),
    ),
    Broken(
        "a capability is there that is not declared", "S19", setting(capabilities=CAPABILITIES - {Capability.NOTIFY})
    ),
    Broken("capabilities are plain text", "S19", setting(capabilities=frozenset({"batch_renew", "notify"}))),
    Broken("the guarantees change", "S20", _faulty.new_guarantees),
    Broken("the guarantees name no version", "S20", saying(version="")),
    Broken("the grade is a letter", "S20", saying(grade="A")),
    Broken("grade A forgets everything", "S20", saying(durable=False)),
    Broken("a verb makes the table", "S21", setting(lenient=True)),
    Broken(
        "a missing table is told as no reply",
        "S21",
        _faulty.translating(NoTableError, lambda verb, key: OutcomeUnknownError(f"no reply to {verb}", key=key)),
    ),
    Broken("provisioning drops the table", "S21", lambda wire: setting(provision=wire.space.records.clear)(wire)),
    Broken("close closes the client that was given", "S22", _faulty.closing_the_client),
    Broken("close does nothing", "S22", setting(on_close=lambda store: setattr(store, "is_open", True))),
    Broken("close fails the second time", "S22", _faulty.closing_once),
    Broken("a claim reads first", "S23", around("claim", _faulty.costing(lambda _, __: 1))),
    Broken(
        "a refused replace reads who holds the key",
        "S23",
        around("replace", _faulty.costing(lambda _, came: not came.applied)),
    ),
    Broken(
        "a batch is sent one by one",
        "S23",
        around("replace_many", _faulty.costing(lambda requests, _: len(requests) - 1)),
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
    Broken("a refusal in a batch is told as done", "B2", answering("replace_many", _faulty.told_as_done)),
    Broken("one refusal makes all of a batch refusals", "B2", answering("replace_many", _faulty.all_or_none)),
    Broken("one bad record fails the whole batch", "B2", answering("replace_many", _faulty.raising_the_first)),
    Broken("a batch is cut at 25", "B3", around("replace_many", _faulty.first_only(25))),
    # ---- wake-ups
    Broken("a release before the wait is missed", "N1", _faulty.missing_the_release),
    Broken(
        "a release wakes before it is written",
        "N1",
        around("release", _faulty.silent(before=0.05)),
        colours=(Colour.SYNC,),
    ),
    Broken("a release wakes nobody", "N1", around("release", _faulty.silent())),
    Broken("a wait outlives its time-out", "N2", _faulty.waiting_too_long),
    Broken("a release wakes all", "N3", around("release", _faulty.waking_all)),
    Broken("a waiter that left is woken in place of the next", "N3", setting(leave=lambda _, __, *, pass_on: None)),
    Broken("an absent key has an age", "C1", answering("read_age", lambda key, came: came or (held(key), 0))),
    Broken(
        "read_age hides tombstones",
        "C1",
        answering("read_age", lambda _, came: came if came and came[0].held else None),
    ),
    Broken("an age is in seconds", "C2", answering("read_age", lambda _, came: came and (came[0], came[1] // 1000))),
    Broken("a renewal leaves the age as it was", "C2", around("replace", _faulty.keeping_the_age)),
    Broken(
        "the age counts from the first write", "C2", around(("claim", "replace", "release"), _faulty.keeping_the_age)
    ),
    Broken("a cancelled waiter keeps its wake-up", "N3", _faulty.not_passing_on, colours=(Colour.ASYNC,)),
)
