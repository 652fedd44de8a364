"""Redis' wire format, versions 2 and 3: commands out, answers in. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import InvalidResponse, ResponseError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["IncompleteError", "answers_in", "pack", "packed"]

_NESTED_MAX = 8


class IncompleteError(Exception):
    """The answer goes on in bytes that have not come yet."""


def pack(*words: bytes) -> bytes:
    """Return a command."""
    return b"*%d\r\n%b" % (len(words), packed(words))


def packed(words: Sequence[bytes]) -> bytes:
    """Return the words of a command, without their number."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def answers_in(data: bytes, count: int) -> list[Any]:
    """Return the *count* answers that *data* consists of: ints, bytes, None, lists of them (maps as pairs in a row), and errors as values.

    Raises: IncompleteError: there are fewer. InvalidResponse: there are more, or this is not Redis.
    """
    answers: list[Any] = []
    at = 0
    while len(answers) < count:
        pushed = data[at : at + 1] == b">"
        answer, at = _answer(data, at, _NESTED_MAX)
        if not pushed:
            answers.append(answer)
    if at != len(data):
        raise InvalidResponse(f"{len(data) - at} bytes more than {count} answers")
    return answers


def _answer(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    end = data.find(b"\r\n", at)
    if end < 0:
        raise IncompleteError
    kind, line, at = data[at : at + 1], data[at + 1 : end], end + 2
    try:
        match kind:
            case b":":
                return int(line), at
            case b"$" | b"=" | b"!":
                return _bulk(kind, data, at, int(line))
            case b"*" | b"%" | b"~" | b">":
                return _list(data, at, int(line) * (2 if kind == b"%" else 1), depth)
            case b"-":
                return ResponseError(line.decode(errors="replace")), at
            case b"_":
                return None, at
            case b"+" | b"#" | b"," | b"(":
                return line, at
    except ValueError as error:
        raise InvalidResponse(f"{data[: end + 2][-80:]!r} is not an answer of Redis") from error
    raise InvalidResponse(f"{data[:80]!r} is not an answer of Redis")


def _bulk(kind: bytes, data: bytes, at: int, size: int) -> tuple[Any, int]:
    if size < 0:
        return None, at
    if len(data) < at + size + 2:
        raise IncompleteError
    body = data[at : at + size]
    if kind == b"!":
        return ResponseError(body.decode(errors="replace")), at + size + 2
    return body[4:] if kind == b"=" else body, at + size + 2


def _list(data: bytes, at: int, size: int, depth: int) -> tuple[Any, int]:
    if size < 0:
        return None, at
    if depth == 0:
        raise InvalidResponse("an answer nested deeper than any of dlock's")
    items = []
    for _ in range(size):
        item, at = _answer(data, at, depth - 1)
        items.append(item)
    return items, at
