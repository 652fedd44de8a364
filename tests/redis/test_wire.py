"""What is pure: the wire format, the record's fields, places, and the table of errors."""

from __future__ import annotations

import inspect

import pytest
import redis
from redis.crc import key_slot
from redis.exceptions import ResponseError

from dlock_core.errors import OutcomeUnknownError, RecordError, StoreError, StoreSetupError, StoreUnavailableError
from dlock_core.kit import Call, plain_of
from dlock_core.record import Broken, LockRecord, ProcessIdentity, Stamp, State, Version, newer_format
from dlock_core.store import Claim, Expect, Replace, Reply
from dlock_redis import _errors as errors
from dlock_redis import _wire as wire
from dlock_redis._scripts import CHANNEL_LENGTH
from tests.redis.support import ABOUT, BRACES, fresh, held

FULL = LockRecord(
    "k",
    State.HELD,
    fresh(),
    2**53 - 1,
    "ho\ud800st",
    86_400_000,
    b"\x00\n+",
    (("a", True), ("b", 1), ("c", b"\xff"), ("d", "ü\n"), ("e", -(2**63 - 1))),
    Stamp(1, "r"),
    ProcessIdentity("boot", 1, 2, 3, None),
    Broken("by", 5),
)
EMPTY = LockRecord("k", State.FREE, "r", 1, "", None)


def row(record: LockRecord) -> list[bytes]:
    """Return the fields that the scripts write for *record*."""
    number = b"%d" % record.fencing_token
    return [
        b"1",
        record.state.value.encode(),
        record.rvn.encode(),
        number,
        wire.about_of(plain_of(record)),
        plain_of(record).payload,
    ]


@pytest.mark.parametrize("record", [FULL, EMPTY, held("k", data=b""), held("k", data=b"-\n")])
def test_record_written_and_read_is_the_same(record: LockRecord) -> None:
    """Every field comes back, of every kind; no data is not empty data."""
    assert wire.read_row("k", row(record)) == record


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (place, wrong)
        for place in range(6)
        for wrong in (None, b"", b"\xff", b"[1]", b"nonsense")
        if (place, wrong)
        not in ((2, b"[1]"), (2, b"nonsense"), (5, b""))  # an RVN is any text; most payloads are empty
    ],
)
def test_record_with_a_damaged_field_is_an_error(place: int, wrong: bytes | None) -> None:
    """Whatever is damaged is told, and never read as something else."""
    fields: list[bytes | None] = [*row(held("k", data=b"d"))]
    fields[place] = wrong

    with pytest.raises(RecordError, match=r"what Redis has under key 'k'|record version number ''") as caught:
        wire.read_row("k", fields)

    assert "of another program" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ([], "of another type than a hash"),
        ([None] * 6, "no field 'v'"),
        ([None] * 5 + [b"\xff"], "a string of another program"),
        ([b"0", b"held", b"r", b"1", ABOUT.encode(), b""], "format 0"),
    ],
)
def test_row_without_a_format_is_foreign(fields: list[bytes | None], fault: str) -> None:
    """A string, another program's hash, and a format that never was; the message says which."""
    with pytest.raises(RecordError, match=fault):
        wire.read_row("k", fields)


def test_row_of_a_newer_format_is_held() -> None:
    """It is waited for, whatever else it says."""
    assert wire.read_row("k", [b"2", None, b"r", b"7", None, None]) == newer_format("k", 2, "r", 7)


def test_refusal_of_a_kept_key_shows_it_held_by_the_first_waiter() -> None:
    """So the engine waits, where it would claim a free key again and again."""
    shown = wire.read_row("k", [*row(EMPTY), -1])

    assert shown is not None
    assert (shown.state, shown.version) == (State.HELD, EMPTY.version)
    assert shown.lease_ms == 1000


@pytest.mark.parametrize(("shown", "age_ms"), [(0, 0), (5, 5), (-1, None)])
def test_refusal_of_a_claim_tells_the_age_of_what_stands(shown: int, age_ms: int | None) -> None:
    """That of a key which is kept for a waiter is none."""
    refused = wire.reply_of(Claim(held("k"), Expect.ANY), [*row(EMPTY), shown, 0])

    assert (refused.applied, refused.age_ms) == (False, age_ms)


def test_claim_names_its_expectation() -> None:
    """Nothing, absence, or a version; the flags beside it."""
    plain, absent = (
        wire.claim_words(Claim(EMPTY, Expect.ANY), b""),
        wire.claim_words(Claim(EMPTY, Expect.ABSENT, must_exist=True), b""),
    )
    exact = wire.claim_words(Claim(EMPTY, Version("x", 9), keep_payload=True), b"place")

    assert plain[4:] == [b"", b""]
    assert absent[4:] == [b"ma", b""]
    assert exact[4:] == [b"kv", b"place", b"x", b"9"]


def test_reply_carries_what_was_written() -> None:
    """A token alone means the payload of the request; a pair, the one that was kept."""
    request = Replace(FULL, FULL.version, keep_payload=True)

    assert wire.reply_of(request, FULL.fencing_token) == Reply(applied=True, record=FULL)
    kept = wire.reply_of(request, [FULL.fencing_token, b"[]\n+d"]).record
    assert kept is not None
    assert (kept.data, kept.attributes) == (b"d", ())
    assert wire.reply_of(request, None) == Reply(applied=False, record=None)


def test_place_of_a_waiter_is_its_own_and_in_the_channel_of_its_store() -> None:
    """Two waiters never have one place, and no ticket can hold a character that parts the queue."""
    verbs = wire.RedisVerbs()
    places = {verbs.place(ticket) for ticket in ("t", "u", "t1", "\x1f", "\x1e")}

    assert len(places) == 5
    assert len(verbs.channel) == CHANNEL_LENGTH
    assert all(place.startswith(verbs.channel) and not {0x1E, 0x1F} & set(place) for place in places)
    assert wire.RedisVerbs().channel != verbs.channel


def test_list_of_a_waiter_lies_in_the_slot_of_its_key() -> None:
    """Where no name can lie there, no claim waits in the server."""
    able = [key for key in BRACES if wire.can_wait_in_server(key)]

    assert able == ["plain", "{tag}a", "a{tag}b"]
    assert [key_slot(wire._list_of(key, b"!place")) for key in able] == [key_slot(key.encode()) for key in able]


# Errors of the driver after which a request that was sent may or may not be applied; some it never raises for a request of dlock.
UNKNOWN = {
    "AskError",
    "ChildDeadlockedError",
    "ClusterCrossSlotError",
    "ClusterDownError",
    "ClusterError",
    "ConnectionError",
    "CrossSlotTransactionError",
    "DataError",
    "ExecAbortError",
    "IncorrectPolicyType",
    "InvalidPipelineStack",
    "InvalidResponse",
    "LockError",
    "LockNotOwnedError",
    "MasterDownError",
    "MaxConnectionsError",
    "ModuleError",
    "MovedError",
    "NoScriptError",
    "NoSuchFieldsetError",
    "OutOfMemoryError",
    "PubSubError",
    "ReadOnlyError",
    "RedisClusterException",
    "RedisError",
    "ResponseError",
    "TimeoutError",
    "TryAgainError",
    "WatchError",
}
DRIVERS = [each for _, each in inspect.getmembers(redis.exceptions, inspect.isclass) if issubclass(each, Exception)]


@pytest.mark.parametrize("error", DRIVERS, ids=lambda each: str(each.__name__))
def test_every_error_of_the_driver_is_decided(error: type[Exception]) -> None:
    """A new version of redis-py that adds one fails here, and somebody decides."""
    assert (error.__name__ in errors.CLASSES) is not (error.__name__ in UNKNOWN)
    if error.__name__ in UNKNOWN:
        assert isinstance(errors.trouble(made(error), "k", sent=True), OutcomeUnknownError)
    assert issubclass(error, errors.TROUBLE)


def made(error: type[Exception]) -> Exception:
    """Return an instance, whatever its constructor asks for."""
    made = error.__new__(error, "x")
    made.args = ("x",)
    return made


@pytest.mark.parametrize("error", DRIVERS, ids=lambda each: str(each.__name__))
def test_before_anything_was_sent_nothing_was_applied(error: type[Exception]) -> None:
    """No unknown outcome without a request."""
    assert not isinstance(errors.trouble(made(error), "k", sent=False), OutcomeUnknownError)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("LOADING Redis is loading the dataset in memory", StoreUnavailableError),
        ("BUSY Redis is busy running a script.", StoreUnavailableError),
        ("READONLY You can't write against a read only replica.", StoreUnavailableError),
        ("ERR Error running script (call to f_1): @user_script:3: -READONLY You can't write", StoreUnavailableError),
        ("MASTERDOWN Link with MASTER is down", StoreUnavailableError),
        ("OOM command not allowed when used memory > 'maxmemory'.", StoreUnavailableError),
        ("ERR max number of clients reached", StoreUnavailableError),
        ("DENIED Redis is running in protected mode because protected mode is enabled", StoreSetupError),
        ("MISCONF Redis is configured to save RDB snapshots", StoreUnavailableError),
        ("NOREPLICAS Not enough good replicas to write.", StoreUnavailableError),
        ("CLUSTERDOWN Hash slot not served", StoreUnavailableError),
        ("MOVED 3999 127.0.0.1:6381", StoreUnavailableError),
        ("ASK 3999 127.0.0.1:6381", StoreUnavailableError),
        ("CROSSSLOT Keys in request don't hash to the same slot", StoreSetupError),
        ("UNBLOCKED force unblock from blocking operation, instance state changed", StoreUnavailableError),
        ("UNKILLABLE Sorry the script already executed write commands", StoreUnavailableError),
        ("TRYAGAIN Multiple keys request during rehashing of slot", StoreUnavailableError),
        ("NOPERM this user has no permissions to run the 'evalsha' command", StoreSetupError),
        ("NOAUTH Authentication required.", StoreSetupError),
        ("ERR Protocol error: unauthenticated multibulk length", StoreSetupError),
        ("WRONGPASS invalid username-password pair or user is disabled.", StoreSetupError),
        ("NOPROTO unsupported protocol version", StoreSetupError),
        ("ERR unknown command 'EVALSHA', with args beginning with:", StoreSetupError),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", RecordError),
        ("DLOCKCLOCK its clock shows 5", StoreSetupError),
        ("DLOCKEND the fencing token", StoreUnavailableError),
        ("ERR something that nobody has thought of", OutcomeUnknownError),
        ("ERR invalid words of another thing than a password", OutcomeUnknownError),
    ],
)
def test_every_code_of_the_server_is_decided(text: str, kind: type[StoreError]) -> None:
    """Refused, misconfigured, or foreign; what is not known is unknown."""
    error = errors.trouble(ResponseError(text), "k", sent=True)

    assert (type(error), error.key) == (kind, "k")
    assert "'k'" in str(error)


@pytest.mark.parametrize(("verb", "kind"), [("claim", OutcomeUnknownError), ("read", StoreUnavailableError)])
def test_error_of_a_call_names_its_key(verb: str, kind: type[StoreError]) -> None:
    """A read wrote nothing; what is not the driver's is not translated."""
    call = Call(verb, "k", 1.0)

    error = wire.RedisVerbs().trouble(redis.TimeoutError("x"), call)

    assert (type(error), getattr(error, "key", None)) == (kind, "k")
    assert wire.RedisVerbs().trouble(ZeroDivisionError(), call) is None


def test_error_without_words_is_named_by_its_kind() -> None:
    """As a handshake that timed out: it has nothing to say."""
    error = errors.trouble(TimeoutError(), None, sent=False)

    assert str(error) == "the request failed at Redis: TimeoutError, no answer (nothing was applied)"
