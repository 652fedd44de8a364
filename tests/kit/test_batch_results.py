"""The results of a batch, each request having one of its own; and batches that are too large for one request."""

from __future__ import annotations

import pytest

from dlock_core.errors import OutcomeUnknownError, RecordError, StoreUnavailableError
from dlock_core.kit import BatchResults, in_parts
from dlock_core.record import LockRecord, State, Version
from dlock_core.store import Replace, Reply

RECORD = LockRecord("k", State.HELD, "r", 1, "o", 1000)
REPLACE = Replace(RECORD, Version("r", 1))


def test_batch_results_are_unknown_until_they_are_settled() -> None:
    """In the order of the requests; what raises is the result of its own request alone."""
    requests = [REPLACE._replace(record=LockRecord(key, State.HELD, "r", 1, "o", None)) for key in "abc"]
    results = BatchResults(requests)
    damage = RecordError("damaged", key="b")

    def damaged() -> Reply:
        raise damage

    results.settle(0, lambda: Reply(applied=True, record=RECORD))
    results.settle(1, damaged)
    first, second, last = results.as_list()

    assert (first, second) == (Reply(applied=True, record=RECORD), damage)
    assert type(last) is OutcomeUnknownError
    assert last.key == "c"


def test_batch_result_that_raises_what_is_no_store_error_stops_the_batch() -> None:
    """A mistake in the adapter is not hidden among the results."""
    with pytest.raises(ZeroDivisionError):
        BatchResults([REPLACE]).settle(0, lambda: Reply(applied=bool(1 // 0), record=None))


def test_error_of_a_driver_is_told_for_each_key() -> None:
    """As its cause; one of the store's own stays what it is."""
    requests = [REPLACE._replace(record=LockRecord(key, State.HELD, "r", 1, "o", None)) for key in "abc"]
    results, cut, own = BatchResults(requests), OSError("cut"), StoreUnavailableError("gone")

    results.fail_by([0, 2], cut, lambda key: OutcomeUnknownError("cut", key=key))
    results.fail_by([1], own, lambda key: None)
    first, second, third = results.as_list()

    assert (getattr(first, "key", None), second, getattr(third, "key", None)) == ("a", own, "c")
    assert [getattr(each, "__cause__", None) for each in (first, second, third)] == [cut, None, cut]


def test_parts_are_no_larger_than_may_be() -> None:
    """In order; what is too large by itself goes alone."""
    assert list(in_parts({0: 2, 1: 3, 5: 1, 6: 9, 7: 4}, 5)) == [[0, 1], [5], [6], [7]]
    assert list(in_parts({}, 5)) == []
