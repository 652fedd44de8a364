"""The recipes by themselves: every style of parameters, and what they refuse to build."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy

from dlock_core.errors import ConfigurationError
from dlock_core.fence import (
    PARAMSTYLES,
    SQLTokens,
    dynamodb_put,
    dynamodb_update,
    http_headers,
    mongodb_update,
    redis_write,
    s3_put,
    sql_update,
)

BUILT: dict[str, Callable[[Any], object]] = {
    "sql_update": lambda token: sql_update("t", {"a": 1}, {"k": 1}, token),
    "dynamodb_update": lambda token: dynamodb_update({"a": 1}, token),
    "dynamodb_put": lambda token: dynamodb_put({"a": 1}, token),
    "mongodb_update": lambda token: mongodb_update({"_id": 1}, {"a": 1}, token),
    "redis_write": lambda token: redis_write("k", {"a": 1}, token),
    "s3_put": lambda token: s3_put(None, token),
    "http_headers": http_headers,
}


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize("token", [0, -1, 2**63, True, "7", 1.0, None])
def test_token_that_is_no_positive_integer_is_refused(name: str, token: object) -> None:
    """By every recipe, in one line."""
    with pytest.raises(ConfigurationError, match="is no fencing token, which is a positive integer"):
        BUILT[name](token)


@pytest.mark.parametrize(
    ("paramstyle", "text", "parameters"),
    [
        ("qmark", "UPDATE s.t SET a = ?, token = ? WHERE k = ? AND COALESCE(token, 0) <= ?", ("x", 7, "k1", 7)),
        ("numeric", "UPDATE s.t SET a = :1, token = :2 WHERE k = :3 AND COALESCE(token, 0) <= :4", ("x", 7, "k1", 7)),
        (
            "named",
            "UPDATE s.t SET a = :p1, token = :p2 WHERE k = :p3 AND COALESCE(token, 0) <= :p4",
            {"p1": "x", "p2": 7, "p3": "k1", "p4": 7},
        ),
        ("format", "UPDATE s.t SET a = %s, token = %s WHERE k = %s AND COALESCE(token, 0) <= %s", ("x", 7, "k1", 7)),
        (
            "pyformat",
            "UPDATE s.t SET a = %(p1)s, token = %(p2)s WHERE k = %(p3)s AND COALESCE(token, 0) <= %(p4)s",
            {"p1": "x", "p2": 7, "p3": "k1", "p4": 7},
        ),
    ],
)
def test_sql_is_written_in_each_style_of_parameters(paramstyle: str, text: str, parameters: object) -> None:
    """Values are never a part of the text."""
    built = sql_update("s.t", {"a": "x"}, {"k": "k1"}, 7, column="token", paramstyle=paramstyle)

    assert built == (text, parameters)


def test_sqlalchemy_takes_a_fenced_write_in_the_style_that_the_page_names() -> None:
    """Whatever the driver's own style is."""
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (k INTEGER, a INTEGER, fencing_token BIGINT)")
        connection.exec_driver_sql("INSERT INTO t (k) VALUES (1)")
        changed = []
        for token in (2**40, 1):
            text, parameters = sql_update("t", {"a": 1}, {"k": 1}, token, paramstyle="named")
            changed.append(connection.execute(sqlalchemy.text(text), parameters).rowcount)
    engine.dispose()

    assert changed == [1, 0]


def test_column_may_be_changed_and_compared_in_one_statement() -> None:
    """As in a change from one status to the next; a row whose token is NULL has had no holder."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE job (id INTEGER, status TEXT, fencing_token BIGINT)")
        database.execute("INSERT INTO job VALUES (1, 'new', NULL)")
        for paramstyle, (before, after) in {"qmark": ("new", "ready"), "named": ("ready", "done")}.items():
            statement = sql_update("job", {"status": after}, {"id": 1, "status": before}, 3, paramstyle=paramstyle)
            assert database.execute(*statement).rowcount == 1

        assert database.execute("SELECT * FROM job").fetchone() == (1, "done", 3)


def test_paramstyles_are_those_of_the_db_api() -> None:
    """PEP 249 names five."""
    assert set(PARAMSTYLES) == {"qmark", "numeric", "named", "format", "pyformat"}


@pytest.mark.parametrize("name", ["a b", "a;b", "", "1a", "a'", "ä", "a.b.", "a{}"])
def test_name_that_is_no_identifier_is_refused(name: str) -> None:
    """As table, as column of the data, of the row and of the token, and as table of tokens."""
    for build in (
        lambda: sql_update(name, {"a": 1}, {"k": 1}, 1),
        lambda: sql_update("t", {name: 1}, {"k": 1}, 1),
        lambda: sql_update("t", {"a": 1}, {name: 1}, 1),
        lambda: sql_update("t", {"a": 1}, {"k": 1}, 1, column=name),
        lambda: SQLTokens(None, table=name),
    ):
        with pytest.raises(ConfigurationError, match="is no name of a "):
            build()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: sql_update("t", {"a": 1}, {}, 1), "name the row"),
        (lambda: sql_update("t", {"a": 1}, {"k": 1}, 1, paramstyle="percent"), "the styles are qmark, numeric"),
        (lambda: SQLTokens(None, paramstyle="percent"), "is no paramstyle"),
        (lambda: sql_update("t", {"fencing_token": 1}, {"k": 1}, 1), "leave it out"),
        (lambda: sql_update("t", {"a": 1}, {"k": 1, "fencing_token": 1}, 1), "leave it out"),
        (lambda: sql_update("t", {"s.a": 1}, {"k": 1}, 1), "'s.a' is no name of a column"),
        (lambda: dynamodb_update({"fencing_token": 1}, 1), "leave it out"),
        (lambda: dynamodb_put({"fencing_token": 1}, 1), "leave it out"),
        (lambda: mongodb_update({"_id": 1}, {"fencing_token": 1}, 1), "leave it out"),
        (lambda: mongodb_update({"_id": 1, "fencing_token": 1}, {"a": 1}, 1), "leave it out"),
        (lambda: mongodb_update({}, {"a": 1}, 1), "name the document"),
        (lambda: redis_write("k", {"fencing_token": 1}, 1), "leave it out"),
        (lambda: s3_put({"ETag": "e", "Metadata": {"fencing-token": "seven"}}, 1), "carries 'seven'"),
        (lambda: s3_put({"ETag": "e", "Metadata": {"fencing-token": "\u00b2"}}, 1), "which is no fencing token"),
        (lambda: sql_update("t", {"a": 1}, {"k": 1}, 0), "the store of the lock gives no tokens"),
    ],
)
def test_other_mistakes_are_named(build: Callable[[], object], words: str) -> None:
    """In one line, before anything is sent."""
    with pytest.raises(ConfigurationError, match=words):
        build()


def test_the_low_level_client_of_dynamodb_takes_typed_values() -> None:
    """The condition is the same."""
    values = {"name": {"S": "anna"}}

    put = dynamodb_put(values, 7, typed=True)
    update = dynamodb_update({"balance": {"N": "1"}}, 7, typed=True)

    assert put["Item"] == {"name": {"S": "anna"}, "fencing_token": {"N": "7"}}
    assert update["ExpressionAttributeValues"] == {":fence": {"N": "7"}, ":v0": {"N": "1"}}
    assert put["ConditionExpression"] == update["ConditionExpression"]


def test_other_metadata_of_an_object_stays() -> None:
    """A put replaces all of it, so the recipe carries it on."""
    head = {"ETag": '"e"', "Metadata": {"colour": "red", "fencing-token": "6"}}

    assert s3_put(head, 7) == {"Metadata": {"colour": "red", "fencing-token": "7"}, "IfMatch": '"e"'}


@pytest.mark.parametrize(
    ("metadata", "answered"), [("Fencing-Token", "fencing-token"), ("fencing-token", "Fencing-Token")]
)
def test_fence_of_an_object_is_found_whatever_its_letters(metadata: str, answered: str) -> None:
    """S3 answers with small letters whatever was written, other servers may not; two spellings would be one header, sent twice."""
    head = {"ETag": '"e"', "Metadata": {answered: "6"}}

    assert s3_put(head, 5, metadata=metadata) is None
    assert s3_put(head, 7, metadata=metadata) == {"Metadata": {"fencing-token": "7"}, "IfMatch": '"e"'}


def test_row_that_is_named_by_null_is_refused() -> None:
    """No row is equal to NULL: it would look as if a later holder had written."""
    with pytest.raises(ConfigurationError, match=r"where: 'tenant' is None, which = matches in no row"):
        sql_update("t", {"a": None}, {"k": 1, "tenant": None}, 7)
