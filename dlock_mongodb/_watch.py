"""The change stream that wakes waiters: it tells of releases, and of the first renewal after a waiter has marked the document.

That renewal drops the mark, so the stream tells nothing of the renewals of other locks.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from pymongo.errors import PyMongoError

from dlock_core.kit import News
from dlock_mongodb._wire import SOUGHT

_AWAIT_MS = 500
# A pipeline update may be told as an update or as a replacement.
_CHANGES: list[dict[str, Any]] = [
    {
        "$match": {
            "$or": [
                {"fullDocument.state": {"$in": ["free", "gone"]}},
                {"updateDescription.updatedFields.state": {"$in": ["free", "gone"]}},
                {"updateDescription.removedFields": SOUGHT},
            ]
        }
    },
    {"$project": {"documentKey": 1}},
]


def news_of(collection: Any) -> News:
    """Return the change stream of *collection*, of either colour. It ends where the collection is dropped or renamed."""
    return News(
        partial(collection.watch, _CHANGES, max_await_time_ms=_AWAIT_MS),
        lambda change: (change["documentKey"]["_id"],),
        (PyMongoError, OSError, RuntimeError),
    )
