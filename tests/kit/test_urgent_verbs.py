"""Which requests of the stores on pooled connections take the places that are kept for those who hold a lock."""

from __future__ import annotations

from typing import Any

import pytest

from dlock_core.kit import is_urgent
from dlock_core.record import State, Version
from dlock_core.store import Claim, Expect, Release, Replace
from dlock_dynamodb import DynamoDBStoreOptions
from dlock_dynamodb.store import DynamoDBVerbs
from dlock_mysql import MySQLStoreOptions
from dlock_mysql.store import MySQLVerbs
from dlock_postgres._verbs import PostgresVerbs
from dlock_redis._servers import Locate, Part
from dlock_redis._wire import RedisVerbs
from tests.mongodb import test_verbs as mongodb
from tests.mongodb.support import held

STANDS = Version("r", 1)
VERBS: dict[str, Any] = {
    "dynamodb": DynamoDBVerbs(DynamoDBStoreOptions(region="eu-west-1", table="locks"), "https://localhost"),
    "mongodb": mongodb.verbs(),
    "mysql": MySQLVerbs(MySQLStoreOptions(database="d")),
    "postgres": PostgresVerbs("public.dlock", lambda _: None, lambda _: False),
    "redis": RedisVerbs(),
}


def first_of(exchange: Any) -> Any:
    """Return what *exchange* sends first."""
    request = next(exchange)
    return exchange.send([Part("node", [0])]) if isinstance(request, Locate) else request


@pytest.mark.parametrize("name", VERBS)
def test_what_keeps_a_lock_or_gives_it_back_waits_for_no_claim(name: str) -> None:
    """A takeover is one more claim: who makes it holds nothing."""
    verbs = VERBS[name]
    freed = held("k", state=State.FREE, lease_ms=None)
    first_requests = {
        "claim": verbs.claim(Claim(held("k"), Expect.ANY)),
        "takeover": verbs.replace(Replace(held("k", fencing_token=2), STANDS)),
        "read": verbs.read("k"),
        "renewal": verbs.replace(Replace(held("k"), STANDS)),
        "renewals": verbs.replace_many([Replace(held("k"), STANDS)]),
        "release": verbs.release(Release(freed, STANDS)),
    }

    urgent = {verb for verb, exchange in first_requests.items() if first_of(exchange).urgent}

    assert urgent == {"renewal", "renewals", "release"}


def test_a_claim_is_not_urgent() -> None:
    """A store may have one text for all three verbs that write, and ask about each request."""
    assert not is_urgent(Claim(held("k"), Expect.ANY))
