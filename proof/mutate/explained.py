"""Changes of the machine and the shell that nothing notices, and why each makes no difference that matters."""

from __future__ import annotations

__all__ = ["EXPLAINED"]

_APPLIED = "a driver makes a failure of an applied reply without a record (clause S7), so the machine never sees one"
_ADOPTED = "what was applied has the RVN that was asked for, so the adoption right below takes it as well"

_PUTS = "only whether it is the same number as before is asked"
_COPY = "it only saves a copy: without a bound both instants are NEVER, as in any new grant"
_TOLD = "who joins a lost lock is told of the loss, and has no lease of it"
_LOOK = "it only saves a look under the mutex: what is not held is not joined"
_STRICT = "a job has one request for each of its handles"
_NANOSECOND = "it is one nanosecond more or less"
_SAME = "two observations of one version since one instant are the same"

EXPLAINED: dict[str, str] = {
    "_seek_answer: if reply.applied and record is not None: -> if False:": _ADOPTED,
    "_seek_answer: return _granted(state, in_flight, record, event.new_rvn, now) -> pass": _ADOPTED,
    "_granted: if state.pending: -> if True:": "it only saves the look at an empty tuple",
    "_handed_out: if timings.max_hold_ns is None and timings.stall_ns is None: -> if False:": _COPY,
    "_handed_out: return state -> pass": _COPY,
    "_renewed: if state.hold_until == NEVER and state.stopping is None: -> if False:": _COPY,
    "_renewed: return held -> pass": _COPY,
    "_shown: return _Shown.ENDED -> pass": "both callers ask for the other two, and take anything else for the end",
    "_seek_answer: reply.applied and record is not None -> reply.applied": _APPLIED,
    "_seek_answer: record is not None -> record is None": _ADOPTED,
    "_seek_answer: pending and (in_flight.verb is Verb.READ or state.terms.timings.refusals_linearizable)"
    " -> in_flight.verb is Verb.READ or state.terms.timings.refusals_linearizable": "it only saves the look at an empty tuple",
    "_seek_probed: event.owner is OwnerState.DEAD and seen is not None -> event.owner is OwnerState.DEAD": (
        "an owner is asked for only while a record is observed; the second half tells that to the type checker"
    ),
    "dlock_core/engine/handle.py: is_in_hand: return False -> pass": "None is as false",
    "dlock_core/engine/joining.py: _join: joins and (not is_lost) -> joins": _TOLD,
    "dlock_core/engine/joining.py: obtain: if key in engine.driver.held: -> if True:": _LOOK,
    "dlock_core/engine/lines.py: stand: 0 -> 1": _NANOSECOND,
    "dlock_core/engine/lines.py: leave: self._streak + 1 -> self._streak - 1": "it comes to nought after as many steps",
    "dlock_core/engine/membership.py: leave_members: return False -> pass": "None is as false",
    "dlock_core/engine/observations.py: _is_earlier: one.seen_at < other.seen_at -> one.seen_at <= other.seen_at": _SAME,
    "dlock_core/engine/observations.py: save: self._kept is None or not self._unsaved -> not self._unsaved": (
        "without a place for it nothing is unsaved; the first half tells that to the type checker"
    ),
    "dlock_core/engine/renewals.py: _collect: 0 -> 1": _NANOSECOND,
    "dlock_core/engine/renewals.py: _collect: handle.due > now -> handle.due >= now": "what is due now goes with the next batch",
    "dlock_core/engine/renewals.py: _collect: if effect is not None: -> if True:": "what is no request is never sent",
    "dlock_core/engine/renewals.py: drop: zip(job.handles, job.requests, strict=True) -> zip(job.handles, job.requests)": _STRICT,
    "dlock_core/engine/renewals.py: drop: True -> False": _STRICT,
    "dlock_core/engine/renewals.py: _perform: zip(job.handles, job.requests, strict=True)"
    " -> zip(job.handles, job.requests)": _STRICT,
    "dlock_core/engine/renewals.py: _perform: True -> False": _STRICT,
    "dlock_core/engine/renewals.py: _perform: if effect is not None: -> if True:": "what is no request is never sent",
    "dlock_core/engine/renewals.py: _perform: zip(job.handles, job.requests, results, new_rvns(), strict=False)"
    " -> zip(job.handles, job.requests, results, new_rvns())": "a zip is not strict by itself",
    "dlock_core/engine/renewals.py: _attend: if handle.watches: -> if True:": "without one nothing is fired",
    "dlock_core/engine/sessions.py: _look: is_over is None and record is not None -> is_over is None": (
        "only of a record that is held it is not known; the second half tells that to the type checker"
    ),
    "dlock_core/engine/timers.py: __init__: 0 -> 1": _PUTS,
    "dlock_core/engine/timers.py: put: 1 -> 2": _PUTS,
}
