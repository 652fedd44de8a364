"""How a client's renewals are doing, for a program that cannot see them: they run in the background. Pure, as :mod:`dlock_core.lease`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlock_core.lease import is_valid
from dlock_core.states import Held
from dlock_core.timings import NANOS, NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dlock_core.states import LeaseState
    from dlock_core.store import Connections

__all__ = ["Health", "health_of"]


@dataclass(frozen=True, slots=True)
class Health:
    """What a client knows of its own locks, without asking the store. All durations are in seconds.

    *renewal_late* is by how much the renewal that is most overdue is late; a healthy client stays below a second. *remaining* is the
    least time that any lock still has if no renewal comes, infinite without locks. *at_risk* are the keys whose last renewal failed.
    *unresolved* counts the releases and clean-ups that the store has not acknowledged; an acquire that was cancelled while its claim was
    under way is one of them, for a lease at most. *last_error* is what the store, or its driver, said when a request last failed, and
    *last_error_age* how long ago that was; errors of long ago stay. *connections* counts those that carry a request (``busy``), the other
    open ones (``idle``) and those that there may be (``limit``): where all are busy, requests queue. It is None where the driver keeps
    its connections to itself, or none are needed.
    """

    held: int
    renewal_late: float
    remaining: float
    at_risk: tuple[str, ...]
    unresolved: int
    last_error: str | None
    last_error_age: float | None
    connections: Connections | None


def health_of(
    states: Mapping[str, LeaseState],
    now: int,
    *,
    sessions: Iterable[LeaseState] = (),
    unresolved: int,
    error: tuple[str, int] | None,
    connections: Connections | None,
) -> Health:
    """Return the health of a client whose locks are in these *states* at *now*, and its *sessions* in those.

    *error* is the last one of a request, and its instant.
    """
    held = {key: state for key, state in states.items() if type(state) is Held and is_valid(state, now)}
    renewed = [state for state in (*held.values(), *sessions) if type(state) is Held and state.timings.auto_renew]
    late = [now - state.sent_at - state.timings.period_ns for state in renewed]
    ends = [end for state in held.values() if (end := min(state.deadline, state.hold_until)) < NEVER]
    return Health(
        held=len(held),
        renewal_late=max([0, *late]) / NANOS,
        remaining=(min(ends) - now) / NANOS if ends else float("inf"),
        at_risk=tuple(sorted(key for key, state in held.items() if state.at_risk)),
        unresolved=unresolved,
        last_error=None if error is None else error[0],
        last_error_age=None if error is None else (now - error[1]) / NANOS,
        connections=connections,
    )
