"""What a holder hears of those who wait for its lock: no decision rests on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlock_core.states import Answer, Held

if TYPE_CHECKING:
    from dlock_core.engine.driver import Driver
    from dlock_core.engine.handle import Handle, Watch
    from dlock_core.states import Event

__all__ = ["note_wanted", "watch_wanted"]


def note_wanted(driver: Driver, handle: Handle, event: Event) -> None:
    """Take note of what *event* says, if it is the answer to a renewal of the held *handle*; the caller holds the mutex."""
    if type(event) is not Answer or not event.reply.applied:
        return
    wanted = handle.wanted = event.reply.wanted
    for watch in handle.wanted_watches:
        if not wanted:
            watch.armed = True
        elif watch.armed:
            driver.fire(watch)


def watch_wanted(driver: Driver, handle: Handle, watch: Watch) -> None:
    """Have *watch* fire when somebody waits for the key; at once where the last renewal said so."""
    with driver.runtime.mutex:
        handle.wanted_watches.append(watch)
        if type(handle.state) is Held and handle.wanted and watch.armed:
            driver.fire(watch)
    driver.tell()
