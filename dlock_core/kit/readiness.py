"""Whether a socket has something to read or room to write, asked in the way that this platform has; whether a connection is idle."""

from __future__ import annotations

import select
import ssl
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


def is_idle(peer: Any) -> bool:
    """Whether the server at the other end of *peer*, an open socket, has neither closed it nor said anything unasked.

    What TLS says for itself is read and does not count: after the handshake a server sends tickets for later sessions, and they lie in the
    socket until something is read.
    """
    if not is_ready(peer):
        return True
    if not isinstance(peer, ssl.SSLSocket):
        return False
    timeout_s = peer.gettimeout()
    try:
        peer.settimeout(0)
        ssl.SSLSocket.recv(peer, 1)  # not its own, which may wait until a deadline
    except ssl.SSLWantReadError:
        return True
    except OSError:
        return False
    else:
        return False
    finally:
        peer.settimeout(timeout_s)
