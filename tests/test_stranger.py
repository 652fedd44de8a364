"""A stranger's typed project that uses the installed package: mypy --strict and pyright see what a user would see."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dlock_core import ClientKeywords, ClientOptions, LockKeywords, LockOptions

# A checker must refuse each line that ends with `# error`, and no other.
PROGRAM = """\
from collections import deque
from datetime import timedelta

from dlock_core import AsyncLockClient, Lease, LockClient, LockKeywords, aconnect, connect, shared_client

shared = shared_client("memory://")


@shared.locked("import-time", timeout=5)
def imported(name: str, *, times: int = 1) -> list[str]:
    return [name] * times


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

    reveal_type(await work(1))
    await work("1")  # error


async def open_async() -> None:
    async with aconnect("memory://", lease_duration=20) as client:
        reveal_type(client)
        await use_async(client)


def held(lease: Lease | None) -> bool:
    return lease is not None and lease.is_valid
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


@pytest.mark.parametrize(("keywords", "options"), [(LockKeywords, LockOptions), (ClientKeywords, ClientOptions)])
def test_help_of_the_keywords_says_each_ones_text(keywords: type, options: type[LockOptions | ClientOptions]) -> None:
    """The keywords of a signature are a type of their own: its ``help()`` has the text and the default of each."""
    shown = inspect.getdoc(keywords) or ""

    missing = [name for name, field in options.model_fields.items() if f"{name}: {field.description}" not in shown]
    assert (len(options.model_fields) > 20, missing) == (True, [])
