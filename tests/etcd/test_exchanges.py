"""What an answer that is an error means, what is sent after it, and what is told where the stream that wakes waiters ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from dlock_core.errors import OutcomeUnknownError, RecordError, StoreError, StoreSetupError, StoreUnavailableError
from dlock_etcd import EtcdStore, _schema, _watch
from dlock_etcd._errors import error_of
from dlock_etcd._verbs import EtcdVerbs
from dlock_etcd.options import EtcdStoreOptions
from tests.etcd.support import TIMEOUT_S, Refusal, administer, any_claim, coded, held, renewed


@pytest.mark.parametrize(
    ("code", "said", "kind"),
    [
        ("UNAVAILABLE", "etcdserver: request timed out", OutcomeUnknownError),
        ("UNAVAILABLE", "etcdserver: request timed out, possibly due to previous leader failure", OutcomeUnknownError),
        ("UNAVAILABLE", "etcdserver: leader changed", OutcomeUnknownError),
        ("UNAVAILABLE", "Socket closed", OutcomeUnknownError),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", OutcomeUnknownError),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", OutcomeUnknownError),
        ("RESOURCE_EXHAUSTED", "Received message larger than max", OutcomeUnknownError),
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", StoreUnavailableError),
        ("UNAVAILABLE", "failed to connect to all addresses; last error: …", StoreUnavailableError),
        ("UNAVAILABLE", "DNS resolution failed for host.invalid:2379: …", StoreUnavailableError),
        ("UNAVAILABLE", "errors resolving host.invalid: …", StoreUnavailableError),
        ("UNAVAILABLE", "Failed parsing HTTP/2", StoreUnavailableError),
        ("UNAVAILABLE", "etcdserver: rpc not supported for learner", StoreUnavailableError),
        ("INVALID_ARGUMENT", "etcdserver: revision of auth store is old", StoreUnavailableError),
        ("NOT_FOUND", "etcdserver: requested lease not found", StoreUnavailableError),
        ("PERMISSION_DENIED", "etcdserver: permission denied", StoreSetupError),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token", StoreSetupError),
        ("UNIMPLEMENTED", "unknown service etcdserverpb.KV", StoreSetupError),
        ("INVALID_ARGUMENT", "etcdserver: too many operations in txn request", StoreSetupError),
        ("INVALID_ARGUMENT", "etcdserver: request is too large", RecordError),
    ],
)
def test_only_what_is_certain_is_said_to_be_not_applied(code: str, said: str, kind: type[StoreError]) -> None:
    """A write that etcd gives up, or answers with 'no space', may stand; the same answer to a read is no unknown outcome."""
    refusal = Refusal(grpc.StatusCode[code], said)

    told = error_of(refusal, "k", writes=True), error_of(refusal, "k", writes=False)

    assert [type(each) for each in told] == [kind, StoreUnavailableError if kind is OutcomeUnknownError else kind]
    assert [getattr(each, "key", None) for each in told] == ["k", "k"]
    assert all(str(each).startswith("etcd ") and "lock 'k'" in str(each) for each in told)
    assert ["alarm disarm" in str(each) for each in told] == ["space exceeded" in said] * 2


def test_error_that_is_not_of_the_driver_is_left_as_it_is() -> None:
    """It is a mistake of the program, which no second try mends."""
    assert error_of(ValueError("a mistake"), "k", writes=True) is None


class _Call:
    """A watch that gives *answers*, and ends."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._answers)

    async def read(self) -> Any:
        return self._answers.pop(0) if self._answers else grpc.aio.EOF


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (
            [{"canceled": True, "cancel_reason": "etcdserver: permission denied"}],
            "locks: etcdserver: permission denied",
        ),
        ([{"canceled": True}], "locks: no reason given"),
        ([], "etcd ended the watch of the locks"),
    ],
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_watch_that_etcd_ends_is_told_with_the_reason(
    answers: list[dict[str, Any]], why: str, *, asynchronous: bool
) -> None:
    """Who waits asks again; it is no news."""
    call = _Call(*(_schema._CLASSES["WatchAnswer"](**answer) for answer in answers))

    async def next_news() -> Any:
        return await _watch.AsyncStream(call).try_next(TIMEOUT_S)

    with pytest.raises(StoreUnavailableError, match=why):
        asyncio.run(next_news()) if asynchronous else _watch.Stream(call).try_next(TIMEOUT_S)


def test_watch_that_etcd_does_not_open_is_told_and_closed() -> None:
    """Nobody would hear of its news, and what stays open costs the server."""
    closed: list[str] = []

    class Silent:
        def try_next(self, _: float) -> None:
            return None

        def close(self) -> str:
            return "close"

    steps = _watch.opened(Silent())
    next(steps)
    closed.append(steps.send(None))
    with pytest.raises(StoreUnavailableError, match="did not open the watch of the locks within 10 s"):
        steps.send(None)

    assert closed == ["close"]


def _verbs() -> EtcdVerbs:
    return EtcdVerbs(EtcdStoreOptions.from_url("etcd://host/queue"))


def refusal(said: str) -> Refusal:
    """Return one of the errors that etcd has for a request."""
    codes = {
        "etcdserver: request timed out": grpc.StatusCode.UNAVAILABLE,
        "etcdserver: too many requests": grpc.StatusCode.RESOURCE_EXHAUSTED,
        "etcdserver: invalid auth token": grpc.StatusCode.UNAUTHENTICATED,
    }
    return Refusal(codes.get(said, grpc.StatusCode.INVALID_ARGUMENT), said)


UNKNOWN_AND_REFUSED = ["etcdserver: request timed out", "etcdserver: too many requests"]


def test_each_client_has_a_lease_of_its_own() -> None:
    """One that all had would be kept by those who live, and with it the places of those who died."""
    queues = [_verbs().queue for _ in range(2)]

    asked = [next(queue.enter(queue.attend("key", "ticket", 0.0), held("key"))).message.id for queue in queues]

    assert asked[0] != asked[1]


def test_places_of_before_are_kept_no_more_once_the_stream_is_opened_anew() -> None:
    """A copy that was restored has some of which nobody knows any more; kept, they would block their key for ever."""
    queue = _verbs().queue
    queue._lease = 5

    queue.begin_anew()

    assert list(queue.upkeep()) == []


def test_place_is_of_one_key() -> None:
    """Whatever else waits under the same ticket: a claim takes no place away in another queue."""
    queue = _verbs().queue
    queue.attend("key", "ticket", 0.0)

    own = queue.own("other", "ticket")

    assert own is not None
    assert own.key == "other"


@pytest.mark.parametrize("said", UNKNOWN_AND_REFUSED)
def test_lease_of_a_place_that_is_not_granted_is_no_lease(said: str) -> None:
    """A place with it would be refused, too, and the error would be that of the place."""
    queue = _verbs().queue
    entering = queue.enter(queue.attend("key", "ticket", 0.0), held("key"))
    next(entering)

    with pytest.raises(Refusal):
        entering.throw(refusal(said))

    assert not queue._lease


@pytest.mark.parametrize("said", UNKNOWN_AND_REFUSED)
def test_place_that_is_not_granted_is_asked_for_once(said: str) -> None:
    """Only where its lease was lost it is asked for with another: a server that is overloaded has no more to do."""
    queue = _verbs().queue
    queue._lease = 5
    entering = queue.enter(queue.attend("key", "ticket", 0.0), held("key"))
    next(entering)

    with pytest.raises(Refusal):
        entering.throw(refusal(said))

    assert queue._lease == 5


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        *((said, 1) for said in UNKNOWN_AND_REFUSED),
        ("etcdserver: too many operations in txn request", 2),
        ("etcdserver: request is too large", 2),
    ],
)
def test_only_a_batch_that_was_too_much_is_sent_again_in_parts(said: str, parts: int) -> None:
    """Of another one that was refused each part would be, too, and of one without an answer it is not known what was applied."""
    renewing = _verbs().replace_many([renewed(held(key)) for key in ("a", "b")])
    next(renewing)

    sent, results = 1, None
    while results is None:
        try:
            renewing.throw(refusal(said))
        except StopIteration as ended:
            results = ended.value
        else:
            sent += 1

    assert sent == 2 * parts - 1
    assert all(isinstance(result, StoreError) for result in results)


@pytest.mark.parametrize(
    ("said", "requests"),
    [
        *((said, ["Txn"]) for said in UNKNOWN_AND_REFUSED),
        *(
            (said, ["Txn", "Authenticate"])
            for said in (
                "etcdserver: invalid auth token",
                "etcdserver: user name is empty",
                "etcdserver: revision of auth store is old",
            )
        ),
    ],
)
def test_only_what_lacked_a_token_is_sent_again_with_another(said: str, requests: list[str]) -> None:
    """What else has failed may have been applied: sent again, a claim would be refused by its own record."""
    store, sent = EtcdStore("etcd://user:secret@host"), list[str]()

    def failing(request: Any, *_: Any) -> Any:
        sent.append(request.method.path.rpartition("/")[2])
        raise refusal(said)

    store._link._token, store._link._call = "token", failing
    with pytest.raises(StoreError):
        store.claim(any_claim("key"), timeout_s=TIMEOUT_S)
    store.close()

    assert sent == requests


@pytest.mark.parametrize(
    ("said", "renewed_files", "anew"),
    [
        ("failed to connect to all addresses; last error: CERTIFICATE_VERIFY_FAILED", True, True),
        ("failed to connect to all addresses; last error: CERTIFICATE_VERIFY_FAILED", False, False),
        ("failed to connect to all addresses; last error: connection refused", True, False),
    ],
)
def test_certificate_that_is_refused_is_shown_no_more_once_its_file_was_written_anew(
    tmp_path: Path, said: str, *, renewed_files: bool, anew: bool
) -> None:
    """A channel shows the one that it was made with; where that has not changed, or is not the trouble, it finds its way back itself."""
    (tmp_path / "ca.pem").write_text("old")
    store = EtcdStore(f"etcd://host?tls=true&tls_ca={tmp_path}/ca.pem")
    link, made = store._link, list[str]()

    def make(*_: Any, **options: Any) -> Any:
        made.append((tmp_path / "ca.pem").read_text())
        return SimpleNamespace(close=lambda: None)

    def failing(*_: Any) -> Any:
        if renewed_files:
            (tmp_path / "ca.pem").write_text("new")
        raise Refusal(grpc.StatusCode.UNAVAILABLE, said)

    link._grpc, link._call = SimpleNamespace(secure_channel=make), failing
    with pytest.raises(StoreUnavailableError):
        store.read("key", timeout_s=0.01)
    store.close()

    assert made == ["old", "new"] if anew else made == ["old"]


def test_login_without_an_answer_has_the_next_one_go_by_a_new_connection() -> None:
    """What is between may be gone without a word: each login was given up on the old one, and all locks were lost."""
    store, made, answers = EtcdStore("etcd://user:secret@host"), list[object](), threading.Event()
    link = store._link

    def make(*_: Any, **options: Any) -> Any:
        made.append(object())
        return SimpleNamespace(close=lambda: None)

    def silent(request: Any, *_: Any) -> Any:
        if request.method.path.endswith("/Authenticate"):
            answers.wait(TIMEOUT_S)
        raise refusal("etcdserver: invalid auth token")

    link._grpc, link._call, link._token = SimpleNamespace(insecure_channel=make), silent, "ended"
    with pytest.raises(StoreUnavailableError, match="has not checked the password in time"):
        store.claim(any_claim("key"), timeout_s=0.4)
    answers.set()
    store.close()

    assert len(made) == 2


def test_who_waits_for_a_damaged_record_is_told_at_once(store: EtcdStore, address: str, key: str) -> None:
    """By its claim, which reads what stands; it has no need to wait for a change."""
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None
    administer(address, "kv/put", key=coded(f"tests/lock/{key}"), value=coded("damaged"))
    began = time.monotonic()

    store.wait(record, ticket="t", timeout_s=TIMEOUT_S)

    assert time.monotonic() - began < TIMEOUT_S
