"""The way of a request to DynamoDB: sent once, on a thread that a verb never waits for beyond its time-out.

Neither the search for the server's name nor the refresh of credentials has a time-out that could be set: so each request runs on a thread
of a lane, and its caller goes on when its time is over. Renewals and releases have a lane of their own.

Most requests go the direct way (:mod:`dlock_dynamodb._direct`). Where only boto3 can send as it is set up, its clients do: boto3's
time-outs and retries belong to a client, a verb's time-out to the call, so there is one client for each power of two of seconds, made
when first needed.
"""

from __future__ import annotations

import math
import random
import threading
import time
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import botocore
from botocore.config import Config
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import BotoCoreError, ClientError, ConnectTimeoutError, ReadTimeoutError

from dlock_core.errors import ConfigurationError, StoreUnavailableError
from dlock_core.kit import BeginsAnew, Lane, leave_behind, watch_forks
from dlock_dynamodb._credentials import SteadyCredentials
from dlock_dynamodb._direct import CLAIMING, KEEPING, check_whole, direct_of, is_patched
from dlock_dynamodb._errors import NOT_DYNAMODBS, THROTTLED, TROUBLE, StrangeAnswerError, code_of
from dlock_dynamodb._units import Units

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlock_dynamodb._direct import Direct
    from dlock_dynamodb._wire import Ask
    from dlock_dynamodb.options import DynamoDBStoreOptions

_SHORTEST, _LONGEST = -6, 6  # powers of two: 1/64 s to 64 s
# Of the client that is asked for settings.
_ANY_S = 10.0
# DynamoDB grants an account few looks at its tables in a second, and many clients may open at once.
_LOOKS = frozenset({"describe_table", "describe_time_to_live"})
_LOOK_AGAIN_S = 0.2
_KINDS = frozenset({"B", "BOOL", "BS", "L", "M", "N", "NS", "NULL", "S", "SS"})  # of a value


class DynamoDBLink(BeginsAnew):
    """The connections of a store, set up as the user's session is; that itself is never used to send, changed or closed.

    Whatever retries, time-outs and validation it was set up with, ours have: one attempt, times from the call, keep-alive. With
    *boto3_only* no request goes the direct way.
    """

    def __init__(
        self, options: DynamoDBStoreOptions, session: Any, config: Any = None, *, boto3_only: bool = False
    ) -> None:
        self._options, self._session, self._config = options, session, config or Config()
        self._boto3_only = boto3_only
        found = session.get_credentials()
        self._steady = SteadyCredentials(found) if isinstance(found, RefreshableCredentials) else None
        self._credentials = self._steady or found
        self._directs: dict[str | None, Direct | None] = {}
        self._lanes = {True: Lane(KEEPING), False: Lane(CLAIMING)}
        self._here = threading.local()
        self.units = Units()
        self._clients: dict[int, Any] = {}
        self._mutex = threading.RLock()
        self.endpoint_url = self.fit(_ANY_S).meta.endpoint_url
        watch_forks(self)

    def count_for(self, verb: str) -> None:
        """Count what this thread sends from now on for *verb*."""
        self._here.verb = verb

    def send(self, request: Ask, timeout_s: float) -> dict[str, Any]:
        """Send *request* once; return the answer within *timeout_s* or raise the driver's error.

        A look at the table that is throttled is sent again after a pause, as long as it has time.
        """
        return (self._look if request.operation in _LOOKS else self._send_once)(request, timeout_s)

    def _look(self, request: Ask, timeout_s: float) -> dict[str, Any]:
        deadline, pause_s = time.monotonic() + timeout_s, _LOOK_AGAIN_S
        while True:
            try:
                return self._send_once(request, deadline - time.monotonic())
            except ClientError as error:
                pause_s *= random.uniform(1, 2)  # noqa: S311  # no secret
                left_s = deadline - time.monotonic() - pause_s  # for the next one
                if code_of(error) not in THROTTLED.split() or left_s < _LOOK_AGAIN_S:
                    raise
            time.sleep(pause_s)

    def _send_once(self, request: Ask, timeout_s: float) -> dict[str, Any]:
        if timeout_s < 2.0**_SHORTEST:
            raise StoreUnavailableError(f"{timeout_s:.3g} s are too short for a request to DynamoDB; nothing was sent")
        deadline = time.monotonic() + timeout_s
        verb, operation = getattr(self._here, "verb", "inspect"), request.operation
        ask = request._replace(request={**request.request, **self.units.question(operation)})
        lane = self._lanes[request.urgent]
        in_time = partial(self._in_time, lane, deadline)
        try:
            keys = self._keys(in_time)
            direct = self._direct(getattr(keys, "account_id", None), in_time)
            answer = (
                self._through_boto3(ask, lane, timeout_s, deadline)
                if direct is None
                else direct.ask(ask, keys, deadline)
            )
        except ClientError as error:
            _check_items(error.response)
            self.units.refused(verb, operation, ask.request, error)
            raise
        _check_items(answer)
        self.units.answered(verb, operation, answer)
        return answer

    def close(self) -> None:
        """Close the connections; requests under way end by themselves."""
        for direct in list(self._directs.values()):
            if direct is not None:
                direct.close()
        with self._mutex:
            clients = list(self._clients.items())
        for power, client in clients:
            client.close()
            self._clients.pop(power, None)  # only now: after an interrupt, the next call closes the rest

    def after_fork_in_child(self) -> None:
        """Begin without connections: two processes must not speak on one."""
        leave_behind(self._clients)
        self._clients, self._mutex = {}, threading.RLock()

    def fit(self, timeout_s: float) -> Any:
        """Return a client that gives a request all of *timeout_s*, and gives it up not long after."""
        power = min(math.ceil(math.log2(timeout_s)), _LONGEST)
        client = self._clients.get(power)
        if client is None:
            with self._mutex:
                client = self._clients[power] = self._clients.get(power) or self._create(2.0**power)
        return client

    def _in_time(self, lane: Lane, deadline: float, call: Callable[[], Any]) -> Any:
        """Make *call*, which sends nothing, on *lane*."""
        try:
            return lane.run(call, deadline - time.monotonic())
        except TimeoutError as error:
            raise ConnectTimeoutError(endpoint_url=self.endpoint_url) from error

    def _keys(self, in_time: Callable[[Callable[[], Any]], Any]) -> Any:
        """Return the credentials to sign with."""
        if self._steady is None or self._steady.are_good():
            return self._credentials.get_frozen_credentials()
        return in_time(self._credentials.get_frozen_credentials)

    def _direct(self, account: str | None, in_time: Callable[[Callable[[], Any]], Any]) -> Direct | None:
        """Return the direct way of *account*, which may have an endpoint of its own; None where boto3 has to send."""
        if self._boto3_only or is_patched():
            return None
        if account not in self._directs:
            self._directs.setdefault(account, in_time(lambda: direct_of(self.fit(_ANY_S))))
        return self._directs[account]

    def _through_boto3(self, ask: Ask, lane: Lane, timeout_s: float, deadline: float) -> dict[str, Any]:
        # Who takes it decides: the request is sent, or its caller has gone and it never will be.
        turn = threading.Lock()
        try:
            answer: dict[str, Any] = lane.run(partial(self._call, ask, timeout_s, turn), deadline - time.monotonic())
        except TimeoutError as error:
            if turn.acquire(blocking=False):
                raise ConnectTimeoutError(endpoint_url=self.endpoint_url) from error
            if ask.urgent:
                # The way may be gone without a word, and all idle connections with it: boto3 would spend the time of a renewal on each.
                for client in list(self._clients.values()):
                    client.close()  # it opens new ones
            raise ReadTimeoutError(endpoint_url=self.endpoint_url) from error
        return answer

    def _call(self, ask: Ask, timeout_s: float, turn: threading.Lock) -> Any:
        """Make the call of boto3; on a thread of the lane, since making a client takes time, too."""
        client = self.fit(timeout_s)
        self._here.turn = turn
        try:
            return getattr(client, ask.operation)(**ask.request)
        except TROUBLE:
            raise
        except Exception as error:
            if not turn.locked():
                raise  # a mistake in the request
            raise StrangeAnswerError(f"boto3 cannot read the answer ({type(error).__name__})") from error

    def _before_send(self, **_: Any) -> None:
        """Keep a request from being sent for a caller who has gone."""
        if not self._here.turn.acquire(blocking=False):
            raise ConnectTimeoutError(endpoint_url=self.endpoint_url)

    def _create(self, seconds: float) -> Any:
        ours = Config(
            # The mode too: "adaptive", which the environment may ask for, holds requests back and sends them late.
            retries={"total_max_attempts": 1, "mode": "legacy"},
            connect_timeout=seconds / 2,
            read_timeout=seconds,
            tcp_keepalive=True,
            parameter_validation=False,
            endpoint_discovery_enabled=False,
            max_pool_connections=CLAIMING + KEEPING,
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
        events.register("before-send.dynamodb", self._before_send)
        events.register("response-received.dynamodb", check_whole)
        if self._steady is not None:
            client._request_signer._credentials = self._steady  # no public way
            events.register("before-endpoint-resolution.dynamodb", self._steady.name_account)
        return client


def _check_items(answer: Any) -> None:
    """Raise StrangeAnswerError for an answer of another shape, such as a null, or an item whose values have no kind."""
    try:
        for part in (answer, *answer.get("Responses", ())):
            shown = (
                part.get("Item"),
                part.get("Attributes"),
                part.get("Error", {}).get("Item"),
                *part.get("Items", ()),
            )
            for value in chain.from_iterable(item.values() for item in shown if item is not None):
                [kind] = value.keys()
                if kind not in _KINDS:
                    raise ValueError(kind)
    except (AttributeError, TypeError, ValueError) as error:
        raise StrangeAnswerError(NOT_DYNAMODBS) from error
