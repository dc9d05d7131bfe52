"""Every difference between two ensembles is reported. The digest differs exactly if decisions may differ."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octet.config.ensemble import (
    ClassifierConfig,
    CorrectnessConfig,
    DispatchConfig,
    Ensemble,
    EscalationConfig,
    IntentConfig,
    JobsConfig,
    LanesConfig,
    RouterConfig,
    RuleConfig,
    ShadowConfig,
    SpecialistConfig,
    StoreConfig,
    TaskConfig,
)
from octet.config.fields import SchemaField, compare_ensembles, ensemble_digest, get_fields
from octet.config.loader import default_ensemble
from tests.octet.config.ensembles import ensembles, values

BASE = default_ensemble()
DECIDES_NOTHING = {
    "name", "dispatch", "correctness", "shadow", "lanes", "escalation", "store", "router", "router.jobs",
    "classifier.path", "classifier.timeout", "classifier.cache",
    *(f"specialists.{key}" for key in (
        "engine", "model", "adapters", "adapter_digests", "replicas", "addresses", "block_size", "kv_memory", "context",
        "state_memory", "spill_memory", "device", "dtype", "memory_fraction",
        "max_running", "max_waiting", "draft_window", "draft_lane", "draft_model", "piece_gap", "threads",
        "cost_model", "verify", "floor",
    )),
}  # fmt: skip
NOT_LIVE = {"dispatch.attach", "dispatch.transport"}
"""Keys that need a restart although the rest of their section is live."""
LIVE = {
    "rules", "intents", "tasks", "default", "dispatch", "correctness", "shadow", "lanes", "escalation",
    "store.receipts", "store.comparisons", "store.audit", "store.queue",
    "store.texts", "store.texts_keep",
    "store.responses", "store.responses_bytes", "store.responses_keep",
    "classifier.reject_threshold", "classifier.min_confidence", "classifier.second_threshold",
    *(f"specialists.{key}" for key in (
        "system", "fallback", "max_tokens", "use_adapters", "embeddings", "describe", "examples", "verify", "floor",
    )),
}  # fmt: skip


def with_first(section: str) -> Callable[[Ensemble, Any], Ensemble]:
    return lambda ensemble, item: with_section(section)(ensemble, (item, *getattr(ensemble, section)[1:]))


def with_section(section: str) -> Callable[[Ensemble, Any], Ensemble]:
    def put(ensemble: Ensemble, value: Any) -> Ensemble:
        given: dict[str, Any] = {section: value}
        return replace(ensemble, **given)

    return put


SECTIONS: list[tuple[str, type, Any, Callable[[Ensemble, Any], Ensemble]]] = [
    ("specialists", SpecialistConfig, BASE.specialists[0], with_first("specialists")),
    ("intents", IntentConfig, BASE.intents[0], with_first("intents")),
    ("rules", RuleConfig, BASE.rules[0], with_first("rules")),
    ("tasks", TaskConfig, BASE.tasks[0], with_first("tasks")),
    ("classifier", ClassifierConfig, BASE.classifier, with_section("classifier")),
    ("dispatch", DispatchConfig, BASE.dispatch, with_section("dispatch")),
    ("correctness", CorrectnessConfig, BASE.correctness, with_section("correctness")),
    ("shadow", ShadowConfig, BASE.shadow, with_section("shadow")),
    ("lanes", LanesConfig, BASE.lanes, with_section("lanes")),
    ("escalation", EscalationConfig, BASE.escalation, with_section("escalation")),
    ("store", StoreConfig, BASE.store, with_section("store")),
    ("router", RouterConfig, BASE.router, with_section("router")),
    (
        "router.jobs",
        JobsConfig,
        BASE.router.jobs,
        lambda base, jobs: replace(base, router=replace(base.router, jobs=jobs)),
    ),
]
FIELDS = [
    (section, field, item, put)
    for section, kind, item, put in SECTIONS
    for field in get_fields(kind).values()
    if field.name != "name" and (field.optional or not field.is_table)
]


@pytest.mark.parametrize(("section", "field", "item", "put"), FIELDS, ids=lambda value: getattr(value, "name", None))
@given(data=st.data())
@settings(max_examples=5)
def test_every_changed_field_is_reported_and_digested_as_documented(
    section: str, field: SchemaField, item: Any, put: Callable[[Ensemble, Any], Ensemble], data: st.DataObject
) -> None:
    value = data.draw(values(field).filter(lambda drawn: drawn != getattr(item, field.name)))
    changed = put(BASE, replace(item, **{field.name: value}))
    found = compare_ensembles(BASE, changed)
    (name,) = found.reloadable + found.needs_restart
    one = section if section == "rules" else f"{section}.{field.name}"
    named = section if section == "rules" else f"{section}.{getattr(item, 'name', '')}.{field.name}".replace("..", ".")
    assert name == named
    assert bool(found.reloadable) == (bool({section, one} & LIVE) and one not in NOT_LIVE)
    assert (ensemble_digest(changed) == ensemble_digest(BASE)) == bool({section, one} & DECIDES_NOTHING)


def test_descriptions_need_a_restart_without_a_trained_classifier() -> None:
    untrained = replace(BASE, classifier=ClassifierConfig(path=None))
    described = with_first("specialists")(untrained, replace(BASE.specialists[0], describe="new", examples=("new",)))
    found = compare_ensembles(untrained, described)
    assert found.needs_restart == ("specialists.template.describe", "specialists.template.examples")
    assert found.reloadable == ()


@pytest.mark.parametrize("name", ["describe", "examples"])
def test_a_new_specialist_needs_a_restart_even_if_it_has_the_name_of_a_live_key(name: str) -> None:
    trained = replace(BASE, classifier=ClassifierConfig(path="classifier.safetensors"))
    more = replace(trained, specialists=(*trained.specialists, replace(trained.specialists[0], name=name)))
    assert compare_ensembles(trained, more).needs_restart == (f"specialists.{name}",)


def test_added_and_removed_specialists_are_reported_by_name() -> None:
    first, second, *rest = BASE.specialists
    renamed = replace(BASE, specialists=(replace(first, name="new"), second, *rest), rules=(), intents=BASE.intents[1:])
    found = compare_ensembles(BASE, renamed)
    assert set(found.needs_restart) == {"specialists.template", "specialists.new"}
    assert set(found.reloadable) == {"rules", "intents.codegen"}


def test_path_and_order_of_tables_are_no_change() -> None:
    other = replace(
        BASE,
        specialists=BASE.specialists[::-1],
        intents=BASE.intents[::-1],
        tasks=BASE.tasks[::-1],
        source=Path("/elsewhere"),
    )
    assert not compare_ensembles(BASE, other)
    assert ensemble_digest(BASE) == ensemble_digest(other)


def test_changed_order_of_rules_is_a_change() -> None:
    other = replace(BASE, rules=BASE.rules[::-1])
    assert compare_ensembles(BASE, other).reloadable == ("rules",)
    assert ensemble_digest(BASE) != ensemble_digest(other)


def test_integer_and_equal_float_have_the_same_digest() -> None:
    whole = with_section("classifier")(BASE, replace(BASE.classifier, min_confidence=1))
    point = with_section("classifier")(BASE, replace(BASE.classifier, min_confidence=1.0))
    assert ensemble_digest(whole) == ensemble_digest(point)


def sorted_by_name(ensemble: Ensemble) -> Ensemble:
    tables: dict[str, Any] = {key: by_name(getattr(ensemble, key)) for key in ("specialists", "intents", "tasks")}
    return replace(ensemble, **tables, source=None)


def by_name(items: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(sorted(items, key=lambda item: str(item.name)))


@given(st.lists(ensembles(most=2), min_size=2, max_size=2))
@settings(max_examples=max(10, settings().max_examples // 10))
def test_equal_ensembles_have_no_changes(pair: list[Ensemble]) -> None:
    one, other = pair
    assert bool(compare_ensembles(one, other)) == (sorted_by_name(one) != sorted_by_name(other))
    assert not compare_ensembles(one, replace(one, source=None))
    if not compare_ensembles(one, other):
        assert ensemble_digest(one) == ensemble_digest(other)
