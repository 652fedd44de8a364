"""The store kit: what every adapter needs beside its driver. Public: ours and other people's adapters stand on it.

=========================================== ==========================================================================================
:func:`outcome`, :func:`wakes`              the port's conditions, for a store that loads, decides and saves in one step
:func:`is_urgent`                           which step waits for no claim
:func:`plain_of`, :func:`record_of`         a record as plain values; :func:`packed`, :func:`unpacked`: as one value
:class:`ExchangeStore` and its async twin   both colours of a store from one description of what is sent and how an answer is read
:func:`perform`, :func:`aperform`           steps that are written once, for both colours
:func:`pages`                               a scan that a record which cannot be read does not end
:func:`unanswered`, :func:`unfit`           errors that say the same for every server; :func:`named`: what a message calls a lock
:func:`meanings`                            what each code of a server means, from one table
:func:`quorum_guarantees`                   what a store promises that keeps each write on a majority of its servers
:class:`Backend`                            the object behind an entry point
:class:`EndpointOptions`                    the options of a store on a cluster of servers
:class:`Lane`                               threads for calls of a driver that keeps to no time-out; :func:`in_own_thread`: for asyncio
:class:`AsyncLane`                          tasks for calls that go on where their caller has gone
:class:`Hearing`                            whether the connection that all requests share is dead, or its server slow
:class:`DaemonThread`                       a thread whose start an interrupt of the program cannot leave half done
:class:`DeadlineSocket` and its TLS twin    sockets whose every wait ends at one instant; :func:`connected_socket`: one by a name
:func:`is_ready`, :func:`is_idle`           whether a socket has something to read, on every platform; whether a connection is idle
:class:`Waits`, :class:`Watch` and its twin waiters by key, woken by one stream of news from the server
:class:`Seats`, :class:`Shelf`              a bounded number of requests at once, and the connections that none of them uses
:class:`Pool` and its async twin            both together: each connection is lent to one request, and one is kept for renewals
:func:`on_lane` and its async twin          connections that come too late for their request, and are there for the next one
:class:`PooledLink` and its async twin      a link that lends each request a :class:`PooledConnection` of its pools
:func:`mark_of`                             what differs once a file, such as a certificate, was written anew
:func:`watch_forks`                         for a store that keeps a connection: called before and after each fork of the process
:func:`leave_behind`                        in a forked child: keep for ever what is the parent's
=========================================== ==========================================================================================
"""

from importlib import import_module
from typing import TYPE_CHECKING

from dlock_core.engine.process import DaemonThread
from dlock_core.engine.seats import Seats
from dlock_core.kit.backend import Backend
from dlock_core.kit.batches import BatchResults, in_parts
from dlock_core.kit.codec import Plain, damaged, packed, payload_of, plain_of, record_of, unpacked
from dlock_core.kit.exchange import (
    AsyncExchangeStore,
    AsyncLink,
    Batches,
    Call,
    ClaimsMany,
    Exchange,
    ExchangeStore,
    Link,
    Prunes,
    ReadsAge,
    Verbs,
    aperform,
    perform,
)
from dlock_core.kit.files import mark_of
from dlock_core.kit.forks import BeginsAnew, Forkable, leave_behind, watch_forks, watched
from dlock_core.kit.hearing import Hearing
from dlock_core.kit.lane import AsyncLane, Lane, in_own_thread
from dlock_core.kit.outcome import is_urgent, kept, kept_for_first, matches, outcome, wakes, written
from dlock_core.kit.pages import pages
from dlock_core.kit.pooled import (
    AsyncPool,
    AsyncPooledLink,
    Pool,
    PooledConnection,
    PooledLink,
    on_async_lane,
    on_lane,
)
from dlock_core.kit.quorum import quorum_guarantees
from dlock_core.kit.readiness import is_idle, is_ready
from dlock_core.kit.removal import may_be_removed
from dlock_core.kit.seats import AsyncSeats, Shelf
from dlock_core.kit.trouble import meanings, named, unanswered, unfit
from dlock_core.kit.watch import AsyncWatch, News, Waits, Watch
from dlock_core.store import tokens_exhausted

if TYPE_CHECKING:
    from dlock_core.kit.deadlines import DeadlineSocket, DeadlineTLSSocket, connected_socket
    from dlock_core.kit.endpoints import EndpointOptions

__all__ = [
    "AsyncExchangeStore",
    "AsyncLane",
    "AsyncLink",
    "AsyncPool",
    "AsyncPooledLink",
    "AsyncSeats",
    "AsyncWatch",
    "Backend",
    "BatchResults",
    "Batches",
    "BeginsAnew",
    "Call",
    "ClaimsMany",
    "DaemonThread",
    "DeadlineSocket",
    "DeadlineTLSSocket",
    "EndpointOptions",
    "Exchange",
    "ExchangeStore",
    "Forkable",
    "Hearing",
    "Lane",
    "Link",
    "News",
    "Plain",
    "Pool",
    "PooledConnection",
    "PooledLink",
    "Prunes",
    "ReadsAge",
    "Seats",
    "Shelf",
    "Verbs",
    "Waits",
    "Watch",
    "aperform",
    "connected_socket",
    "damaged",
    "in_own_thread",
    "in_parts",
    "is_idle",
    "is_ready",
    "is_urgent",
    "kept",
    "kept_for_first",
    "leave_behind",
    "mark_of",
    "matches",
    "may_be_removed",
    "meanings",
    "named",
    "on_async_lane",
    "on_lane",
    "outcome",
    "packed",
    "pages",
    "payload_of",
    "perform",
    "plain_of",
    "quorum_guarantees",
    "record_of",
    "tokens_exhausted",
    "unanswered",
    "unfit",
    "unpacked",
    "wakes",
    "watch_forks",
    "watched",
    "written",
]


_LOADED_LATE = {"EndpointOptions": "endpoints"} | dict.fromkeys(
    ("DeadlineSocket", "DeadlineTLSSocket", "connected_socket"), "deadlines"
)


if not TYPE_CHECKING:  # a checker knows the names from above, and refuses others

    def __getattr__(name: str) -> object:
        """Load what only stores on the network need at its first use: no other store pays for a model or for TLS that it does not have."""
        if name in _LOADED_LATE:
            return getattr(import_module(f"{__name__}.{_LOADED_LATE[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
