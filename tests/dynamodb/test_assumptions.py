"""Facts of DynamoDB that DynamoDB Local stands in for; DLOCK_TEST_DYNAMODB_URL shows them on another endpoint, as that of a region.

Such a run uses the credentials that boto3 finds, and leaves the table ``dlock-tests`` behind.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest

from dlock_core.store import Replace, Reply
from dlock_dynamodb import DynamoDBStore
from dlock_dynamodb.provision import is_aws
from tests.dynamodb.support import TABLE, claimed, operation_of, record, session


@pytest.fixture
def seen() -> list[tuple[str, Any]]:
    """Note the operation of each request, and its answer."""
    return []


@pytest.fixture
def watched_store(endpoint: str, seen: list[tuple[str, Any]]) -> Iterator[DynamoDBStore]:
    """Open a store whose answers are noted."""
    host = urlsplit(endpoint).hostname or ""
    driver = boto3.Session(region_name=host.split(".")[1]) if is_aws(host) else session()
    driver.events.register("before-send.dynamodb", lambda request, **_: seen.append((operation_of(request), None)))
    driver.events.register("response-received.dynamodb", lambda response_dict, **_: seen.append(("", response_dict)))
    store = DynamoDBStore(driver, table=TABLE, endpoint_url=endpoint)
    store.provision()
    yield store
    store.close()


def test_a_batch_shows_the_row_of_each_statement(
    watched_store: DynamoDBStore, seen: list[tuple[str, Any]], key: str
) -> None:
    """``RETURNING ALL NEW *`` where it was applied, the row that stands where it was refused, and no row where none stands."""
    held = [claimed(watched_store, f"{key}/{number}") for number in range(2)]
    asked = [Replace(record(held[0].key), held[0].version), Replace(record(held[1].key), held[0].version)]
    absent = Replace(record(f"{key}/absent"), held[0].version)
    seen.clear()

    results = watched_store.replace_many([*asked, absent], timeout_s=10)

    assert results == [Reply(True, asked[0].record), Reply(False, held[1]), Reply(False, None)]
    assert [operation for operation, _ in seen if operation] == ["BatchExecuteStatement"]


def test_every_answer_has_its_length_and_checksum(
    watched_store: DynamoDBStore, seen: list[tuple[str, Any]], key: str
) -> None:
    """By them a cut answer is known; DynamoDB Local leaves the checksum out of refusals."""
    held = claimed(watched_store, key)
    seen.clear()
    watched_store.read(key, timeout_s=10)
    watched_store.replace(Replace(record(key), record(key).version), timeout_s=10)
    watched_store.replace_many([Replace(record(key), held.version)], timeout_s=10)
    list(watched_store.scan(key, timeout_s=10))

    answers = [answer for _, answer in seen if answer is not None]
    whole = [answer for answer in answers if answer["status_code"] == 200]
    assert [int(answer["headers"]["x-amz-crc32"]) for answer in whole] == [zlib.crc32(each["body"]) for each in whole]
    assert [int(answer["headers"]["content-length"]) for answer in answers] == [
        len(answer["body"]) for answer in answers
    ]
    assert (len(answers), len(whole)) == (4, 3)
