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

    *units* are the capacity units that DynamoDB says with its answers, by kind: ``read`` and ``write``. A write that it refused counts as
    one. It is empty for other stores.
    """

    requests: Mapping[str, int]
    units: Mapping[str, float]


def cost_of(store: Any) -> Cost:
    """Return what *store*, which may be a face of another one, has counted."""
    store = getattr(store, "store", store)
    return Cost(dict(getattr(store, "requests", {})), dict(getattr(store, "units", {})))
