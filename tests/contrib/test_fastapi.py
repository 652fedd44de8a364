"""Locks in FastAPI and Starlette: the lifespan, the dependency, and what a request gets whose lock is held."""

# No postponed annotations: FastAPI could not resolve the local names in them.

import asyncio
import math
from collections.abc import Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx2
import pytest
from fastapi import FastAPI, WebSocket
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import WebSocketDenialResponse

from dlock_contrib.fastapi import Locks
from dlock_contrib.starlette import Locks as StarletteLocks
from dlock_core import AsyncLease, ConfigurationError, LeaseStateError, LockLostError, connect
from tests.documentation import Names, shown

URL = "memory://fastapi"


@pytest.fixture
def other() -> Iterator[Any]:
    """Return a client of somebody else."""
    with connect(URL) as client:
        yield client


def application(locks: Locks) -> FastAPI:
    """Return an application with one operation that is locked, and one that breaks its lock."""
    app = FastAPI(lifespan=locks.lifespan)

    @app.post("/orders/{order}/pay")
    async def pay(order: str, lease: Annotated[AsyncLease, locks.held("order/{order}")]) -> int:
        assert lease.key == f"order/{order}"
        return await lease.ensure()

    @app.post("/invoices/{number:int}/pay")
    async def settle(number: int, lease: Annotated[AsyncLease, locks.held("invoice/{number}")]) -> str:
        return lease.key

    @app.post("/reports/{name}")
    async def report(name: str, lease: Annotated[AsyncLease, locks.held("report/{name}", permits=2)]) -> int | None:
        return lease.slot

    @app.post("/lost")
    async def lost(lease: Annotated[AsyncLease, locks.held("lost")]) -> str:
        assert await locks.client.break_lock("lost", fencing_token=lease.fencing_token, now=True)
        return "paid"

    @app.post("/wrong")
    def wrong(lease: Annotated[AsyncLease, locks.held("order/{ordre}")]) -> None: ...

    return app


def test_an_operation_runs_under_its_lock(other: Any) -> None:
    """The key is made of the path; after the answer it is free."""
    with TestClient(application(Locks(URL))) as client:
        answer = client.post("/orders/17/pay")
        assert (answer.status_code, answer.json()) == (200, 1)
        assert other.get("order/17").fencing_token == 1
        assert not other.get("order/17").held
        assert client.post("/orders/17/pay").json() == 2


@pytest.mark.parametrize(
    ("settings", "expected"), [({}, (409, "1")), ({"status": 423, "retry_after": 2.5}, (423, "3"))]
)
def test_a_held_lock_is_an_answer(other: Any, settings: dict[str, Any], expected: tuple[int, str]) -> None:
    """409 or 423, with the time after which to come again; the key of another order is free."""
    with TestClient(application(Locks(URL, **settings))) as client, other.lock("order/18"):
        answer = client.post("/orders/18/pay")
        assert (answer.status_code, answer.headers["Retry-After"]) == expected
        assert answer.json() == {"detail": "order/18 is in use; try again later"}
        assert client.post("/orders/19/pay").status_code == 200


def test_key_of_a_converted_parameter_is_its_value(other: Any) -> None:
    """However the number is written, it is one invoice."""
    with TestClient(application(Locks(URL))) as client:
        assert {client.post(f"/invoices/{number}/pay").json() for number in ("7", "07", "007")} == {"invoice/7"}
        with other.lock("invoice/7"):
            assert client.post("/invoices/07/pay").status_code == 409


@pytest.mark.parametrize("order", ["%0a", "x" * 1100])
def test_path_of_which_no_key_can_be_made_is_an_error_of_the_request(other: Any, order: str) -> None:
    """Whoever sent it is told why."""
    with TestClient(application(Locks(URL))) as client:
        answer = client.post(f"/orders/{order}/pay")

    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("key 'order/")


@pytest.mark.parametrize(
    ("url", "options"),
    [
        (None, {}),
        ("memoryy://", {}),
        (URL, {"lease": 5}),
        (URL, {"lease_duration": -1}),
        (URL, {"status": 200}),
        (URL, {"status": "409"}),
        (URL, {"retry_after": -1}),
        (URL, {"retry_after": math.nan}),
        (URL, {"retry_after": None}),
    ],
)
def test_locks_that_cannot_work_are_refused_when_they_are_built(
    monkeypatch: pytest.MonkeyPatch, url: str | None, options: dict[str, Any]
) -> None:
    """A program with a mistake does not start: it must not be found by the first request."""
    monkeypatch.delenv("DLOCK_URL", raising=False)

    with pytest.raises(ConfigurationError):
        Locks(url, **options)


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("k", {"lease": 5}),
        ("k/{order}", {"timeout": -1}),
        ("", {}),
        ("k", {"heartbeat_period": 19}),
        ("k/{order", {}),
        ("k/order}", {}),
        ("k/{}", {}),
        ("k/{0}", {}),
    ],
)
def test_dependency_that_cannot_work_is_refused_when_it_is_built(key: str, options: dict[str, Any]) -> None:
    """As where a function is decorated."""
    with pytest.raises(ConfigurationError):
        Locks(URL).held(key, **options)


def test_locks_can_be_opened_again_as_they_were_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the options of the environment at that time; those that are built and not opened leave nothing behind."""
    monkeypatch.setenv("DLOCK_PREFIX", "then/")
    app = application(locks := Locks(URL))
    monkeypatch.setenv("DLOCK_PREFIX", "now/")

    for _ in range(2):
        with TestClient(app) as client:
            assert client.post("/orders/5/pay").status_code == 200
            assert locks.client.options.prefix == "then/"


def test_permits_let_several_requests_of_a_key_in(other: Any) -> None:
    """As many as there are permits."""
    with TestClient(application(Locks(URL))) as client, other.semaphore("report/a", permits=2):
        assert client.post("/reports/a").json() == 1
        with other.semaphore("report/a", permits=2):
            assert client.post("/reports/a").status_code == 409


@pytest.mark.parametrize(("of_locks", "of_operation"), [({"timeout": 20}, {}), ({}, {"timeout": 20})])
def test_a_request_may_wait(of_locks: dict[str, Any], of_operation: dict[str, Any]) -> None:
    """With a ``timeout`` of the locks, or of the operation, the second request is answered when the first has released."""
    locks = Locks(URL, **of_locks)
    app = FastAPI()

    async def run() -> list[int]:
        may_end = asyncio.Event()

        @app.get("/slow")
        async def slow(lease: Annotated[AsyncLease, locks.held("slow", **of_operation)]) -> None:
            await may_end.wait()

        async with (
            locks.lifespan(app),
            httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://a") as web,
        ):
            requests = [asyncio.create_task(web.get("/slow")) for _ in range(2)]
            done, _ = await asyncio.wait(requests, timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
            assert not done
            may_end.set()
            return [answer.status_code for answer in await asyncio.gather(*requests)]

    assert asyncio.run(run()) == [200, 200]


def test_a_lost_lock_is_an_error_of_the_request() -> None:
    """The client is not told "paid" when another request may have been at it."""
    with TestClient(application(Locks(URL))) as client, pytest.raises(LockLostError):
        client.post("/lost")


def test_a_wrong_key_names_the_path() -> None:
    """A typing error in the key is a plain line."""
    with (
        TestClient(application(Locks(URL))) as client,
        pytest.raises(
            ConfigurationError, match=r"key 'order/\{ordre\}' names 'ordre', which is not a path parameter of /wrong"
        ),
    ):
        client.post("/wrong")


def test_a_key_that_does_not_fit_the_path_is_a_mistake_of_the_program() -> None:
    """Braces may ask for more than the text of a parameter has."""
    locks = Locks(URL)
    app = FastAPI(lifespan=locks.lifespan)

    @app.get("/{order}")
    def show(order: str, lease: Annotated[AsyncLease, locks.held("{order.id}")]) -> None: ...

    with (
        TestClient(app) as client,
        pytest.raises(ConfigurationError, match=r"key '\{order.id\}' does not fit \{'order'"),
    ):
        client.get("/17")


def test_a_web_socket_holds_its_lock_while_it_is_open(other: Any) -> None:
    """Another one of the same key is refused at its handshake, as a request is."""
    locks = Locks(URL)
    app = FastAPI(lifespan=locks.lifespan)

    @app.websocket("/{order}")
    async def follow(socket: WebSocket, lease: Annotated[AsyncLease, locks.held("socket/{order}")]) -> None:
        await socket.accept()
        await socket.send_text(lease.key)
        await socket.receive_text()

    with TestClient(app) as client:
        with client.websocket_connect("/17") as socket:
            assert socket.receive_text() == "socket/17"
            with pytest.raises(WebSocketDenialResponse) as denial, client.websocket_connect("/17"):
                pass
            assert denial.value.status_code == 409
            socket.send_text("over")
        other.acquire("socket/17", timeout=5).release()


def test_an_application_without_the_lifespan_is_told() -> None:
    """The error says what to write."""
    locks = Locks(URL)
    app = FastAPI()

    @app.get("/")
    async def read(lease: Annotated[AsyncLease, locks.held("k")]) -> None: ...

    with TestClient(app) as client, pytest.raises(LeaseStateError, match=r"FastAPI\(lifespan=locks.lifespan\)"):
        client.get("/")


def test_an_application_that_failed_has_no_client() -> None:
    """What ends its lifespan ends the locks, also where it is an error."""
    locks = StarletteLocks(URL)

    async def fail() -> None:
        async with locks.lifespan():
            raise RuntimeError("no database")

    with pytest.raises(RuntimeError, match="no database"):
        asyncio.run(fail())
    with pytest.raises(LeaseStateError, match="the locks are not open"):
        _ = locks.client


def test_starlette_with_a_lifespan_of_its_own(other: Any) -> None:
    """The locks open within it; the handler holds the lock by a block."""
    locks = StarletteLocks(URL)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> Any:
        async with locks.lifespan(app):
            yield

    async def pay(request: Request) -> Response:
        async with locks.hold(request, "starlette/{order}") as lease:
            return PlainTextResponse(str(lease.fencing_token))

    app = Starlette(routes=[Route("/{order}", pay)], lifespan=lifespan)
    for token in ("1", "2"):
        with TestClient(app) as client:
            assert client.get("/7").text == token
            with other.lock("starlette/8"):
                answer = client.get("/8")
                assert (answer.status_code, answer.headers["Retry-After"]) == (409, "1")
                assert answer.text == "starlette/8 is in use; try again later"


def test_the_pages_starlette_handler(other: Any) -> None:
    """It holds the lock that its path names."""
    names: Names = {}
    shown("docs/howto/fastapi.md", "Starlette(lifespan=locks.lifespan").run(names, {"memory://": URL})
    app = Starlette(lifespan=names["locks"].lifespan, routes=[Route("/pay/{order}", names["pay"])])

    with TestClient(app) as client:
        assert client.get("/pay/9").text == "1"
        with other.lock("order/9"):
            assert client.get("/pay/9").status_code == 409
