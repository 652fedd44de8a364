"""What a holder hears of those who wait for its lock: no decision rests on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlock_core.states import Held

if TYPE_CHECKING:
    from dlock_core.engine.driver import Driver
    from dlock_core.engine.handle import Handle, Watch


def note_wanted(driver: Driver, handle: Handle, *, wanted: bool) -> None:
    """Take note of what the answer to a renewal of the held *handle* says; the caller holds the mutex."""
    handle.wanted = wanted
    for watch in handle.wanted_watches:
        if not wanted:
            watch.armed = True
        elif watch.armed:
            driver.fire(watch)


def watch_wanted(driver: Driver, handle: Handle, watch: Watch) -> None:
    """Have *watch* fire when somebody waits for the key; at once where the last renewal said so."""
    with driver.runtime.mutex:
        handle.wanted_watches = (*handle.wanted_watches, watch)
        if type(handle.state) is Held and handle.wanted and watch.armed:
            driver.fire(watch)
    driver.tell()
