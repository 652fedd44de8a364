"""Fenced writes as plain strings and dicts, one function for each kind of database; nothing here sends anything.

All of them compare with ``<=``: one holder may write several times. All of them write the token beside the data. Whoever deletes the
row, item, document or object deletes its fence, too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple

from dlock_core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

PARAMSTYLES = ("qmark", "numeric", "named", "format", "pyformat")
"""The styles of DB-API 2.0 in which a driver takes parameters; each driver names its own as ``driver.paramstyle``."""

TOKEN_MAX = 2**63 - 1  # what a BIGINT holds
_IDENTIFIER = re.compile(r"[^\W\d]\w*", re.ASCII)
_PLACEHOLDERS = {"qmark": "?", "numeric": ":{}", "named": ":p{}", "format": "%s", "pyformat": "%(p{})s"}
# Decimal numbers without leading zeros: the longer is the greater. Numbers of Lua are exact up to 2^53 only.
_REDIS_WRITE = """
local seen = redis.call('HGET', KEYS[1], ARGV[1])
if seen and (#seen > #ARGV[2] or (#seen == #ARGV[2] and seen > ARGV[2])) then
  return 0
end
redis.call('HSET', KEYS[1], unpack(ARGV))
return 1
"""


def checked_token(token: object) -> int:
    """Return *token* if it is a fencing token.

    Raises: ConfigurationError: it is not an integer from 1 to 2^63 - 1.
    """
    if type(token) is not int or not 1 <= token <= TOKEN_MAX:
        why = "; 0 means that the store of the lock gives no tokens" if token == 0 else ""
        raise ConfigurationError(f"{token!r} is no fencing token, which is a positive integer{why}")
    return token


def checked_identifier(name: str, kind: str) -> str:
    """Return *name* if it can stand in a statement as it is; the parts of a table's name may be joined by dots.

    Raises: ConfigurationError: it can't.
    """
    parts = name.split(".") if kind == "table" else [name]
    if not all(_IDENTIFIER.fullmatch(part) for part in parts):
        raise ConfigurationError(f"{name!r} is no name of a {kind}; use letters, digits and underscores")
    return name


def _check_apart(token_name: str, *groups: Mapping[str, object]) -> None:
    if any(token_name in group for group in groups):
        raise ConfigurationError(
            f"{token_name!r} is where the fence writes the token; leave it out, or rename the fence"
        )


def sql(text: str, values: list[object], paramstyle: str) -> tuple[str, Any]:
    """Return the statement *text*, with ``{}`` for each of *values*, and its parameters as *paramstyle* has them."""
    if paramstyle not in PARAMSTYLES:
        raise ConfigurationError(f"{paramstyle!r} is no paramstyle; the styles are {', '.join(PARAMSTYLES)}")
    placeholder = _PLACEHOLDERS[paramstyle]
    numbers = range(1, len(values) + 1)
    statement = text.format(*(placeholder.format(number) for number in numbers))
    if paramstyle in ("named", "pyformat"):
        return statement, {f"p{number}": value for number, value in zip(numbers, values, strict=True)}
    return statement, tuple(values)


def sql_update(
    table: str,
    values: Mapping[str, object],
    where: Mapping[str, object],
    token: int,
    *,
    column: str = "fencing_token",
    paramstyle: str = "qmark",
) -> tuple[LiteralString, Any]:
    """Return an UPDATE and its parameters, as in ``cursor.execute(*sql_update(…))``: it has its effect unless a later holder has written.

    *where* names the row; it is compared with ``=``. *column* holds the token, as BIGINT; NULL counts as 0. Afterwards ``cursor.rowcount``
    is 0 if a later holder has written, or if there is no such row. The row must exist.

    Raises: ConfigurationError: a name is no identifier, a value of *where* is None, or *token* is no positive integer.
    """
    _check_apart(column, values, where)
    if not where:
        raise ConfigurationError("where is empty; name the row that is fenced")
    if missing := [name for name, value in where.items() if value is None]:
        raise ConfigurationError(
            f"where: {missing[0]!r} is None, which = matches in no row; name the row by its values"
        )
    set_values = {**values, column: checked_token(token)}
    changes = ", ".join(f"{checked_identifier(name, 'column')} = {{}}" for name in set_values)
    row = " AND ".join(f"{checked_identifier(name, 'column')} = {{}}" for name in where)
    text = f"UPDATE {checked_identifier(table, 'table')} SET {changes} WHERE {row} AND COALESCE({column}, 0) <= {{}}"  # noqa: S608  # checked names
    return sql(text, [*set_values.values(), *where.values(), token], paramstyle)


def dynamodb_update(
    values: Mapping[str, object], token: int, *, attribute: str = "fencing_token", typed: bool = False
) -> dict[str, Any]:
    """Return the keywords for ``table.update_item(Key=…, **keywords)`` that set *values* unless a later holder has written.

    *typed* is for the low-level client: *values* are then ``{"N": "7"}`` and the like. DynamoDB answers an older token with
    ConditionalCheckFailedException. An item that does not exist is made.

    Raises: ConfigurationError: *token* is no positive integer.
    """
    _check_apart(attribute, values)
    condition = _dynamodb_condition(attribute, token, typed=typed)
    places = {f"{number}": name for number, name in enumerate(values)}
    changes = "".join(f", #v{place} = :v{place}" for place in places)
    names = {f"#v{place}": name for place, name in places.items()}
    new = {f":v{place}": values[name] for place, name in places.items()}
    return {
        "UpdateExpression": f"SET #fence = :fence{changes}",
        "ConditionExpression": condition["ConditionExpression"],
        "ExpressionAttributeNames": condition["ExpressionAttributeNames"] | names,
        "ExpressionAttributeValues": condition["ExpressionAttributeValues"] | new,
    }


def dynamodb_put(
    item: Mapping[str, object], token: int, *, attribute: str = "fencing_token", typed: bool = False
) -> dict[str, Any]:
    """Return the keywords for ``table.put_item(**keywords)`` that put *item* unless a later holder has written.

    All else is as in :func:`dynamodb_update`.
    """
    _check_apart(attribute, item)
    condition = _dynamodb_condition(attribute, token, typed=typed)
    return {"Item": {**item, attribute: condition["ExpressionAttributeValues"][":fence"]}, **condition}


def _dynamodb_condition(attribute: str, token: int, *, typed: bool) -> dict[str, Any]:
    number = checked_token(token)
    return {
        "ConditionExpression": "attribute_not_exists(#fence) OR #fence <= :fence",
        "ExpressionAttributeNames": {"#fence": attribute},
        "ExpressionAttributeValues": {":fence": {"N": str(number)} if typed else number},
    }


def mongodb_update(
    document: Mapping[str, Any], values: Mapping[str, Any], token: int, *, field: str = "fencing_token"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return filter and update, as in ``collection.update_one(*mongodb_update(…))``: it sets *values* unless a later holder has written.

    *document* is the filter that names the document. Afterwards ``matched_count`` is 0 if a later holder has written, or if there is no
    such document. With ``upsert=True`` and ``_id`` in *document* one is made; an older token is then a DuplicateKeyError, and so may be one
    that makes the document in the same instant as another: only the second in a row says that a later holder has written.

    Raises: ConfigurationError: *document* is empty, or *token* is no positive integer.
    """
    _check_apart(field, document, values)
    if not document:
        raise ConfigurationError("the filter is empty; name the document that is fenced")
    number = checked_token(token)
    # A document without the field matches, too.
    return {**document, field: {"$not": {"$gt": number}}}, {"$set": {**values, field: number}}


class RedisScript(NamedTuple):
    """A script and what it takes, as in ``redis.eval(script.text, len(script.keys), *script.keys, *script.args)``."""

    text: str
    keys: tuple[str, ...]
    args: tuple[str | bytes | float, ...]


def redis_write(
    key: str, fields: Mapping[str, str | bytes | float], token: int, *, field: str = "fencing_token"
) -> RedisScript:
    """Return the script that sets *fields* of the hash *key* unless a later holder has written: it returns 1 if it wrote, 0 if it refused.

    Raises: ConfigurationError: *token* is no positive integer.
    """
    _check_apart(field, fields)
    pairs = [part for pair in fields.items() for part in pair]
    return RedisScript(_REDIS_WRITE, (key,), (field, str(checked_token(token)), *pairs))


def s3_put(head: Mapping[str, Any] | None, token: int, *, metadata: str = "fencing-token") -> dict[str, Any] | None:
    """Return the keywords for ``s3.put_object(Bucket=…, Key=…, Body=…, **keywords)``, or None if a later holder has written.

    S3 compares no tokens; it can refuse a write if the object is no longer the one that was read. *head* is the answer of
    ``head_object``, or None if there is no object. S3 answers a write that another one overtook with 412 PreconditionFailed (or 409
    ConditionalRequestConflict): read the head again, and call this again.

    S3 tells two objects apart by their ETag, which comes from the body alone. So have the token in the body, too: otherwise a later holder
    that writes the same bytes as stood there goes unnoticed. S3 keeps the names of metadata in small letters, and so does this.

    Raises: ConfigurationError: *token* is no positive integer, or the object carries something else as its token.
    """
    number, metadata = checked_token(token), metadata.lower()
    if head is None:
        return {"Metadata": {metadata: str(number)}, "IfNoneMatch": "*"}
    standing: dict[str, str] = {name.lower(): value for name, value in head.get("Metadata", {}).items()}
    seen = standing.get(metadata, "0")
    if not (seen.isascii() and seen.isdigit()):
        raise ConfigurationError(f"the object carries {seen!r} as {metadata!r}, which is no fencing token")
    if int(seen) > number:
        return None
    return {"Metadata": {**standing, metadata: str(number)}, "IfMatch": head["ETag"]}
