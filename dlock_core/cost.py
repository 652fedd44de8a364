"""What a client has sent to its store: requests, and the units that DynamoDB bills."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Cost", "cost_of"]


@dataclass(frozen=True, slots=True)
class Cost:
    """What the store of a client has sent since it was opened.

    *requests* counts the requests by verb: ``claim``, ``replace`` (a renewal, alone or in a batch), ``release``, ``read``, ``scan``,
    ``prune``, ``inspect`` and ``provision``. What a driver sends for itself, and notifications, are not among them. It is empty for a store
    that sends no requests, and for one that doesn't count them.

    *units_by_verb* are the capacity units that DynamoDB bills, for each of these verbs by kind: ``read`` and ``write``. DynamoDB says them
    with its answers. It bills a write that its condition refused, too, and does not say it: that one is reckoned from the larger of the two
    items. The mapping is empty for other stores. *units* are their sums by kind.
    """

    requests: Mapping[str, int]
    units_by_verb: Mapping[str, Mapping[str, float]]

    @property
    def units(self) -> Mapping[str, float]:
        """The capacity units of all verbs together, by kind; empty for stores that bill none."""
        sums: dict[str, float] = {}
        for kinds in self.units_by_verb.values():
            for kind, units in kinds.items():
                sums[kind] = sums.get(kind, 0.0) + units
        return sums


def cost_of(store: Any) -> Cost:
    """Return what *store*, which may be a face of another one, has counted."""
    store = getattr(store, "store", store)
    return Cost(dict(getattr(store, "requests", {})), dict(getattr(store, "units", {})))
