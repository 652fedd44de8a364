"""The examples of a dashboard and of alert rules: they name the metrics that Prometheus is given, and each rule fires when it should."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import generate_latest

from dlock_contrib.opentelemetry import Telemetry
from dlock_core import EventKind, LockEvent

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "observability"
METRICS = 8
NOT_INSTALLABLE = 69


@pytest.fixture(scope="module")
def scraped() -> set[str]:
    """Return the names of dlock's series, as the exporter writes them after one event of each kind."""
    meters = MeterProvider([PrometheusMetricReader()])
    try:
        telemetry = Telemetry(meter_provider=meters)
        for kind in EventKind:
            telemetry(LockEvent(kind, "k", "1", 1, 0.1, "holder", "expired"))
        text = generate_latest().decode()
    finally:
        meters.shutdown()
    return set(re.findall(r"^(dlock_\w+)\{", text, re.MULTILINE))


def asked(text: str) -> set[str]:
    """Return the metrics that *text* asks for; ``dlock_outcome`` is a label."""
    return set(re.findall(r"\bdlock_[a-z_]+", text)) - {"dlock_outcome"}


@pytest.fixture(scope="module")
def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard."""
    found: list[dict[str, Any]] = json.loads((EXAMPLES / "grafana.json").read_text(encoding="utf-8"))["panels"]
    return found


def expressions(panels: list[dict[str, Any]]) -> list[str]:
    """Return what the panels ask Prometheus for, an interval in the place of Grafana's variable."""
    return [target["expr"].replace("$__rate_interval", "5m") for panel in panels for target in panel["targets"]]


def test_the_dashboard_shows_each_metric_and_no_other(panels: list[dict[str, Any]], scraped: set[str]) -> None:
    """It is JSON, with panels of its own places."""
    shown = asked(" ".join(expressions(panels)))
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    metrics = {re.sub(r"_(bucket|count|sum)$", "", name) for name in scraped}

    assert len(metrics) == METRICS
    assert [name for name in metrics if not any(each.startswith(name) for each in shown)] == []
    assert shown <= scraped
    assert len(set(places)) == len({panel["id"] for panel in panels}) == len(places)


def test_the_rules_ask_for_metrics_that_are_there(scraped: set[str]) -> None:
    """A mistyped name would never fire."""
    rules = asked((EXAMPLES / "alerts.yaml").read_text(encoding="utf-8"))

    assert rules
    assert rules <= scraped


def promtool(*arguments: str) -> str:
    """Return what promtool prints, which ends well."""
    command = [str(ROOT / "tools" / "promtool.sh"), *arguments]
    done = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=False, timeout=240)
    if done.returncode == NOT_INSTALLABLE:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    said: str = done.stdout
    return said


@pytest.mark.slow
def test_each_rule_fires_when_it_should() -> None:
    """Prometheus's own tool reads the rules, and runs them on made-up series; none is without a test."""
    rules = (EXAMPLES / "alerts.yaml").read_text(encoding="utf-8")
    tested = (EXAMPLES / "alerts_test.yaml").read_text(encoding="utf-8")
    alerts = re.findall(r"- alert: (\w+)", rules)

    assert f"SUCCESS: {len(alerts)} rules found" in promtool("check", "rules", "alerts.yaml")
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yaml")
    assert set(alerts) == set(re.findall(r"alertname: (\w+)", tested))


@pytest.mark.slow
def test_prometheus_understands_what_the_dashboard_asks_for(panels: list[dict[str, Any]], tmp_path: Path) -> None:
    """Each expression is PromQL: it would do for a rule that records it."""
    asked_for = expressions(panels)
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(asked_for)]
    file = tmp_path / "rules.yaml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")

    assert f"SUCCESS: {len(asked_for)} rules found" in promtool("check", "rules", str(file))
    assert len(asked_for) >= METRICS
