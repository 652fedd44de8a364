"""Whether a socket has something to read or room to write, asked in the way that this platform has."""

from __future__ import annotations

import select
from typing import Any


def is_ready(peer: Any, timeout_s: float = 0.0, *, writes: bool = False) -> bool:
    """Wait up to *timeout_s* until *peer*, a socket or its descriptor, can be read, or with *writes* also written; whether it can.

    What is idle on a connection to a server can be read once the server has said something unasked, or has closed it.
    """
    timeout_s = max(timeout_s, 0)  # less would be for ever
    # Windows has no poll, and eventlet takes it away: its own select() lets other green threads run.
    if not hasattr(select, "poll"):
        return any(select.select([peer], [peer] if writes else [], [], timeout_s))
    poll = select.poll()
    poll.register(peer, select.POLLIN | select.POLLOUT if writes else select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
