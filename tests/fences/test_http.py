"""The middleware: what it lets through, what it answers, and where it keeps the tokens."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flask
import psycopg
import pymysql
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from dlock_core import ConfigurationError, connect
from dlock_core.fence import FencedASGI, FencedWSGI, MemoryTokens, SQLTokens, TokenStore, http_headers
from tests.documentation import shown
from tests.fences.accounts import connected_mysql, connected_postgres

Answer = tuple[int, str]
Send = Callable[..., Answer]


async def written(request: Request) -> PlainTextResponse:
    """Answer a request that was let through."""
    return PlainTextResponse("done")


def by_asgi(tokens: TokenStore, **options: Any) -> Send:
    """Return what sends a request to a wrapped application of Starlette."""
    app = Starlette(routes=[Route("/{path:path}", written, methods=["GET", "PUT"])])
    client = TestClient(FencedASGI(app, tokens, **options))

    def send(method: str, path: str, *values: str) -> Answer:
        answer = client.request(method, path, headers=[("Fencing-Token", value) for value in values])
        return answer.status_code, answer.text

    return send


def by_wsgi(tokens: TokenStore, **options: Any) -> Send:
    """Return what sends a request to a wrapped application of WSGI."""

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response("200 OK", [])
        return [b"done"]

    wrapped = FencedWSGI(application, tokens, **options)

    def send(method: str, path: str, *values: str) -> Answer:
        statuses: list[str] = []
        environ = {"REQUEST_METHOD": method, "SCRIPT_NAME": "", "PATH_INFO": path}
        if values:
            environ["HTTP_FENCING_TOKEN"] = ",".join(values)  # as servers join them
        body = b"".join(wrapped(environ, lambda status, headers: statuses.append(status)))
        return int(statuses[0][:3]), body.decode()

    return send


@pytest.fixture(params=[by_asgi, by_wsgi])
def wrap(request: pytest.FixtureRequest) -> Callable[..., Send]:
    """Return each kind of middleware."""
    found: Callable[..., Send] = request.param
    return found


def test_zombie_is_refused(wrap: Callable[..., Send]) -> None:
    """The token of each resource only rises; other resources have tokens of their own."""
    send = wrap(MemoryTokens())
    old, new = (http_headers(token)["Fencing-Token"] for token in (9, 10))

    assert [send("PUT", "/a", token) for token in (old, old, new, new)] == [(200, "done")] * 4
    assert send("PUT", "/a", old) == (412, "a later holder has the lock: its token is 10, yours is 9\n")
    assert send("PUT", "/b", old) == (200, "done")


def test_request_without_a_token_is_told_to_send_one(wrap: Callable[..., Send]) -> None:
    """Unless it only reads."""
    send = wrap(MemoryTokens())

    assert send("PUT", "/a") == (428, "send the fencing token of your lock as the header Fencing-Token\n")
    assert send("GET", "/a") == (200, "done")


@pytest.mark.parametrize("given", [None, MemoryTokens])
def test_store_that_keeps_no_tokens_is_refused_when_the_middleware_is_made(
    wrap: Callable[..., Send], given: object
) -> None:
    """Not at the first request: the line says what to give."""
    with pytest.raises(
        ConfigurationError,
        match=r" keeps no tokens; give SQLTokens\(lambda: driver.connect\(…\)\), MemoryTokens\(\), or",
    ):
        wrap(given)


def test_store_of_tokens_whose_step_is_a_coroutine_is_refused_when_the_middleware_is_made(
    wrap: Callable[..., Send],
) -> None:
    """As somebody writes it who has an application for asyncio."""

    class Tokens:
        async def admit(self, resource: str, token: int) -> int:
            return token

    with pytest.raises(ConfigurationError, match="is a coroutine function; give an ordinary one"):
        wrap(Tokens())


@pytest.mark.parametrize(
    "values", [["0"], ["-1"], ["007"], ["x"], [""], ["1.0"], ["1" * 5000], [str(2**63)], ["1", "2"]]
)
def test_token_that_is_no_positive_integer_is_told(wrap: Callable[..., Send], values: list[str]) -> None:
    """In one line; nothing is kept of it."""
    send = wrap(MemoryTokens())

    assert send("PUT", "/a", *values) == (400, "the header Fencing-Token must be one positive integer\n")
    assert send("PUT", "/a", "1") == (200, "done")


def test_resource_is_named_by_the_user(wrap: Callable[..., Send]) -> None:
    """Several paths may stand for one lock, and some for none."""
    send = wrap(MemoryTokens(), resource=lambda method, path: None if path == "/free" else path.split("/")[1])

    assert send("PUT", "/order/1", "5") == (200, "done")
    assert send("PUT", "/order/2", "4")[0] == 412
    assert send("PUT", "/free") == (200, "done")


def test_starlette_and_flask_take_the_middleware_as_the_page_says() -> None:
    """By the ways in which their users add others."""
    app = Starlette(routes=[Route("/a", written, methods=["PUT"])])
    app.add_middleware(FencedASGI, tokens=MemoryTokens())
    site = flask.Flask(__name__)
    site.add_url_rule("/a", view_func=lambda: "done", methods=["PUT"])
    site.wsgi_app = FencedWSGI(site.wsgi_app, MemoryTokens())  # type: ignore[method-assign]  # as Flask's manual has it
    client, other = TestClient(app), site.test_client()

    for token, status in ((None, 428), ("2", 200), ("1", 412)):
        headers = {} if token is None else {"Fencing-Token": token}
        assert client.put("/a", headers=headers).status_code == status
        assert other.put("/a", headers=headers).status_code == status


def test_what_is_no_request_passes() -> None:
    """The lifespan of an application, and websockets."""
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    for kind in ("lifespan", "websocket"):
        scope: dict[str, Any] = {"type": kind, "path": "/a", "headers": []}
        asyncio.run(FencedASGI(app, MemoryTokens())(scope, None, None))  # type: ignore[arg-type]  # never called

    assert seen == ["lifespan", "websocket"]


def test_names_of_headers_are_read_in_any_case_and_sent_in_lower_case() -> None:
    """ASGI asks for the latter, and not every server keeps to it."""
    app, sent = FencedASGI(Starlette(), MemoryTokens()), list[Any]()

    async def send(message: Any) -> None:
        sent.append(message)

    for value in (b"5", b"4"):
        scope = {"type": "http", "method": "PUT", "path": "/a", "headers": [(b"Fencing-Token", value)]}
        asyncio.run(app(scope, None, send))  # type: ignore[arg-type]  # never called

    assert [each["status"] for each in sent if "status" in each] == [404, 412]
    assert [name for name, _ in sent[-2]["headers"]] == [b"content-type", b"content-length"]


def test_tokens_are_asked_off_the_event_loop() -> None:
    """Their store may be a database, and the loop serves others meanwhile."""
    asked: list[int] = []

    class Kept(MemoryTokens):
        def admit(self, resource: str, token: int) -> int:
            asked.append(threading.get_ident())
            return super().admit(resource, token)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(threading.get_ident())

    scope = {"type": "http", "method": "PUT", "path": "/a", "headers": [(b"fencing-token", b"5")]}
    asyncio.run(FencedASGI(app, Kept())(scope, None, None))  # type: ignore[arg-type]  # never called

    assert asked[0] != asked[1] == threading.get_ident()


def test_path_of_wsgi_has_the_place_where_the_application_is_mounted() -> None:
    """Two applications of one server may have the same paths below theirs."""
    asked: list[str] = []
    app = FencedWSGI(lambda *_: [], MemoryTokens(), resource=lambda _, path: asked.append(path))

    app({"REQUEST_METHOD": "PUT", "SCRIPT_NAME": "/mounted", "PATH_INFO": "/a"}, print)

    assert asked == ["/mounted/a"]


@pytest.fixture(params=["memory", "sqlite", "postgres", "mysql"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[TokenStore, TokenStore]]:
    """Open two stores of the same tokens, or the one store of a process."""
    if request.param == "memory":
        memory = MemoryTokens()
        yield memory, memory
        return
    path = tmp_path / "tokens.db"
    connect: Callable[[], Any]
    connect, style = {
        "sqlite": (lambda: sqlite3.connect(path, check_same_thread=False), sqlite3.paramstyle),
        "postgres": (connected_postgres, psycopg.paramstyle),
        "mysql": (connected_mysql, pymysql.paramstyle),
    }[request.param]
    with closing(connect()) as one, closing(connect()) as other:
        first, second = (SQLTokens(each, table="fencing_tokens_test", paramstyle=style) for each in (one, other))
        first.create_table()
        second.create_table()
        yield first, second
        one.cursor().execute("DROP TABLE fencing_tokens_test")
        one.commit()


def test_tokens_only_rise(opened: tuple[TokenStore, TokenStore]) -> None:
    """Whichever of two servers sees a request; names of any length and case are different resources."""
    one, other = opened

    assert [one.admit("a", 5), other.admit("a", 4), other.admit("a", 7), one.admit("a", 6)] == [5, 5, 7, 7]
    assert [one.admit("A", 1), one.admit("ä" * 500, 2), other.admit("a", 7)] == [1, 2, 7]


def test_driver_that_drops_a_result_at_the_commit_keeps_tokens_all_the_same() -> None:
    """The DB-API lets it: what a statement has found must be taken before."""

    class Cursor(sqlite3.Cursor):
        rowcount = -1

        def execute(self, *given: Any) -> Cursor:
            super().execute(*given)
            self.rowcount = super().rowcount
            cursors.append(self)
            return self

    class Connection(sqlite3.Connection):
        def cursor(self, *_: Any) -> Any:
            return super().cursor(Cursor)

        def commit(self) -> None:
            super().commit()
            for cursor in cursors:
                cursor.rowcount = -1
                cursor.close()

    cursors: list[Cursor] = []
    with closing(sqlite3.connect(":memory:", factory=Connection)) as connection:
        tokens = SQLTokens(connection)
        tokens.create_table()

        assert [tokens.admit("a", token) for token in (5, 4, 7, 6)] == [5, 5, 7, 7]


def test_two_servers_that_see_a_resource_first_agree(opened: tuple[TokenStore, TokenStore]) -> None:
    """At once: each gets its own token or a greater one, and the greatest stays."""
    with ThreadPoolExecutor(2) as pool:
        for round_ in range(10):
            low = pool.submit(opened[0].admit, f"race {round_}", 1)
            high = pool.submit(opened[1].admit, f"race {round_}", 2)
            assert (low.result() in (1, 2), high.result()) == (True, 2)
            assert opened[0].admit(f"race {round_}", 1) == 2


def test_the_pages_request_carries_the_token() -> None:
    """It is let through, and refused once a later holder has written."""
    app = Starlette(routes=[Route("/{path:path}", written, methods=["PUT"])])
    web = TestClient(FencedASGI(app, MemoryTokens()))
    request = shown("docs/howto/fence.md", "httpx.put(")
    names = {"url": "/order/7", "order": {}, "http_headers": http_headers}
    answers: list[Any] = []

    def put(*given: Any, **named: Any) -> None:
        answers.append(web.put(*given, **named).status_code)

    with connect("memory://") as client:
        with client.lock("order/7") as zombie:
            pass
        with client.lock("order/7") as lease:
            for holder in (zombie, lease, zombie):
                request.run({**names, "httpx": SimpleNamespace(put=put), "lease": holder})
    assert answers == [200, 200, 412]
