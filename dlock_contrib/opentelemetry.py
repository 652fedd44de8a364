"""OpenTelemetry: metrics and spans of locks, from the events of a client.

    with connect("redis://host/0", on_event=Telemetry()) as client:
        ...

It needs the API of OpenTelemetry alone; the program sets up the SDK and its exporters, of Prometheus for example.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from dlock_core import EventKind, LockEvent, LossReason, MissingDriverError, __version__

try:
    from opentelemetry import metrics, trace
except ImportError as error:
    raise MissingDriverError(
        "dlock_contrib.opentelemetry needs opentelemetry-api, which is not installed: pip install 'dlock-core[opentelemetry]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

__all__ = ["Telemetry"]

_NAME = "dlock"
# Attempts in each phase; beyond, the oldest are forgotten: of leases that were dropped without a release, or of events that were lost.
_OPEN_MAX = 100_000
_ENDS_WAIT = {EventKind.GRANTED: "granted", EventKind.TAKEN_OVER: "taken_over", EventKind.REFUSED: "refused"}
_BOUNDS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 3600)


class Telemetry:
    """What ``on_event`` is given: it counts and times the events, and makes two spans of each attempt.

    The span ``lock acquire`` lasts from the request to the grant or the refusal, and ``lock hold`` from the grant to the release or the
    loss. Both are children of the span in which the lock was acquired. Spans have the key as the attribute ``dlock.key``; metrics have it
    only with *keys_in_metrics*, since each key makes a series of its own.
    """

    def __init__(
        self,
        *,
        keys_in_metrics: bool = False,
        meter_provider: MeterProvider | None = None,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        meter = metrics.get_meter(_NAME, __version__, meter_provider=meter_provider)
        tracer = trace.get_tracer(_NAME, __version__, tracer_provider=tracer_provider)
        self._keys_in_metrics = keys_in_metrics

        def histogram(name: str, description: str) -> metrics.Histogram:
            return meter.create_histogram(
                name, unit="s", description=description, explicit_bucket_boundaries_advisory=_BOUNDS_S
            )

        self._waits = histogram("dlock.acquire.duration", "Time from the request of a lock to its grant or refusal.")
        self._holds = histogram("dlock.hold.duration", "Time from the grant of a lock to its release or loss.")
        self._renewals = histogram("dlock.renewal.duration", "Time that the renewal of a lease took.")
        held = meter.create_up_down_counter("dlock.held", unit="{lock}", description="Locks that are held now.")
        pending = meter.create_up_down_counter(
            "dlock.pending", unit="{lock}", description="Locks that are asked for and not granted yet."
        )
        self._acquiring = _Phase(tracer, "lock acquire", pending)
        self._holding = _Phase(tracer, "lock hold", held)
        self._risks = meter.create_counter("dlock.risks", unit="{event}", description="Renewals that failed.")
        self._losses = meter.create_counter("dlock.losses", unit="{event}", description="Locks that were lost.")
        self._breaks = meter.create_counter("dlock.breaks", unit="{event}", description="Locks that were broken.")
        if not keys_in_metrics:  # from 0 on, so that the first one is a step
            self._risks.add(0)
            self._breaks.add(0)
            for reason in LossReason:
                self._losses.add(0, {"error.type": reason.value})

    def __call__(self, event: LockEvent) -> None:
        """Take an *event*."""
        labels: dict[str, str] = {"dlock.key": event.key} if self._keys_in_metrics else {}
        kind = event.kind
        if kind is EventKind.REQUESTED:
            self._acquiring.begin(event, labels)
        elif kind is EventKind.WAITING:
            self._acquiring.note(event)
        elif kind in _ENDS_WAIT:
            self._end_wait(event, labels)
        elif kind is EventKind.RENEWED:
            self._renewals.record(event.duration, labels)
        elif kind is EventKind.AT_RISK:
            self._risks.add(1, labels)
            self._holding.note(event)
        elif kind in (EventKind.LOST, EventKind.RELEASED):
            self._end_hold(event, labels)
        elif kind is EventKind.BROKEN:
            self._breaks.add(1, labels)

    def _end_wait(self, event: LockEvent, labels: Mapping[str, str]) -> None:
        granted = event.kind is not EventKind.REFUSED
        self._waits.record(event.duration, {**labels, "dlock.outcome": _ENDS_WAIT[event.kind]})
        if granted:
            self._holding.begin(event, labels)
        self._acquiring.end(event, error_type=None if granted else _ENDS_WAIT[event.kind])

    def _end_hold(self, event: LockEvent, labels: Mapping[str, str]) -> None:
        lost = (event.error or "unknown") if event.kind is EventKind.LOST else None
        if not self._holding.end(event, error_type=lost):
            return  # a lock that was lost is released, too
        if lost:
            self._losses.add(1, {**labels, "error.type": lost})
        self._holds.record(event.duration, {**labels, "dlock.outcome": "lost" if lost else "released"})


class _Phase:
    """The attempts that are in one phase now: each has a span, and *counter* says how many they are."""

    def __init__(self, tracer: trace.Tracer, name: str, counter: metrics.UpDownCounter) -> None:
        self._tracer, self._name, self._counter = tracer, name, counter
        self._open: OrderedDict[str, tuple[Span, Mapping[str, str]]] = OrderedDict()

    def begin(self, event: LockEvent, labels: Mapping[str, str]) -> None:
        """Begin a span; its parent is the span of the caller, in whose context events are told."""
        span = self._tracer.start_span(self._name, kind=trace.SpanKind.CLIENT, attributes=_attributes(event))
        self._open[event.attempt] = span, labels
        self._counter.add(1, labels)
        if len(self._open) > _OPEN_MAX:
            self._leave(next(iter(self._open)))

    def note(self, event: LockEvent) -> None:
        """Add *event* to its span."""
        if (found := self._open.get(event.attempt)) is not None:
            found[0].add_event(event.kind.value, _attributes(event))

    def end(self, event: LockEvent, *, error_type: str | None) -> bool:
        """End the span with *event*; False if there is none."""
        if (found := self._open.get(event.attempt)) is None:
            return False
        span = found[0]
        span.set_attributes(_attributes(event))
        if error_type is not None:
            span.set_attribute("error.type", error_type)
            span.set_status(trace.StatusCode.ERROR, event.error)
        self._leave(event.attempt)
        return True

    def _leave(self, attempt: str) -> None:
        span, labels = self._open.pop(attempt)
        self._counter.add(-1, labels)
        span.end()


def _attributes(event: LockEvent) -> dict[str, str | int]:
    found: dict[str, str | int] = {"dlock.key": event.key}
    if event.fencing_token:
        found["dlock.fencing_token"] = event.fencing_token
    if event.holder is not None:
        found["dlock.holder"] = event.holder
    if event.error is not None:
        found["dlock.error"] = event.error
    return found
