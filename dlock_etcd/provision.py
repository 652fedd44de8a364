"""What etcd promises, as an exchange, and the rights that its user needs. There is nothing to create."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dlock_core.store import Grade, Guarantees, TokenOrder
from dlock_etcd import _schema
from dlock_etcd._errors import TROUBLE, setup_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlock_core.kit import Exchange
    from dlock_etcd._schema import Request

__all__ = ["inspection", "policy"]

_OLDEST = (3, 4)


def policy(root: str) -> str:
    """Return the rights that the user of the locks needs."""
    return f"etcdctl role grant-permission ROLE --prefix=true readwrite '{root}/'; etcdctl user grant-role NAME ROLE"


def inspection(asked: Callable[[Request], Exchange[Any]]) -> Exchange[Guarantees]:
    """Look at the member and its cluster.

    Raises: StoreSetupError: the member does not fit.
    """
    status = yield from asked(_schema.status())
    version = tuple(int(part) for part in re.findall(r"\d+", status.version)[:2])
    if version < _OLDEST:
        raise setup_error(
            f"the server is etcd {status.version or 'of an unknown version'}", "update it to 3.4 or newer"
        )
    if status.learner:
        raise setup_error("the member is a learner, which answers no linearizable request", "name a voting member")
    voting: int | None
    try:
        voting = sum(not member.learner for member in (yield from asked(_schema.members())).members)
    except TROUBLE:
        voting = None  # newer servers tell members to administrators only
    return _guarantees(status, voting)


def _guarantees(status: Any, voting: int | None) -> Guarantees:
    several = voting is not None and voting >= 3  # noqa: PLR2004  # the least that goes on without one of them
    notes = [f"voting members: {'not shown to this user' if voting is None else voting}"]
    notes += [f"the member reports: {error}" for error in status.errors]
    if not status.leader:
        notes.append("the member knows no leader now")
    notes.append("waiters are told by one watch a client; there is no clock, so ages are observed by the clients")
    if several:
        failover = "a write counts when a majority has it on disk; while there is no majority nobody gets a lock"
    elif voting == 2:  # noqa: PLR2004
        failover = "two members: while either is down nobody gets a lock; what they acknowledged they remember"
    else:
        failover = "one server: while it is down nobody gets a lock; what it acknowledged it remembers, unless its disk is lost"
    return Guarantees(
        store="etcd",
        version=status.version,
        grade=Grade.A if several else Grade.B,
        token=TokenOrder.ORDERED,
        deletes=False,
        refusal_linearizable=True,
        durable=True,
        failover=failover,
        clock="none: the clients time the leases",
        notes=tuple(notes),
    )
