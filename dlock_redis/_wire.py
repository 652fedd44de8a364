"""Everything that is said to Redis and how its answers are read, in no colour.

The record of a key is one hash under that very key::

    HGETALL billing/42
    v        1                                              format
    state    held                                           held, free or gone
    rvn      5f0c…                                          changes with every write
    token    1795000000123456                               at least the server's clock in microseconds when it was minted
    about    ["host-7:311:9f", 20000, ""]                   owner, lease in ms, and the codec's context
    payload                                                 attributes (JSON), newline, "-" or "+" and the data; empty without either
    written  1795000000123456 5f0c…                         server's clock in microseconds at the last write, and its rvn
    queue    …                                              who waits: place, and until when (server's clock), in order of arrival
    turn     …                                              for whom a free key is kept, and until when

Every verb is one script, hence atomic. A script decides on the first six fields as the port says; *queue* and *turn* only ever delay a
claim, by ``TURN_MS`` at most. A *place* is the channel of a waiter's store and the waiter's ticket; a release or a renewal wakes a waiter
by publishing its place there. No record ever expires.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from dlock_core.errors import RecordError, StoreError, StoreUnavailableError
from dlock_core.kit import (
    BatchResults,
    Plain,
    damaged,
    is_urgent,
    kept,
    kept_for_first,
    pages,
    plain_of,
    record_of,
    wakes,
    written,
)
from dlock_core.record import FORMAT_VERSION, LockRecord, newer_format
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from dlock_redis import _errors as errors
from dlock_redis._resp import pack
from dlock_redis._scripts import (
    CHANNEL_LENGTH,
    CLAIM,
    CLAIM_MANY,
    ENTER,
    IN_SERVER,
    LEAVE,
    PRUNE,
    PUT,
    READ,
    Invocation,
)
from dlock_redis._servers import Locate, Request
from dlock_redis.provision import CONFIG, INFO, guarantees_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dlock_core.kit import Call, Exchange
    from dlock_core.store import Guarantees
    from dlock_redis._scripts import Script

_PAGE = b"500"
_FIELDS = (b"v", b"state", b"rvn", b"token", b"about", b"payload")
_NO_FIELDS = [None] * len(_FIELDS)
_KEPT_MS = 1000
_AGE = 6  # its place in a row that refuses a claim; negative: the free key is kept
_WAITERS = 7  # their place in a row that was read
_REDIRECTIONS_MAX = 4
# BLPOP waits for ever by a time-out of 0, to which Redis 6 rounds what is below 1 ms, and 0.001 s, too.
_WAIT_MIN_S = 0.002
_ASKING = pack(b"ASKING")
_TAGGED = re.compile(r"[^{]*\{[^}]+\}")
_WAITING_LIST = re.compile(rb"%bdlock:[0-9a-f]{%d}" % (IN_SERVER.encode(), CHANNEL_LENGTH - len("dlock:")))
_NOT_A_RECORD = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


class RedisVerbs:
    """The verbs as exchanges. *topology* names a client that is not for one server, *channel* where waiters of the store are woken."""

    name = "Redis"
    topology = ""

    def __init__(self) -> None:
        self.channel = b"dlock:" + secrets.token_hex((CHANNEL_LENGTH - len("dlock:")) // 2).encode()

    # ---- the verbs

    def claim(self, request: Claim) -> Exchange[Reply]:
        """Grant the key, unless it is held or kept for the first waiter."""
        answer = yield from self._run(CLAIM, [request.record.key], claim_words(request, self._place_of(request)))
        return reply_of(request, answer)

    def claim_many(self, requests: Sequence[Claim]) -> Exchange[Sequence[Reply]]:
        """Grant all keys or none, where one script reaches them: in one slot, or on one server."""
        keys = [request.record.key for request in requests]
        if len((yield Locate(tuple(keys)))) > 1:
            raise StoreUnavailableError(
                f"keys {keys[0]!r} to {keys[-1]!r} lie in several slots; no one step reaches them"
            )
        words = [word for request in requests for word in claim_words(request, self._place_of(request))]
        answers = yield from self._run(CLAIM_MANY, keys, words)
        return [reply_of(request, answer) for request, answer in zip(requests, answers, strict=True)]

    def _place_of(self, request: Claim) -> bytes:
        return b"" if request.ticket is None else self.place(request.ticket)

    def claim_when_free(self, request: Claim, wait_s: float, heard: list[Any] | None = None) -> Exchange[Reply]:
        """Grant the key when it is free: enter the queue, wait at the list of the place, and claim, in one request.

        *heard* takes the answers as they come; the first is there as soon as the claim waits.

        A claim behind a blocked command runs however that ends, so it looks for its place. Scripts go with their text: an unknown one would
        leave the command behind it blocked for nothing.
        """
        key, place, wait_s = request.record.key, self.waiting_place(request), max(wait_s, _WAIT_MIN_S)
        parts = (
            Invocation(ENTER, [key], [place, b"%d" % (wait_s * 1_000_000)]).packed(whole=True),
            pack(b"BLPOP", _list_of(key, place), b"%.3f" % wait_s),
            Invocation(CLAIM, [key], claim_words(request, place, waited=True)).packed(whole=True),
        )
        entered, woken, answer = yield Request(b"".join(parts), len(parts), key, wait_s=wait_s, heard=heard)
        if type(answer) is ResponseError:  # also of a Cluster's node whose slot moves: no claim can wait there
            errors.check([entered, woken, answer], key)
        reply = reply_of(request, answer)
        if not reply.applied:
            errors.check([entered, woken], key)
        return reply

    def waiting_place(self, request: Claim) -> bytes:
        """Return the place of a claim that waits in the server."""
        return IN_SERVER.encode() + self.place(request.ticket or request.record.rvn)

    def replace(self, request: Replace | Release) -> Exchange[Reply]:
        """Write the record, if the key is held in the expected version."""
        answer = yield from self._run(PUT, [request.record.key], put_words([request]), urgent=is_urgent(request))
        return reply_of(request, answer[1] if answer else unmentioned(request))

    release = replace

    def read(self, key: str) -> Exchange[LockRecord | None]:
        """Return the record."""
        return read_row(key, (yield from self._run(READ, [key], [])))

    def read_age(self, key: str) -> Exchange[tuple[LockRecord, int] | None]:
        """Return the record and the ms since its last write."""
        row = yield from self._run(READ, [key], [])
        record = read_row(key, row)
        return None if record is None else (record, row[_AGE])

    def replace_many(self, requests: Sequence[Replace]) -> Exchange[Sequence[Reply | StoreError]]:
        """Do each replace: one request for each server, with one script for all mere renewals in one slot."""
        if not requests:
            return []
        results = BatchResults(requests)
        nodes: dict[str, tuple[Any, list[list[int]]]] = {}
        for part in (yield Locate(tuple(request.record.key for request in requests))):
            # By its name: a node has no hash before redis-py 6.
            _, parts = nodes.setdefault(getattr(part.node, "name", part.node), (part.node, []))
            parts += _alike(requests, part.numbers)
        moved: list[int] = []
        for place, (node, parts) in enumerate(nodes.values()):
            batches = [[requests[number] for number in numbers] for numbers in parts]
            scripts = [Invocation(PUT, [each.record.key for each in batch], put_words(batch)) for batch in batches]
            sent = Request(node=node, urgent=True, share=len(nodes) - place)
            try:
                answers = yield from _together(scripts, sent)
            except errors.FAILURES as error:
                if len(nodes) == 1:
                    raise
                answers = [error] * len(parts)
            for numbers, answer in zip(parts, answers, strict=True):
                if self._is_elsewhere(answer):
                    moved += numbers
                elif isinstance(answer, Exception):
                    results.fail_by(numbers, answer, partial(errors.trouble, answer, sent=True))
                else:
                    _settle(results, requests, numbers, answer)
        for number in moved:
            yield from self._replace_moved(results, number, requests[number])
        return results.as_list()

    def _replace_moved(self, results: BatchResults, number: int, request: Replace) -> Exchange[None]:
        """Do a replace alone that the server did not run in the batch, since its slot has moved, or moves now."""
        try:
            reply = yield from self.replace(request)
        except errors.FAILURES as error:
            results.fail_by((number,), error, partial(errors.trouble, error, sent=True))
        else:
            results.settle(number, lambda: reply)

    def prune(self, records: Sequence[LockRecord], *, older_than_ms: int, dry_run: bool) -> Exchange[int]:
        """Remove what is free, unchanged and old enough: one request for each server. Keys in a slot that moves stay."""
        count, words = 0, (b"%d" % (older_than_ms * 1000), b"" if dry_run else b"x")
        if not records:
            return 0
        for part in (yield Locate(tuple(record.key for record in records))):
            listed = [records[number] for number in part.numbers]
            scripts = [
                Invocation(PRUNE, [each.key], [each.rvn.encode(), b"%d" % each.fencing_token, *words])
                for each in listed
            ]
            answers = yield from _together(scripts, Request(node=part.node))
            count += sum(errors.check([answer for answer in answers if not self._is_elsewhere(answer)], None))
        return count

    def scan(self, prefix: str) -> Iterator[Exchange[Iterable[LockRecord]]]:
        """Each page of each server. A list of the whole database passes over what is not dlock's.

        A key may be removed between the two requests of a page; it has then no fields, as another program's hash.
        """
        pattern = re.sub(r"([*?\[\]\\])", r"\\\1", prefix).encode() + b"*"
        seen: set[bytes] = set()

        def reading(name: bytes, row: Any) -> LockRecord | None:
            key = name.decode(errors="backslashreplace")
            try:
                return read_row(key, errors.check([row], key)[0])
            except RecordError as error:
                if prefix:
                    raise RecordError(f"{error}; give the locks a prefix of their own", key=key) from error
                return None

        def page(after: tuple[list[Any], bytes] | None) -> Exchange[Any]:
            nodes, cursor = after or ((yield Locate(None)), b"0")
            scan = pack(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", _PAGE)
            cursor, found = errors.check((yield Request(scan, node=nodes[0])), None)[0]
            # SCAN may repeat itself; a list at which a claim waits stands for a moment where its waiter has just left.
            names = [name for name in dict.fromkeys(found) if name not in seen and not _WAITING_LIST.search(name)]
            seen.update(names)
            fields = b"".join([pack(b"HMGET", name, *_FIELDS) for name in names])
            rows = (yield Request(fields, len(names), node=nodes[0])) if names else ()
            bare = [name for name, row in zip(names, rows, strict=True) if prefix and row == _NO_FIELDS]
            asking = b"".join([pack(b"EXISTS", name) for name in bare])
            there = (yield Request(asking, len(bare), node=nodes[0])) if bare else ()
            removed = {name for name, answer in zip(bare, there, strict=True) if answer == 0}
            nodes = nodes if cursor != b"0" else nodes[1:]
            readings = [
                partial(reading, name, row) for name, row in zip(names, rows, strict=True) if name not in removed
            ]
            return readings, (nodes, cursor) if nodes else None

        return pages(page)

    def guarantees(self) -> Exchange[Guarantees]:
        """Ask each primary that answers for INFO, and for CONFIG GET where that is allowed; what one of them lacks, the store lacks."""
        primaries, found, failure = (yield Locate(None)), [], None
        for place, node in enumerate(primaries):
            try:
                info, config = yield Request(INFO + CONFIG, 2, node=node, share=len(primaries) - place)
                errors.check([info], None)
            except errors.FAILURES as error:
                failure = error
                continue
            # Managed services refuse CONFIG, each in words of its own.
            found.append(guarantees_of(info, None if type(config) is ResponseError else config, self.topology))
        if failure is not None and not found:
            raise failure
        unsafe = dict(each for told in found for each in told.unsafe)
        return replace(min(found, key=lambda told: told.durable), unsafe=tuple(unsafe.items()))

    def provision(self) -> Exchange[None]:
        """Create nothing, since nothing is needed, but see that the server is there and new enough."""
        yield from self.guarantees()

    def trouble(self, error: Exception, call: Call) -> StoreError | None:
        """Return what an error of redis-py means."""
        return errors.trouble(error, call.key, sent=call.writes) if isinstance(error, errors.TROUBLE) else None

    # ---- waiting

    def place(self, ticket: str) -> bytes:
        """Return the place of the waiter *ticket* of this store, without the characters that part the places of the queue."""
        return self.channel + (ticket if ticket.isprintable() else ticket.encode().hex()).encode()

    def moved_on(self, key: str, place: bytes, wait_s: float, seen: str | None = None) -> Exchange[bool]:
        """Queue for *key*; return whether there is nothing to wait for: it is free, or held with another RVN than was *seen*."""
        words = [place, b"%d" % (wait_s * 1_000_000), *([] if seen is None else [seen.encode()])]
        answer = yield from self._run(ENTER, [key], words)
        return not answer

    def leave(self, key: str, place: bytes) -> Exchange[bool]:
        """Leave the queue; a turn that came already passes to the next waiter. Return whether it was there, or had its turn."""
        return bool((yield from self._run(LEAVE, [key], [place])))

    # ---- requests

    def _run(self, script: Script, keys: list[str], words: list[bytes], *, urgent: bool = False) -> Exchange[Any]:
        """Run *script* on the server that has *keys*.

        An error that says that it was not run is followed: with its text where it is unknown, to the server that is named.
        """
        invocation = Invocation(script, keys, words)
        request = Request(invocation.packed(), 1, keys[0], None, urgent)
        [answer] = yield request
        for _ in range(_REDIRECTIONS_MAX):
            if self._is_elsewhere(answer):
                request = request._replace(node=str(answer))
            elif not errors.is_unknown_script(answer):
                break
            [answer] = yield from _with_text((invocation,), request)
        return errors.check([answer], keys[0])[0]

    def _is_elsewhere(self, answer: Any) -> bool:
        return self.topology == "redis-cluster" and errors.is_elsewhere(answer)


def _together(invocations: Sequence[Invocation], request: Request) -> Exchange[list[Any]]:
    """Send *invocations* in one request; return their answers. A script that the server does not know was not run, and goes again."""
    answers: list[Any] = yield request._replace(
        commands=b"".join([each.packed() for each in invocations]), answers=len(invocations)
    )
    unknown = [number for number, answer in enumerate(answers) if errors.is_unknown_script(answer)]
    if unknown:
        again = yield from _with_text([invocations[number] for number in unknown], request)
        for number, answer in zip(unknown, again, strict=True):
            answers[number] = answer
    return answers


def _with_text(invocations: Sequence[Invocation], request: Request) -> Exchange[list[Any]]:
    """Send *invocations* with the text of their scripts; return their answers."""
    before, count = (_ASKING, 2) if request.asks else (b"", 1)
    commands = b"".join([before + each.packed(whole=True) for each in invocations])
    answers: list[Any] = yield request._replace(commands=commands, answers=count * len(invocations))
    return answers[count - 1 :: count]


def claim_words(request: Claim, place: bytes, *, waited: bool = False) -> list[bytes]:
    """Return the arguments of CLAIM."""
    record, expect = request.record, request.expect
    options = b"m" * request.must_exist + b"k" * request.keep_payload + b"w" * waited
    version: tuple[bytes, ...] = ()
    if expect is Expect.ABSENT:
        options += b"a"
    elif expect is not Expect.ANY:
        options += b"v"
        version = (expect.rvn.encode(), b"%d" % expect.fencing_token)
    plain = plain_of(record)
    return [plain.rvn.encode(), b"%d" % plain.token, about_of(plain), plain.payload, options, place, *version]


def put_words(requests: Sequence[Replace | Release]) -> list[bytes]:
    """Return the arguments of PUT for *requests*, whose common words are the same."""
    words = [*_common_words(requests[0])]
    for request in requests:
        plain, expected = plain_of(request.record), request.expected
        words += (expected.rvn.encode(), b"%d" % expected.fencing_token, plain.rvn.encode(), about_of(plain))
    return words


def _common_words(request: Replace | Release) -> tuple[bytes, ...]:
    """Return the arguments of PUT that are the same for all mere renewals."""
    record, keeps = request.record, request.keep_payload
    token = b"" if record.fencing_token == request.expected.fencing_token else b"%d" % record.fencing_token
    options = b"k" * keeps + (b"w" if wakes(request) else b"l" if record.members is None else b"")
    # Nobody is granted the token of a break, and who breaks a lock tells the next one.
    options += b"f" * (record.held and record.broken is None and token != b"")
    return record.state.encode(), token, b"" if keeps else plain_of(record).payload, options


def about_of(plain: Plain) -> bytes:
    """Return the values that no condition compares, the payload excepted."""
    return _about(plain.owner, plain.lease_ms, plain.context)


@lru_cache(maxsize=1024)
def _about(owner: str, lease_ms: int | None, context: str) -> bytes:
    return json.dumps([owner, lease_ms, context]).encode()


def can_wait_in_server(key: str) -> bool:
    """Whether the list at which a waiter of *key* waits can lie beside it on a Cluster, whose slots follow the text in braces."""
    return bool(_TAGGED.match(key)) or not ("{" in key or "}" in key)


def _list_of(key: str, place: bytes) -> bytes:
    """Return the list at which the waiter at *place* waits; its name begins with the key, so rights on the prefix are rights on it."""
    return (key if _TAGGED.match(key) else f"{key}{{{key}}}").encode() + place


def _alike(requests: Sequence[Replace], numbers: Sequence[int]) -> Iterable[list[int]]:
    """Return the *numbers* in parts, each for one PUT."""
    parts: dict[tuple[bytes, ...], list[int]] = {}
    for number in numbers:
        parts.setdefault(_common_words(requests[number]), []).append(number)
    return parts.values()


# ---- answers


def _settle(results: BatchResults, requests: Sequence[Replace], numbers: Sequence[int], answer: list[Any]) -> None:
    """Note the results of the requests of these *numbers*. PUT answers by the places of their keys."""
    mentioned = dict(zip(answer[::2], answer[1::2], strict=True))
    for place, number in enumerate(numbers, 1):
        request = requests[number]
        results.settle(number, partial(reply_of, request, mentioned.get(place, unmentioned(request))))


def unmentioned(request: Replace | Release) -> Any:
    """Return the outcome of a write of which PUT answers nothing: it was applied, and a payload that it kept is empty."""
    token = request.record.fencing_token
    return [token, b""] if request.keep_payload else token


def reply_of(request: Claim | Replace | Release, answer: Any) -> Reply:
    """Return the reply in a script's answer: nothing, a token, a token and the payload that was kept, or the row that refused."""
    record = request.record
    if type(answer) is int:
        return Reply(applied=True, record=written(record, answer, None))
    if answer is None or len(answer) != 2:  # noqa: PLR2004  # token and payload
        age_ms = answer[_AGE] if answer and len(answer) > _AGE and answer[_AGE] >= 0 else None
        return Reply(applied=False, record=read_row(record.key, answer), age_ms=age_ms)
    return Reply(applied=True, record=kept(record, *answer))


def read_row(key: str, row: Sequence[Any] | None) -> LockRecord | None:
    """Return the record in *row*, or None where the key is absent.

    A free key that is kept for the first waiter is shown as held by it, so that others wait for it and do not claim it again and again; its
    lease is longer than any turn.
    """
    if row is None:
        return None
    try:
        version, state, rvn, token, about, payload = row[:6]
        if version is None:
            raise ValueError("it has no field 'v'")
        if int(version) > FORMAT_VERSION:
            return newer_format(key, int(version), rvn.decode(), int(token))
        owner, lease_ms, context = json.loads(about)
        plain = Plain(int(version), state.decode(), rvn.decode(), int(token), owner, lease_ms, context, payload)
    except _NOT_A_RECORD as error:
        raise damaged(key, errors.foreign(row) or str(error), where="Redis") from error
    record = record_of(key, plain, where="Redis")
    if len(row) > _AGE and row[_AGE] < 0:
        return kept_for_first(record, _KEPT_MS)
    return replace(record, waiters=row[_WAITERS]) if len(row) > _WAITERS and row[_WAITERS] else record
