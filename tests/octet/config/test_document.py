"""docs/configuration.md documents every key correctly."""

import re
from pathlib import Path

import pytest

from octet.config.annotations import DETECTORS, FieldFlag, OneOf, ValueUnit
from octet.config.ensemble import (
    DEFAULT_TASKS,
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
from octet.config.fields import SchemaField, compare_ensembles, get_fields
from octet.config.loader import parse_ensemble
from octet.config.values import format_size
from octet.limits import Range
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
"""Classes of nested mappings."""


def section(name: str) -> str:
    return DOCUMENT.split(f"\n## {name}\n")[1].split("\n## ")[0]


def rows(text: str, heading: str) -> dict[str, list[str]]:
    """Return the cells of the table with this heading, by the name in the first cell of each row."""
    table = re.search(rf"\| {heading} \|.*\n\|[-|]+\|\n((?:\|.*\n?)+)", text)
    assert table is not None
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[1].splitlines()]
    return {name.strip("`"): rest for name, *rest in cells}


def shown_default(field: SchemaField) -> str:
    if field.required:
        return "required"
    if field.is_table and not field.optional:
        return "a mapping"
    value = field.default()
    if field.note(ValueUnit) is ValueUnit.BYTES:
        return format_size(value)
    if value is None or not (value or isinstance(value, int | float)):
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def shown_range(field: SchemaField) -> str | None:
    limits = field.note(Range)
    if limits is not None and field.note(ValueUnit) is ValueUnit.BYTES:
        return f"{format_size(limits.least)} to {format_size(limits.most)}"
    words = field.note(OneOf)
    either = "" if words is None or field.kind is not float else f", {' or '.join(words.names)}"
    return None if limits is None else str(limits).replace("in ", "") + either


def items(name: str) -> dict[str, list[str]]:
    """Return the default, range and flags of each key that the section lists."""
    found = re.findall(r"^- `(\w+)` \((.*?)\): ", section(name), re.MULTILINE)
    return {key: [part.strip() for part in inner.split(";")] for key, inner in found}


@pytest.mark.parametrize("name", [*SECTIONS, *WITHIN])
def test_every_key_is_documented_with_default_and_range(name: str) -> None:
    fields = {
        key: field for key, field in get_fields((SECTIONS | WITHIN)[name]).items() if key != "name" or name == "rules"
    }
    documented = items(name)
    assert list(documented) == list(fields)
    for key, field in fields.items():
        assert documented[key][0] == shown_default(field), key
        assert shown_range(field) in (None, *documented[key][1:2]), key


@pytest.mark.parametrize("name", [name for name in SECTIONS if name not in ("intents", "rules", "tasks", "router")])
def test_live_and_shared_keys_are_marked(name: str) -> None:
    documented = items(name)
    for key, field in get_fields(SECTIONS[name]).items():
        if key != "name":
            live = ["live"] if field.has(FieldFlag.LIVE) else ["live*"] if key in ("describe", "examples") else []
            top = ["top"] if field.has(FieldFlag.SHARED) else []
            marked = [part for part in documented[key][1:] if part in ("live", "live*", "top", "live, top")]
            assert ", ".join(marked) == ", ".join(live + top), key


def test_every_top_level_key_is_documented() -> None:
    documented = " ".join(rows(DOCUMENT, "key")) + " " + " ".join(SECTIONS)
    assert set(re.findall(r"\w+", documented)) == {key for key in get_fields(Ensemble) if key != "source"}


def test_the_tasks_and_detectors_are_those_of_the_code() -> None:
    assert rows(section("tasks"), "task") == {
        task.name: [
            *(f"{value:g}" for value in (task.temperature, task.max_tokens, task.top_p, task.repetition_penalty)),
            task.verify or "",
        ]
        for task in DEFAULT_TASKS
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
    assert not compare_ensembles(ensemble, parse_ensemble(f"# again\n{example}", None))
