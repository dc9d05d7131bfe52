"""promtool accepts the rules, alerts fire when they should, and the dashboard queries only documented metrics."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.monitoring.board import BOARD, MONITORING, board_queries, families_in, panels, rules
from tests.monitoring.prometheus import tool

ROOT = Path(__file__).parents[2]
INCIDENTS = ("capacity", "bad-refresh", "both", "cache-drift", "wrong-specialist", "restarts")
TESTS = sorted(Path(__file__).parent.glob("*_test.yml"))
"""The files of promtool tests. Alerts that look back for hours are in files with a longer evaluation interval."""
ALERTS = [rule for rule in rules() if "alert" in rule]
DOCUMENT = (ROOT / "docs" / "metrics.md").read_text()
ROUTERS = DOCUMENT.partition("\n### Replica")[0]
DOCUMENTED = set(re.findall(r"^- `([a-z_]+)` \(", DOCUMENT, re.MULTILINE))
SEEN_BY_ROUTERS = {"octet_replica_health_breaker"}


def promtool(*arguments: str) -> str:
    done = subprocess.run([tool("promtool"), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_the_rules_and_the_example() -> None:
    promtool("check", "rules", str(MONITORING / "rules.yml"))
    promtool("check", "config", str(MONITORING / "prometheus.yml"))


def test_alerts_fire_when_they_should_and_not_before() -> None:
    promtool("test", "rules", *map(str, TESTS))


def test_every_alert_is_tested() -> None:
    tried = "".join(file.read_text() for file in TESTS)
    fires = set(re.findall(r"alertname: (\w+)\n\s+exp_alerts:\n", tried))
    quiet = set(re.findall(r"alertname: (\w+)\n\s+exp_alerts: \[\]", tried))
    names = {alert["alert"] for alert in ALERTS}
    assert fires == names, names - fires
    assert quiet == names, names - quiet


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_every_alert_has_a_severity_and_a_runbook(alert: dict[str, dict[str, str]]) -> None:
    assert alert["labels"]["severity"] in ("warning", "critical")
    assert alert["annotations"]["summary"] and alert["annotations"]["description"]
    file, _, anchor = alert["annotations"]["runbook"].partition("#")
    if file == "docs/runbook.md":
        assert anchor in INCIDENTS
    else:
        headings = re.findall(r"^#+ (.+)$", (ROOT / file).read_text(), re.MULTILINE)
        assert anchor in [heading.lower().replace(" ", "-") for heading in headings]


def test_rules_and_dashboard_query_only_documented_metrics() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    asked = [query.expr for query in board_queries()] + [rule["expr"] for rule in rules()]
    for expr in asked:
        assert {name for name in families_in(expr) if not name.startswith("process_")} <= DOCUMENTED, expr
        assert set(re.findall(r"octet:\w+:\w+", expr)) <= recorded


def test_every_latency_query_names_its_specialist() -> None:
    """Latencies are grouped by specialist or filtered to one, never aggregated over the ensemble."""
    latencies = [query for query in board_queries() if re.search(r"(?<!cpu)_seconds(?!_total)|per_second", query.expr)]
    assert len(latencies) >= 19
    for query in latencies:
        assert 'specialist=~"$specialist"' in query.expr, query
        grouped = re.findall(r"\bby \(([^)]*)\)", query.expr)
        assert all("specialist" in labels for labels in grouped), query
    for panel in panels():
        for target in panel["targets"]:
            if any(target["expr"] == query.expr for query in latencies):
                assert "{{specialist}}" in target["legendFormat"], panel["title"]
    for rule in rules():
        if re.search(r"_seconds|octet_slo_", rule["expr"]):
            grouped = re.findall(r"\bby \(([^)]*)\)", rule["expr"])
            assert grouped and all("specialist" in labels for labels in grouped), rule


def test_equal_figures_of_several_routers_are_one_line() -> None:
    """Several routers report the same gauge for a specialist. The query must merge their values into one line."""
    shared = {
        name
        for name, kind, labels in re.findall(r"^- `([a-z_]+)` \((\w+)(.*?)\): ", ROUTERS, re.MULTILINE)
        if kind == "gauge" and "`specialist`" in labels and (name in SEEN_BY_ROUTERS or "`replica`" not in labels)
    }
    assert len(shared) >= 22
    asked = [query for query in board_queries() if families_in(query.expr) & shared]
    assert len(asked) >= 22
    for query in asked:
        assert re.search(r"\b(min|max) by \(", query.expr), query


def test_process_metrics_of_other_jobs_are_left_out() -> None:
    routers = [query for query in board_queries() if "process_" in query.expr and 'specialist=""' in query.expr]
    assert len(routers) == 2
    for query in routers:
        assert query.expr.endswith("and on (instance, job) octet_build_info")


def test_dashboard_is_complete() -> None:
    assert [row["title"] for row in BOARD["panels"] if row["type"] == "row"] == [
        "SLOs",
        "Traffic",
        "Admission",
        "Correctness, breakers and shadows",
        "KV and cache",
        "Engine",
        "Store and router",
    ]
    assert {variable["name"] for variable in BOARD["templating"]["list"]} == {"datasource", "specialist"}
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in BOARD["panels"]]
    assert len(places) == len(set(places))
    for panel in panels():
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
