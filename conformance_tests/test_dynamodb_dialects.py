"""The DynamoDB store in the rows of other clients keeps every clause that such rows can carry, on DynamoDB Local."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from dlock_conformance import LockStoreConformance, Opening, StoreHarness
from dlock_conformance.servers import Server

from dlock_core.backend import backend_for
from dlock_core.record import NO_TOKEN, LockRecord

boto3 = pytest.importorskip("boto3")

REGION = "eu-west-1"
# DLOCK_THOROUGH=1 tries all that applies, which takes minutes.
ELSEWHERE = {
    "_s1[23457]_|_s2[123]_|_s10_nothing_|_s16_a_newer": "the same for all rows, tried in those of dlock",
    **(
        {}
        if os.environ.get("DLOCK_THOROUGH")
        else {
            "_s[256789]_|_s1[06]_|_s19|_s20|_b|racing_processes": "tried with DLOCK_THOROUGH=1, and by each row of tests/dynamodb/golden",
            "_s11_.*(owner|lease|rvn|token|stamp|process|mark|zeros|60 KiB|integer|text is|tombstone)": "tried with DLOCK_THOROUGH=1",
        }
    ),
}
JAVA_LACKS = {
    "_s3_|_s18_|another_token|greater_token|writes_the_token|racing_replaces|b1_a_batch|_s7_": "the rows have no fencing token",
    "gone|deleted|s10_a_scan_gives|b2_a_refusal": "a row that is deleted leaves no tombstone",
    "no lease": "the rows always have a lease",
    "strange attribute names": "attributes stand beside those of the row",
    "change.*(new|nothing)-release": "a release removes no attributes",
}
NODE_LACKS = {
    "_s4_|_s7_|_s8_a_refusal_(carries_the|shows)|_s9_(a_read_shows|reads)|s11_a_replace|b1_(results|a_batch)": "no data, no attributes",
    "data|byte|attribut|KiB|zeros|is not|all at once|24_large|null": "no data, no attributes",
    "gone|deleted|s10_a_scan_gives|s18_the_token|b2_a_refusal": "a row cannot be deleted without its token",
    "no lease|shortest lease|lapsed": "a held row has a lease of 2 ms at least",
    "short rvn": "a guid has 64 bytes",
}


@pytest.fixture(scope="module")
def server(dlock_server: Callable[[str], Server]) -> Iterator[Server]:
    """Find a server, and credentials that it takes."""
    patch = pytest.MonkeyPatch()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        if name not in os.environ:
            patch.setenv(name, "testing")
    yield dlock_server("dynamodb")
    patch.undo()


def harness_of(server: Server, dialect: str, lacks: dict[str, str], **carried: Any) -> StoreHarness:
    """Open stores of *dialect* on a table of its own; *carried* are the fields that its rows have another value for."""
    table = f"dlock-conformance-{dialect}"
    more = f"endpoint_url={quote(server.url, safe='')}&dialect={dialect}"
    url = f"dynamodb://{REGION}/{table}?{more}"
    backend = backend_for(url)
    store = backend.open(backend.options.from_url(url))
    store.provision()
    store.close()
    client = boto3.client("dynamodb", region_name=REGION, endpoint_url=server.url)

    def kept(record: LockRecord) -> LockRecord:
        return replace(record, stamp=None, process=None, broken=None, **carried)

    return StoreHarness(
        url,
        found=server.found,
        capabilities={"batch_renew"},
        race_rounds=20,
        several_processes=True,
        plant_foreign=lambda key: client.put_item(TableName=table, Item={"key": {"S": key}, "name": {"S": "theirs"}}),
        remove=lambda key: client.delete_item(TableName=table, Key={"key": {"S": key}}),
        unprovisioned=Opening(f"dynamodb://{REGION}/no-such-table?{more}"),
        lacks=ELSEWHERE | lacks,
        carried=kept,
    )


@pytest.fixture(scope="module")
def java_harness(server: Server) -> StoreHarness:
    """Make the table."""
    return harness_of(server, "awslabs", JAVA_LACKS, fencing_token=NO_TOKEN)


@pytest.fixture(scope="module")
def node_harness(server: Server) -> StoreHarness:
    """Make the table."""
    return harness_of(server, "node-fail-open", NODE_LACKS)


class TestAwslabsRows(LockStoreConformance):
    """``dialect=awslabs``."""

    colours = ("sync",)

    @pytest.fixture
    def harness(self, java_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the table."""
        return java_harness


class TestNodeOpenRows(LockStoreConformance):
    """``dialect=node-fail-open``; every record of ``node-fail-closed`` is without a lease, and none of the suite's is."""

    colours = ("sync",)

    @pytest.fixture
    def harness(self, node_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the table."""
        return node_harness
