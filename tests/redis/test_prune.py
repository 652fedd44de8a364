"""What a prune asks, and what it makes of the answers: the exchange by hand, without a server."""

from __future__ import annotations

import pytest

from dlock_redis import _wire as wire
from dlock_redis._scripts import PRUNE, Invocation
from dlock_redis._servers import Part
from tests.redis.support import held
from tests.redis.test_exchanges import MOVED, Cluster, end_of


@pytest.mark.parametrize(("dry_run", "removes"), [(False, b"x"), (True, b"")])
def test_a_prune_names_the_version_and_the_age(dry_run: bool, removes: bytes) -> None:
    """In microseconds, as the server's clock has it."""
    record = held("k", 3)
    exchange = wire.RedisVerbs().prune([record], older_than_ms=7, dry_run=dry_run)
    next(exchange)

    sent = exchange.send([Part("n", [0])])

    assert sent.node == "n"
    assert sent.commands == Invocation(PRUNE, ["k"], [record.rvn.encode(), b"3", b"7000", removes]).packed()
    assert end_of(exchange, [1]) == 1


def test_of_no_records_nothing_is_asked() -> None:
    """There would be no answer to wait for."""
    verbs = wire.RedisVerbs()
    for exchange, nothing in ((verbs.prune([], older_than_ms=7, dry_run=False), 0), (verbs.replace_many([]), [])):
        with pytest.raises(StopIteration) as ended:
            next(exchange)
        assert ended.value.value == nothing


def test_a_prune_passes_over_keys_in_a_slot_that_moves() -> None:
    """They stay, and the others are counted."""
    exchange = Cluster().prune([held("k", 3), held("l", 3)], older_than_ms=7, dry_run=False)
    next(exchange)
    exchange.send([Part("n", [0, 1])])

    assert end_of(exchange, [MOVED, 1]) == 1
