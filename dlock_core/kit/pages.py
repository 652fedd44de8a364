"""The pages of a scan."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from dlock_core.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dlock_core.kit.exchange import Exchange
    from dlock_core.record import LockRecord

    Page: TypeAlias = tuple[Iterable[Callable[[], LockRecord]], str | None]

__all__ = ["pages"]


def pages(page: Callable[[str | None], Exchange[Page]]) -> Iterator[Exchange[list[LockRecord]]]:
    """Yield the exchange of each page of a scan. The first record that cannot be read is raised after all others were given.

    *page* is called with the key after which the page begins, None for the first. Its exchange returns what reads each record of the
    page, and the key after which the next one begins, None at the last.
    """
    after: str | None = None
    faults: list[RecordError] = []

    def exchange() -> Exchange[list[LockRecord]]:
        nonlocal after
        readers, after = yield from page(after)
        records = []
        for read in readers:
            try:
                records.append(read())
            except RecordError as error:
                faults.append(error)
        return records

    yield exchange()
    while after is not None:
        yield exchange()
    if faults:
        raise faults[0]
