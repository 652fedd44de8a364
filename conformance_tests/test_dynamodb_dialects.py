"""The DynamoDB store in the rows of other clients keeps every clause that such rows can carry, on DynamoDB Local."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from dlock_conformance import LockStoreConformance, Opening, StoreHarness
from dlock_conformance.servers import Server
from thorough import THOROUGH

from dlock_core.backend import backend_for
from dlock_core.errors import StoreError
from dlock_core.record import NO_TOKEN, LockRecord, State
from dlock_core.store import Claim, LockStore, Replace, Reply

boto3 = pytest.importorskip("boto3")
from dlock_dynamodb import DynamoDBStore  # noqa: E402  # it needs boto3

REGION = "eu-west-1"


def unless_thorough(lacks: dict[str, str]) -> dict[str, str]:
    """Return *lacks*, or nothing where DLOCK_THOROUGH=1 has all tried that applies, which takes minutes."""
    return {} if THOROUGH else lacks


LACKS = (
    *(
        "notify",
        "server_clock",
        "prune",
        "claim_wait",
        "atomic_multi",
        "restart",
        "count_requests",
        "plant_newer",
        "own_client",
        "expires",
    ),
    *("lose_reply", "hang", "refuse", "busy", "trickle", "cut", "drop", "slow_connect"),
)
NO_SESSIONS = {
    "session": "the rows of other clients have no place for sessions",
    "what_keeps_the_payload|as_many_as_a_record|whole_record.*(delay|times)": "nor for what else few records have",
}
ELSEWHERE = {
    **NO_SESSIONS,
    "_s1[23457]_|_s2[123]_|_s10_nothing_|_s16_a_newer": "the same for all rows, tried in those of dlock",
    **unless_thorough(
        {
            "_s[256789]_|_s1[06]_|_s19|_s20|_b|racing_processes": "tried with DLOCK_THOROUGH=1, and by each row of tests/dynamodb/golden",
            "_s11_.*(owner|lease|rvn|token|stamp|process|mark|zeros|60 KiB|integer|text is|tombstone)": "tried with DLOCK_THOROUGH=1",
        }
    ),
}
JAVA_ROWS_LACK = {
    "no lease": "the rows always have a lease",
    "a_batch_writes_exactly": "the rows always have a lease, and attributes stand beside those of the row",
    "strange attribute names": "attributes stand beside those of the row",
    "change.*(new|nothing)-release": "a release removes no attributes",
}
JAVA_LACKS = {
    "_s3_|_s18_(?!nothing_but)|b1_a_batch|_s7_": "the rows have no fencing token",
    "(greater|smaller)_token|32_bits|writes_the_token|racing_replaces": "the rows have no fencing token",
    "gone|deleted|s10_a_scan_gives|b2_a_refusal": "a row that is deleted leaves no tombstone",
    **JAVA_ROWS_LACK,
}
COUNTED_LACKS = {
    **NO_SESSIONS,
    **unless_thorough(
        {
            "^(?!.*(_s3_|_s18_|_s20_|(greater|smaller)_token|32_bits|writes_the_token|_s7_|b1_a_batch))": "the same as without tokens, "
            "or tried with DLOCK_THOROUGH=1",
        }
    ),
    "racing_first": "a loser may be shown the row of the winner before its token stands there",
    "_(s2|s5|s6|s8|s9)_.*gone|release_gone|s10_a_scan_gives|b2_a_refusal": "a row that is deleted leaves no tombstone",
    "(each_form|is_held).*gone|s7_each_release": "a row that is deleted leaves no tombstone",
    **JAVA_ROWS_LACK,
}
NODE_LACKS = {
    "_s4_|_s7_|_s8_a_refusal_(carries_the|shows)|_s9_(a_read_shows|reads)|s11_a_replace": "no data, no attributes",
    "b1_(results|a_batch_keeps)": "no data, no attributes",
    "data|byte|attribut|KiB|zeros|is not|all at once|24_large|null": "no data, no attributes",
    "gone|hidden|deleted|s10_a_scan_gives|s18_the_token|b2_a_refusal": "a row cannot be deleted without its token",
    "s3_each_form": "no data, no attributes",
    "no lease|shortest lease|lapsed": "a held row has a lease of 2 ms at least",
    "short rvn": "a guid has 64 bytes",
}

CLOSED_LACKS = {
    **NO_SESSIONS,
    **unless_thorough(
        {
            "^(?!.*(racing_first|_s2_|_s5_|_s6_|_s8_|_s16_|_s20_|_s21_a_verb|_b2_))": "the same for all rows of the Node client, "
            "or tried with DLOCK_THOROUGH=1",
        }
    ),
    "_s3_(the|a_take|tokens)|_s18_(?!nothing_but)|racing_repl|never_go_back": "no row has a token",
    "(greater|smaller)_token|32_bits|writes_the_token": "no row has a token",
    "_s2_.*(free|gone)-expect_(absent|its|another|the_same)|_s2_.*(free|gone)-expect_any-must": "a release leaves no row",
    "_(s5|s6|s8|s9)_.*(free|gone)|_s6_a_release_leaves|_s7_a_grant|undo_a_release|b2_a_refusal": "a release leaves no row",
    "_s2_a_claim_compares": "a release leaves no row",
    "_s5_a_replace_may_write": "nor does a break, see tests/dynamodb/golden",
    "_s4_a_(payload|large)|b1_a_batch_keeps": "no data, no attributes",
    "s4_the_payload_of_a_change.*release|s10_a_scan_gives|s11_a_tombstone|of_a_tombstone|takeover_and_release": "a release leaves no row",
    "short rvn": "a guid has 64 bytes",
}


def java_row(record: LockRecord) -> LockRecord | None:
    """Return what is left of *record* in a row of the Java client."""
    endless = record.state is State.HELD and record.lease_ms is None
    return None if endless or record.state is State.GONE else bare(record)


def java_row_without_token(record: LockRecord) -> LockRecord | None:
    """Return what is left of *record* in one that counts no tokens."""
    row = java_row(record)
    return row and replace(row, fencing_token=NO_TOKEN)


def node_row(record: LockRecord) -> LockRecord | None:
    """Return what is left of *record* in a row of ``FailOpen``."""
    too_short = record.state is State.HELD and (record.lease_ms or 0) < 2
    payload = record.data is not None or record.attributes
    lost = too_short or payload or record.state is State.GONE or len(record.rvn) not in (32, 64)
    return None if lost else bare(record)


def closed_row(record: LockRecord) -> LockRecord | None:
    """Return what is left of *record* in a row of ``FailClosed``, whatever was asked for."""
    if record.state is not State.HELD or len(record.rvn) not in (32, 64):
        return None
    return replace(endless(bare(record)), fencing_token=NO_TOKEN)


def bare(record: LockRecord) -> LockRecord:
    """Return *record* without what no other client has a place for."""
    return replace(record, stamp=None, process=None, broken=None)


class EndlessStore(DynamoDBStore):
    """Asks for records without a lease, data and attributes, whatever the suite asks for: others don't exist in these rows."""

    def claim(self, request: Claim, *, timeout_s: float) -> Reply:
        """As the store does."""
        return super().claim(request._replace(record=endless(request.record)), timeout_s=timeout_s)

    def replace(self, request: Replace, *, timeout_s: float) -> Reply:
        """As the store does."""
        return super().replace(request._replace(record=endless(request.record)), timeout_s=timeout_s)

    def replace_many(self, requests: Sequence[Replace], *, timeout_s: float) -> Sequence[Reply | StoreError]:
        """As the store does."""
        changed = [request._replace(record=endless(request.record)) for request in requests]
        results: Sequence[Reply | StoreError] = super().replace_many(changed, timeout_s=timeout_s)
        return results


def endless(record: LockRecord) -> LockRecord:
    """Return what is left of *record* in a row of ``FailClosed``."""
    return replace(record, lease_ms=None, data=None, attributes=())


@pytest.fixture(scope="module")
def server(dlock_server: Callable[[str], Server]) -> Iterator[Server]:
    """Find a server, and credentials that it takes."""
    patch = pytest.MonkeyPatch()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        if name not in os.environ:
            patch.setenv(name, "testing")
    yield dlock_server("dynamodb")
    patch.undo()


def opening_of(client: Any, table: str, dialect: str) -> Callable[[], LockStore] | None:
    """Return how a store of *dialect* is opened where its URL alone does not do."""
    if dialect != "node-fail-closed":
        return None
    return lambda: EndlessStore(client, table=table, dialect="node-fail-closed")


def harness_of(
    server: Server, dialect: str, carried: Callable[[LockRecord], LockRecord | None], *, options: str = ""
) -> StoreHarness:
    """Open stores of *dialect* on a table of its own."""
    table = f"dlock-conformance-{dialect}{len(options)}"
    more = f"endpoint_url={quote(server.url, safe='')}&dialect={dialect}{options}"
    url = f"dynamodb://{REGION}/{table}?{more}"
    backend = backend_for(url)
    store = backend.open(backend.options.from_url(url))
    store.provision()
    store.close()
    client = boto3.client("dynamodb", region_name=REGION, endpoint_url=server.url)

    return StoreHarness(
        url,
        open_store=opening_of(client, table, dialect),
        found=server.found,
        capabilities={"batch_renew"},
        race_rounds=20,
        page=250,
        several_processes=dialect != "node-fail-closed",
        plant_foreign=lambda key: client.put_item(TableName=table, Item={"key": {"S": key}, "name": {"S": "theirs"}}),
        remove=lambda key: client.delete_item(TableName=table, Key={"key": {"S": key}}),
        unprovisioned=Opening(
            f"dynamodb://{REGION}/no-such-table?{more}", open_store=opening_of(client, "no-such-table", dialect)
        ),
        carried=carried,
    )


@pytest.fixture(scope="module")
def java_harness(server: Server) -> StoreHarness:
    """Make the table."""
    return harness_of(server, "awslabs", java_row_without_token)


@pytest.fixture(scope="module")
def counted_harness(server: Server) -> StoreHarness:
    """Make the table."""
    return harness_of(server, "awslabs", java_row, options="&token_row=true")


@pytest.fixture(scope="module")
def node_harness(server: Server) -> StoreHarness:
    """Make the table."""
    return harness_of(server, "node-fail-open", node_row)


@pytest.fixture(scope="module")
def closed_harness(server: Server) -> StoreHarness:
    """Make the table."""
    return harness_of(server, "node-fail-closed", closed_row)


class TestAwslabsRows(LockStoreConformance):
    """``dialect=awslabs``."""

    colours = ("sync",)
    lacks = LACKS
    cannot_carry = ELSEWHERE | JAVA_LACKS

    @pytest.fixture
    def harness(self, java_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the table."""
        return java_harness


class TestAwslabsRowsWithTokens(LockStoreConformance):
    """``dialect=awslabs&token_row=true``: the clauses about tokens, and those that a second row could break."""

    colours = ("sync",)
    lacks = LACKS
    cannot_carry = COUNTED_LACKS

    @pytest.fixture
    def harness(self, counted_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the table."""
        return counted_harness


class TestNodeClosedRows(LockStoreConformance):
    """``dialect=node-fail-closed``, asked for locks without a lease."""

    colours = ("sync",)
    lacks = (*LACKS, "several_processes")
    cannot_carry = CLOSED_LACKS

    @pytest.fixture
    def harness(self, closed_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the table."""
        return closed_harness


class TestNodeOpenRows(LockStoreConformance):
    """``dialect=node-fail-open``."""

    colours = ("sync",)
    lacks = LACKS
    cannot_carry = ELSEWHERE | NODE_LACKS

    @pytest.fixture
    def harness(self, node_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the table."""
        return node_harness
