"""The examples of a dashboard and of alert rules name the metrics that the module for OpenTelemetry makes, and all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "observability"
# How the exporter of Prometheus names each kind of instrument; units in braces have no place there.
NAMED = {
    "create_counter": ["{}_total"],
    "create_up_down_counter": ["{}"],
    "histogram": ["{}_seconds_bucket", "{}_seconds_count", "{}_seconds_sum"],
}


def made() -> dict[str, set[str]]:
    """Return for each instrument of the module its names in Prometheus."""
    source = (ROOT / "dlock_contrib" / "opentelemetry.py").read_text(encoding="utf-8")
    found = re.findall(r'(create_counter|create_up_down_counter|histogram)\(\s*"(dlock\.[a-z.]+)"', source)
    return {name: {each.format(name.replace(".", "_")) for each in NAMED[kind]} for kind, name in found}


def asked(text: str) -> set[str]:
    """Return the metrics that *text* asks for; ``dlock_outcome`` is a label."""
    return set(re.findall(r"\bdlock_[a-z_]+", text)) - {"dlock_outcome"}


def test_the_dashboard_shows_each_metric_and_no_other() -> None:
    """It is JSON, with panels of its own places."""
    dashboard = json.loads((EXAMPLES / "grafana.json").read_text(encoding="utf-8"))

    shown = asked(" ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"]))
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]

    assert len(made()) == 8
    assert [name for name, names in made().items() if not shown & names] == []
    assert shown <= set().union(*made().values())
    assert len(set(places)) == len({panel["id"] for panel in dashboard["panels"]}) == len(places)


def test_the_rules_ask_for_metrics_that_are_there() -> None:
    """Each has an expression and a sentence."""
    rules = (EXAMPLES / "alerts.yaml").read_text(encoding="utf-8")

    assert asked(rules)
    assert asked(rules) <= set().union(*made().values())
    assert (
        len(re.findall(r"- alert: ", rules))
        == len(re.findall(r"expr: ", rules))
        == len(re.findall("summary: ", rules))
        == 4
    )
