"""Trouble between the DynamoDB store and its server: lost replies, time-outs, errors."""

from __future__ import annotations

import os
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from dlock_conformance.servers import free_port

from dlock_core.errors import OutcomeUnknownError, StoreError, StoreSetupError, StoreUnavailableError
from dlock_core.record import State, Version
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from dlock_dynamodb import DynamoDBStore
from tests.dynamodb.support import (
    SELF_SIGNED,
    CuttingProxy,
    Stub,
    claimed,
    comes_true,
    ignore,
    record,
    session,
    stubbed,
    went_direct,
)
from tests.scripted import ScriptedServer
from tests.stopping import stop

OpenStore = Callable[..., DynamoDBStore]


# What a busy machine may add.
SLACK_S = 1.0


@pytest.fixture
def proxy(endpoint: str) -> Iterator[CuttingProxy]:
    """Put a proxy before the server."""
    between = CuttingProxy(endpoint)
    yield between
    between.close()


def ask(store: DynamoDBStore, verb: str, key: str, held: Version) -> Callable[[float], object]:
    """Return the call of *verb*."""
    calls: dict[str, Callable[[float], object]] = {
        "claim": lambda timeout_s: store.claim(Claim(record(key), Expect.ANY), timeout_s=timeout_s),
        "replace": lambda timeout_s: store.replace(Replace(record(key), held), timeout_s=timeout_s),
        "release": lambda timeout_s: store.release(Release(record(key, State.FREE), held), timeout_s=timeout_s),
        "replace_many": lambda timeout_s: store.replace_many([Replace(record(key), held)], timeout_s=timeout_s),
        "read": lambda timeout_s: store.read(key, timeout_s=timeout_s),
        "scan": lambda timeout_s: list(store.scan(key, timeout_s=timeout_s)),
    }
    return calls[verb]


WRITES = ["claim", "replace", "release", "replace_many"]


VERBS = [*WRITES, "read", "scan"]


class TestLostReplies:
    """The server has applied it, and the connection ends before the answer is there."""

    @pytest.mark.parametrize("verb", WRITES)
    def test_a_lost_reply_is_unknown_and_was_sent_once(
        self, store: DynamoDBStore, open_store: OpenStore, proxy: CuttingProxy, key: str, verb: str
    ) -> None:
        """Neither a grant nor a refusal, and no second send behind the core's back."""
        cut = open_store(endpoint_url=proxy.endpoint)
        before = claimed(cut, key)
        if verb == "claim":
            store.release(Release(record(key, State.FREE), before.version), timeout_s=10)
        sent = proxy.requests

        proxy.cutting = True
        with pytest.raises(OutcomeUnknownError) as caught:
            ask(cut, verb, key, before.version)(10)
        proxy.cutting = False

        assert caught.value.__cause__ is not None
        assert proxy.requests - sent == 1
        after = store.read(key, timeout_s=10)
        assert after is not None
        assert after.rvn != before.rvn
        assert cut.read(key, timeout_s=10) == after

    def test_the_refusal_of_the_next_step_shows_what_became_of_it(
        self, store: DynamoDBStore, open_store: OpenStore, proxy: CuttingProxy, key: str
    ) -> None:
        """A renewal whose reply was lost is found by its RVN in the refusal of the next."""
        cut = open_store(endpoint_url=proxy.endpoint)
        held = claimed(cut, key)
        lost, following = record(key), record(key)

        proxy.cutting = True
        [result] = _results(cut, [Replace(lost, held.version)])
        proxy.cutting = False
        reply = cut.replace(Replace(following, held.version), timeout_s=10)

        assert isinstance(result, OutcomeUnknownError)
        assert reply == Reply(applied=False, record=lost)


def _results(store: DynamoDBStore, requests: list[Replace]) -> list[Reply | StoreError]:
    try:
        return list(store.replace_many(requests, timeout_s=10))
    except StoreError as error:
        return [error]


class TestTimeouts:
    """A verb ends when it was told to."""

    @pytest.mark.parametrize("timeout_s", [0.3, 1.0])
    def test_a_server_that_hangs_holds_nobody(self, server: ScriptedServer, key: str, timeout_s: float) -> None:
        """Each call of one store has its own time-out, with warm connections and with new ones."""
        store = DynamoDBStore(session(), table="dlock-tests-hang", endpoint_url=server.told)
        store.provision()
        held = claimed(store, key)
        store.read(key, timeout_s=timeout_s)
        pid = server.pid
        took = {}

        stop(pid)
        try:
            for verb in VERBS:
                began = time.monotonic()
                with pytest.raises(OutcomeUnknownError if verb in WRITES else StoreUnavailableError):
                    ask(store, verb, key, held.version)(timeout_s)
                took[verb] = time.monotonic() - began
        finally:
            os.kill(pid, signal.SIGCONT)
        store.close()

        assert max(took.values()) <= timeout_s + SLACK_S, took

    def test_a_refused_connection_is_not_applied(self, open_store: OpenStore, key: str) -> None:
        """At once, and certainly."""
        store = open_store(endpoint_url=f"http://127.0.0.1:{free_port()}")

        for verb in VERBS:
            with pytest.raises(StoreUnavailableError) as caught:
                ask(store, verb, key, Version("r", 1))(10)
            assert caught.value.__cause__ is not None

    @pytest.mark.parametrize("timeout_s", [0.0, -1.0, 0.001])
    def test_no_time_left_means_not_sent(self, told: DynamoDBStore, stub: Stub, key: str, timeout_s: float) -> None:
        """A call that can't end in time does not begin."""
        for verb in WRITES:
            with pytest.raises(StoreUnavailableError, match="too short"):
                ask(told, verb, key, Version("r", 1))(timeout_s)
        assert stub.requests == []

    def test_a_few_clients_serve_all_time_outs(self, store: DynamoDBStore) -> None:
        """They are kept by powers of two; each gives a request all of its time, and gives it up not long after that."""
        for thousandths in range(16, 40_000, 7):
            timeout_s = thousandths / 1000
            config = store._link.fit(timeout_s).meta.config
            assert timeout_s <= config.read_timeout < 2 * timeout_s
            assert config.connect_timeout == config.read_timeout / 2
            assert config.retries["total_max_attempts"] == 1
        assert len(store._link._clients) == 12

    def test_an_interrupted_close_is_done_by_the_next(
        self, store: DynamoDBStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ctrl-C comes while the first client is being closed; a second close() closes that one and all others."""
        clients = [store._link.fit(timeout_s) for timeout_s in (1.0, 2.0, 4.0)]
        closed: list[object] = []

        def note(client: object) -> None:
            closed.append(client)
            if len(closed) == 1:
                raise KeyboardInterrupt

        for client in clients:
            monkeypatch.setattr(client, "close", partial(note, client))
        with pytest.raises(KeyboardInterrupt):
            store.close()

        store.close()

        assert {id(client) for client in clients} <= {id(client) for client in closed[1:]}


class TestTransport:
    """TLS, and the settings of the environment."""

    def test_a_certificate_that_is_not_trusted_is_told(self, tmp_path: Path, key: str) -> None:
        """Nothing is sent to who can't show who it is."""
        pem = tmp_path / "self-signed.pem"
        pem.write_text(SELF_SIGNED)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        with stubbed(context) as stub:
            stub.says((200, {}))
            store = DynamoDBStore(session(), table="locks", endpoint_url=stub.endpoint)

            for verb in VERBS:
                with pytest.raises(StoreSetupError, match="not trusted"):
                    ask(store, verb, key, Version("r", 1))(10)
            store.close()

            assert stub.requests == []

    def test_a_server_without_tls_gets_nothing(self, told: DynamoDBStore, stub: Stub, key: str) -> None:
        """The handshake fails before there is anything to read."""
        store = DynamoDBStore(session(), table="locks", endpoint_url=stub.endpoint.replace("http:", "https:"))

        with pytest.raises(StoreUnavailableError):
            store.guarantees()
        with pytest.raises(StoreUnavailableError):
            store.claim(Claim(record(key), Expect.ANY), timeout_s=1)
        store.close()

        assert stub.requests == []

    def test_the_environment_can_not_weaken_it(self, monkeypatch: pytest.MonkeyPatch, stub: Stub, key: str) -> None:
        """Ten attempts that adapt to throttling are right for others."""
        monkeypatch.setenv("AWS_RETRY_MODE", "adaptive")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "10")
        monkeypatch.setenv("AWS_ENABLE_ENDPOINT_DISCOVERY", "true")
        stub.fails("ThrottlingException")
        store = DynamoDBStore(session(), table="locks", endpoint_url=stub.endpoint)

        began = time.monotonic()
        for _ in range(20):
            with pytest.raises(StoreUnavailableError):
                store.claim(Claim(record(key), Expect.ANY), timeout_s=10)
        took = time.monotonic() - began
        store.close()

        assert [name for name, _ in stub.requests] == ["UpdateItem"] * 20
        assert took < 5


class TestErrors:
    """What the service may answer and DynamoDB Local never does."""

    @pytest.mark.parametrize(
        ("code", "status", "kind"),
        [
            ("ProvisionedThroughputExceededException", 400, StoreUnavailableError),
            ("ThrottlingException", 400, StoreUnavailableError),
            ("RequestLimitExceeded", 400, StoreUnavailableError),
            ("TransactionConflictException", 400, StoreUnavailableError),
            ("InternalServerError", 500, OutcomeUnknownError),
            ("ServiceUnavailable", 503, OutcomeUnknownError),
            ("ExpiredTokenException", 400, StoreSetupError),
            ("UnrecognizedClientException", 400, StoreSetupError),
            ("InvalidSignatureException", 403, StoreSetupError),
            ("ResourceNotFoundException", 400, StoreSetupError),
        ],
    )
    @pytest.mark.parametrize("verb", WRITES)
    def test_an_error_of_the_service_has_its_class_and_is_sent_once(  # noqa: PLR0917  # pytest passes names
        self, told: DynamoDBStore, stub: Stub, key: str, verb: str, code: str, status: int, kind: type[StoreError]
    ) -> None:
        """As botocore really raises it, from the bytes of the answer."""
        stub.fails(code, status, message="AKIAHUNTER hunter2")

        with pytest.raises(kind) as caught:
            ask(told, verb, key, Version("r", 1))(10)

        assert type(caught.value) is kind
        assert "hunter" not in str(caught.value).lower()
        assert len(stub.requests) == 1

    @pytest.mark.parametrize("body", [b"<html>sign in</html>", b"\xff\xfe", b"{}", b'{"Attributes": 7}', b""])
    @pytest.mark.parametrize("verb", [*WRITES, "read"])
    def test_an_answer_that_is_none_is_no_grant_and_no_absence(
        self, told: DynamoDBStore, stub: Stub, key: str, verb: str, body: bytes
    ) -> None:
        """A gateway's page with status 200 proves nothing."""
        stub.says((200, body))

        if verb == "read":
            if body == b"{}":
                assert told.read(key, timeout_s=10) is None
                return
            with pytest.raises(StoreUnavailableError):
                told.read(key, timeout_s=10)
        else:
            with pytest.raises(OutcomeUnknownError):
                ask(told, verb, key, Version("r", 1))(10)

    @pytest.mark.parametrize("verb", ["claim", "read"])
    @pytest.mark.parametrize("status", [200, 302, 403, 407, 502])
    def test_a_page_of_a_proxy_is_told_as_that(
        self, told: DynamoDBStore, stub: Stub, key: str, verb: str, status: int
    ) -> None:
        """It said "403 (HTTP 403): DynamoDB failed", or nothing at all: an operator looked there for what a proxy had refused."""
        stub.says((status, b"<html>your administrator has blocked this page</html>"))

        with pytest.raises(StoreError, match=r"perhaps a proxy .*HTTPS_PROXY") as caught:
            ask(told, verb, key, Version("r", 1))(10)

        assert type(caught.value) is (StoreUnavailableError if verb == "read" else OutcomeUnknownError)
        assert "DynamoDB failed" not in str(caught.value)

    @pytest.mark.parametrize(
        ("code", "mend"),
        [
            ("ExpiredTokenException", "reads those of the environment or of a file once, so open the client anew"),
            ("UnrecognizedClientException", "open the client anew when they are renewed"),
            ("InvalidSignatureException", "clock is off by minutes, or endpoint_url is of another region"),
        ],
    )
    def test_refused_credentials_name_what_may_be_wrong_with_them(
        self, told: DynamoDBStore, stub: Stub, key: str, code: str, mend: str
    ) -> None:
        """Who had renewed a file was told to run a command that finds nothing wrong, as was who had named another region's endpoint."""
        stub.fails(code)

        with pytest.raises(StoreSetupError, match=mend):
            told.read(key, timeout_s=10)

    def test_an_applied_write_that_shows_a_damaged_item_is_unknown(
        self, told: DynamoDBStore, stub: Stub, key: str
    ) -> None:
        """RecordError would say that nothing was written, and leave a held record behind."""
        stub.says((200, {"Attributes": {"key": {"S": key}, "v": {"N": "1"}}}))

        with pytest.raises(OutcomeUnknownError, match="it was written"):
            told.claim(Claim(record(key), Expect.ANY), timeout_s=10)

    @pytest.mark.parametrize("verb", VERBS)
    def test_a_mistake_of_dlock_itself_comes_out(
        self, told: DynamoDBStore, stub: Stub, key: str, monkeypatch: pytest.MonkeyPatch, verb: str
    ) -> None:
        """It is no trouble with the server: told as such, nobody would ever look for it."""

        def wrong(*_: object) -> None:
            raise TypeError("a mistake")

        stub.says(
            (200, {"Item": {"key": {"S": key}}, "Items": [{"key": {"S": key}}], "Attributes": {"key": {"S": key}}})
        )
        for name in ("record", "statement"):
            monkeypatch.setattr(type(told._verbs.rows), name, wrong)

        with pytest.raises(TypeError, match="a mistake"):
            ask(told, verb, key, Version("r", 1))(10)


@pytest.mark.parametrize("way", ["direct", "boto3"])
def test_a_way_that_is_gone_costs_a_lock_one_renewal_however_many_connections_were_idle(
    open_store: OpenStore, proxy: CuttingProxy, key: str, way: str
) -> None:
    """The renewal after the one that got no answer has a new connection: a lease has time for two."""
    driver = session()
    if way == "boto3":
        driver.events.register("before-send.dynamodb", ignore)
    store = open_store(driver, endpoint_url=proxy.endpoint)
    held = claimed(store, key)
    assert went_direct(store) == (way == "direct")
    proxy.passing.clear()
    # With time-outs that boto3 has one client for.
    keepers = [threading.Thread(target=store.replace, args=(_lost(key),), kwargs={"timeout_s": 7.9}) for _ in range(6)]
    for keeper in keepers:
        keeper.start()
    comes_true(lambda: len(proxy.connected) >= len(keepers), "a connection for each")
    proxy.passing.set()
    for keeper in keepers:
        keeper.join()
    renewal = Replace(record(key), held.version)

    proxy.strand()
    with pytest.raises(OutcomeUnknownError):
        store.replace(renewal, timeout_s=4.1 if way == "boto3" else 0.5)
    assert store.replace(renewal, timeout_s=4.1).applied


def _lost(key: str) -> Replace:
    return Replace(record(key), Version("another", 1))
