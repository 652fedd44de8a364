"""A scan, page by page, which a record that cannot be read does not end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlock_core.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dlock_core.kit.exchange import Exchange
    from dlock_core.record import LockRecord


def pages(
    page: Callable[[Any], Exchange[tuple[Iterable[Callable[[], LockRecord | None]], Any]]],
) -> Iterator[Exchange[list[LockRecord]]]:
    """Yield the exchange of each page of a scan. After the last one, the first record that could not be read is raised.

    *page* is given where to go on, None at first; it returns what reads each record of the page, or gives None
    where there is none, and where to go on, or None at the end.
    """
    after: Any = None
    faults: list[RecordError] = []

    def read() -> Exchange[list[LockRecord]]:
        nonlocal after
        records = []
        readings, after = yield from page(after)
        for reading in readings:
            try:
                record = reading()
            except RecordError as error:
                faults.append(error)
            else:
                if record is not None:
                    records.append(record)
        return records

    yield read()
    while after is not None:
        yield read()
    if faults:
        raise faults[0]
