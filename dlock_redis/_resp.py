"""Redis' wire format, version 2: commands out, answers in. Pure.

dlock parses answers itself for two reasons. The time-out of a call bounds a whole answer; redis-py's blocking connection bounds each read
of the socket only. And a cycle of acquire and release takes a user's process less time than with redis-py's pool, connection and parser:
23 % less of the processor in threads, 33 % less on asyncio, with redis-py 8.1 and without hiredis. The benchmark ``redis-driver`` compares
both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import InvalidResponse, ResponseError

if TYPE_CHECKING:
    from collections.abc import Sequence

_NESTED_MAX = 8
# What a server says of a connection, in the place of the first answer, before it ends it: it has run nothing.
_TURNED_AWAY = ("ERR max number of clients", "DENIED")


class IncompleteError(Exception):
    """The answer goes on in bytes that have not come yet."""


def pack(*words: bytes) -> bytes:
    """Return a command."""
    return b"*%d\r\n%b" % (len(words), packed(words))


def packed(words: Sequence[bytes]) -> bytes:
    """Return the words of a command, without their number."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


class Answers:
    """*count* answers, which go to *heard* as their bytes come: a page of records is some megabytes, in many pieces."""

    def __init__(self, count: int, heard: list[Any] | None = None) -> None:
        self._count, self._answers, self._rest = count, [] if heard is None else heard, b""
        self._nudges = 0

    def expects_nudge(self) -> bool:
        """Whether the server, which is to be nudged, owes an answer yet. Then it will give one more, which tells nothing."""
        owes = len(self._answers) < self._count
        self._nudges += owes
        return owes

    def read(self, more: bytes) -> list[Any]:
        """Return the answers that all bytes up to *more* consist of: ints, bytes, None, lists of them, and errors as values.

        Raises: IncompleteError: there are fewer. InvalidResponse: there are more, or this is not Redis.
        """
        answers, count = self._answers, self._count + self._nudges
        data, at = self._rest + more, 0
        try:
            while len(answers) < count:
                answer, at = answer_in(data, at)
                answers.append(answer)
        except IncompleteError:
            self._rest = data[at:]
            raise
        if at != len(data):
            raise InvalidResponse(f"{len(data) - at} bytes more than {count} answers")
        return answers[: self._count] if self._nudges else answers

    def refusal(self) -> ResponseError | None:
        """Return what the server said of the connection before it ended it, if it did."""
        first = self._answers[0] if self._answers else None
        return first if str(first).startswith(_TURNED_AWAY) else None


def answer_in(data: bytes, at: int, depth: int = _NESTED_MAX) -> tuple[Any, int]:
    """Return the answer that begins at *at*, and where the next one begins. Raises: as :meth:`Answers.read`."""
    end = data.find(b"\r\n", at)
    if end < 0:
        raise IncompleteError
    kind, line, after = data[at : at + 1], data[at + 1 : end], end + 2
    if kind in (b"+", b"-"):
        return (line if kind == b"+" else ResponseError(line.decode(errors="replace"))), after
    if kind not in (b":", b"$", b"*") or not line.removeprefix(b"-").isdigit():
        raise InvalidResponse(f"{data[at : at + 80]!r} is not an answer of Redis")
    number = int(line)
    if kind == b":":
        return number, after
    if number < 0:
        return None, after
    if kind == b"$":
        if len(data) < after + number + 2:
            raise IncompleteError
        return data[after : after + number], after + number + 2
    return _list_in(data, after, number, depth)


def _list_in(data: bytes, at: int, size: int, depth: int) -> tuple[list[Any], int]:
    if depth == 0:
        raise InvalidResponse("an answer is nested deeper than any that dlock asks for")
    items = []
    for _ in range(size):
        item, at = answer_in(data, at, depth - 1)
        items.append(item)
    return items, at
