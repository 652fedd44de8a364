"""Changes of the machine that nothing notices, and why each makes no difference that matters."""

from __future__ import annotations

__all__ = ["EXPLAINED"]

_APPLIED = "a driver makes a failure of an applied reply without a record (clause S7), so the machine never sees one"
_ADOPTED = "what was applied has the RVN that was asked for, so the adoption right below takes it as well"

EXPLAINED: dict[str, str] = {
    "_seek_answer: reply.applied and record is not None -> reply.applied": _APPLIED,
    "_seek_answer: record is not None -> record is None": _ADOPTED,
    "_seek_answer: pending and (in_flight.verb is Verb.READ or state.terms.timings.refusals_linearizable)"
    " -> in_flight.verb is Verb.READ or state.terms.timings.refusals_linearizable": "it only saves the look at an empty tuple",
    "_seek_probed: event.owner is OwnerState.DEAD and seen is not None -> event.owner is OwnerState.DEAD": (
        "an owner is asked for only while a record is observed; the second half tells that to the type checker"
    ),
}
