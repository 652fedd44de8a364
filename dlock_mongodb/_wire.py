"""The commands that MongoDB is sent, and how its answers are read: pure, without a client.

Each step is one ``findAndModify`` whose update is a pipeline of one stage: the new document if the guard holds, or else the document as it
stands. So the answer always carries the document that stands, granted or refused, and its RVN says which of the two it was. Every value of
a user is inside ``$literal``, where nothing is an operator. The commands carry their own write concern and go through ``Database.command``,
which sends once and heeds none of the client's settings.

A document holds one record: ``_id`` is the key, and each plain value of the record (:class:`~dlock_core.kit.Plain`) is a field that has
always the same BSON type. So one comparison tells whether all of them are sound. A record without a lease has ``lease_ms: 0``.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64

from dlock_core.errors import OutcomeUnknownError, RecordError
from dlock_core.kit import Plain, damaged, plain_of, record_of, tokens_exhausted
from dlock_core.record import FORMAT_VERSION, TOKEN_MAX, LockRecord
from dlock_core.store import Claim, Expect, Release, Replace, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Document: TypeAlias = dict[str, Any]
Step: TypeAlias = Claim | Replace | Release

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
# What the change stream that wakes waiters tells: releases, and the first renewal after a waiter has marked the document, which drops the
# mark; so nothing of the renewals of other locks. A pipeline update may be told as an update or as a replacement.
NEWS: list[Document] = [
    {
        "$match": {
            "$or": [
                {"fullDocument.state": {"$in": ["free", "gone"]}},
                {"updateDescription.updatedFields.state": {"$in": ["free", "gone"]}},
                {"updateDescription.removedFields": SOUGHT},
            ]
        }
    },
    {"$project": {"documentKey": 1}},
]


class Command(NamedTuple):
    """A request to *database*. If it is *checked*, an answer that it failed is an error. An *urgent* one keeps a lock or gives it back."""

    database: str
    document: Document
    checked: bool = True
    urgent: bool = False

    def within(self, timeout_s: float) -> Document:
        """Return the document to send: a write waits *timeout_s* at most for its majority."""
        concern = self.document.get("writeConcern")
        if concern is not _CONCERN:
            return self.document
        return {**self.document, "writeConcern": {**concern, "wtimeout": max(1, math.ceil(timeout_s * 1000))}}


class _Field(NamedTuple):
    """Where one plain value of a record lies, and its only type: as pymongo reads it, and as the server calls it."""

    name: str
    kind: type
    bson: str


# In the order of Plain.
_FIELDS = (
    _Field("v", int, "int"),
    _Field("state", str, "string"),
    _Field("rvn", str, "string"),
    _Field("token", Int64, "long"),
    _Field("owner", str, "string"),
    _Field("lease_ms", int, "int"),
    _Field("context", str, "string"),
    _Field("payload", bytes, "binData"),
)
_WHERE = "the collection"
# Only what `read_document` can read is written over.
_READABLE = {"$eq": [[{"$type": f"${field.name}"} for field in _FIELDS], [field.bson for field in _FIELDS]]}
_ABSENT = {"$eq": ["$$ROOT", {"_id": "$_id"}]}
_PAYLOAD = {"payload": "$payload"}
_CONCERN = {"w": "majority", "j": True}
# By the server's clock.
_WRITTEN = {"written": "$$NOW"}


# ---- record and document


def document_of(record: LockRecord) -> Document:
    """Return the document that is stored for *record*, but for the time, which the server adds."""
    plain = plain_of(record)
    plain = plain._replace(token=Int64(plain.token), lease_ms=plain.lease_ms or 0)
    return {"_id": record.key, **{field.name: value for field, value in zip(_FIELDS, plain, strict=True)}}


def read_document(document: Mapping[str, Any] | None) -> LockRecord | None:
    """Return the record in *document*, or None where there is none.

    A document of nothing but its ``_id`` is no record: to a claim, an absent key looks so.

    Raises: RecordError: the document is not a record of dlock, or a damaged one.
    """
    if document is None or document.keys() == {"_id"}:
        return None
    values = [document.get(field.name) for field in _FIELDS]
    newer = isinstance(values[0], int) and values[0] > FORMAT_VERSION
    for field, value in zip(_FIELDS, values, strict=True):
        if type(value) is not field.kind and not newer:
            raise damaged(document["_id"], f"{field.name} is {value!r:.80}, not of type {field.bson}", where=_WHERE)
    plain = Plain._make(int(value) if isinstance(value, Int64) else value for value in values)
    return record_of(document["_id"], plain._replace(lease_ms=plain.lease_ms or None), where=_WHERE)


# ---- commands


def claim(collection: str, request: Claim, *, identity: Any = None) -> Document:
    """Return the command of a claim (clauses S2 to S4); *identity* is the ``_id`` where it is not the key."""
    record, expect = request.record, request.expect
    document = document_of(record)
    if identity is not None:
        document["_id"] = identity
    free: list[Document] = [
        _READABLE,
        {"$eq": ["$v", FORMAT_VERSION]},
        {"$in": ["$state", ["free"] if request.must_exist else ["free", "gone"]]},
        {"$gt": ["$token", 0]},
        {"$lt": ["$token", TOKEN_MAX]},
    ]
    if expect is Expect.ABSENT:
        guard: Document = {"$literal": False} if request.must_exist else _ABSENT
    elif expect is Expect.ANY:
        guard = {"$and": free} if request.must_exist else {"$or": [_ABSENT, {"$and": free}]}
    else:
        version = {"$eq": [["$rvn", "$token"], {"$literal": [expect.rvn, Int64(expect.fencing_token)]}]}
        guard = {"$and": [version, *free]}
    token = {"token": {"$max": [{"$add": [{"$ifNull": ["$token", Int64(0)]}, 1]}, Int64(record.fencing_token)]}}
    kept = [{"$cond": [{"$eq": ["$state", "free"]}, _PAYLOAD, {}]}] if request.keep_payload else []
    update = _update(guard, {"$mergeObjects": [{"$literal": document}, _WRITTEN, token, *kept]})
    return _step(collection, document["_id"], update, upsert=creates(request))


def change(collection: str, request: Replace | Release) -> Document:
    """Return the command of a replace or a release (clauses S4 to S6)."""
    return _step(collection, request.record.key, _changed(request), upsert=False)


def changes(collection: str, requests: Sequence[Replace]) -> Document:
    """Return the command of all *requests*: each statement is atomic by itself."""
    statements = [{"q": {"_id": request.record.key}, "u": _changed(request)} for request in requests]
    return {"update": collection, "updates": statements, "ordered": False, "writeConcern": _CONCERN}


def find(collection: str, keys: Sequence[str], level: str) -> Document:
    """Return the command that reads *keys*."""
    wanted: Any = keys[0] if len(keys) == 1 else {"$in": list(keys)}
    return {"find": collection, "filter": {"_id": wanted}, **_all_of(len(keys)), "readConcern": {"level": level}}


def mark(collection: str, seen: LockRecord) -> Document:
    """Return the command that marks the held record *seen* as waited for; one of another version, or format, is left as it is."""
    return {
        "findAndModify": collection,
        "query": {"_id": seen.key, "v": FORMAT_VERSION, "state": "held", "rvn": seen.rvn},
        "update": {"$set": {SOUGHT: True}},
        "fields": {"_id": 1},
        "writeConcern": {"w": 1},
    }


def find_aged(collection: str, key: str, level: str) -> Document:
    """Return the command that reads *key* together with the server's clock.

    Neither a find nor a refused claim can return the clock on every server: their projections may not know ``$$NOW``, and a claim that
    wrote it into the document would make each refusal a write.
    """
    pipeline = [{"$match": {"_id": key}}, {"$replaceWith": {"now": "$$NOW", "document": "$$ROOT"}}]
    return {"aggregate": collection, "pipeline": pipeline, "cursor": {}, "readConcern": {"level": level}}


def page(collection: str, prefix: str, after: str | None) -> Document:
    """Return the command that reads a page of keys from *prefix* on, or past *after*."""
    wanted = {"$gte": prefix} if after is None else {"$gt": after}
    order = {"sort": {"_id": 1}, "readConcern": {"level": "local"}}
    return {"find": collection, "filter": {"_id": wanted}, **_all_of(PAGE_SIZE), **order}


def creates(request: Step) -> bool:
    """Whether *request* may make the document; any other would leave an empty one behind where the key is absent."""
    return type(request) is Claim and isinstance(request.expect, Expect) and not request.must_exist


def _all_of(limit: int) -> Document:
    # With one more in the batch than there can be, the cursor is closed at once, unless the answer had no room for all.
    return {"limit": limit, "batchSize": limit + 1}


def _step(collection: str, key: Any, update: list[Document], *, upsert: bool) -> Document:
    return {
        "findAndModify": collection,
        "query": {"_id": key},
        "update": update,
        "new": True,
        "upsert": upsert,
        "writeConcern": _CONCERN,
    }


def _update(guard: Document, new: Document) -> list[Document]:
    return [{"$replaceWith": {"$cond": [guard, new, "$$ROOT"]}}]


def _changed(request: Replace | Release) -> list[Document]:
    expected = [FORMAT_VERSION, "held", request.expected.rvn, Int64(request.expected.fencing_token)]
    version = {"$eq": [["$v", "$state", "$rvn", "$token"], {"$literal": expected}]}
    document = document_of(request.record)
    kept = []
    if request.keep_payload:
        # A record that is held has a payload, so the one in the request need not be sent.
        del document["payload"]
        kept = [_PAYLOAD]
    return _update({"$and": [version, _READABLE]}, {"$mergeObjects": [{"$literal": document}, _WRITTEN, *kept]})


# ---- answers


def documents(answer: Document) -> list[Document]:
    """Return the documents in the *answer* to a read."""
    found: list[Document] = answer["cursor"]["firstBatch"]
    return found


def found(answer: Document) -> LockRecord | None:
    """Return the record in the *answer* to a read of one key."""
    return read_document(next(iter(documents(answer)), None))


def found_aged(answer: Document) -> tuple[LockRecord, int] | None:
    """Return the record in the *answer* to :func:`find_aged`, and its age in ms; 0 where the document does not say when it was written."""
    for each in documents(answer):
        record = read_document(each["document"])
        now, written = each["now"], each["document"].get("written")
        if record is not None:
            known = isinstance(now, DatetimeMS) and isinstance(written, DatetimeMS)
            # Both were rounded to a millisecond.
            return record, max(0, int(now) - int(written) - 1) if known else 0
    return None


def paged(answer: Document, prefix: str) -> tuple[list[Callable[[], LockRecord | None]], str | None]:
    """Return what reads each record of a page, and the key to go on after, or None at the last page."""
    ours = [document for document in documents(answer) if document["_id"].startswith(prefix)]
    whole = len(ours) == len(documents(answer))
    more = whole and (len(ours) == PAGE_SIZE or answer["cursor"]["id"] != 0)
    return [partial(read_document, document) for document in ours], ours[-1]["_id"] if more else None


def judged(request: Step, document: Document | None) -> Reply:
    """Return the reply to *request*, by the *document* that stands after it.

    Raises: RecordError: it cannot be read. OutcomeUnknownError: it cannot be read, but *request* has written it.
    """
    sent = request.record
    try:
        stands = read_document(document)
    except RecordError as error:
        if document is None or document.get("rvn") != sent.rvn:
            raise
        # Written, with the damaged payload that it keeps: an error that says the opposite would leave a held record behind.
        raise OutcomeUnknownError(f"lock {sent.key!r} was written, but {error}", key=sent.key) from error
    if stands is None:
        return Reply(applied=False, record=None)
    # Each send has an RVN of its own: where it stands, this request was applied.
    applied = stands.rvn == sent.rvn and stands.state is sent.state and stands.fencing_token >= sent.fencing_token
    at_end = not stands.held and stands.fencing_token >= TOKEN_MAX
    if at_end and type(request) is Claim and request.expect in (Expect.ANY, stands.version):
        raise tokens_exhausted(sent.key)
    return Reply(applied=applied, record=stands)
