"""The fencing token as a header of HTTP, and middleware that refuses a request with an older token than one before it."""

from __future__ import annotations

import asyncio
import inspect
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from dlock_core.errors import ConfigurationError
from dlock_core.fence.writes import TOKEN_MAX, checked_token

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, MutableMapping

    from dlock_core.fence.tokens import TokenStore

    Resource = Callable[[str, str], str | None]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    ASGIApp = Callable[[Message, Receive, Send], Awaitable[None]]
    WSGIApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

HEADER = "Fencing-Token"
"""The header that carries the token."""

_TOKEN = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)
_READING = ("GET", "HEAD", "OPTIONS", "TRACE")


def http_headers(token: int) -> dict[str, str]:
    """Return the header of a request that a holder sends.

    Raises: ConfigurationError: *token* is no positive integer.
    """
    return {HEADER: str(checked_token(token))}


def path_if_written(method: str, path: str) -> str | None:
    """Return the path as the name of the resource, or None for a method that only reads."""
    return None if method in _READING else path


def _checked(tokens: TokenStore) -> TokenStore:
    admit = getattr(tokens, "admit", None)
    if inspect.iscoroutinefunction(admit):
        raise ConfigurationError(
            f"admit() of {tokens!r} is a coroutine function; give an ordinary one, FencedASGI calls it in a thread"
        )
    if isinstance(tokens, type) or not callable(admit):
        raise ConfigurationError(
            f"{tokens!r} keeps no tokens; give SQLTokens(lambda: driver.connect(…)), MemoryTokens(), "
            "or an object with admit(resource, token)"
        )
    return tokens


class _Refusal(NamedTuple):
    status: int
    reason: str
    line: str

    @property
    def body(self) -> bytes:
        return f"{self.line}\n".encode()

    @property
    def headers(self) -> list[tuple[str, str]]:
        return [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(self.body)))]


def _refusal(tokens: TokenStore, resource: str, values: list[str]) -> _Refusal | None:
    """Return the answer to a request whose headers of that name are *values*, or None if it may go on."""
    if not values:
        return _Refusal(428, "Precondition Required", f"send the fencing token of your lock as the header {HEADER}")
    if len(values) > 1 or not _TOKEN.fullmatch(values[0]) or int(values[0]) > TOKEN_MAX:
        return _Refusal(400, "Bad Request", f"the header {HEADER} must be one positive integer")
    token = int(values[0])
    greatest = tokens.admit(resource, token)
    if greatest <= token:
        return None
    line = f"a later holder has the lock: its token is {greatest}, yours is {token}"
    return _Refusal(412, "Precondition Failed", line)


class FencedASGI:
    """Lets a request through to *app* if its token is not older than one that came before for the same resource.

    *resource* is called with method and path; it returns the name of the resource, which stands for one lock, or None for a request
    that needs no token. By default each path is a resource, and reading needs no token. The answer to a request without a token is 428,
    with a token that is no positive integer 400, with an older one 412; each has one line of text.

    A request that was let through may still be at work when a later holder's comes: fence what the application writes, too.

    Raises: ConfigurationError: *tokens* has no method ``admit``, or one that is a coroutine function.
    """

    def __init__(self, app: ASGIApp, tokens: TokenStore, *, resource: Resource = path_if_written) -> None:
        self._app, self._tokens, self._resource = app, _checked(tokens), resource

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Refuse the request, or hand it on."""
        refusal = await self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        headers = [(name.lower().encode(), value.encode()) for name, value in refusal.headers]
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": refusal.body})

    async def _refusal(self, scope: Message) -> _Refusal | None:
        resource = self._resource(scope["method"], scope["path"])
        if resource is None:
            return None
        name = HEADER.lower().encode()
        values = [value.decode("latin-1") for header, value in scope["headers"] if header.lower() == name]
        # The store of the tokens may be a database.
        return await asyncio.to_thread(_refusal, self._tokens, resource, values)


class FencedWSGI:
    """As :class:`FencedASGI`, for an application of WSGI."""

    def __init__(self, app: WSGIApp, tokens: TokenStore, *, resource: Resource = path_if_written) -> None:
        self._app, self._tokens, self._resource = app, _checked(tokens), resource

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Refuse the request, or hand it on."""
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        resource = self._resource(environ["REQUEST_METHOD"], path)
        value: str | None = environ.get(f"HTTP_{HEADER.upper().replace('-', '_')}")
        values = [] if value is None else [value]
        refusal = None if resource is None else _refusal(self._tokens, resource, values)
        if refusal is None:
            return self._app(environ, start_response)
        start_response(f"{refusal.status} {refusal.reason}", refusal.headers)
        return [refusal.body]
