"""docs/configuration.md says of every key what is true of it."""

import re
from pathlib import Path

import pytest

from octet.config.changes import changes
from octet.config.detectors import DETECTORS
from octet.config.ensemble import (
    ClassifierConfig,
    CorrectnessConfig,
    DispatchConfig,
    Ensemble,
    EscalationConfig,
    HttpConfig,
    IntentConfig,
    JobsConfig,
    LanesConfig,
    RouterConfig,
    RuleConfig,
    ShadowConfig,
    SloConfig,
    SloTargets,
    SpecialistConfig,
    StoreConfig,
    TaskConfig,
    TlsConfig,
)
from octet.config.fields import Field, fields_of
from octet.config.kinds import Mark, Range, Unit
from octet.config.read import parse_ensemble
from octet.config.scalars import show_size
from octet.config.tasks import TASKS
from tests.octet.config.ensembles import named

DOCUMENT = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
SECTIONS: dict[str, type] = {
    "specialists": SpecialistConfig,
    "intents": IntentConfig,
    "rules": RuleConfig,
    "tasks": TaskConfig,
    "classifier": ClassifierConfig,
    "dispatch": DispatchConfig,
    "correctness": CorrectnessConfig,
    "shadow": ShadowConfig,
    "lanes": LanesConfig,
    "escalation": EscalationConfig,
    "store": StoreConfig,
    "slo": SloConfig,
    "router": RouterConfig,
}
WITHIN: dict[str, type] = {
    "specialists.slo": SloTargets,
    "router.http": HttpConfig,
    "router.tls": TlsConfig,
    "router.jobs": JobsConfig,
}
"""Tables within others."""


def section(name: str) -> str:
    return DOCUMENT.split(f"\n## {name}\n")[1].split("\n## ")[0]


def rows(text: str, heading: str) -> dict[str, list[str]]:
    """The cells after the first of the table that starts with this heading, by the name in the first."""
    table = re.search(rf"\| {heading} \|.*\n\|[-|]+\|\n((?:\|.*\n?)+)", text)
    assert table is not None
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[1].splitlines()]
    return {name.strip("`"): rest for name, *rest in cells}


def shown_default(field: Field) -> str:
    if field.required:
        return "required"
    if field.is_table and not field.optional:
        return "a table"
    value = field.default()
    if field.note(Unit) is Unit.BYTES:
        return show_size(value)
    if value is None or not (value or isinstance(value, int)):
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def shown_range(field: Field) -> str | None:
    limits = field.note(Range)
    if limits is not None and field.note(Unit) is Unit.BYTES:
        return f"{show_size(limits.least)} to {show_size(limits.most)}"
    return None if limits is None else str(limits)


@pytest.mark.parametrize("name", [*SECTIONS, *WITHIN])
def test_every_key_stands_there_with_its_default_and_its_range(name: str) -> None:
    fields = {
        key: field for key, field in fields_of((SECTIONS | WITHIN)[name]).items() if key != "name" or name == "rules"
    }
    told = rows(section(name), "key")
    assert list(told) == list(fields)
    for key, field in fields.items():
        assert told[key][0] == shown_default(field), key
        assert shown_range(field) in (None, told[key][1]), key


@pytest.mark.parametrize("name", [name for name in SECTIONS if name not in ("intents", "rules", "tasks", "router")])
def test_what_is_live_and_what_may_stand_at_the_top_is_marked(name: str) -> None:
    told = rows(section(name), "key")
    for key, field in fields_of(SECTIONS[name]).items():
        if key != "name":
            live = ["live"] if field.has(Mark.LIVE) else ["live*"] if key in ("describe", "examples") else []
            top = ["top"] if field.has(Mark.SHARED) else []
            assert told[key][2] == ", ".join(live + top), key


def test_every_key_of_the_top_stands_there() -> None:
    told = " ".join(rows(DOCUMENT, "key")) + " " + " ".join(SECTIONS)
    assert set(re.findall(r"\w+", told)) == {key for key in fields_of(Ensemble) if key != "source"}


def test_the_tasks_and_detectors_are_those_of_the_code() -> None:
    assert rows(section("tasks"), "task") == {
        task.name: [f"{value:g}" for value in (task.temperature, task.max_tokens, task.top_p, task.repetition_penalty)]
        for task in TASKS
    }
    assert rows(section("rules"), "detector") == {name: [finds] for name, finds in DETECTORS.items()}


def test_the_example_is_a_whole_ensemble_in_thirty_lines() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    ensemble = parse_ensemble(example, None)
    assert len(example.splitlines()) <= 30
    assert ensemble.names == ("sql", "shell", "regex")
    assert named(ensemble.intents, "query").specialist == "sql"
    assert {specialist.max_tokens for specialist in ensemble.specialists} == {400}
    assert all(specialist.describe and specialist.examples for specialist in ensemble.specialists)
    assert not changes(ensemble, parse_ensemble(f"# again\n{example}", None))
