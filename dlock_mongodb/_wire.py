"""What MongoDB is asked, and how its answers are read: pure, without a client, the same for both colours.

Each step is one ``findAndModify`` whose update is a pipeline of one stage: the new record if the guard holds, or else the document
as it stands. So the answer always carries what stands, granted or refused, and the RVN in it says which of the two it was. All that
comes from a user is inside ``$literal``, where nothing is an operator. The commands carry their own write concern and go through
``Database.command``, which sends once and heeds none of the client's settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from pymongo.errors import WriteError

from dlock_core.errors import OutcomeUnknownError, RecordError, StoreError, StoreUnavailableError
from dlock_core.record import FORMAT_VERSION, TOKEN_MAX, Broken, LockRecord, ProcessIdentity, Stamp, State, newer_format
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from dlock_mongodb._errors import check_concern, error_of

Document: TypeAlias = dict[str, Any]
T_co = TypeVar("T_co", covariant=True)

# Foreign documents may hold dates that Python has no form for.
CODEC: CodecOptions[Document] = CodecOptions(document_class=dict, datetime_conversion=DatetimeConversion.DATETIME_MS)
DUPLICATE_KEY = 11000
# 100 changes with full payloads stay below the 48 MB of a message.
BATCH_LIMIT = 100
PAGE_SIZE = 100
# Not a string: no key can be this one, and no scan meets it.
SELF_TEST_ID = {"dlock": "self-test"}
# A waiter's mark in a held document. No condition compares it, and the next write, which puts a whole new document, drops it.
SOUGHT = "sought"

_PAYLOAD = {"data": "$data", "attrs": "$attrs"}
# By the server's clock. A step writes the whole document, so one of an earlier dlock, which does not say this, leaves none behind.
_WRITTEN = {"written": "$$NOW"}
_ABSENT = {"$eq": ["$$ROOT", {"_id": "$_id"}]}
# What `record_of` can read. A document that it cannot read is never written over.
_TYPES = {
    "v": ["int", "long"],
    "token": ["int", "long"],
    "rvn": ["string"],
    "owner": ["string"],
    "lease_ms": ["null", "int", "long"],
    "data": ["null", "binData"],
    "attrs": ["array"],
}
_READABLE = [
    {"$eq": ["$v", FORMAT_VERSION]},
    *({"$in": [{"$type": f"${field}"}, types]} for field, types in _TYPES.items()),
]


class Database(Protocol[T_co]):
    """What is used of pymongo's two ``Database`` classes for steps; *T_co* is an answer, or an awaitable one."""

    def command(
        self,
        command: Document,
        *,
        check: bool,
        allowable_errors: Sequence[str | int] | None,
        codec_options: CodecOptions[Document],
    ) -> T_co:
        """Send *command* once, to the primary."""
        ...


# ---- record and document


def document_of(record: LockRecord) -> Document:
    """Return what is stored for *record*. Attributes are pairs: their names need not be field names."""
    document: Document = {
        "_id": record.key,
        "v": FORMAT_VERSION,
        "state": record.state.value,
        "rvn": record.rvn,
        "token": Int64(record.fencing_token),
        "owner": record.owner,
        "lease_ms": record.lease_ms,
        "data": record.data,
        "attrs": [list(pair) for pair in record.attributes],
    }
    if (stamp := record.stamp) is not None:
        document["stamp"] = [stamp.at_ms, stamp.rvn]
    if (process := record.process) is not None:
        document["process"] = [
            process.boot_id,
            process.pid_namespace,
            process.pid,
            process.started_at,
            process.child_group,
        ]
    if (broken := record.broken) is not None:
        document["broken"] = [broken.by, broken.at_ms]
    return document


def record_of(document: Mapping[str, Any] | None) -> LockRecord | None:
    """Return the record in *document*, or None where there is none.

    A document of nothing but its ``_id`` is none: that is how a key that is absent looks to a claim.

    Raises: RecordError: the document is not a record of dlock, or a damaged one.
    """
    if document is None or document.keys() == {"_id"}:
        return None
    key = document["_id"]
    try:
        version = _plain(document["v"])
        if type(version) is int and version > FORMAT_VERSION:
            return newer_format(key, version, document["rvn"], _plain(document["token"]))
        if type(version) is not int or version != FORMAT_VERSION:
            raise TypeError(f"format {version!r}")
        stamp, process, broken = (_plains(document.get(name)) for name in ("stamp", "process", "broken"))
        return LockRecord(
            key,
            State(document["state"]),
            document["rvn"],
            _plain(document["token"]),
            document["owner"],
            _plain(document["lease_ms"]),
            document["data"],
            tuple((name, _plain(value)) for name, value in document["attrs"]),
            None if stamp is None else Stamp(*stamp),
            None if process is None else ProcessIdentity(*process),
            None if broken is None else Broken(*broken),
        )
    except RecordError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        fault = f"it has no field {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise RecordError(
            f"the document with _id {key!r} is not a record of dlock, or a damaged one ({fault}); "
            "it is left as it is: inspect it with mongosh",
            key=key if isinstance(key, str) else None,
        ) from error


def _plain(value: Any) -> Any:
    return int(value) if type(value) is Int64 else value


def _plains(values: Any) -> list[Any] | None:
    if values is not None and type(values) is not list:
        raise TypeError(f"{type(values).__name__} where an array belongs")
    return None if values is None else [_plain(value) for value in values]


# ---- what is asked


def claim(collection: str, request: Claim, timeout_s: float, *, identity: Any = None) -> Document:
    """Return the command of clauses S2 to S4; *identity* is the ``_id`` where it is not the key."""
    record, expect = request.record, request.expect
    document = document_of(record)
    if identity is not None:
        document["_id"] = identity
    free = [
        *_READABLE,
        {"$in": ["$state", ["free"] if request.must_exist else ["free", "gone"]]},
        {"$gt": ["$token", 0]},
        {"$lt": ["$token", TOKEN_MAX]},
    ]
    if expect is Expect.ABSENT:
        guard: Document = {"$literal": False} if request.must_exist else _ABSENT
    elif expect is Expect.ANY:
        guard = {"$and": free} if request.must_exist else {"$or": [_ABSENT, {"$and": free}]}
    else:
        guard = {"$and": [*_version(*expect), *free]}
    token = {"token": {"$max": [{"$add": [{"$ifNull": ["$token", 0]}, 1]}, Int64(record.fencing_token)]}}
    kept = [{"$cond": [{"$eq": ["$state", "free"]}, _PAYLOAD, {}]}] if request.keep_payload else []
    new = {"$mergeObjects": [{"$literal": document}, _WRITTEN, token, *kept]}
    return _step(collection, document["_id"], guard, new, timeout_s, upsert=_creates(request))


def change(collection: str, request: Replace | Release, timeout_s: float) -> Document:
    """Return the command of clauses S4 to S6."""
    guard = {"$and": [*_version(*request.expected), {"$eq": ["$state", "held"]}, *_READABLE]}
    return _step(collection, request.record.key, guard, _changed(request), timeout_s, upsert=False)


def changes(collection: str, requests: Sequence[Replace], timeout_s: float) -> Document:
    """Return the command of all *requests*: each statement is atomic by itself."""
    statements: list[Document] = [
        {
            "q": {
                "_id": request.record.key,
                "state": "held",
                **{field: {"$type": types} for field, types in _TYPES.items()},
                "v": {"$eq": FORMAT_VERSION, "$type": _TYPES["v"]},
                "rvn": request.expected.rvn,
                "token": {"$eq": Int64(request.expected.fencing_token), "$type": _TYPES["token"]},
            },
            "u": [{"$replaceWith": _changed(request)}],
        }
        for request in requests
    ]
    return {"update": collection, "updates": statements, "ordered": False, "writeConcern": _concern(timeout_s)}


def find(collection: str, keys: Sequence[str], level: str) -> Document:
    """Return the command that reads *keys*."""
    wanted: Any = keys[0] if len(keys) == 1 else {"$in": list(keys)}
    return {"find": collection, "filter": {"_id": wanted}, **_all_of(len(keys)), "readConcern": {"level": level}}


def mark(collection: str, key: str) -> Document:
    """Return the command that marks the held record of *key* as waited for; a record of another format is left as it is."""
    return {
        "findAndModify": collection,
        "query": {"_id": key, "v": FORMAT_VERSION, "state": "held"},
        "update": {"$set": {SOUGHT: True}},
        "fields": {"_id": 1},
        "writeConcern": {"w": 1},
    }


def find_aged(collection: str, key: str, level: str) -> Document:
    """Return the command that reads *key* together with the server's clock. A find has no way to say that on every server."""
    pipeline = [{"$match": {"_id": key}}, {"$replaceWith": {"now": "$$NOW", "document": "$$ROOT"}}]
    return {"aggregate": collection, "pipeline": pipeline, "cursor": {}, "readConcern": {"level": level}}


def page(collection: str, prefix: str, after: str | None) -> Document:
    """Return the command that reads a page of keys from *prefix* on, or past *after*."""
    wanted = {"$gte": prefix} if after is None else {"$gt": after}
    order = {"sort": {"_id": 1}, "readConcern": {"level": "local"}}
    return {"find": collection, "filter": {"_id": wanted}, **_all_of(PAGE_SIZE), **order}


def _all_of(limit: int) -> Document:
    # With one more in the batch than there can be, the cursor is closed at once, unless the answer had no room for all.
    return {"limit": limit, "batchSize": limit + 1}


def _step(collection: str, key: Any, guard: Document, new: Document, timeout_s: float, *, upsert: bool) -> Document:
    return {
        "findAndModify": collection,
        "query": {"_id": key},
        "update": [{"$replaceWith": {"$cond": [guard, new, "$$ROOT"]}}],
        "new": True,
        "upsert": upsert,
        "writeConcern": _concern(timeout_s),
    }


def _concern(timeout_s: float) -> Document:
    return {"w": "majority", "j": True, "wtimeout": max(1, math.ceil(timeout_s * 1000))}


def _version(rvn: str, fencing_token: int) -> list[Document]:
    return [{"$eq": ["$rvn", {"$literal": rvn}]}, {"$eq": ["$token", Int64(fencing_token)]}]


def _changed(request: Replace | Release) -> Document:
    document = document_of(request.record)
    if not request.keep_payload:
        return {"$mergeObjects": [{"$literal": document}, _WRITTEN]}
    # A record that is held has a payload, so the one in the request is not needed.
    del document["data"], document["attrs"]
    return {"$mergeObjects": [{"$literal": document}, _WRITTEN, _PAYLOAD]}


def _creates(request: Claim | Replace | Release) -> bool:
    return type(request) is Claim and isinstance(request.expect, Expect) and not request.must_exist


# ---- what is answered


def reply(request: Claim | Replace | Release, answer: Document) -> Reply | None:
    """Return the reply in *answer*, or None where a claim must look what stands.

    That is where another claim made the document in the same instant: MongoDB then tries again by itself, but for a duplicate key
    from an old or sharded server; some that only speak its language answer nothing at all. In both cases the command is over.

    Raises: OutcomeUnknownError: the write is not confirmed by a majority.
    """
    check_concern(answer, request.record.key)
    document = answer.get("value")
    if document is None and (_creates(request) or not answer["ok"]):
        return None
    return _judged(request, document)


def marked(answer: Document) -> bool:
    """Whether there was a held record to be marked."""
    return answer.get("value") is not None


def found(answer: Document) -> LockRecord | None:
    """Return the record in the *answer* to a read of one key."""
    documents = answer["cursor"]["firstBatch"]
    return record_of(documents[0]) if documents else None


def found_aged(answer: Document) -> tuple[LockRecord, int] | None:
    """Return the record in the *answer* to :func:`find_aged`, and its age in ms; 0 where its writer has not said when it was."""
    documents = answer["cursor"]["firstBatch"]
    record = record_of(documents[0]["document"]) if documents else None
    if record is None:
        return None
    now, written = documents[0]["now"], documents[0]["document"].get("written")
    if not isinstance(now, DatetimeMS) or not isinstance(written, DatetimeMS):
        return record, 0
    # Both were rounded to a millisecond.
    return record, max(0, int(now) - int(written) - 1)


def paged(answer: Document, prefix: str, faults: list[RecordError]) -> tuple[list[LockRecord], str | None]:
    """Return the records of a page, and the key to go on after, or None where it was the last; add to *faults* what is unreadable."""
    documents = answer["cursor"]["firstBatch"]
    ours = [document for document in documents if document["_id"].startswith(prefix)]
    records = []
    for document in ours:
        try:
            records.append(record_of(document))
        except RecordError as error:
            faults.append(error)
    more = len(ours) == len(documents) and (len(ours) == PAGE_SIZE or answer["cursor"]["id"] != 0)
    return [record for record in records if record is not None], ours[-1]["_id"] if more else None


def looked(request: Claim | Replace | Release, answer: Document) -> Reply:
    """Return the reply to *request*, which is over and said nothing, by the *answer* to a read that came after it."""
    documents = answer["cursor"]["firstBatch"]
    if not documents:
        key = request.record.key
        raise OutcomeUnknownError(
            f"MongoDB neither granted nor refused lock {key!r}, and shows no record of it", key=key
        )
    return _judged(request, documents[0])


def replies(requests: Sequence[Replace], answer: Document) -> list[Reply | StoreError] | None:
    """Return the results where all *requests* were applied, or None where it must be looked what stands.

    The payload in a reply that keeps it is the request's: who knows the version of a record knows its payload.
    """
    check_concern(answer, requests[0].record.key)
    if answer["n"] != len(requests) or answer.get("writeErrors"):
        return None
    return [Reply(applied=True, record=request.record) for request in requests]


def sorted_out(requests: Sequence[Replace], answer: Document, found: Document) -> list[Reply | StoreError]:
    """Return the result of each request, by what stands after all are over and by the errors of single statements."""
    documents = {document["_id"]: document for document in found["cursor"]["firstBatch"]}
    whole = found["cursor"]["id"] == 0
    failed = {error["index"]: error for error in answer.get("writeErrors", ())}
    results: list[Reply | StoreError] = []
    for place, request in enumerate(requests):
        key = request.record.key
        if key not in documents and not whole:
            results.append(OutcomeUnknownError(f"the answer had no room for the record of lock {key!r}", key=key))
            continue
        try:
            reply = _judged(request, documents.get(key))
        except StoreError as error:
            results.append(error)
            continue
        unchanged = reply.record is not None and reply.record.version == request.expected
        results.append(_statement_error(key, failed[place]) if unchanged and place in failed else reply)
    return results


def _statement_error(key: str, failed: Document) -> StoreError:
    cause = WriteError(f"code {failed.get('code')}", failed.get("code"), failed)
    error = error_of(cause, key, writes=True)
    assert error is not None
    error.__cause__ = cause
    return error


def _judged(request: Claim | Replace | Release, document: Document | None) -> Reply:
    sent = request.record
    try:
        stands = record_of(document)
    except RecordError as error:
        if document is None or document.get("rvn") != sent.rvn:
            raise
        # Written, with the damaged payload that it keeps: an error that says the opposite would leave a held record behind.
        raise OutcomeUnknownError(f"lock {sent.key!r} was written, but {error}", key=sent.key) from error
    if stands is None:
        return Reply(applied=False, record=None)
    # Each send has an RVN of its own: where it stands, this request was applied.
    applied = stands.rvn == sent.rvn and stands.state is sent.state and stands.fencing_token >= sent.fencing_token
    at_end = not applied and not stands.held and stands.fencing_token >= TOKEN_MAX
    if at_end and type(request) is Claim and request.expect in (Expect.ANY, stands.version):
        raise StoreUnavailableError(
            f"the fencing token of lock {sent.key!r} has reached its end, {TOKEN_MAX}", key=sent.key
        )
    return Reply(applied=applied, record=stands)
