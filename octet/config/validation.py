"""Checks across fields: references, values that must agree, files that must exist."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from octet.config import ensemble as schema
from octet.config.annotations import RefersTo, verifier_problem
from octet.config.fields import fields_of
from octet.config.values import KeyIndex, KeyPath
from octet.config.yaml_tree import quote
from octet.telemetry.trace_export import otlp_endpoint_error

_IN_ORDER: Mapping[type, tuple[tuple[str, str, int], ...]] = {
    schema.DispatchConfig: (
        ("cool_down", "max_cool_down", 1),
        ("heartbeat_seconds", "stale_seconds", 1),
        ("heartbeat_seconds", "hang_seconds", 2),
    ),
    schema.EscalationConfig: (("calm", "refused", 1),),
    schema.SloConfig: (("window", "long_window", 1),),
}
"""For each pair of keys: the first value times the factor must be at most the second value."""


def check_consistency(built: Iterable[tuple[KeyPath, Any]], index: KeyIndex) -> None:
    """Compare the values with each other and add problems to the index; invalid keys are skipped."""
    known = {
        "specialists": index.names("specialists"),
        "tasks": [task.name for task in schema.DEFAULT_TASKS] + index.names("tasks"),
    }
    rules: dict[str, int] = {}
    for place, item in built:
        _check_references(item, place, known, index)
        for less, more, factor in _IN_ORDER.get(type(item), ()):
            _check_order(item, place, less, more, factor, index)
        if isinstance(item, schema.SpecialistConfig):
            _check_specialist(item, place, index)
        elif isinstance(item, schema.RuleConfig):
            _check_rule(item, place, rules, index)
        elif isinstance(item, schema.SloTargets):
            _check_targets(item, place, index)
        elif isinstance(item, schema.RouterConfig):
            if item.http is not None and item.http.port == item.port != 0 and index.has_key(*place, "http"):
                index.add_problem((*place, "http", "port"), f"must differ from the gRPC port, which is {item.port}")
        elif isinstance(item, schema.TelemetryConfig):
            trouble = otlp_endpoint_error(item.otlp) if item.otlp else ""
            if trouble and index.is_valid(*place, "otlp"):
                index.add_problem((*place, "otlp"), trouble)


def _check_references(item: Any, place: KeyPath, known: dict[str, list[str]], index: KeyIndex) -> None:
    kind: type = type(item)
    for field in fields_of(kind).values():
        refers, name = field.note(RefersTo), getattr(item, field.name)
        if refers is None or name is None or not known[refers.to] or name in known[refers.to]:
            continue
        noun = refers.to.removesuffix("s")
        here = (*place, field.name)
        index.add_unknown(here, f"names an unknown {noun} {quote(name)}", name, known[refers.to])


def _check_specialist(specialist: schema.SpecialistConfig, place: KeyPath, index: KeyIndex) -> None:
    if specialist.name == schema.REJECT:
        problem = f"must have another name: {schema.REJECT!r} is the classifier's label for no specialist"
        index.add_problem(place, problem)
    if specialist.fallback == specialist.name:
        index.add_problem((*place, "fallback"), "must be another specialist, or left out")
    if specialist.addresses and index.has_key(*place, "replicas"):
        problem = "must be left out if addresses are given: those replicas are started elsewhere"
        index.add_problem((*place, "replicas"), problem)
    if specialist.cost_model is not None and specialist.engine != "sim" and index.has_key(*place, "cost_model"):
        index.add_problem((*place, "cost_model"), f"belongs to the sim engine, not to {specialist.engine}")
    if index.is_valid(*place, "verify") and (trouble := verifier_problem(specialist.verify)):
        index.add_problem((*place, "verify"), f"is not known: {trouble}")
    if specialist.context is not None and specialist.max_tokens >= specialist.context:
        key = "max_tokens" if index.has_key(*place, "max_tokens") else "context"
        rule = f"max_tokens ({specialist.max_tokens}) must be less than context ({specialist.context})"
        index.add_problem((*place, key), f"leaves no room for a prompt: {rule}")
    _check_adapters(specialist, place, index)


def _check_adapters(specialist: schema.SpecialistConfig, place: KeyPath, index: KeyIndex) -> None:
    if specialist.addresses or not index.is_valid(*place, "adapters"):
        return
    known = list(specialist.adapters) or ["none"]
    for key, names in (("use_adapters", specialist.use_adapters), ("adapter_digests", specialist.adapter_digests)):
        for name in names:
            if name not in specialist.adapters:
                index.add_unknown((*place, key), f"names {quote(name)}, which is not one of its adapters", name, known)


def _check_rule(rule: schema.RuleConfig, place: KeyPath, seen: dict[str, int], index: KeyIndex) -> None:
    detects, contains = index.has_key(*place, "detect"), index.has_key(*place, "contains")
    at_least, name = (*place, "at_least"), (*place, "name")
    if detects == contains:
        which = "both" if detects else "neither"
        index.add_problem(place, f"must have exactly one of `detect` and `contains`; it has {which}")
    elif detects and index.has_key(*at_least):
        index.add_problem(at_least, "counts the texts of `contains`, which this rule does not have")
    elif contains and index.is_valid(*place, "contains") and rule.at_least > len(rule.contains):
        index.add_problem(at_least, f"must be at most {len(rule.contains)}, the number of texts in `contains`")
    if rule.name in seen:
        index.add_problem(name, f"{quote(rule.name)} is already the name of the rule on line {seen[rule.name]}")
    seen.setdefault(rule.name, index.line_of(name))


def _check_order(item: Any, place: KeyPath, less: str, more: str, factor: int, index: KeyIndex) -> None:
    low, high = getattr(item, less), getattr(item, more)
    if factor * low > high and index.is_valid(*place, less) and index.is_valid(*place, more):
        key = less if index.has_key(*place, less) else more
        unit = "" if isinstance(item, schema.EscalationConfig) else " s"
        shown = f"twice {less}" if factor == 2 else less
        problem = f"is inconsistent: {shown} ({low:g}{unit}) must be at most {more} ({high:g}{unit})"
        index.add_problem((*place, key), problem)


def _check_targets(targets: schema.SloTargets, place: KeyPath, index: KeyIndex) -> None:
    """Check that a higher quantile has no shorter target."""
    for measure in ("ttft", "itl"):
        names = [f"{measure}_p{percent}" for percent in (50, 95, 99)]
        known = [(name, getattr(targets, name)) for name in names if index.is_valid(*place, name)]
        set_targets = [(name, target) for name, target in known if target is not None]
        for (less, low), (more, high) in pairwise(set_targets):
            if low > high:
                problem = f"is inconsistent: {less} ({low:g} s) must be at most {more} ({high:g} s)"
                index.add_problem((*place, more), problem)


def check_files(ensemble: schema.Ensemble, index: KeyIndex) -> None:
    for place, path, needs_folder in needed_files(ensemble):
        top = place[-1:]  # the specialist may inherit the key from the top of the file
        stated_at = top if not index.has_key(*place) and index.has_key(*top) else place
        if not path.exists():
            index.add_problem(stated_at, f"does not exist: {path}")
        elif needs_folder and not path.is_dir():
            index.add_problem(stated_at, f"must be a folder: {path}")


def needed_files(ensemble: schema.Ensemble) -> Iterator[tuple[KeyPath, Path, bool]]:
    """Yield key path, file path, and whether the path must be a folder."""
    for specialist in ensemble.specialists:
        place = ("specialists", specialist.name)
        if specialist.addresses:
            continue
        if specialist.engine == "native" and specialist.model != schema.DEMO_MODEL:
            yield (*place, "model"), Path(specialist.model), False
        if specialist.engine == "sim" and specialist.cost_model is not None:
            yield (*place, "cost_model"), Path(specialist.cost_model), False
        for name, folder in specialist.adapters.items():
            yield (*place, "adapters", name), Path(folder), True
    if ensemble.classifier.path not in (None, schema.BUILT_IN_CLASSIFIER):
        yield ("classifier", "path"), Path(str(ensemble.classifier.path)), False
