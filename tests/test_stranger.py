"""A stranger's typed project that uses the installed package: mypy --strict and pyright see what a user would see."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dlock_core import AcquireKeywords, ClientKeywords, ClientOptions, LockClient, LockKeywords, LockOptions, connect

# A checker must refuse each line that ends with `# error`, and no other.
PROGRAM = """\
import asyncio
from collections import deque
from contextlib import aclosing
from datetime import timedelta

import dlock_core
import psycopg
from dlock_core import AsyncLockClient, ClientOptions, Lease, LockClient, LockKeywords, LockOptions, aconnect, connect, shared_client
from dlock_core.fence import sql_update
from dlock_postgres import PostgresStore

shared = shared_client("memory://")


@shared.locked("import-time", timeout=5)
def imported(name: str, *, times: int = 1) -> list[str]:
    return [name] * times


def chosen() -> tuple[LockOptions, ClientOptions]:
    LockOptions(lease_duration="20")  # error
    return LockOptions(timeout=3), ClientOptions(lease_duration=5)


def mistyped() -> None:
    dlock_core.conect("memory://")  # error


def settings() -> LockKeywords:
    return {"lease_duration": timedelta(seconds=30), "timeout": 5, "data": b"x"}


def use(client: LockClient) -> int:
    with client.lock("k", **settings()) as lease:
        reveal_type(lease)
        lease.ensure()
    free = client.try_acquire("k")
    reveal_type(free)
    free.release()  # error
    if free is not None:
        free.release()

    @client.locked("m", timeout=1)
    def work(amount: int, *, currency: str = "EUR") -> float:
        return float(amount)

    @client.once("nightly", slot="2026-01-01")
    def job(day: str) -> bytes:
        return day.encode()

    reveal_type(work)
    reveal_type(job)
    work("1")  # error
    work(1, currencies="EUR")  # error
    client.lock("k", lease="20")  # error
    client.lock("k", lease_duration="20")  # error
    imported("a", times=2)
    imported(1)  # error
    return lease.fencing_token


def open_all() -> None:
    for accepted in (["no-durability"], ("no-durability",), {"no-durability"}, frozenset({"a"}), deque(["a"]), {"a": 1}):
        with connect("memory://", allow_unsafe=accepted) as client:
            reveal_type(client)
    connect("memory://", allow_unsafe=1)  # error


async def use_async(client: AsyncLockClient) -> None:
    async with client.lock("k", timeout=5) as lease:
        reveal_type(lease)

    @client.locked("m")
    async def work(amount: int) -> float:
        return float(amount)

    @client.once("nightly", slot=1)
    async def job(day: str) -> bytes:
        return day.encode()

    reveal_type(await work(1))
    await work("1")  # error
    async with asyncio.TaskGroup() as tasks:
        reveal_type(tasks.create_task(work(1)))
        reveal_type(tasks.create_task(job("Monday")))
    async with aclosing(client.scan("m")) as records, aclosing(client.election("e").observe()) as leaders:
        reveal_type([record async for record in records])
        reveal_type(await anext(leaders))


async def open_async() -> None:
    async with aconnect("memory://", lease_duration=20) as client:
        reveal_type(client)
        await use_async(client)


def held(lease: Lease | None) -> bool:
    return lease is not None and lease.is_valid


def fenced(connection: psycopg.Connection, lease: Lease) -> bool:
    holder = {"key": lease.key, "token": lease.fencing_token, "owner": lease.owner}
    row = connection.execute(PostgresStore.fence_sql(), holder).fetchone()
    done = connection.execute(*sql_update("account", {"balance": 7}, {"name": "anna"}, lease.fencing_token, paramstyle="pyformat"))
    return row is not None and done.rowcount == 1
"""
# What `reveal_type` shows, in this order, as `plain` writes it.
REVEALED = [
    "Lease",
    "Lease | None",
    "(amount: int, *, currency: str) -> float",
    "(day: str) -> bytes | None",
    "LockClient",
    "AsyncLease",
    "float",
    "Task[float]",
    "Task[bytes | None]",
    "list[LockRecord]",
    "Leader",
    "AsyncLockClient",
]
REFUSED = [number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# error")]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the project."""
    root = tmp_path_factory.mktemp("stranger")
    (root / "shop.py").write_text(PROGRAM, encoding="utf-8")
    (root / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}), encoding="utf-8")
    return root


def checked(project: Path, *command: str) -> str:
    """Run a checker in *project*; return what it says."""
    done = subprocess.run(
        [sys.executable, "-m", *command, "shop.py"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def plain(revealed: str) -> str:
    """Return a type without what the checkers write differently: names of modules, defaults, and brackets around results."""
    text = re.sub(r"\b(?:\w+\.)+(?=\w)", "", revealed)
    text = re.sub(r"^def ", "", text).replace("?", "")
    text = re.sub(r"(\w+: \w+) ?=.*?(?=[,)])", r"\1", text)
    return re.sub(r"-> \((.*)\)$", r"-> \1", re.sub(r"^\((\(.*\) -> .*)\)$", r"\1", text))


def test_mypy_sees_what_a_stranger_uses(project: Path) -> None:
    """Types reach the user, each mistake is refused, and nothing else is."""
    said = checked(project, "mypy", "--strict", "--config-file=", "--cache-dir", str(project / "cache"))

    errors = sorted({int(number) for number in re.findall(r"shop\.py:(\d+): error", said)})
    assert errors == REFUSED, said
    assert [plain(found) for found in re.findall(r'Revealed type is "(.*)"', said)] == REVEALED


def test_pyright_sees_what_a_stranger_uses(project: Path) -> None:
    """As mypy, in its strict mode."""
    said = checked(project, "pyright", "--outputjson", "--pythonpath", sys.executable)

    found = json.loads(said)["generalDiagnostics"]
    errors = sorted({each["range"]["start"]["line"] + 1 for each in found if each["severity"] == "error"})
    assert errors == REFUSED, said
    revealed = [each["message"] for each in found if each["severity"] == "information"]
    assert [plain(message.partition('" is "')[2].removesuffix('"')) for message in revealed] == REVEALED


class Editor:
    """An editor that talks to pyright's language server."""

    def __init__(self, server: subprocess.Popen[bytes]) -> None:
        assert server.stdin is not None
        assert server.stdout is not None
        self._to_server, self._from_server = server.stdin, server.stdout
        self._asked = 0

    def tell(self, method: str, params: object) -> None:
        """Send what needs no answer."""
        self._send({"method": method, "params": params})

    def ask(self, method: str, params: object) -> Any:
        """Return the answer; questions of the server meanwhile get the plainest one."""
        self._asked += 1
        self._send({"id": self._asked, "method": method, "params": params})
        while True:
            message = self._receive()
            if "method" not in message and message["id"] == self._asked:
                return message["result"]
            if "method" in message and "id" in message:
                items = (message.get("params") or {}).get("items", [])
                settings = [{"pythonPath": sys.executable} if each.get("section") == "python" else {} for each in items]
                self._send({"id": message["id"], "result": settings})

    def _send(self, message: dict[str, object]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._to_server.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._to_server.flush()

    def _receive(self) -> dict[str, Any]:
        length = 0
        while line := self._from_server.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        assert length, "the language server has ended"
        message: dict[str, Any] = json.loads(self._from_server.read(length))
        return message


@contextmanager
def editing(project: Path) -> Iterator[Editor]:
    """Open the program of *project* in an editor."""
    command = [sys.executable, "-m", "pyright.langserver", "--stdio"]
    with subprocess.Popen(command, cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        editor = Editor(server)
        try:
            can = {"workspace": {"configuration": True}, "textDocument": {"hover": {"contentFormat": ["plaintext"]}}}
            editor.ask("initialize", {"processId": None, "rootUri": project.as_uri(), "capabilities": can})
            editor.tell("initialized", {})
            document = {"uri": (project / "shop.py").as_uri(), "languageId": "python", "version": 1, "text": PROGRAM}
            editor.tell("textDocument/didOpen", {"textDocument": document})
            yield editor
        finally:
            server.kill()


def test_an_editor_shows_text_and_default_of_a_keyword_under_the_pointer(project: Path) -> None:
    """In a call, and as a key of a dictionary of keywords; of a client's keyword, too."""
    shown = {}
    with editing(project) as editor:
        for word in ('"lease_duration"', "timeout=5) as lease", "allow_unsafe=accepted"):
            line, text = next((number, each) for number, each in enumerate(PROGRAM.splitlines()) if word in each)
            place = {"line": line, "character": text.index(word) + 2}
            document = {"uri": (project / "shop.py").as_uri()}
            hover = editor.ask("textDocument/hover", {"textDocument": document, "position": place})
            [name] = re.findall(r"\w+", word)[:1]
            shown[name] = hover["contents"]["value"]

    expected = {name: ClientOptions.model_fields[name].description or "-" for name in shown}
    assert {name: text for name, text in shown.items() if expected[name] not in text} == {}
    assert len(shown) == 3


@pytest.mark.parametrize(("keywords", "options"), [(AcquireKeywords, LockOptions), (ClientKeywords, ClientOptions)])
def test_help_of_the_keywords_says_each_ones_text(keywords: type, options: type[LockOptions | ClientOptions]) -> None:
    """The keywords of a signature are a type of their own: its ``help()`` has the text and the default of each."""
    shown = inspect.getdoc(keywords) or ""

    assert all("help(dlock_core." in (inspect.getdoc(each) or "") for each in (connect, LockClient.lock, LockKeywords))
    missing = [name for name, field in options.model_fields.items() if f"{name}: {field.description}" not in shown]
    assert (len(options.model_fields) > 20, missing) == (True, [])
