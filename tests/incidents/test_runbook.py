"""Every command, alert and metric in the runbook exists."""

import re
import shlex
from argparse import ArgumentParser
from functools import cache

import pytest
import yaml

from octet.cli import whole_parser
from tests.incidents.runbook import DO, FILE, Section, sections

MONITORING = FILE.parents[1] / "helm" / "monitoring"
INCIDENTS = ("capacity", "bad-refresh", "both", "cache-drift", "wrong-specialist", "restarts")


@cache
def parser() -> ArgumentParser:
    return whole_parser()


def incident(anchor: str) -> Section:
    return sections()[anchor]


@cache
def alerts() -> dict[str, str]:
    """Return, for each alert, the section of the runbook that it names."""
    groups = yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    return {rule["alert"]: rule["annotations"]["runbook"] for rule in rules}


def test_runbook_has_the_five_incidents_in_order() -> None:
    assert list(sections()) == ["start-here", *INCIDENTS, "findings"]


@pytest.mark.parametrize("anchor", INCIDENTS)
def test_each_runbook_names_symptoms_figures_steps_and_mistakes(anchor: str) -> None:
    text = incident(anchor).text
    parts = ("**Look**", "**You see**", DO, "**It has worked**", "**Do not**")
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


@pytest.mark.parametrize("line", sorted({line for each in sections().values() for line in each.commands}))
def test_every_command_of_the_runbook_is_valid(line: str) -> None:
    program, *words = shlex.split(line)
    assert program == "octet"
    assert callable(parser().parse_args(words).run)


@pytest.mark.parametrize("anchor", INCIDENTS)
def test_every_named_alert_exists_and_refers_to_its_section(anchor: str) -> None:
    named = incident(anchor).alerts
    assert named
    assert {alerts().get(name) for name in named} == {f"docs/runbook.md#{anchor}"}


def test_every_alert_refers_to_an_existing_section() -> None:
    led = [place for place in alerts().values() if place.startswith("docs/runbook.md")]
    assert {place.partition("#")[2] for place in led} == set(INCIDENTS)


def test_every_named_metric_is_used_by_dashboard_or_rules() -> None:
    named = set(re.findall(r"`(octet_[a-z_]+)`", FILE.read_text()))
    used = "".join((MONITORING / name).read_text() for name in ("rules.yml", "grafana.json"))
    assert named and named <= set(re.findall(r"octet_[a-z_]+", used))
