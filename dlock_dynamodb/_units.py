"""The capacity units that DynamoDB bills for a request, by the verb that sent it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from dlock_core.kit import BeginsAnew, watch_forks
from dlock_dynamodb._errors import code_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from botocore.exceptions import ClientError

# What bills the units of each operation; DynamoDB is asked to say them with the answer.
_BILLED = {
    "batch_execute_statement": "write",
    "delete_item": "write",
    "get_item": "read",
    "put_item": "write",
    "scan": "read",
    "update_item": "write",
}
_WRITE_UNIT_BYTES = 1024


class Units(BeginsAnew):
    """The units billed so far, by verb and by kind; any thread may add to them."""

    def __init__(self) -> None:
        self._billed: dict[str, dict[str, float]] = {}
        self.after_fork_in_child()
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        """Count on: another thread of the parent may have had the mutex."""
        self._mutex = threading.RLock()  # a signal handler may send a request while its thread counts one

    @property
    def billed(self) -> dict[str, dict[str, float]]:
        """A copy: for each verb the units of each kind."""
        with self._mutex:
            return {verb: dict(kinds) for verb, kinds in list(self._billed.items())}

    def question(self, operation: str) -> dict[str, str]:
        """Return the argument that asks DynamoDB for the units of *operation*, if it bills any."""
        return {"ReturnConsumedCapacity": "TOTAL"} if operation in _BILLED else {}

    def answered(self, verb: str, operation: str, answer: Mapping[str, Any]) -> None:
        """Add what DynamoDB says with *answer*."""
        consumed = answer.get("ConsumedCapacity") or []
        tables = consumed if isinstance(consumed, list) else [consumed]
        units = [each.get("CapacityUnits") for each in tables if isinstance(each, dict)]
        self._add(verb, operation, sum(each for each in units if isinstance(each, (int, float))))

    def refused(self, verb: str, operation: str, request: Mapping[str, Any], error: ClientError) -> None:
        """Add what a write costs that its condition refused; DynamoDB bills it, and doesn't say it with the error.

        The larger of two items counts: the one that stands, and the one that the write would have left. For an update the latter is not
        known, and the names and values that were sent stand for it.
        """
        if code_of(error) != "ConditionalCheckFailed":
            return
        sent = {**request.get("Key", {}), **request.get("Item", request.get("ExpressionAttributeValues", {}))}
        larger = max(_size(sent), _size(error.response.get("Item") or {}))
        self._add(verb, operation, max(-(-larger // _WRITE_UNIT_BYTES), 1))

    def _add(self, verb: str, operation: str, units: float) -> None:
        kind = _BILLED.get(operation)
        if kind is None:
            return
        with self._mutex:
            of_verb = self._billed.setdefault(verb, {"read": 0.0, "write": 0.0})
            of_verb[kind] += units


def _size(item: Mapping[str, Any]) -> int:
    """Return the bytes of *item* as DynamoDB counts them: names in UTF-8, and values."""
    return sum(len(name.encode()) + _value_size(value) for name, value in item.items())


def _value_size(typed: Mapping[str, Any]) -> int:
    [(kind, value)] = typed.items()
    match kind:
        case "S":
            return len(value.encode())
        case "B":
            return len(value)
        case "N":
            return len(value) // 2 + 2  # about one byte for two digits, and one
        case "M":
            return 3 + len(value) + _size(value)
        case "L":
            return 3 + len(value) + sum(map(_value_size, value))
        case _:
            return 1  # a truth value or a null
