"""Batches: the results of their requests, and how many go together."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dlock_core.errors import OutcomeUnknownError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from dlock_core.kit.exchange import Exchange
    from dlock_core.store import Replace, Reply

# Enough for two bad ones among five hundred; where each is bad the store is asked no more often than so.
_FAILURES_MAX = 20


def in_parts(sizes: Mapping[int, int], most: int) -> Iterator[list[int]]:
    """Yield the numbers of *sizes* in their order, in parts that are not larger than *most* together, or have one number alone."""
    part: list[int] = []
    size = 0
    for number, each in sizes.items():
        if part and size + each > most:
            yield part
            part, size = [], 0
        part.append(number)
        size += each
    if part:
        yield part


class BatchResults:
    """The results of a batch, in the order of its requests. A request without a result has an unknown outcome."""

    def __init__(self, requests: Sequence[Replace]) -> None:
        self._requests = requests
        self._results: list[Reply | StoreError | None] = [None] * len(requests)

    def settle(self, number: int, reply: Callable[[], Reply | StoreError]) -> None:
        """Note what *reply* returns or raises as the result of request *number*; it touches no other."""
        try:
            self._results[number] = reply()
        except StoreError as error:
            self._results[number] = error

    def fail_by(self, numbers: Iterable[int], error: Exception, told: Callable[[str], StoreError | None]) -> None:
        """Note for each of these requests what *told* makes of the driver's *error* for its key; a store's own error stays."""
        for number in numbers:
            problem = error if isinstance(error, StoreError) else told(self._requests[number].record.key)
            assert problem is not None
            if problem is not error:
                problem.__cause__ = error
            self._results[number] = problem

    def apart(
        self,
        send: Callable[[Sequence[int]], Exchange[None]],
        numbers: Sequence[int],
        is_of_one: Callable[[Exception], bool],
        told: Callable[[Exception, str], StoreError | None],
    ) -> Exchange[None]:
        """Do *send* with all *numbers*, which it applies and settles together, or with none.

        Where its error *is_of_one* of them, as that of a row which is damaged or refused, it is done with each half, and so on, up to some
        twenty times: it costs no other request its result. What *told* makes of the error for a key is noted.
        """
        parts, failures = [numbers], 0
        while parts:
            part = parts.pop()
            try:
                yield from send(part)
            except Exception as error:
                failures += 1
                apart = len(part) > 1 and failures < _FAILURES_MAX and is_of_one(error)
                if part is numbers and not apart:
                    raise
                if apart:
                    half = len(part) // 2
                    parts += (part[half:], part[:half])
                else:
                    self.fail_by(part, error, partial(told, error))

    def as_list(self) -> list[Reply | StoreError]:
        """Return all results."""
        results = zip(self._results, self._requests, strict=True)
        return [_no_answer(request) if result is None else result for result, request in results]


def _no_answer(request: Replace) -> OutcomeUnknownError:
    key = request.record.key
    return OutcomeUnknownError(f"the renewal of lock {key!r} got no answer", key=key)
