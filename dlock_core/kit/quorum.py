"""What a store promises that keeps each write on a majority of its servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlock_core.store import Grade, Guarantees, TokenOrder

if TYPE_CHECKING:
    from collections.abc import Iterable

_SEVERAL = 3


def quorum_guarantees(store: str, version: str, voting: int | None, notes: Iterable[str]) -> Guarantees:
    """Return what *store* promises, whose records never go and whose tokens rise with each write of so many *voting* servers.

    None where their number is not known. The grade is A where the cluster goes on without one of them.
    """
    several = voting is not None and voting >= _SEVERAL
    match voting:
        case None:
            failover = "a write counts when a majority has it on disk; of how many servers is not known: nobody tells this user now"
        case 1:
            failover = "one server: while it is down nobody gets a lock; what it acknowledged it remembers, unless its disk is lost"
        case 2:
            failover = "two servers: while either is down nobody gets a lock; what they acknowledged they remember"
        case _:
            failover = "a write counts when a majority has it on disk; while there is no majority nobody gets a lock"
    return Guarantees(
        store=store,
        version=version,
        grade=Grade.A if several else Grade.B,
        token=TokenOrder.ORDERED,
        deletes=False,
        refusal_linearizable=True,
        durable=True,
        failover=failover,
        clock="none: the clients time the leases",
        notes=(f"voting servers: {'not known' if voting is None else voting}", *notes),
    )
