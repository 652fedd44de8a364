"""The results of a batch, each request having one of its own; and batches that are too large for one request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from dlock_core.errors import OutcomeUnknownError, RecordError, StoreError, StoreUnavailableError
from dlock_core.kit import BatchResults, Exchange, in_parts, perform
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


def test_a_bad_request_costs_no_other_its_result() -> None:
    """It is found by halves; an error that is of no single one is that of the batch, or of its half."""
    requests = [REPLACE._replace(record=LockRecord(str(number), State.HELD, "r", 1, "o", None)) for number in range(8)]
    sent: list[list[int]] = []

    def run(bad: Callable[[Sequence[int]], Exception | None]) -> list[Reply | StoreError]:
        sent.clear()
        results = BatchResults(requests)

        def send(numbers: Sequence[int]) -> Exchange[None]:
            sent.append([*numbers])
            if (error := bad(numbers)) is not None:
                raise error
            for number in numbers:
                results.settle(number, lambda: Reply(applied=True, record=RECORD))
            yield from ()

        def told(_: Exception, key: str) -> StoreError:
            return StoreUnavailableError("bad", key=key)

        perform(results.apart(send, range(8), lambda error: type(error) is ValueError, told))
        return results.as_list()

    found = run(lambda numbers: ValueError() if 5 in numbers else None)
    assert [getattr(each, "key", None) for each in found] == [None] * 5 + ["5"] + [None] * 2
    assert sent == [[*range(8)], [0, 1, 2, 3], [4, 5, 6, 7], [4, 5], [4], [5], [6, 7]]

    found = run(lambda numbers: ValueError() if len(numbers) == 8 else OSError() if 5 in numbers else None)
    assert [getattr(each, "key", None) for each in found] == [None] * 4 + ["4", "5", "6", "7"]

    with pytest.raises(OSError, match="gone"):
        run(lambda numbers: OSError("gone"))


def test_requests_that_are_all_bad_are_given_up() -> None:
    """After some twenty tries, however many they are."""
    requests = [
        REPLACE._replace(record=LockRecord(str(number), State.HELD, "r", 1, "o", None)) for number in range(500)
    ]
    results, sent = BatchResults(requests), list[int]()

    def send(numbers: Sequence[int]) -> Exchange[None]:
        sent.append(len(numbers))
        yield from ()
        raise ValueError

    perform(results.apart(send, range(500), lambda _: True, lambda _, key: StoreUnavailableError("bad", key=key)))

    assert [getattr(each, "key", None) for each in results.as_list()] == [request.record.key for request in requests]
    assert len(sent) < 40
