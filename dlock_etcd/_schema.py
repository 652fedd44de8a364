"""The messages of etcd's API that dlock needs, described at run time.

They stand in a descriptor pool of their own, so they clash with no other client of etcd in the process, and no generated code ties dlock to
a version of protobuf. Enumerations are declared as numbers: both look the same on the wire.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

EQUAL, GREATER, LESS = range(3)
CREATED, MODIFIED, VALUE, LEASE = 1, 2, 3, 4
_NO_PUTS = 0
_PACKAGE = "etcd"
# Each message with its fields: a type, a name, a number. Fields of one oneof are joined by '|', of a list marked by '*'.
_MESSAGES = """
Header: uint64 cluster_id 1, uint64 member_id 2, int64 revision 3
KeyValue: bytes key 1, int64 create_revision 2, int64 mod_revision 3, bytes value 5
Event: int32 type 1, KeyValue kv 2
Range: bytes key 1, bytes range_end 2, int64 limit 3, bool keys_only 8
RangeAnswer: *KeyValue kvs 2, bool more 3
Put: bytes key 1, bytes value 2, int64 lease 3
PutAnswer:
DeleteRange: bytes key 1
DeleteRangeAnswer: int64 deleted 2
Op: Range range 1 | Put put 2 | DeleteRange delete 3 | Txn txn 4
OpAnswer: RangeAnswer range 1 | PutAnswer put 2 | DeleteRangeAnswer delete 3 | TxnAnswer txn 4
Compare: int32 result 1, int32 target 2, bytes key 3, \
int64 create_revision 5 | int64 mod_revision 6 | bytes value 7 | int64 lease 8, bytes range_end 64
Txn: *Compare compare 1, *Op success 2, *Op failure 3
TxnAnswer: Header header 1, bool succeeded 2, *OpAnswer responses 3
WatchCreate: bytes key 1, bytes range_end 2, *int32 filters 5
Watch: WatchCreate create 1
WatchAnswer: bool created 3, bool canceled 4, string cancel_reason 6, *Event events 11
LeaseGrant: int64 ttl 1, int64 id 2
LeaseGrantAnswer:
LeaseKeepAlive: int64 id 1
LeaseKeepAliveAnswer:
Authenticate: string name 1, string password 2
AuthenticateAnswer: string token 2
Status:
StatusAnswer: Header header 1, string version 2, uint64 leader 4, uint64 raft_index 5, *string errors 8, bool learner 10
MemberList:
Member: uint64 id 1, *string client_urls 4, bool learner 5
MemberListAnswer: *Member members 2
"""


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="dlock_etcd.proto", package=_PACKAGE, syntax="proto3")
    for line in _MESSAGES.strip().splitlines():
        name, _, fields = line.partition(":")
        message = file.message_type.add(name=name)
        for part in filter(None, fields.split(",")):
            choices = part.split("|")
            if len(choices) > 1:
                message.oneof_decl.add(name="choice")
            for choice in choices:
                _add_field(message, choice.split(), chosen=len(choices) > 1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [message.name for message in file.message_type]
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in names}


def _add_field(message: Any, words: list[str], *, chosen: bool) -> None:
    kind, name, number = words
    field = message.field.add(name=name, number=int(number), label=3 if kind.startswith("*") else 1)
    kind = kind.removeprefix("*")
    if kind[0].isupper():
        field.type, field.type_name = field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    else:
        field.type = getattr(field, f"TYPE_{kind.upper()}")
    if chosen:
        field.oneof_index = 0


_CLASSES = _build()
Compare, DeleteRange, KeyValue, Op, Put, Range, Txn = (
    _CLASSES[name] for name in ("Compare", "DeleteRange", "KeyValue", "Op", "Put", "Range", "Txn")
)


class Method(NamedTuple):
    """A method of etcd's API: its path, and how its messages travel."""

    path: str
    write: Any
    read: Any


@cache
def _method(service: str, name: str) -> Method:
    path = f"/etcdserverpb.{service}/{name}"
    return Method(path, _CLASSES[name].SerializeToString, _CLASSES[f"{name}Answer"].FromString)


class Request(NamedTuple):
    """A call of a method.

    Where *member* is given it goes to that endpoint and to no other. Its answer is waited for no longer than *within_s*.
    """

    method: Method
    message: Any
    member: int | None = None
    within_s: float = float("inf")


TXN = _method("KV", "Txn")


def request(service: str, name: str, /, **fields: Any) -> Request:
    """Return the call of a method of *service*, whose message has the same *name*.

    Of the method LeaseKeepAlive, a stream, one message with its answer is the whole.
    """
    return Request(_method(service, name), _CLASSES[name](**fields))


def watch(start: bytes, end: bytes) -> Request:
    """Return the request for all removals of the keys from *start* to before *end*."""
    wanted = _CLASSES["WatchCreate"](key=start, range_end=end, filters=[_NO_PUTS])
    return request("Watch", "Watch", create=wanted)
