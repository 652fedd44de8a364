"""The pages of the documentation, and the pieces of code that they show.

A comment on the line before a piece says how it is tested: by none it runs as it stands. ``<!-- continue -->`` goes on where the piece
before ended, ``<!-- run -->`` marks commands to run. ``<!-- on-redis -->`` and its like run on that server: :data:`SERVERS`.
``<!-- own-test -->`` is run by a test that asks for it by :func:`shown`, ``<!-- recipe -->`` by ``make recipes``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from unittest.mock import patch

import psycopg
import pymysql
from dlock_conformance.servers import resolve

from dlock_core import connect
from tests.backends import provision

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OWN_TEST, RECIPE = "own-test", "recipe"

Names: TypeAlias = dict[str, Any]

_BLOCK = re.compile(
    r"^(?:[ \t]*<!-- (?P<mark>[a-z-]+) -->[ \t]*\n(?:[ \t]*\n)*)?"
    r"(?P<indent>[ \t]*)```(?P<language>[a-z]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```[ \t]*$",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    mark: str | None
    text: str

    @property
    def where(self) -> str:
        """The page and the line on which the code begins."""
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"

    def run(self, names: Names, replaced: dict[str, str] | None = None) -> None:
        """Run it with *names*, which it adds to; an error names the line of the page. *replaced* says what stands in place of what."""
        text = self.text
        for old, new in (replaced or {}).items():
            text = text.replace(old, new)
        exec(compile("\n" * (self.line - 1) + text, str(self.page), "exec"), names)  # noqa: S102  # the documentation is ours


@cache
def blocks(language: str) -> tuple[Block, ...]:
    """Return the blocks in one language, in the order of reading."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8") if page.is_file() else ""
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("text")) + 1
            indent = re.compile(f"^{match['indent']}", re.MULTILINE)
            found.append(Block(page, line, match["language"], match["mark"], indent.sub("", match["text"])))
    return tuple(block for block in found if block.language == language)


def without_blocks(text: str) -> str:
    """Return what a page says beside its blocks."""
    return _BLOCK.sub("", text)


def shown(page: str, containing: str) -> Block:
    """Return the only Python block of *page* that contains a text."""
    found = [block for block in blocks("python") if block.where.startswith(f"{page}:") and containing in block.text]
    assert len(found) == 1, f"{page} has {len(found)} blocks with {containing!r}"
    return found[0]


# ---- the servers of blocks: a context gives the names that a block may use and what it says in place of its own addresses


@contextmanager
def _on_redis() -> Iterator[tuple[Names, dict[str, str]]]:
    server = resolve("redis")
    host, port = server.address
    yield (
        {},
        {"redis://host/0": server.url, 'host="redis.example", password="…", ssl=True': f'host="{host}", port={port}'},
    )


@contextmanager
def _on_dynamodb() -> Iterator[tuple[Names, dict[str, str]]]:
    variables = {
        "AWS_ENDPOINT_URL_DYNAMODB": resolve("dynamodb").url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
    }
    with patch.dict(os.environ, variables):
        for table in ("lockTable?dialect=awslabs", "locks"):
            provision(f"dynamodb://eu-west-1/{table}")
        yield {"connect": connect}, {}


@contextmanager
def _on_mongodb() -> Iterator[tuple[Names, dict[str, str]]]:
    yield {}, {"mongodb://host/?replicaSet=rs0": resolve("mongodb").url}


@contextmanager
def _on_postgres() -> Iterator[tuple[Names, dict[str, str]]]:
    url = _own_database(resolve("postgres").url)
    with closing(psycopg.connect(resolve("postgres").url, autocommit=True)) as admin:
        admin.execute("DROP DATABASE IF EXISTS documentation")
        admin.execute("CREATE DATABASE documentation")
    provision(url)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE account (name text, balance integer)")
        connection.execute("INSERT INTO account VALUES ('alice', 30)")
    with connect(url, prefix="of-an-app/") as client:
        yield {"client": client, "psycopg": psycopg, "dsn": url}, {}
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT balance FROM account").fetchall() == [(20,)]


@contextmanager
def _on_mysql() -> Iterator[tuple[Names, dict[str, str]]]:
    server = resolve("mysql")
    host, port = server.address
    database = {"host": host, "port": port, "user": "root", "database": "documentation"}
    with closing(pymysql.connect(host=host, port=port, user="root")) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE OR REPLACE DATABASE documentation")
        cursor.execute("CREATE TABLE documentation.account (name VARCHAR(40), balance INT)")
        cursor.execute("INSERT INTO documentation.account VALUES ('alice', 30)")
        connection.commit()
        url = f"{_own_database(server.url)}?ssl_mode=disabled"
        provision(url)
        with connect(url, prefix="of-an-app/") as client:
            yield {"client": client, "pymysql": pymysql, "database": database}, {}
        cursor.execute("SELECT balance FROM documentation.account")
        assert cursor.fetchall() == ((20,),)


def _own_database(url: str) -> str:
    return f"{url.rpartition('/')[0]}/documentation"


SERVERS: dict[str, Callable[[], AbstractContextManager[tuple[Names, dict[str, str]]]]] = {
    "on-redis": _on_redis,
    "on-dynamodb": _on_dynamodb,
    "on-mongodb": _on_mongodb,
    "on-postgres": _on_postgres,
    "on-mysql": _on_mysql,
}
