"""The two stores: every verb builds its command, sends it, and reads the answer. What they know of MongoDB is in ``_wire``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Protocol, Self

from pymongo import AsyncMongoClient, MongoClient, ReadPreference
from pymongo.errors import PyMongoError

from dlock_core.backend import redact
from dlock_core.errors import ConfigurationError, RecordError, StoreError, StoreSetupError, StoreUnavailableError
from dlock_core.record import LockRecord
from dlock_core.store import Capability, Claim, Guarantees, Release, Replace, Reply
from dlock_mongodb import _wire
from dlock_mongodb._errors import CREATE_IT, Asking, setup_error
from dlock_mongodb._watch import AsyncWatch, Watch
from dlock_mongodb._wire import BATCH_LIMIT, CODEC, DUPLICATE_KEY, Document
from dlock_mongodb.options import MongoDBStoreOptions, told
from dlock_mongodb.provision import INSPECTION_S, Conversation, Facts, Names, inspection, provisioning

__all__ = ["AsyncMongoDBStore", "MongoDBStore"]


class _Wait(Protocol):
    def __call__(self, record: LockRecord, *, ticket: str, timeout_s: float) -> Any: ...


class MongoDBStore:
    """The store for threads, on a ``MongoClient`` of the user's, who closes it.

    Whatever the client's settings are, the steps are not weakened by them: each command names its own write concern, read concern
    and time-out, goes to the primary, and is sent once. The attribute ``wait`` is there where the server has change streams.
    """

    batch_limit = BATCH_LIMIT
    wait: _Wait

    def __init__(self, client: MongoClient[Any], *, database: str = "dlock", collection: str = "locks") -> None:
        if not isinstance(client, MongoClient):
            raise ConfigurationError(f"MongoDBStore works with a pymongo.MongoClient, not with {type(client).__name__}")
        options = MongoDBStoreOptions.checked(database=database, collection=collection)
        self._client, self._owned, self._closed = client, False, False
        self._names = Names(options.database, options.collection)
        self._database: _wire.Database[Document] = client.get_database(options.database)
        self.capabilities = frozenset({Capability.BATCH_RENEW, Capability.SERVER_CLOCK})
        self._facts: Facts | None = None
        self._watch: Watch | None = None

    @classmethod
    def connected(cls, options: MongoDBStoreOptions) -> Self:
        """Return a store with a client of its own, once server and collection were looked at."""
        store = cls(_client(MongoClient, options), database=options.database, collection=options.collection)
        store._owned = True
        try:
            store.guarantees()
        except BaseException:
            store.close()
            raise
        return store

    def claim(self, request: Claim, *, timeout_s: float) -> Reply:
        """Create the record if nobody holds the key; one request, two where another made it in the same instant."""
        with Asking(request.record.key, timeout_s, writes=True):
            answer = self._send(_wire.claim(self._names.collection, request, timeout_s))
            return _wire.reply(request, answer) or _wire.looked(request, self._find([request.record.key]))

    def replace(self, request: Replace, *, timeout_s: float) -> Reply:
        """Replace the held record if its version is the expected one."""
        return self._change(request, timeout_s)

    def release(self, request: Release, *, timeout_s: float) -> Reply:
        """Put the tombstone if the record is held in the expected version."""
        return self._change(request, timeout_s)

    def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """Return the record under *key*."""
        with Asking(key, timeout_s, writes=False):
            return _wire.found(self._find([key]))

    def scan(self, prefix: str, *, timeout_s: float) -> Iterator[LockRecord]:
        """Yield the records whose key starts with *prefix*, in the order of keys. One that cannot be read is raised after the others."""
        after, faults = None, list[RecordError]()
        while True:
            with Asking(None, timeout_s, writes=False):
                answer = self._send(_wire.page(self._names.collection, prefix, after))
            records, after = _wire.paged(answer, prefix, faults)
            yield from records
            if after is None:
                break
        if faults:
            raise faults[0]

    def replace_many(self, requests: Sequence[Replace], *, timeout_s: float) -> Sequence[Reply | StoreError]:
        """Do each replace: one request where all are applied, one more to see what stands where some are not."""
        if not requests:
            return []
        with Asking(requests[0].record.key, timeout_s, writes=True):
            answer = self._send(_wire.changes(self._names.collection, requests, timeout_s))
            results = _wire.replies(requests, answer)
            return results or _wire.sorted_out(requests, answer, self._find([each.record.key for each in requests]))

    def read_age(self, key: str, *, timeout_s: float) -> tuple[LockRecord, int] | None:
        """Return the record under *key*, and the ms since it was written, by the server's clock."""
        with Asking(key, timeout_s, writes=False):
            level = self._known().read_level
            return _wire.found_aged(self._send(_wire.find_aged(self._names.collection, key, level)))

    def guarantees(self) -> Guarantees:
        """Say what the server promises; the first call looks at it, and may find that it can notify."""
        with Asking(None, _patience(self._client), writes=False):
            return self._known().guarantees

    def provision(self) -> None:
        """Make the collection."""
        with Asking(None, _patience(self._client), writes=True):
            self._check()
            self._learn(provisioning(self._names))

    def close(self) -> None:
        """Refuse what comes after, and close the client if it is the store's own."""
        if not self._closed:
            self._closed = True
            if self._watch is not None:
                self._watch.close()
            if self._owned:
                self._client.close()

    def _change(self, request: Replace | Release, timeout_s: float) -> Reply:
        with Asking(request.record.key, timeout_s, writes=True):
            answer = self._send(_wire.change(self._names.collection, request, timeout_s))
            return _wire.reply(request, answer) or _wire.looked(request, self._find([request.record.key]))

    def _find(self, keys: Sequence[str]) -> Document:
        level = self._known().read_level
        return self._send(_wire.find(self._names.collection, keys, level))

    def _send(self, command: Document) -> Document:
        if not self._known().provisioned:
            raise _missing(self._names)
        return self._database.command(command, check=True, allowable_errors=[DUPLICATE_KEY], codec_options=CODEC)

    def _known(self) -> Facts:
        self._check()
        facts = self._facts
        return facts if facts is not None and facts.provisioned else self._learn(inspection(self._names))

    def _learn(self, conversation: Conversation) -> Facts:
        answer: Any = None
        while True:
            try:
                database, command = conversation.send(answer)
            except StopIteration as end:
                return self._adopt(end.value)
            answer = self._client[database].command(command, check=False, codec_options=CODEC)

    def _adopt(self, facts: Facts) -> Facts:
        self._facts = facts
        if facts.notifies and self._watch is None and _has_room(self._client):
            home = self._client.get_database(self._names.database, CODEC, ReadPreference.PRIMARY)
            self._watch = Watch(home.get_collection(self._names.collection))
            self.wait = self._wait
            self.capabilities |= {Capability.NOTIFY}
        return facts

    def _wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        assert self._watch is not None
        self._check()
        with Asking(record.key, timeout_s, writes=False):
            self._watch.wait(record.key, timeout_s, lambda: self._is_free(record.key, timeout_s))

    def _is_free(self, key: str, timeout_s: float) -> bool:
        try:
            with Asking(key, timeout_s, writes=False):
                if _wire.marked(self._send(_wire.mark(self._names.collection, key))):
                    return False
                record = _wire.found(self._send(_wire.find(self._names.collection, [key], "local")))
        except StoreUnavailableError:
            return False
        return record is None or not record.held

    def _check(self) -> None:
        if self._closed:
            raise StoreUnavailableError("the MongoDB store was closed; open a new one")


class AsyncMongoDBStore:
    """As :class:`MongoDBStore`, for the tasks of one event loop, with an ``AsyncMongoClient``."""

    batch_limit = BATCH_LIMIT
    wait: _Wait

    def __init__(self, client: AsyncMongoClient[Any], *, database: str = "dlock", collection: str = "locks") -> None:
        if not isinstance(client, AsyncMongoClient):
            raise ConfigurationError(
                f"AsyncMongoDBStore works with a pymongo.AsyncMongoClient, not with {type(client).__name__}"
            )
        options = MongoDBStoreOptions.checked(database=database, collection=collection)
        self._client, self._owned, self._closed = client, False, False
        self._names = Names(options.database, options.collection)
        self._database: _wire.Database[Any] = client.get_database(options.database)
        self.capabilities = frozenset({Capability.BATCH_RENEW, Capability.SERVER_CLOCK})
        self._facts: Facts | None = None
        self._watch: AsyncWatch | None = None
        self._sent = set[asyncio.Task[Document]]()

    @classmethod
    async def connected(cls, options: MongoDBStoreOptions) -> Self:
        """As :meth:`MongoDBStore.connected`."""
        store = cls(_client(AsyncMongoClient, options), database=options.database, collection=options.collection)
        store._owned = True
        try:
            await store.guarantees()
        except BaseException:
            await store.close()
            raise
        return store

    async def claim(self, request: Claim, *, timeout_s: float) -> Reply:
        """As :meth:`MongoDBStore.claim`."""
        with Asking(request.record.key, timeout_s, writes=True):
            answer = await self._send(_wire.claim(self._names.collection, request, timeout_s))
            return _wire.reply(request, answer) or _wire.looked(request, await self._find([request.record.key]))

    async def replace(self, request: Replace, *, timeout_s: float) -> Reply:
        """As :meth:`MongoDBStore.replace`."""
        return await self._change(request, timeout_s)

    async def release(self, request: Release, *, timeout_s: float) -> Reply:
        """As :meth:`MongoDBStore.release`."""
        return await self._change(request, timeout_s)

    async def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """As :meth:`MongoDBStore.read`."""
        with Asking(key, timeout_s, writes=False):
            return _wire.found(await self._find([key]))

    async def scan(self, prefix: str, *, timeout_s: float) -> AsyncIterator[LockRecord]:
        """As :meth:`MongoDBStore.scan`."""
        after, faults = None, list[RecordError]()
        while True:
            with Asking(None, timeout_s, writes=False):
                answer = await self._send(_wire.page(self._names.collection, prefix, after))
            records, after = _wire.paged(answer, prefix, faults)
            for record in records:
                yield record
            if after is None:
                break
        if faults:
            raise faults[0]

    async def replace_many(self, requests: Sequence[Replace], *, timeout_s: float) -> Sequence[Reply | StoreError]:
        """As :meth:`MongoDBStore.replace_many`."""
        if not requests:
            return []
        with Asking(requests[0].record.key, timeout_s, writes=True):
            answer = await self._send(_wire.changes(self._names.collection, requests, timeout_s))
            results = _wire.replies(requests, answer)
            return results or _wire.sorted_out(
                requests, answer, await self._find([each.record.key for each in requests])
            )

    async def read_age(self, key: str, *, timeout_s: float) -> tuple[LockRecord, int] | None:
        """As :meth:`MongoDBStore.read_age`."""
        with Asking(key, timeout_s, writes=False):
            level = (await self._known()).read_level
            return _wire.found_aged(await self._send(_wire.find_aged(self._names.collection, key, level)))

    async def guarantees(self) -> Guarantees:
        """As :meth:`MongoDBStore.guarantees`."""
        with Asking(None, _patience(self._client), writes=False):
            return (await self._known()).guarantees

    async def provision(self) -> None:
        """As :meth:`MongoDBStore.provision`."""
        with Asking(None, _patience(self._client), writes=True):
            self._check()
            await self._learn(provisioning(self._names))

    async def close(self) -> None:
        """As :meth:`MongoDBStore.close`."""
        if not self._closed:
            self._closed = True
            if self._watch is not None:
                await self._watch.close()
            if self._owned:
                await self._client.close()
            # What cancelled calls have left under way ends with their time-outs, if not with the client.
            await asyncio.gather(*self._sent, return_exceptions=True)

    async def _change(self, request: Replace | Release, timeout_s: float) -> Reply:
        with Asking(request.record.key, timeout_s, writes=True):
            answer = await self._send(_wire.change(self._names.collection, request, timeout_s))
            return _wire.reply(request, answer) or _wire.looked(request, await self._find([request.record.key]))

    async def _find(self, keys: Sequence[str]) -> Document:
        level = (await self._known()).read_level
        return await self._send(_wire.find(self._names.collection, keys, level))

    async def _send(self, command: Document) -> Document:
        if not (await self._known()).provisioned:
            raise _missing(self._names)
        # A task of its own, which no cancellation of the caller's reaches: one that does, in the middle of a checkout, may leave the lock
        # of pymongo's pool taken for ever. So the connection is not lost either; the time-out in force ends the task.
        task = asyncio.create_task(
            self._database.command(command, check=True, allowable_errors=[DUPLICATE_KEY], codec_options=CODEC)
        )
        self._sent.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Document]) -> None:
        self._sent.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also where nobody is left to be told

    async def _known(self) -> Facts:
        self._check()
        facts = self._facts
        return facts if facts is not None and facts.provisioned else await self._learn(inspection(self._names))

    async def _learn(self, conversation: Conversation) -> Facts:
        answer: Any = None
        while True:
            try:
                database, command = conversation.send(answer)
            except StopIteration as end:
                return self._adopt(end.value)
            answer = await self._client[database].command(command, check=False, codec_options=CODEC)

    def _adopt(self, facts: Facts) -> Facts:
        self._facts = facts
        if facts.notifies and self._watch is None and _has_room(self._client):
            home = self._client.get_database(self._names.database, CODEC, ReadPreference.PRIMARY)
            self._watch = AsyncWatch(home.get_collection(self._names.collection))
            self.wait = self._wait
            self.capabilities |= {Capability.NOTIFY}
        return facts

    async def _wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        assert self._watch is not None
        self._check()
        with Asking(record.key, timeout_s, writes=False):
            await self._watch.wait(record.key, timeout_s, lambda: self._is_free(record.key, timeout_s))

    async def _is_free(self, key: str, timeout_s: float) -> bool:
        try:
            with Asking(key, timeout_s, writes=False):
                if _wire.marked(await self._send(_wire.mark(self._names.collection, key))):
                    return False
                record = _wire.found(await self._send(_wire.find(self._names.collection, [key], "local")))
        except StoreUnavailableError:
            return False
        return record is None or not record.held

    def _check(self) -> None:
        if self._closed:
            raise StoreUnavailableError("the MongoDB store was closed; open a new one")


def _client(make: Any, options: MongoDBStoreOptions) -> Any:
    if options.url is None:
        raise ConfigurationError("the MongoDB store has no URL; give it one, or a client of your own")
    url = options.url.get_secret_value()
    try:
        # With retries of reads or writes on, the driver would also send a refused command again.
        return make(url, retryReads=False, retryWrites=False)
    except (PyMongoError, ValueError, TypeError) as error:
        # Without its cause: the driver repeats values, and one of them may be a secret.
        raise ConfigurationError(f"pymongo refuses {redact(url)!r}: {told(error, url)}") from None


def _patience(client: Any) -> float:
    """Return how long it may take to look at the server: less, where the user waits less for one."""
    return min(INSPECTION_S, float(client.options.server_selection_timeout))


def _has_room(client: Any) -> bool:
    """Whether the client has more than one connection: the stream keeps one."""
    size = client.options.pool_options.max_pool_size
    return size is None or size > 1


def _missing(names: Names) -> StoreSetupError:
    where = f"the collection {names.database}.{names.collection} does not exist"
    return setup_error(where, CREATE_IT)
