"""Distributed locks on the store that you already run: one protocol, one API, and the store is a line of configuration.

``connect`` (or ``aconnect``, for asyncio) opens a store and returns a client; the client's ``lock`` gives a lease, with a fencing token.
Writers of a store find the port in :mod:`dlock_core.store`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlock_core.aio import AsyncLease, AsyncLockClient, aconnect
    from dlock_core.aio_election import AsyncElection, AsyncTerm
    from dlock_core.aio_once import AsyncOnce
    from dlock_core.backend import StoreBackend, StoreOptions
    from dlock_core.client import Lease, LockClient, connect
    from dlock_core.client_election import Election, Term
    from dlock_core.client_once import Once
    from dlock_core.cost import Cost
    from dlock_core.election import Leader, LeaderState
    from dlock_core.engine.lease_view import KEEP, Keep
    from dlock_core.engine.pruning import Pruned
    from dlock_core.errors import (
        AcquireTimeoutError,
        ConfigurationError,
        DLockError,
        LeaseStateError,
        LockLostError,
        MissingDriverError,
        OutcomeUnknownError,
        RecordError,
        StoreError,
        StoreSetupError,
        StoreUnavailableError,
        UnsafeStoreError,
        UnsupportedError,
    )
    from dlock_core.events import EventKind, LockEvent
    from dlock_core.health import Health
    from dlock_core.keywords import AcquireKeywords, ClientKeywords, LockKeywords, Seconds
    from dlock_core.options import ClientOptions, LockOptions
    from dlock_core.record import (
        AttributeValue,
        Beat,
        BeatNote,
        Broken,
        LockRecord,
        Loss,
        LossReason,
        Member,
        Members,
        OwnerState,
        ProcessIdentity,
        SessionRef,
        Stamp,
        State,
        Times,
    )
    from dlock_core.shared import shared_client
    from dlock_core.store import (
        AsyncAtomicMulti,
        AsyncBatchRenew,
        AsyncLockStore,
        AsyncNotify,
        AsyncPrune,
        AsyncServerClock,
        AtomicMulti,
        BatchRenew,
        Capability,
        Claim,
        Expect,
        Grade,
        Guarantees,
        LockStore,
        Notify,
        Prune,
        Release,
        Replace,
        Reply,
        ServerClock,
        TokenOrder,
        Version,
    )

    __version__: str

__all__ = [
    "KEEP",
    "AcquireKeywords",
    "AcquireTimeoutError",
    "AsyncAtomicMulti",
    "AsyncBatchRenew",
    "AsyncElection",
    "AsyncLease",
    "AsyncLockClient",
    "AsyncLockStore",
    "AsyncNotify",
    "AsyncOnce",
    "AsyncPrune",
    "AsyncServerClock",
    "AsyncTerm",
    "AtomicMulti",
    "AttributeValue",
    "BatchRenew",
    "Beat",
    "BeatNote",
    "Broken",
    "Capability",
    "Claim",
    "ClientKeywords",
    "ClientOptions",
    "ConfigurationError",
    "Cost",
    "DLockError",
    "Election",
    "EventKind",
    "Expect",
    "Grade",
    "Guarantees",
    "Health",
    "Keep",
    "Leader",
    "LeaderState",
    "Lease",
    "LeaseStateError",
    "LockClient",
    "LockEvent",
    "LockKeywords",
    "LockLostError",
    "LockOptions",
    "LockRecord",
    "LockStore",
    "Loss",
    "LossReason",
    "Member",
    "Members",
    "MissingDriverError",
    "Notify",
    "Once",
    "OutcomeUnknownError",
    "OwnerState",
    "ProcessIdentity",
    "Prune",
    "Pruned",
    "RecordError",
    "Release",
    "Replace",
    "Reply",
    "Seconds",
    "ServerClock",
    "SessionRef",
    "Stamp",
    "State",
    "StoreBackend",
    "StoreError",
    "StoreOptions",
    "StoreSetupError",
    "StoreUnavailableError",
    "Term",
    "Times",
    "TokenOrder",
    "UnsafeStoreError",
    "UnsupportedError",
    "Version",
    "aconnect",
    "connect",
    "shared_client",
]

# Where the names above are defined. A name is loaded at its first use, and the search goes in this order: so the asyncio client, which
# comes last, costs nobody anything who does not use it, and `import dlock_core` alone costs next to nothing.
_MODULES = (
    *(
        "errors",
        "record",
        "store",
        "options",
        "keywords",  # after the options, which add their texts to its docstrings
        "backend",
        "engine.lease_view",
        "events",
        "cost",
        "health",
        "election",
        "engine.pruning",
        "client",
        "client_election",
        "client_once",
        "shared",
    ),
    *("aio", "aio_election", "aio_once"),
)


if not TYPE_CHECKING:  # a checker knows the names from above, and refuses others

    def __getattr__(name: str) -> object:
        """Load the public *name*, or one of the modules above, at its first use."""
        from importlib import import_module

        if name == "__version__":
            from importlib.metadata import version

            return version("dlock-core")
        if name in _MODULES:
            return import_module(f"dlock_core.{name}")
        if name in __all__:
            for module in _MODULES:
                loaded = import_module(f"dlock_core.{module}")
                if name in loaded.__all__:
                    value: object = getattr(loaded, name)
                    globals()[name] = value
                    return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
