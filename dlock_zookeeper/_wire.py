"""The nodes that hold a record, and the requests that read and write them: pure, without a connection.

A lock is two nodes of ZooKeeper: ``/ROOT/KEY`` holds the record, and its only child, the *marker*, is named after the record's RVN::

    ["format", "state", "rvn", token, "owner", lease_ms, "context"]
    payload

ZooKeeper compares nothing but the versions of nodes, and these begin at 0 again where a node was deleted and made anew: a client that has
slept meanwhile could take the lock of another one for its own. An RVN never comes again. So each step is one transaction that deletes the
marker of the record that it expects, makes its own, and sets the record; without that marker, nothing of it is done.

A claim can't know the transaction id (zxid) that its own transaction will get: its token is ``null``, which says that the token is the
``mzxid`` of the node. As that rises with each write of the whole ensemble, the token is above all earlier ones of the key, also where the
key was deleted. A renewal writes the token as a number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from kazoo.exceptions import NoAuthError, NodeExistsError, NoNodeError

from dlock_core.errors import RecordError
from dlock_core.kit import Plain, damaged, plain_of, record_of
from dlock_core.record import FORMAT_VERSION, LockRecord
from dlock_zookeeper._errors import TROUBLE

# The server's own limit for a request (jute.maxbuffer) is 1 MiB; at a larger one it ends the connection, and tells nothing.
_VALUE_BYTES = 1_000_000
_WHERE = "ZooKeeper"
# The node of the queues, below the root; no key has this name.
QUEUES = "+"


# What is sent at once: it is given the client and what a watch calls, and returns what will have the answers.
Request: TypeAlias = Callable[[Any, Callable[[Any], object]], Sequence[Any]]


def listed(key: str, node: Any) -> LockRecord | None:
    """Return the record that a scan has found in *node*, or None where that was deleted meanwhile.

    Raises: RecordError: it is not dlock's, damaged, or of another user.
    """
    if isinstance(node, NoAuthError):
        raise RecordError(
            f"{_WHERE} has under key {key!r} what this user may not read; look at it as the user who made it", key=key
        ) from node
    return None if node is None else record(key, *node)


def _name(text: str) -> str:
    return quote(text, safe="").replace(".", "%2E")


def path_of(root: str, key: str) -> str:
    """Return the path of the record of *key*."""
    return f"/{root}/{_name(key)}"


def key_of(name: str) -> str:
    """Return the key whose node has *name*."""
    return unquote(name)


def queue_of(root: str, key: str) -> str:
    """Return the path of the node below which those who wait for *key* have their places."""
    return f"/{root}/{QUEUES}/{_name(key)}"


def place_of(root: str, key: str, name: str) -> str:
    """Return the path of the place *name* in the queue for *key*."""
    return f"{queue_of(root, key)}/{_name(name)}"


def _value(record: LockRecord, token: int | None) -> bytes:
    *fields, payload = plain_of(record)
    fields[3] = token
    value = json.dumps(fields).encode() + b"\n" + payload
    if len(value) > _VALUE_BYTES:
        problem = f"the record of lock {record.key!r} has {len(value)} bytes, ZooKeeper takes {_VALUE_BYTES}"
        raise RecordError(f"{problem}; nothing was written", key=record.key)
    return value


def record(key: str, value: bytes, stat: Any) -> LockRecord:
    """Return the record in *value*.

    Raises: RecordError: it is not dlock's, or damaged.
    """
    head, _, payload = value.partition(b"\n")
    try:
        version, state, rvn, token, *rest = json.loads(head)
        owner, lease_ms, context = rest if version == FORMAT_VERSION else ("", None, "")
        plain = Plain(version, state, rvn, stat.mzxid if token is None else token, owner, lease_ms, context, payload)
    except (TypeError, ValueError, RecursionError) as error:
        raise damaged(key, str(error), where=_WHERE) from error
    if version == FORMAT_VERSION and stat.numChildren != 1:
        raise damaged(key, f"it has {stat.numChildren} children, where a record has its marker alone", where=_WHERE)
    return record_of(key, plain, where=_WHERE)


# ---- requests


class Step(NamedTuple):
    """The three operations that write *record*, as *value*, at *path*, where the marker of *rvn* stands, or with None nothing."""

    path: str
    rvn: str | None
    record: LockRecord
    value: bytes

    @property
    def size(self) -> int:
        """About how many bytes of a request it takes."""
        return len(self.value) + 3 * len(self.path) + 200

    def add_to(self, transaction: Any) -> None:
        """Make it a part of *transaction*; the last of its three answers is the node's stat."""
        if self.rvn is None:
            transaction.create(self.path)
        else:
            transaction.delete(f"{self.path}/{_name(self.rvn)}")
        transaction.create(f"{self.path}/{_name(self.record.rvn)}")
        transaction.set_data(self.path, self.value)


def step(path: str, rvn: str | None, record: LockRecord, token: int | None) -> Step:
    """Return what writes *record* where one with *rvn* stands, or with None nothing."""
    return Step(path, rvn, record, _value(record, token))


class Leave(NamedTuple):
    """The operation that takes the *place* of a waiter away."""

    place: str

    def add_to(self, transaction: Any) -> None:
        """Make it a part of *transaction*."""
        transaction.delete(self.place)


def transactions(parts: Iterable[Sequence[Step | Leave]]) -> Request:
    """Return the request for a transaction of each of the *parts*; each answer is that of all operations of one part."""

    def begin(client: Any, _: Any) -> list[Any]:
        begun = []
        for steps in parts:
            transaction = client.transaction()
            for each in steps:
                each.add_to(transaction)
            begun.append(transaction.commit_async())
        return begun

    return begin


class _Found(NamedTuple):
    """An answer that has None where there is no node, and an error of kind *kept* as it is."""

    answer: Any
    kept: type[Exception] | tuple[type[Exception], ...] = ()

    def get(self, timeout: float) -> Any:
        try:
            return self.answer.get(timeout=timeout)
        except NoNodeError:
            return None
        except self.kept as error:
            return error


def freeing(one: Step, queue: str) -> Request:
    """Return the request that does *one* step, and shows how many wait in a *queue* after it: an error, where that cannot be told."""
    return lambda client, news: [*transactions([[one]])(client, news), _Found(client.exists_async(queue), TROUBLE)]


def entering(place: str, queue: str, *, makes: bool) -> Request:
    """Return the request that *makes* a place, unless it stands, and shows who is in the *queue*."""
    return lambda client, _: [
        *([_Found(client.create_async(place, ephemeral=True), NodeExistsError)] if makes else []),
        client.get_children_async(queue),
    ]


def leaving(places: Sequence[str]) -> Request:
    """Return the request that takes *places* away."""
    return lambda client, _: [_Found(client.delete_async(place)) for place in places]


def watching(place: str) -> Request:
    """Return the request that watches *place*; its answer is None where there is none."""
    return lambda client, news: [_Found(client.get_async(place, watch=news))]


def looks(paths: Sequence[str]) -> Request:
    """Return the request for many nodes as the whole ensemble has them; the first answer is nothing, a node that is not there is None."""
    return lambda client, _: [client.sync_async(paths[0]), *(_Found(client.get_async(path)) for path in paths)]


def read(path: str, *, watch: bool = False) -> Request:
    """Return the request for a node as the whole ensemble has it: a follower first waits for what the leader has done."""
    return lambda client, news: [client.sync_async(path), client.get_async(path, watch=news if watch else None)]


def reads(paths: Sequence[str]) -> Request:
    """Return the request for many nodes, as the server has them."""
    return lambda client, _: [client.get_async(path) for path in paths]


def page(paths: Sequence[str]) -> Request:
    """Return the request for many nodes, as the server has them; those of :func:`listed`."""
    return lambda client, _: [_Found(client.get_async(path), NoAuthError) for path in paths]


def listing(root: str) -> Request:
    """Return the request for the names of all records."""
    return lambda client, _: [client.get_children_async(f"/{root}")]


def making(path: str) -> Request:
    """Return the request that makes an empty node, and what is missing of those above it; a node that stands is not touched."""
    return lambda client, _: [client.ensure_path_async(path)]
