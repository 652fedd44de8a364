"""Metrics and spans of locks, read back from the SDK of OpenTelemetry."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import uuid
from typing import Any

import pytest
from dlock_conformance.servers import free_port
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from dlock_contrib import opentelemetry
from dlock_contrib.opentelemetry import Telemetry
from dlock_core import AcquireTimeoutError, LockEvent, LockLostError, LossReason, __version__, aconnect, connect
from tests.core.processes import run_program
from tests.documentation import shown


class Sdk:
    """The SDK with exporters that keep what they are given."""

    def __init__(self, **options: Any) -> None:
        self._reader, self._exporter = InMemoryMetricReader(), InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        meters = MeterProvider([self._reader])
        self.telemetry = Telemetry(meter_provider=meters, tracer_provider=self.tracers, **options)

    def spans(self) -> dict[str, Any]:
        """Return the spans that have ended, by name and key."""
        return {
            f"{span.name} {(span.attributes or {}).get('dlock.key', '')}".strip(): span
            for span in self._exporter.get_finished_spans()
        }

    def metrics(self) -> dict[str, Any]:
        """Return the points of each metric: its count or value, by its attributes."""
        data = self._reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: {
                tuple(sorted((point.attributes or {}).items())): getattr(point, "count", getattr(point, "value", None))
                for point in metric.data.data_points
            }
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def test_lock_has_two_spans_under_that_of_the_caller() -> None:
    """One for the wait, one for the time in which it was held, with key and token."""
    sdk = Sdk()
    tracer = sdk.tracers.get_tracer("app")
    with (
        connect("memory://", on_event=sdk.telemetry) as client,
        tracer.start_as_current_span("request") as caller,
        client.lock("k") as lease,
    ):
        token = lease.fencing_token

    spans = sdk.spans()
    assert spans.keys() == {"request", "lock acquire k", "lock hold k"}
    for name in ("lock acquire k", "lock hold k"):
        assert spans[name].parent.span_id == caller.get_span_context().span_id
        assert spans[name].attributes["dlock.fencing_token"] == token
        assert spans[name].status.status_code is StatusCode.UNSET
        assert (spans[name].instrumentation_scope.name, spans[name].instrumentation_scope.version) == (
            "dlock",
            __version__,
        )
    assert spans["lock acquire k"].start_time <= spans["lock acquire k"].end_time


def test_refusal_names_the_holder_and_is_an_error() -> None:
    """Also in the count of outcomes; the wait is an event of the span."""
    sdk, url = Sdk(), f"memory://{uuid.uuid4()}"
    with (
        connect(url, owner="holder") as holder,
        holder.lock("k"),
        connect(url, on_event=sdk.telemetry) as client,
        pytest.raises(AcquireTimeoutError),
    ):
        client.acquire("k", timeout=0.05)

    span = sdk.spans()["lock acquire k"]
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["dlock.holder"] == "holder"
    assert span.attributes["error.type"] == "refused"
    assert [event.name for event in span.events] == ["waiting"]
    metrics = sdk.metrics()
    assert metrics["dlock.acquire.duration"] == {(("dlock.outcome", "refused"),): 1}
    assert metrics["dlock.pending"] == {(): 0}


def test_loss_is_counted_with_its_reason_and_once() -> None:
    """The release that follows it is none; the other reasons stand at 0, so that the first loss is a step for Prometheus."""
    sdk = Sdk()
    with connect(f"memory://{uuid.uuid4()}", on_event=sdk.telemetry) as client:
        lease = client.acquire("k")
        assert client.break_lock("k", fencing_token=lease.fencing_token)
        for ends in (lease.renew, lease.release):
            with pytest.raises(LockLostError):
                ends()

    metrics = sdk.metrics()
    losses = {reason.value: int(reason is LossReason.BROKEN) for reason in LossReason}
    assert metrics["dlock.losses"] == {(("error.type", reason),): count for reason, count in losses.items()}
    assert metrics["dlock.risks"] == {(): 0}
    assert metrics["dlock.breaks"] == {(): 1}
    assert metrics["dlock.held"] == {(): 0}
    assert metrics["dlock.hold.duration"] == {(("dlock.outcome", "lost"),): 1}
    span = sdk.spans()["lock hold k"]
    assert (span.status.status_code, span.attributes["error.type"]) == (StatusCode.ERROR, "broken")


def test_gauges_fall_to_0_though_attempts_were_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of very many locks at once, and of an event that was lost; a gauge that stays above would tell of a leak for ever."""
    monkeypatch.setattr(opentelemetry, "_OPEN_MAX", 2)
    sdk = Sdk(keys_in_metrics=True)

    def forgetful(event: LockEvent) -> None:
        if (event.key, event.kind) != ("k0", "requested"):
            sdk.telemetry(event)

    with connect("memory://", on_event=forgetful) as client:
        for lease in [client.acquire(f"k{number}") for number in range(5)]:
            lease.release()

    for gauge in ("dlock.held", "dlock.pending"):
        assert set(sdk.metrics()[gauge].values()) == {0}


def test_keys_are_in_metrics_only_where_they_are_wanted() -> None:
    """Each makes a series of its own; asyncio does the same."""
    with_keys, without = Sdk(keys_in_metrics=True), Sdk()

    async def main(sdk: Sdk) -> None:
        async with aconnect("memory://", on_event=sdk.telemetry) as client, client.lock("k") as lease:
            await lease.renew()

    for sdk in (with_keys, without):
        asyncio.run(main(sdk))

    assert with_keys.metrics()["dlock.renewal.duration"] == {(("dlock.key", "k"),): 1}
    assert without.metrics()["dlock.renewal.duration"] == {(): 1}
    assert "lock hold k" in without.spans()


def test_without_opentelemetry_the_install_line_is_said() -> None:
    """In one line."""
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "try:\n    import dlock_contrib.opentelemetry\n"
        "except ImportError as error:\n    print(error)"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout == (
        "dlock_contrib.opentelemetry needs opentelemetry-api, which is not installed: pip install 'dlock-core[opentelemetry]'\n"
    )


def test_prometheus_is_served_as_the_page_says() -> None:
    """In a process of its own: the meter provider of a process can be set once."""
    port = str(free_port())
    page = shown("docs/howto/observability.md", "start_http_server(9464)").text.replace("9464", port)
    program = page + SCRAPED.replace("PORT", port)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"dlock_held(\{.*\})? 1.0\n", done.stdout)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_child_that_sets_the_sdk_up_counts_its_own_locks_alone() -> None:
    """The lock that the parent holds at the fork is none of them; Telemetry and the client were made before, as the page says."""
    ended = run_program(FORKED, "-W", "ignore::DeprecationWarning", "-W", "ignore::RuntimeWarning")

    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "1 acquired, 0 held\n"


FORKED = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from dlock_contrib.opentelemetry import Telemetry

telemetry, told = Telemetry(), threading.Event()

def hook(event):
    telemetry(event)
    if event.kind == "granted":
        told.set()

locks = shared_client("memory://", on_event=hook)
with locks.lock("parent"):
    told.wait()
    if os.fork() == 0:
        reader = InMemoryMetricReader()
        metrics.set_meter_provider(MeterProvider([reader]))
        locks.acquire("child").release()
        locks.close()  # the hook has had all events then
        [scope] = reader.get_metrics_data().resource_metrics[0].scope_metrics
        points = {metric.name: metric.data.data_points[0] for metric in scope.metrics}
        print(points["dlock.acquire.duration"].count, "acquired,", points["dlock.held"].value, "held", flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""

SCRAPED = """
import time
from urllib.request import urlopen

from dlock_contrib.opentelemetry import Telemetry
from dlock_core import connect

with connect("memory://", on_event=Telemetry()) as client, client.lock("k"):
    held = []
    while not held:  # events are handed over a little later
        time.sleep(0.05)
        lines = urlopen("http://127.0.0.1:PORT/metrics").read().decode().splitlines()
        held = [line for line in lines if line.startswith("dlock_held") and not line.endswith(" 0.0")]
    print(*held)
"""
