"""The store kit: what every adapter needs beside its driver. Public: ours and other people's adapters stand on it.

=========================================== ==========================================================================================
:func:`outcome`                             the port's conditions, for a store that loads, decides and saves in one transaction
:func:`plain_of`, :func:`record_of`         a record as plain values; :func:`packed`, :func:`unpacked`: as one value
:class:`ExchangeStore` and its async twin   both colours of a store from one description of what is sent and how an answer is read
:class:`Backend`                            the object behind an entry point
:func:`watch_forks`                         for a store that keeps a connection: called before and after each fork of the process
=========================================== ==========================================================================================
"""

from dlock_core.kit.backend import Backend
from dlock_core.kit.codec import Plain, damaged, packed, payload_of, plain_of, read_payload, record_of, unpacked
from dlock_core.kit.exchange import (
    AsyncBatches,
    AsyncExchangeStore,
    AsyncLink,
    AsyncReadsAge,
    Batches,
    BatchResults,
    Call,
    Exchange,
    ExchangeStore,
    Link,
    ReadsAge,
    Verbs,
)
from dlock_core.kit.forks import Forkable, watch_forks, watched
from dlock_core.kit.outcome import matches, outcome, tokens_exhausted, written

__all__ = [
    "AsyncBatches",
    "AsyncExchangeStore",
    "AsyncLink",
    "AsyncReadsAge",
    "Backend",
    "BatchResults",
    "Batches",
    "Call",
    "Exchange",
    "ExchangeStore",
    "Forkable",
    "Link",
    "Plain",
    "ReadsAge",
    "Verbs",
    "damaged",
    "matches",
    "outcome",
    "packed",
    "payload_of",
    "plain_of",
    "read_payload",
    "record_of",
    "tokens_exhausted",
    "unpacked",
    "watch_forks",
    "watched",
    "written",
]
