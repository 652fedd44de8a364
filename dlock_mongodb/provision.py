"""The inspection of server, collection and user, and the making of the collection, as exchanges.

MongoDB makes a collection by itself on the first write into an unknown name. A mistyped name would thus be a second place to hold the same
locks, so no verb writes before the collection was seen; only :func:`provisioning` makes it. It needs no index: the key is the ``_id``.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator
from typing import Any, NamedTuple, TypeAlias

from pymongo.errors import OperationFailure

from dlock_core.errors import StoreUnavailableError
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Grade, Guarantees, TokenOrder
from dlock_mongodb import _wire
from dlock_mongodb._errors import CREATE_IT, misfit
from dlock_mongodb._wire import Command, Document
from dlock_mongodb.options import MongoDBStoreOptions

_WIRE_VERSION_MIN = 9  # of MongoDB 4.4
_NAMESPACE_EXISTS = 48


class Facts(NamedTuple):
    """What was found out. *read_level* is the read concern that makes a read of one record linearizable."""

    guarantees: Guarantees
    notifies: bool
    read_level: str


# An exchange whose commands are not checked: it is sent the answer also where the command failed.
Conversation: TypeAlias = Generator[Command, Document, Facts]
_Part: TypeAlias = Generator[Command, Document, Any]


def provisioning(names: MongoDBStoreOptions) -> Conversation:
    """Make the collection if it is not there; then look at it."""
    made = yield _ask(names.database, {"create": names.collection, "writeConcern": {"w": "majority"}})
    if made.get("code") != _NAMESPACE_EXISTS:
        _demand(made)
    return (yield from inspection(names))


def inspection(names: MongoDBStoreOptions) -> Conversation:
    """Look at server and collection, and try a claim on a reserved document.

    Raises:
        StoreSetupError: the server, the collection or the user does not fit, or there is no such collection.
        StoreUnavailableError: the replica set is electing its primary.
    """
    hello = _demand((yield _ask(names.database, {"hello": 1})))
    # Where the user may not ask for it, the version stays unknown.
    build = yield _ask(names.database, {"buildInfo": 1})
    _check_server(hello, build)
    yield from _look_at_collection(names)
    if hello.get("msg") == "isdbgrid":
        yield from _look_at_shard_key(names)
    yield from _try_a_claim(names)
    notifies = yield from _try_a_change_stream(names)
    standalone = "setName" not in hello and hello.get("msg") != "isdbgrid"
    return Facts(_guarantees(hello, build, notifies=notifies), notifies, "local" if standalone else "linearizable")


def _check_server(hello: Document, build: Document) -> None:
    if str(build.get("ferretdbVersion", "")).lstrip("v").startswith("1."):
        raise misfit(
            "FerretDB 1.x runs findAndModify in several steps, so two clients can hold one lock", "use MongoDB"
        )
    version = hello.get("maxWireVersion", 0)
    if version < _WIRE_VERSION_MIN:
        raise misfit(
            f"the server's wire version is {version}, {_WIRE_VERSION_MIN} is needed", "use MongoDB 4.4 or newer"
        )
    if not hello.get("isWritablePrimary", hello.get("ismaster")):
        if "setName" in hello and "primary" not in hello:
            raise StoreUnavailableError("MongoDB's replica set has no primary just now, it is electing one; try again")
        raise misfit(
            "the server is not the primary of its replica set",
            "name the set (replicaSet=…) and leave out directConnection",
        )


def _look_at_collection(names: MongoDBStoreOptions) -> _Part:
    listed = yield _ask(names.database, {"listCollections": 1, "filter": {"name": names.collection}})
    found = _wire.documents(_demand(listed))
    where = f"the collection {names.database}.{names.collection}"
    if not found:
        raise misfit(f"{where} does not exist", CREATE_IT)
    options = found[0].get("options", {})
    wrong = [
        name for name in ("capped", "collation", "timeseries", "viewOn", "expireAfterSeconds") if options.get(name)
    ]
    if found[0].get("type", "collection") != "collection" or wrong:
        kind = ", ".join(wrong) or found[0].get("type")
        raise misfit(f"{where} is no plain collection but has {kind}", "name another one with collection=…")
    indexes = yield _ask(names.database, {"listIndexes": names.collection, "cursor": {}})
    for index in _wire.documents(_demand(indexes)):
        if "expireAfterSeconds" in index:
            raise misfit(f"the TTL index {index['name']!r} of {where} removes locks and their tokens", "drop the index")
        if index.get("unique") and index["name"] != "_id_":
            raise misfit(f"the unique index {index['name']!r} of {where} keeps locks from being made", "drop the index")


def _look_at_shard_key(names: MongoDBStoreOptions) -> _Part:
    """Only a shard key on ``_id`` makes the ``_id`` unique over all shards."""
    wanted = {"find": "collections", "filter": {"_id": f"{names.database}.{names.collection}"}, "limit": 1}
    answer = yield _ask("config", wanted)
    # Without permission to look, the shard key is not checked; the notes say what it must be.
    for sharded in _wire.documents(answer) if answer.get("ok") else ():
        if list(sharded.get("key", {"_id": 1})) != ["_id"]:
            raise misfit("the collection is sharded by another key than _id", "shard it by _id or hashed _id")


def _try_a_claim(names: MongoDBStoreOptions) -> _Part:
    """Claim a document that no key can be, twice: both answers must show the same holder. From then on nothing is written."""
    seen = []
    for _ in range(2):
        record = LockRecord(
            "self-test", State.HELD, secrets.token_hex(16), 1, "self-test of dlock; may be removed", None
        )
        request = Claim(record, Expect.ANY)
        answer = yield _ask(names.database, _wire.claim(names.collection, request, identity=_wire.SELF_TEST_ID))
        if answer.get("code") == _wire.DUPLICATE_KEY:
            continue
        value = _demand(answer).get("value")
        if value is not None:
            seen.append((value.get("rvn"), value.get("state"), value.get("token")))
    if any(each != seen[0] for each in seen) or any(state != "held" or not token for _, state, token in seen):
        raise misfit("a claim of a held lock changed it, or was not carried out as a whole", "use MongoDB 4.4 or newer")


def _try_a_change_stream(names: MongoDBStoreOptions) -> _Part:
    stream: Document = {"aggregate": names.collection, "pipeline": [{"$changeStream": {}}], "cursor": {}}
    opened = yield _ask(names.database, stream)
    if not opened.get("ok"):
        return False
    yield _ask(names.database, {"killCursors": names.collection, "cursors": [opened["cursor"]["id"]]})
    return True


def _ask(database: str, document: Document) -> Command:
    return Command(database, document, checked=False)


def _demand(answer: Document) -> Document:
    if not answer.get("ok"):
        raise OperationFailure(str(answer.get("errmsg", "")), answer.get("code"), answer)
    return answer


def _guarantees(hello: Document, build: Document, *, notifies: bool) -> Guarantees:
    sharded = hello.get("msg") == "isdbgrid"
    name = hello.get("setName")
    copies = len(hello.get("hosts", ())) + len(hello.get("passives", ()))
    notes = ["an answer of a primary that was cut off may refuse with an older record; a read tells"]
    if not notifies:
        notes.append("no change streams: waiters poll")
    if sharded:
        notes.append("sharded: each shard must be a replica set, and the shard key _id or hashed _id")
    # Others that speak MongoDB's language add a version of their own.
    others = {key: build[key] for key in sorted(build) if key.endswith("Version") and key != "gitVersion"}
    version = str(build.get("version", f"unknown, wire version {hello['maxWireVersion']}"))
    if others:
        version += f", as told by {', '.join(f'{key} {value}' for key, value in others.items())}"
        notes.append("this is not MongoDB itself; what is promised here was tested on MongoDB's language only")
    reason = "a standalone mongod has no majority to confirm a write, and no linearizable reads"
    return Guarantees(
        store="mongodb",
        version=version,
        grade=Grade.A if sharded or copies > 1 else Grade.B,
        token=TokenOrder.ORDERED,
        deletes=False,
        refusal_linearizable=False,
        durable=True,
        failover="a write counts when a journaled majority has it, so it survives elections; without a majority nothing is granted"
        if sharded or name
        else "none: one server",
        clock="none: the clients time the leases; with server_clock, and for waits below a lease, that of the primary, or of the "
        "router that answers, measures ages, and must not step ahead",
        notes=tuple(notes),
        unsafe=() if sharded or name else (("mongodb-standalone", reason),),
    )
