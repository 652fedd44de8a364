"""The way of a request to DynamoDB: boto3 clients that send it once, on threads that a verb never waits for beyond its time-out.

boto3's time-outs and retries belong to a client, a verb's time-out to the call: so there is one client for each power of two of seconds,
made when first needed. boto3 bounds the connecting and each read, but neither the search for the server's name nor an answer that
trickles in: so each request runs on a thread of a lane, and its caller goes on when its time is over. Renewals and releases have a lane
of their own, whose connections no waiter can take.
"""

from __future__ import annotations

import json
import math
import threading
import time
import zlib
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import botocore
from botocore.config import Config
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import BotoCoreError, ChecksumError, ClientError, ConnectTimeoutError, ReadTimeoutError

from dlock_core.errors import ConfigurationError, StoreUnavailableError
from dlock_core.kit import Lane
from dlock_dynamodb._credentials import SteadyCredentials
from dlock_dynamodb._errors import TROUBLE, StrangeAnswerError
from dlock_dynamodb._units import Units

if TYPE_CHECKING:
    from dlock_dynamodb._wire import Request
    from dlock_dynamodb.options import DynamoDBStoreOptions

__all__ = ["Ask", "DynamoDBLink"]

_SHORTEST, _LONGEST = -6, 6  # powers of two: 1/64 s to 64 s
# Threads of each lane. Beyond some 16 requests at once a Python process only gets slower.
_CLAIMING, _KEEPING = 16, 8


class Ask(NamedTuple):
    """One request: the operation of boto3 and its arguments. *keeps*: it keeps or frees a lock that is held."""

    operation: str
    request: Request
    keeps: bool = False


class DynamoDBLink:
    """The clients of a store, derived from the user's session; that itself is never used to send, changed or closed.

    Whatever retries, time-outs and validation it was set up with, ours have: one attempt, times from the call, keep-alive.
    """

    def __init__(self, options: DynamoDBStoreOptions, session: Any, config: Any = None) -> None:
        self._options, self._session, self._config = options, session, config or Config()
        found = session.get_credentials()
        self._credentials = SteadyCredentials(found) if isinstance(found, RefreshableCredentials) else None
        self._clients: dict[int, Any] = {}
        self._mutex = threading.RLock()
        self._claiming, self._keeping = Lane(_CLAIMING), Lane(_KEEPING)
        self._here = threading.local()
        self.units = Units()

    def count_for(self, verb: str) -> None:
        """Count what this thread sends from now on for *verb*."""
        self._here.verb = verb

    def send(self, request: Ask, timeout_s: float) -> dict[str, Any]:
        """Send *request* once; return the answer within *timeout_s* or raise the driver's error."""
        lane = self._keeping if request.keeps else self._claiming
        if timeout_s < 2.0**_SHORTEST:
            raise StoreUnavailableError(f"{timeout_s:.3g} s are too short for a request to DynamoDB; nothing was sent")
        verb = getattr(self._here, "verb", "inspect")
        call = partial(self._call, request, verb, timeout_s, time.monotonic() + timeout_s)
        try:
            answer: dict[str, Any] = lane.run(call, timeout_s)
        except TimeoutError as error:
            raise ReadTimeoutError(endpoint_url="") from error
        return answer

    def close(self) -> None:
        """Close the clients; requests under way end by themselves."""
        with self._mutex:
            clients = list(self._clients.items())
        for power, client in clients:
            client.close()
            self._clients.pop(power, None)  # only now: after an interrupt, the next call closes the rest

    def fit(self, timeout_s: float) -> Any:
        """Return a client that gives a request all of *timeout_s*, and gives it up not long after."""
        power = min(math.ceil(math.log2(timeout_s)), _LONGEST)
        client = self._clients.get(power)
        if client is None:
            with self._mutex:
                client = self._clients[power] = self._clients.get(power) or self._create(2.0**power)
        return client

    def _call(self, request: Ask, verb: str, timeout_s: float, deadline: float) -> Any:
        """Make the call; on a thread of the lane, since making a client takes time, too."""
        client = self.fit(timeout_s)
        here = self._here
        here.deadline, here.sent = deadline, False
        told = self.units.question(request.operation)
        try:
            answer = getattr(client, request.operation)(**request.request, **told)
        except TROUBLE as error:
            if isinstance(error, ClientError):
                self.units.refused(verb, request.operation, request.request, error)
            raise
        except Exception as error:
            if not here.sent:
                raise  # a mistake in the request
            raise StrangeAnswerError(f"boto3 cannot read the answer ({type(error).__name__})") from error
        self.units.answered(verb, request.operation, answer)
        return answer

    def _check_time(self, **_: Any) -> None:
        """Keep a request from being sent for a caller who has gone."""
        if time.monotonic() > self._here.deadline:
            raise ConnectTimeoutError(endpoint_url="")
        self._here.sent = True

    def _create(self, seconds: float) -> Any:
        ours = Config(
            # The mode too: "adaptive", which the environment may ask for, holds requests back and sends them late.
            retries={"total_max_attempts": 1, "mode": "legacy"},
            connect_timeout=seconds / 2,
            read_timeout=seconds,
            tcp_keepalive=True,
            parameter_validation=False,
            endpoint_discovery_enabled=False,
            max_pool_connections=_CLAIMING + _KEEPING,
            # A name of its own spares botocore from composing one in each call.
            user_agent=f"dlock Botocore/{botocore.__version__}",
        )
        try:
            client = self._session.client(
                "dynamodb",
                region_name=self._options.region,
                endpoint_url=self._options.endpoint_url,
                config=self._config.merge(ours),
            )
        except (BotoCoreError, ValueError) as error:
            raise ConfigurationError(
                f"boto3 cannot make a client for region {self._options.region!r}: {error}"
            ) from error
        events = client.meta.events
        # Nobody is asked whether to try again: that is surer than the setting, and saves 3 % of a call.
        events.unregister("needs-retry.dynamodb", unique_id="retry-config-dynamodb")
        events.register("before-send.dynamodb", self._check_time)
        events.register("response-received.dynamodb", _check_whole)
        if self._credentials is not None:
            client._request_signer._credentials = self._credentials  # no public way
            events.register("before-endpoint-resolution.dynamodb", self._credentials.name_account)
        return client


def _check_whole(response_dict: dict[str, Any] | None = None, **_: Any) -> None:
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
