"""The store kit: what every adapter needs beside its driver. Public: ours and other people's adapters stand on it.

=========================================== ==========================================================================================
:func:`outcome`                             the port's conditions, for a store that loads, decides and saves in one transaction
:func:`plain_of`, :func:`record_of`         a record as plain values; :func:`packed`, :func:`unpacked`: as one value
:class:`ExchangeStore` and its async twin   both colours of a store from one description of what is sent and how an answer is read
=========================================== ==========================================================================================
"""

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
from dlock_core.kit.outcome import matches, outcome, tokens_exhausted, written

__all__ = [
    "AsyncBatches",
    "AsyncExchangeStore",
    "AsyncLink",
    "AsyncReadsAge",
    "BatchResults",
    "Batches",
    "Call",
    "Exchange",
    "ExchangeStore",
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
    "written",
]
