"""How answers are read: whole or not at all, in pieces, and whatever else a server may say."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
from redis.exceptions import InvalidResponse, ResponseError

from dlock_redis import _resp as resp
from dlock_redis._connections import Inbox
from dlock_redis._resp import Answers, IncompleteError, pack


def answers_in(data: bytes, count: int) -> list[Any]:
    """Return the *count* answers that *data* consists of."""
    return Answers(count).read(data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b":12\r\n", [12]),
        (b"$3\r\na\r\n\r\n", [b"a\r\n"]),
        (b"$-1\r\n", [None]),
        (b"*2\r\n:1\r\n*-1\r\n", [[1, None]]),
        (b"-ERR no\r\n", ["ERR no"]),
        (b"-ERR \xff\r\n", ["ERR \ufffd"]),
        (b"+OK\r\n", [b"OK"]),
    ],
)
def test_answer_of_every_kind(data: bytes, expected: list[object]) -> None:
    """Whole, or not at all; an error is a value."""
    answers = [str(answer) if isinstance(answer, ResponseError) else answer for answer in answers_in(data, 1)]
    assert answers == expected
    for end in range(len(data)):
        with pytest.raises(IncompleteError):
            answers_in(data[:end], 1)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b":1\r\n:2\r\n", "4 bytes more than 1 answers"),
        (b"*1\r\n" * 9, "nested deeper"),
        (b"HTTP/1.1 400 Bad Request\r\n", "b'HTTP/1.1 400 Bad Request.*' is not an answer of Redis"),
        (b"\r\n", "is not an answer of Redis"),
        (b"~1\r\n:1\r\n", "is not an answer of Redis"),
    ],
)
def test_answers_that_are_too_many_too_deep_or_of_another_server_are_refused(data: bytes, told: str) -> None:
    """They would be read as those to the next request, or without an end."""
    with pytest.raises(InvalidResponse, match=told):
        answers_in(data, 1)


def test_random_answers_are_read_as_they_were_written(rng: random.Random) -> None:
    """Whole they are that value, and cut off anywhere they are no answer yet."""
    for _ in range(300):
        answer = random_answer(rng)
        data = written(answer)

        assert answers_in(data, 1) == [answer]
        with pytest.raises(IncompleteError):
            answers_in(data[: rng.randrange(len(data))], 1)


def test_answers_that_come_in_pieces_are_each_read_once(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of a thousand large records would else be read anew at each piece."""
    parsed: list[int] = []
    read = resp.answer_in

    def noting(data: bytes, at: int) -> tuple[Any, int]:
        parsed.append(len(data) - at)
        return read(data, at)

    monkeypatch.setattr(resp, "answer_in", noting)
    expected = [rng.randbytes(rng.randrange(300)) for _ in range(200)]
    data = b"".join(map(written, expected))
    answers, found = Answers(len(expected)), None

    for at in range(0, len(data), 1000):
        assert found is None
        with suppress(IncompleteError):
            found = answers.read(data[at : at + 1000])

    assert found == expected
    assert len(parsed) <= len(expected) + len(data) // 1000
    assert max(parsed) < 2000


def test_answer_to_a_nudge_is_awaited_and_kept_from_who_reads() -> None:
    """Else it would be read as the answer to the next request. Once the answers asked for are there, the server is nudged no more."""
    answers = Answers(2)
    with pytest.raises(IncompleteError):
        answers.read(b":1\r\n")
    assert answers.expects_nudge()
    assert answers.expects_nudge()
    with pytest.raises(IncompleteError):
        answers.read(b":2\r\n*1\r\n")
    assert not answers.expects_nudge()

    assert answers.read(b"$1\r\n7\r\n-NOPERM no\r\n") == [1, 2]


def test_random_bytes_are_never_an_answer_by_accident(rng: random.Random) -> None:
    """The reader raises one of its two errors, or its answer needs the last byte and leaves none over."""
    for _ in range(3000):
        data = bytes(rng.choice(b"*$:%~>-_=!#,(0123456789\r\n \xff") for _ in range(rng.randrange(30)))
        try:
            answers_in(data, 1)
        except (IncompleteError, InvalidResponse):
            continue
        with pytest.raises(IncompleteError):
            answers_in(data[:-1], 1)
        with pytest.raises(InvalidResponse):
            answers_in(data + b":1\r\n", 1)


def random_answer(rng: random.Random, depth: int = 0) -> Any:
    """Return a value as a server may answer it: a number, bytes, nothing, or a list of such values."""
    kind = rng.randrange(4 if depth < 3 else 3)
    if kind == 0:
        return rng.randrange(-(2**63), 2**63)
    if kind == 1:
        return rng.randbytes(rng.randrange(20))
    return None if kind == 2 else [random_answer(rng, depth + 1) for _ in range(rng.randrange(4))]


def written(answer: Any) -> bytes:
    """Return *answer* as a server sends it."""
    match answer:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % answer
        case bytes():
            return b"$%d\r\n%s\r\n" % (len(answer), answer)
    return b"*%d\r\n" % len(answer) + b"".join(written(each) for each in answer)


def test_command_is_packed_as_bytes() -> None:
    """Lengths count bytes."""
    assert pack(b"GET", "ü".encode()) == b"*2\r\n$3\r\nGET\r\n$2\r\n\xc3\xbc\r\n"


def test_what_wakes_is_a_message_and_nothing_else_that_a_server_says() -> None:
    """In pieces, too; a stranger may publish what is no text."""
    said = b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n:5\r\n-ERR no\r\n"
    said += b"".join(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n%b\r\n" % place for place in (b"\xff", b"t"))
    inbox = Inbox()

    assert [place for at in range(0, len(said), 7) for place in inbox.places(said[at : at + 7])] == ["\ufffd", "t"]
