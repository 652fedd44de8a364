"""The links: how a request reaches a member of the cluster and its answer comes back, for threads and for asyncio.

A channel of gRPC carries all requests of a client at once, so nothing that waits can starve a renewal. Its mutexes are Python's, so no
call of it is made where a signal handler could interrupt it. Each request is sent once; one that certainly was not sent, since there was
no connection, or that a learner refused, is tried on the other members, and for a moment on a member that comes back.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc

from dlock_core.errors import ConfigurationError, StoreUnavailableError
from dlock_core.kit import (
    AsyncLane,
    AsyncSeats,
    BeginsAnew,
    Hearing,
    Lane,
    Seats,
    aperform,
    leave_behind,
    perform,
    watch_forks,
)
from dlock_etcd import _schema
from dlock_etcd._errors import is_late, is_refused_by_tls, no_token, was_not_taken
from dlock_etcd.options import files_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlock_core.kit import Exchange
    from dlock_etcd._schema import Request
    from dlock_etcd.options import EtcdStoreOptions, Files

# How long a request waits for a member to come back, and how often it looks.
_PATIENCE_S = 1.0
_LOOK_EVERY_S = 0.05
# Of the threads that make the calls of the main thread: one, beside the calls that signal handlers make or have interrupted.
_LANE_WIDTH, _CLOSE_S = 16, 10.0
# A login costs the server a tenth of a second of a processor: where many clients log in at once, each one takes as long as all together.
_LOGIN_S = 20.0
# How long gRPC may take to tell an event loop of calls that were cancelled. It has no call that waits for that; where the loop is closed by
# then, it logs an error, and nothing is lost.
_FAREWELL_S = 0.05
_NO_LOGIN = "etcd was not asked, nothing was written: it has not checked the password in time"
_OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    # So long a connection may take to make, whatever becomes of the requests that wait for it.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.max_receive_message_length", -1),
    # Of a name with several addresses each new channel tries another one first: the member behind one may be cut off from the others.
    ("grpc.service_config", '{"loadBalancingConfig": [{"pick_first": {"shuffleAddressList": true}}]}'),
    # A channel of its own for each store: the others of the process may have other time-outs.
    ("grpc.use_local_subchannel_pool", 1),
)


class _Link(BeginsAnew):
    """The channels of a link, its stream of news, and the token of its user. A channel of the user's own is the only one."""

    watch: Any = None
    _grpc: Any
    _sleep: Callable[[float], Any]
    _seats_class: Any
    _lane_class: Any
    _perform: Callable[[Exchange[Any]], Any]

    def __init__(self, options: EtcdStoreOptions, channel: Any) -> None:
        self._options, self._targets, self._owned = options, options.endpoints, channel is None
        # What the files for TLS said last, and what they said as each channel was made.
        self._files = files_of(options)
        self._made_with: dict[int, Files | None] = {}
        user, password = options.user, options.password.get_secret_value()
        self._login = _schema.request("Auth", "Authenticate", name=user, password=password) if user else None
        self._token = ""
        self._channels: dict[int, Any] = {} if channel is None else {0: channel}
        self._member = 0
        self._hearing: defaultdict[int, Hearing] = defaultdict(Hearing)
        # For the login of all requests, and for another one, where that takes too long.
        self._seats = self._seats_class(1), self._seats_class(1)
        # A login goes on where its request has no more time.
        self._logins = self._lane_class(len(self._seats))
        self._forked = False
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        """Refuse every request, if one was sent before: gRPC does not survive a fork."""
        leave_behind(*self._channels.values())
        self._forked = self._forked or bool(self._channels)
        self._channels = {}

    def stream(self, request: Request) -> Any:
        """Begin a stream of answers, which etcd ends where the member has no leader: one that is cut off from the others has no news."""
        method = request.method
        return self._channel(self._member).unary_stream(
            method.path, request_serializer=method.write, response_deserializer=method.read
        )(request.message, metadata=(("hasleader", "true"), *_metadata(self._token)))

    def _channel(self, member: int) -> Any:
        if self._forked:
            raise StoreUnavailableError(
                "etcd was not asked, nothing was written: gRPC does not survive a fork; open the client in the child"
            )
        channel = self._channels.get(member)
        return self._channels.setdefault(member, self._new_channel(member)) if channel is None else channel

    def _new_channel(self, member: int) -> Any:
        target, files = f"dns:///{self._targets[member]}", self._files_now()
        self._made_with[member] = files
        if files is None:
            return self._grpc.insecure_channel(target, options=_OPTIONS)
        return self._grpc.secure_channel(target, grpc.ssl_channel_credentials(*files), options=_OPTIONS)

    def _files_now(self) -> Files | None:
        """Return what the files for TLS say now; what they said last, while somebody replaces them."""
        with suppress(ConfigurationError):
            self._files = files_of(self._options)
        return self._files

    def _doubt(self, member: int, channel: Any, asked_at: float, error: Exception) -> None:
        """Have the next request go by a new channel, where this one was silent to the request that had *error*.

        What is between may be gone without a word. What else is under way by the old one goes on, and it ends with that. Also where
        certificates were renewed since the channel was made, which would show the old ones for ever.
        """
        if not self._owned or self._channels.get(member) is not channel:
            return
        is_silent = is_late(error) and self._hearing[member].is_silent(asked_at)
        if is_silent or (is_refused_by_tls(error) and self._files_now() != self._made_with.get(member)):
            self._channels[member] = self._new_channel(member)

    def _asking(self, request: Request, timeout_s: float, deadline: float) -> Exchange[Any]:
        """Send *request* as the user, as steps. What etcd answers to one without a valid token was not applied."""
        token = self._token
        try:
            if token or self._login is None:
                return (yield from self._sending(request, token, timeout_s, deadline))
        except grpc.RpcError as error:
            if self._login is None or not no_token(error):
                raise
        yield from self._logging_in(self._login, token, deadline)
        return (yield from self._sending(request, self._token, deadline - time.monotonic(), deadline))

    def _logging_in(self, login: Request, ended: str, deadline: float) -> Exchange[None]:
        """Get another token than the one that has *ended*: one request does so for all, unless that takes it too long.

        It goes on when this request has no more time: on a busy server each login would otherwise be given up, and be in vain.
        """
        left_s = deadline - time.monotonic()
        for seats in self._seats:
            if seat := (yield seats.take(left_s / 2)):
                break
        else:
            raise StoreUnavailableError(_NO_LOGIN)
        member, asked_at = self._member, time.monotonic()
        channel = self._channels.get(member)
        try:
            yield self._logins.run(lambda: self._perform(self._log_in(login, ended, seats, seat)), deadline - asked_at)
        except TimeoutError as error:
            self._doubt(member, channel, asked_at, error)
            raise StoreUnavailableError(_NO_LOGIN) from error

    def _log_in(self, login: Request, ended: str, seats: Any, seat: Any) -> Exchange[None]:
        try:
            if self._token == ended:
                until = time.monotonic() + _LOGIN_S
                self._token = (yield from self._sending(login, "", _LOGIN_S, until)).token
        finally:
            seats.leave(seat)

    def _sending(self, request: Request, token: str, timeout_s: float, deadline: float) -> Exchange[Any]:
        """Send *request*, as steps, until a member has taken it."""
        patience = time.monotonic() + min(timeout_s, _PATIENCE_S)
        asked: list[int] = []
        while True:
            member = self._member if request.member is None else request.member
            asked.append(member)
            channel, asked_at = self._channel(member), time.monotonic()
            try:
                answer = yield self._call(request, token, channel, deadline)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                raise ConnectionAbortedError("the channel was closed") from error
            except grpc.RpcError as error:
                self._doubt(member, channel, asked_at, error)
                pause_s = None if request.member is not None else self._turn(asked, error, patience)
                if pause_s is None:
                    raise
            else:
                self._hearing[member].answered(asked_at)
                return answer
            yield self._sleep(pause_s)

    def _closing(self) -> Exchange[None]:
        if self.watch is not None:
            yield self.watch.close()
        for channel in list(self._channels.values()) if self._owned else ():
            yield channel.close()

    def _call(self, request: Request, token: str, channel: Any, deadline: float) -> Any:
        method = request.method
        ask = channel.unary_unary(method.path, request_serializer=method.write, response_deserializer=method.read)
        timeout_s = max(min(deadline - time.monotonic(), request.within_s), 0.001)
        try:
            return ask(request.message, timeout=timeout_s, metadata=_metadata(token))
        except (ValueError, grpc.aio.UsageError) as error:
            raise StoreUnavailableError(f"etcd was not asked, nothing was written: {error}") from error

    def _turn(self, asked: list[int], error: Exception, deadline: float) -> float | None:
        """Go to the next member; return how long to wait before a request that had *error* is sent there, or None if it must not be.

        The error of the last member that was *asked* names all of them.
        """
        if self._member == asked[-1]:  # else another request has gone on already, and one step more might lead back
            self._member = (self._member + 1) % max(len(self._targets), 1)
        if was_not_taken(error) and (self._member not in asked or time.monotonic() + _LOOK_EVERY_S <= deadline):
            return _LOOK_EVERY_S if self._member == 0 else 0.0
        if self._targets:
            error.add_note("asked: " + ", ".join(self._targets[member] for member in sorted(set(asked))))
        return None


class ThreadLink(_Link):
    """The link for threads."""

    _grpc, _seats_class, _lane_class = grpc, Seats, Lane
    _sleep, _perform = staticmethod(time.sleep), staticmethod(perform)

    def __init__(self, options: EtcdStoreOptions, channel: Any) -> None:
        super().__init__(options, channel)
        self._lane = Lane(_LANE_WIDTH)

    def send(self, request: Request, timeout_s: float) -> Any:
        """Send *request* once."""
        deadline = time.monotonic() + timeout_s
        return self._lane.aside(lambda: perform(self._asking(request, timeout_s, deadline)), timeout_s)

    def close(self) -> None:
        """Close all channels but that of the user."""
        self._lane.aside(lambda: perform(self._closing()), _CLOSE_S)


class AsyncLink(_Link):
    """The link for the tasks of one event loop."""

    _grpc, _seats_class, _lane_class = grpc.aio, AsyncSeats, AsyncLane
    _sleep, _perform = staticmethod(asyncio.sleep), staticmethod(aperform)

    def send(self, request: Request, timeout_s: float) -> Any:
        """As :meth:`ThreadLink.send`; what this returns is awaited."""
        return aperform(self._asking(request, timeout_s, time.monotonic() + timeout_s))

    async def close(self) -> None:
        """As :meth:`ThreadLink.close`."""
        await self._logins.close()
        await aperform(self._closing())
        await asyncio.sleep(_FAREWELL_S)


def _metadata(token: str) -> tuple[tuple[str, str], ...]:
    """Return what travels beside a message: the *token*, if there is one."""
    return (("token", token),) if token else ()
