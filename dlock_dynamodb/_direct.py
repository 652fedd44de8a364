"""The direct way of a request: signed here and sent on a kept connection, where every wait ends with the time-out of the verb.

boto3 needs longer to make a request than DynamoDB Local to answer it. What it would do is asked of it once: its client says the endpoint,
the region, the kind of signature, the authority of certificates and the name of the agent. :func:`direct_of` returns None where only
boto3 can send as it is set up. Errors are read by botocore's own parser.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import ssl
import time
import zlib
from functools import lru_cache, reduce
from http import HTTPStatus
from types import FunctionType
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qs, urlsplit

import botocore.client
from botocore.exceptions import (
    ChecksumError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ReadTimeoutError,
    SSLError,
)
from botocore.httpsession import get_cert_path
from botocore.parsers import create_parser
from botocore.utils import get_environ_proxies

from dlock_core.errors import StoreSetupError
from dlock_core.kit import DeadlineSocket, DeadlineTLSSocket, PooledLink, is_idle
from dlock_dynamodb._errors import StrangeAnswerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlock_dynamodb._wire import Ask

# Requests that are under way at once, at most; beyond some 16 a Python process only gets slower.
CLAIMING, KEEPING = 16, 8
# How long a connection may take, however long its caller would wait: a handshake that hangs is tried again.
_CONNECT_S = 5.0
_ALGORITHM, _CONTENT = "AWS4-HMAC-SHA256", "application/x-amz-json-1.0"
_PIECE_BYTES = 65_536
_EVENTS = (
    "provide-client-params,before-parameter-build,before-endpoint-resolution,before-call,request-created,choose-signer,before-sign,"
    "before-send,response-received,needs-retry,after-call,after-call-error"
)
_OURS = ("boto3.", "botocore.", "dlock_dynamodb.")


class _Connection:
    """An open connection. It belongs to one request at a time."""

    fit = True

    def __init__(self, peer: DeadlineSocket) -> None:
        self._peer = peer
        self.close = peer.close

    def is_alive(self) -> bool:
        """Whether the server has said nothing since its last answer: its end, or what would be taken for the next answer."""
        return is_idle(self._peer)

    def send(self, message: bytes, deadline: float) -> dict[str, Any]:
        """Send *message*, which is signed, and return the answer, in the form that botocore's parser reads."""
        self.fit = False
        self._peer.deadline = deadline
        self._peer.sendall(message)
        answer, self.fit = _answer(self._more)
        return answer

    def disown(self) -> None:
        """In a forked child: give back the descriptor, and say nothing to the server."""
        if self._peer.fileno() >= 0:
            os.close(self._peer.detach())

    def _more(self) -> bytes:
        data = self._peer.recv(_PIECE_BYTES)
        if not data:
            raise ConnectionResetError("the connection was closed before the answer was whole")
        return data


class Direct(PooledLink):
    """The way to one endpoint, with connections for renewals and releases that no waiter can take."""

    def __init__(self, client: Any, url: SplitResult, region: str) -> None:
        self._client, self._model, self._parser = client, client.meta.service_model, create_parser("json")
        self._url, self._region = f"{url.scheme}://{url.netloc}", region
        self._host = url.netloc.removesuffix(":443" if url.scheme == "https" else ":80")
        self._address = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
        self._agent = client.meta.config.user_agent
        self._context = _context_of(client) if url.scheme == "https" else None
        super().__init__(self._connected, self._unconnected, most=CLAIMING, urgent=KEEPING)

    def ask(self, ask: Ask, keys: Any, deadline: float) -> dict[str, Any]:
        """Send what *ask* says, signed with *keys*; return the answer by *deadline* or raise the error that boto3 would."""
        model = self._model.operation_model(self._client.meta.method_to_api_mapping[ask.operation])
        message = self._message(model.name, json.dumps(ask.request, default=_in_base64).encode(), keys)
        try:
            return self._parsed(self.pools[ask.urgent].send(message, deadline - time.monotonic()), model)
        except TimeoutError as error:
            raise ReadTimeoutError(endpoint_url=self._url, error=error) from error
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise StrangeAnswerError(f"the answer cannot be read ({type(error).__name__})") from error

    def __del__(self) -> None:
        """Close for a store that nobody closed, as boto3 does; a given one is not its client's to close."""
        self.close()

    def _connected(self, _: float) -> _Connection:
        connection = DeadlineSocket.connected(self._address, time.monotonic() + _CONNECT_S)
        if self._context is not None:
            connection.limit()
            encrypted: Any = self._context.wrap_socket(connection, server_hostname=self._address[0])
            connection = encrypted
        return _Connection(connection)

    def _unconnected(self, error: Exception) -> Exception:
        kind: Callable[..., Exception] = EndpointConnectionError
        if isinstance(error, ssl.SSLCertVerificationError):
            kind = SSLError
        elif isinstance(error, TimeoutError):
            kind = ConnectTimeoutError
        return kind(endpoint_url=self._url, error=error)

    def _message(self, operation: str, body: bytes, keys: Any) -> bytes:
        """Return the request with its signature, version 4."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        headers = {"content-type": _CONTENT, "host": self._host, "x-amz-date": stamp}
        if keys.token:
            headers["x-amz-security-token"] = keys.token
        headers["x-amz-target"] = f"{self._model.metadata['targetPrefix']}.{operation}"
        names, lines = ";".join(headers), "".join(f"{name}:{value}\n" for name, value in headers.items())
        canonical = f"POST\n/\n\n{lines}\n{names}\n{hashlib.sha256(body).hexdigest()}"
        scope = f"{stamp[:8]}/{self._region}/dynamodb/aws4_request"
        to_sign = f"{_ALGORITHM}\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signature = _hmac(_signing_key(keys.secret_key, scope), to_sign).hex()
        headers["authorization"] = (
            f"{_ALGORITHM} Credential={keys.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
        )
        headers |= {"user-agent": self._agent, "accept-encoding": "identity", "content-length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST / HTTP/1.1\r\n{head}\r\n".encode() + body

    def _parsed(self, answer: dict[str, Any], model: Any) -> dict[str, Any]:
        check_whole(answer)
        if answer["status_code"] == HTTPStatus.OK:
            return _read(answer)
        parsed: dict[str, Any] = self._parser.parse(answer, model.output_shape)
        shape = self._model.shape_for_error_code(parsed["Error"]["Code"])
        if shape is not None:
            parsed |= self._parser.parse(answer, shape)  # the item that refused is a field of the error
        raise ClientError(parsed, model.name)


def direct_of(client: Any) -> Direct | None:
    """Return the way to the endpoint of *client*; None for one that sends otherwise than is done here."""
    if has_handlers(client):
        return None
    config, protocol = client.meta.config, client.meta.service_model.metadata["protocol"]
    # Only a signed URL shows the endpoint of the account and the kind of the signature, without anything being sent.
    url = urlsplit(client.generate_presigned_url("describe_table", Params={"TableName": "dlock"}))
    signature = parse_qs(url.query)
    proxies = get_environ_proxies(url.geturl()) if config.proxies is None else config.proxies
    verify = client._endpoint.http_session._verify  # no public way
    if signature.get("X-Amz-Algorithm") != [_ALGORITHM] or protocol != "json" or url.path != "/":
        return None
    if proxies.get(url.scheme) or config.client_cert or not verify:
        return None
    return Direct(client, url, signature["X-Amz-Credential"][0].split("/")[-3])


def has_handlers(client: Any) -> bool:
    """Whether others than boto3 and dlock handle events of *client*: they must see each request."""
    events = client.meta.events
    search = getattr(events, "_emitter", events)._handlers.prefix_search  # no public way
    names = (
        f"{event}.dynamodb.{operation}"
        for event in _EVENTS.split(",")
        for operation in client.meta.service_model.operation_names
    )
    return any(not _module_of(handler).startswith(_OURS) for name in names for handler in search(name))


def is_patched() -> bool:
    """Whether a tracer or a test has put itself before every call of boto3."""
    call = vars(botocore.client.BaseClient)["_make_api_call"]
    return type(call) is not FunctionType or not call.__globals__["__name__"].startswith("botocore.")


def check_whole(response_dict: dict[str, Any] | None = None, **_: Any) -> None:
    """Raise ChecksumError for an answer that was cut: botocore takes its rest for an empty answer, which says that a key is absent."""
    if response_dict is None:
        return
    headers, body = response_dict["headers"], response_dict["body"]
    length, checksum = headers.get("content-length"), headers.get("x-amz-crc32")
    if length is not None and int(length) != len(body):
        raise ChecksumError(checksum_type="length", expected_checksum=length, actual_checksum=len(body))
    if checksum is None:
        if response_dict["status_code"] == HTTPStatus.OK:
            json.loads(body)  # an emulator's, or no answer of DynamoDB at all
    elif int(checksum) != zlib.crc32(body):
        raise ChecksumError(checksum_type="crc32", expected_checksum=checksum, actual_checksum=zlib.crc32(body))


def _module_of(handler: Any) -> str:
    return f"{getattr(getattr(handler, 'func', handler), '__module__', '')}."


def _context_of(client: Any) -> ssl.SSLContext:
    bundle = get_cert_path(client._endpoint.http_session._verify)
    try:
        # botocore's own context leaves the name of the server to urllib3 to check.
        context = ssl.create_default_context(cafile=bundle)
    except OSError as error:
        raise StoreSetupError(f"the certificates in {bundle!r} (AWS_CA_BUNDLE) are unreadable: {error}") from error
    # What boto3 trusts: Python 3.13 refuses the authorities of many gateways by default, which leave out what RFC 5280 asks for.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.sslsocket_class = DeadlineTLSSocket
    return context


def _answer(more: Callable[[], bytes]) -> tuple[dict[str, Any], bool]:
    """Return the answer in the form that botocore's parser reads, and whether its connection can be used again."""
    rest = b""
    while b"\r\n\r\n" not in rest:
        rest += more()
    head, _, rest = rest.partition(b"\r\n\r\n")
    first, *fields = head.decode("latin-1").split("\r\n")
    version, status, *_ = first.split()
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in fields)}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body, rest = _unchunked(rest, more)
    else:
        length = int(headers["content-length"])
        while len(rest) < length:
            rest += more()
        body, rest = rest[:length], rest[length:]
    usable = not rest and version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    return {"status_code": int(status), "headers": headers, "body": body}, usable


def _read(answer: dict[str, Any]) -> dict[str, Any]:
    """Return what botocore's parser would, but for the instants of a table, in a third of its time."""
    found: dict[str, Any] = json.loads(answer["body"], object_hook=_decoded)
    if (name := answer["headers"].get("x-amzn-requestid")) is not None:
        found["ResponseMetadata"] = {"RequestId": name}
    return found


def _decoded(value: dict[str, Any]) -> dict[str, Any]:
    """Return *value*, whose bytes came as base64."""
    if len(value) == 1 and isinstance(coded := value.get("B"), str):
        value["B"] = base64.b64decode(coded)
    return value


def _unchunked(rest: bytes, more: Callable[[], bytes]) -> tuple[bytes, bytes]:
    """Return the body that comes in chunks, and what comes after it."""
    body, size = b"", 1
    while size:
        while b"\r\n" not in rest:
            rest += more()
        line, _, rest = rest.partition(b"\r\n")
        size = int(line.partition(b";")[0], 16)
        while len(rest) < size + 2:
            rest += more()
        body, rest = body + rest[:size], rest[size + 2 :]
    return body, rest


def _in_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


@lru_cache(maxsize=8)
def _signing_key(secret: str, scope: str) -> bytes:
    """Return the key of one day, region and service."""
    return reduce(_hmac, scope.split("/"), f"AWS4{secret}".encode())
