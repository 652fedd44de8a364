"""The direct way: it sends what boto3 would, reads what boto3 would, and leaves to boto3 what only that can send."""

from __future__ import annotations

import json
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import botocore.session
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.client import BaseClient
from botocore.config import Config
from botocore.credentials import Credentials

from dlock_core.errors import OutcomeUnknownError, StoreSetupError, StoreUnavailableError
from dlock_core.store import Claim, Expect
from dlock_dynamodb import DynamoDBStore
from tests.dynamodb.support import (
    SELF_SIGNED,
    Stub,
    claimed,
    comes_true,
    ignore,
    record,
    session,
    stubbed,
    went_direct,
)


def of_keys(keys: Credentials) -> Any:
    """Return a session that has *keys*."""
    core = botocore.session.Session()
    core.set_credentials(keys.access_key, keys.secret_key, keys.token, account_id=keys.account_id)
    return boto3.Session(botocore_session=core, region_name="eu-west-1")


class TestRequests:
    """What is sent."""

    @pytest.mark.parametrize("token", [None, "a/session+token=="])
    def test_a_signature_is_that_of_botocore(self, stub: Stub, key: str, token: str | None) -> None:
        """For the keys of a user, and for those of a role, which come with a token."""
        keys = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", token)
        stub.says((200, {}))
        store = DynamoDBStore(of_keys(keys), table="locks", endpoint_url=stub.endpoint)

        store.read(key, timeout_s=10)
        store.close()

        [sent], [(_, body)] = stub.headers, stub.requests
        theirs = AWSRequest("POST", f"{stub.endpoint}/", data=json.dumps(body).encode())
        theirs.context["timestamp"] = sent["X-Amz-Date"]
        for name in ("Content-Type", "X-Amz-Target", "X-Amz-Date", *(["X-Amz-Security-Token"] if token else [])):
            theirs.headers[name] = sent[name]
        signer = SigV4Auth(keys, "dynamodb", "eu-west-1")
        signature = signer.signature(signer.string_to_sign(theirs, signer.canonical_request(theirs)), theirs)
        assert sent["Authorization"].endswith(f"Signature={signature}")
        assert sent["X-Amz-Security-Token"] == token
        assert went_direct(store)

    def test_a_request_is_that_of_boto3(self, stub: Stub, key: str) -> None:
        """The same operation, body, kind of content and name of the agent; of what is signed, boto3 leaves out nothing either."""
        stub.says((200, {}))
        asked = Claim(record(key, data=bytes(range(256))), Expect.ANY)
        for handles in (False, True):
            driver = session().client("dynamodb", endpoint_url=stub.endpoint, config=Config(user_agent_extra="team/7"))
            if handles:
                driver.meta.events.register("before-send.dynamodb", ignore)
            store = DynamoDBStore(driver, table="locks")
            with pytest.raises(OutcomeUnknownError):
                store.claim(asked, timeout_s=10)
            assert went_direct(store) is not handles
            store.close()

        ours, theirs = stub.headers
        assert stub.requests[0] == stub.requests[1]
        for name in ("Content-Type", "X-Amz-Target", "User-Agent", "Host", "Accept-Encoding", "Content-Length"):
            assert ours[name] == theirs[name], name
        assert "team/7" in ours["User-Agent"]
        signed = [headers["Authorization"].partition("SignedHeaders=")[2].partition(",")[0] for headers in stub.headers]
        assert signed[0] == signed[1]

    def test_an_account_has_its_own_endpoint(self) -> None:
        """As boto3's rules say, once for each account."""
        store = DynamoDBStore(of_keys(Credentials("a", "b", "t", account_id="123456789012")), table="locks")

        way = store._link._direct("123456789012", lambda call: call())
        store.close()

        assert way is not None
        assert way._address == ("123456789012.ddb.eu-west-1.amazonaws.com", 443)
        assert way._host == "123456789012.ddb.eu-west-1.amazonaws.com"


def proxied(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> dict[str, Any]:
    """Name a proxy in the environment: the server itself, which is asked for a whole URL then."""
    monkeypatch.setenv("HTTP_PROXY", endpoint)
    monkeypatch.setenv("NO_PROXY", "")
    return {"endpoint_url": "http://dynamodb.test"}


def configured(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> dict[str, Any]:
    """Name it in the configuration of a client."""
    config = Config(proxies={"http": endpoint})
    return {"driver": session().client("dynamodb", endpoint_url="http://dynamodb.test", config=config)}


def certified(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> dict[str, Any]:
    """Give the client a certificate of its own."""
    return {"driver": session().client("dynamodb", endpoint_url=endpoint, config=Config(client_cert="client.pem"))}


def below(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> dict[str, Any]:
    """Put the service below a path."""
    return {"endpoint_url": f"{endpoint}/below"}


def unsigned(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> dict[str, Any]:
    """Sign nothing, though there are keys."""
    driver = session()
    driver._session.set_default_client_config(Config(signature_version=botocore.UNSIGNED))
    return {"driver": driver, "endpoint_url": endpoint}


def handled(event: str) -> Callable[..., dict[str, Any]]:
    """Handle an event of the session."""

    def way(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> dict[str, Any]:
        driver = session()
        driver.events.register(event, ignore)
        return {"driver": driver, "endpoint_url": endpoint}

    return way


def handled_by_client(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> dict[str, Any]:
    """Handle an event of a client."""
    driver = session().client("dynamodb", endpoint_url=endpoint)
    driver.meta.events.register("after-call.dynamodb.GetItem", ignore)
    return {"driver": driver}


def traced(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> dict[str, Any]:
    """Put a function before every call, as tracers do."""
    call = BaseClient._make_api_call

    def traced_call(*arguments: Any) -> Any:
        return call(*arguments)

    monkeypatch.setattr(BaseClient, "_make_api_call", traced_call)
    return {"endpoint_url": endpoint}


@pytest.mark.parametrize(
    "setting",
    [
        proxied,
        configured,
        certified,
        below,
        unsigned,
        handled("before-send.dynamodb.GetItem"),
        handled("provide-client-params.*.Scan"),
        handled("request-created"),
        handled_by_client,
        traced,
    ],
)
def test_boto3_sends_what_only_boto3_can(
    stub: Stub, key: str, monkeypatch: pytest.MonkeyPatch, setting: Callable[..., dict[str, Any]]
) -> None:
    """A setting that the direct way does not know is not passed over."""
    stub.says((200, {}))
    options = setting(monkeypatch, stub.endpoint)
    store = DynamoDBStore(options.pop("driver", None) or session(), table="locks", **options)

    assert store.read(key, timeout_s=10) is None
    store.close()

    assert not went_direct(store)
    assert [name for name, _ in stub.requests] == ["GetItem"]


def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """Return how a server encrypts whose certificate is trusted, as AWS_CA_BUNDLE names it."""
    pem = tmp_path / "self-signed.pem"
    pem.write_text(SELF_SIGNED)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context


def test_a_private_authority_is_trusted(tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where AWS_CA_BUNDLE names it; the connection is kept, and an answer in pieces is put together."""
    with stubbed(trusted(tmp_path, monkeypatch)) as stub:
        stub.says((200, {"Unknown": "x" * 100_000}))
        store = DynamoDBStore(session(), table="locks", endpoint_url=stub.endpoint)

        assert [store.read(key, timeout_s=10) for _ in range(3)] == [None] * 3
        store.close()

        assert len(stub.requests) == 3
    assert went_direct(store)


def test_an_authority_that_boto3_trusts_is_trusted_however_loosely_it_was_made(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.13 and newer refuse one by default that leaves out what RFC 5280 asks for, as those of many gateways do; boto3 takes it."""
    plain = ssl.create_default_context

    def strict(**options: Any) -> ssl.SSLContext:
        context = plain(**options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    (tmp_path / "ca.cnf").write_text(
        "[req]\ndistinguished_name=dn\nx509_extensions=ca\n[dn]\n[ca]\nbasicConstraints=CA:TRUE\n"
    )
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for line in (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=gateway -config ca.cnf -keyout key.pem -out ca.pem",
        "req -new -key key.pem -subj /CN=localhost -config ca.cnf -out request.pem",
        "x509 -req -in request.pem -CA ca.pem -CAkey key.pem -CAcreateserial -days 2 -extfile names -out server.pem",
    ):
        subprocess.run(["openssl", *line.split()], cwd=tmp_path, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "server.pem", tmp_path / "key.pem")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    with stubbed(tls) as stub:
        stub.says((200, {}))
        store = DynamoDBStore(session(), table="locks", endpoint_url=stub.endpoint)

        assert store.read(key, timeout_s=10) is None
        store.close()

    assert went_direct(store)


def test_an_encrypted_connection_that_came_late_is_used_by_the_next_request(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies there with what TLS 1.3 says after the handshake; where handshakes are slow, no request would ever be sent otherwise."""
    with stubbed(trusted(tmp_path, monkeypatch)) as stub:
        stub.says((200, {}))
        store = DynamoDBStore(session(), table="locks", endpoint_url=stub.endpoint)
        greet, greeted = ssl.SSLSocket.do_handshake, []

        def slow(peer: ssl.SSLSocket, block: bool = False) -> None:
            greet(peer, block)
            if not peer.server_side:
                greeted.append(peer)
                time.sleep(0.5)  # longer than the request has

        monkeypatch.setattr(ssl.SSLSocket, "do_handshake", slow)
        with pytest.raises(StoreUnavailableError):
            store.read(key, timeout_s=0.2)
        [direct] = store._link._directs.values()
        assert direct is not None
        comes_true(lambda: len(direct.pools[0].shelf) == 1, "the late connection")

        assert store.read(key, timeout_s=10) is None
        store.close()

    assert len(greeted) == 1


def test_an_authority_that_cannot_be_read_is_named(tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent to who can't be checked."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "none.pem"))
    store = DynamoDBStore(session(), table="locks", endpoint_url="https://127.0.0.1:1")

    with pytest.raises(StoreSetupError, match=r"none\.pem"):
        store.claim(Claim(record(key), Expect.ANY), timeout_s=10)
    store.close()


def test_a_server_that_has_another_name_gets_nothing(tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its certificate is of an authority that is trusted, and for 127.0.0.1 only."""
    with stubbed(trusted(tmp_path, monkeypatch)) as stub:
        stub.says((200, {}))
        endpoint = stub.endpoint.replace("127.0.0.1", "localhost")
        store = DynamoDBStore(session(), table="locks", endpoint_url=endpoint)

        with pytest.raises(StoreSetupError, match="not trusted"):
            store.read(key, timeout_s=10)
        store.close()

        assert stub.requests == []
    assert went_direct(store)


def test_a_lock_in_use_is_renewed_and_read_as_it_was_written(store: DynamoDBStore, key: str) -> None:
    """On the real server: bytes, and a refusal that shows the row."""
    held = claimed(store, key, data=bytes(range(256)))

    refused = store.claim(Claim(record(key), Expect.ANY), timeout_s=10)

    assert store.read(key, timeout_s=10) == held == refused.record
    assert not refused.applied
    assert went_direct(store)
