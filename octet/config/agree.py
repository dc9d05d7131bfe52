"""What no field can tell by itself: names that refer to something, and values that must agree."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from octet.config.ensemble import (
    REJECT,
    DispatchConfig,
    EscalationConfig,
    RouterConfig,
    RuleConfig,
    SloConfig,
    SloTargets,
    SpecialistConfig,
    TelemetryConfig,
)
from octet.config.fields import fields_of
from octet.config.kinds import Refers
from octet.config.sheet import Place, Sheet
from octet.config.tasks import TASKS
from octet.config.tree import quoted
from octet.config.verifiers import trouble_with_verifier
from octet.telemetry.endpoint import trouble_with


def check_agreement(built: Iterable[tuple[Place, Any]], sheet: Sheet) -> None:
    """Tells the sheet; what was found wrong before is not judged again."""
    known = {"specialists": sheet.names("specialists"), "tasks": [task.name for task in TASKS] + sheet.names("tasks")}
    rules: dict[str, int] = {}
    for place, item in built:
        _check_references(item, place, known, sheet)
        if isinstance(item, SpecialistConfig):
            _check_specialist(item, place, sheet)
        elif isinstance(item, RuleConfig):
            _check_rule(item, place, sheet)
            _check_rule_name(item.name, place, rules, sheet)
        elif isinstance(item, DispatchConfig):
            _check_dispatch(item, place, sheet)
        elif isinstance(item, EscalationConfig):
            _check_escalation(item, place, sheet)
        elif isinstance(item, SloConfig):
            _check_windows(item, place, sheet)
        elif isinstance(item, SloTargets):
            _check_targets(item, place, sheet)
        elif isinstance(item, RouterConfig):
            _check_doors(item, place, sheet)
        elif isinstance(item, TelemetryConfig):
            _check_telemetry(item, place, sheet)


def _check_references(item: Any, place: Place, known: dict[str, list[str]], sheet: Sheet) -> None:
    kind: type = type(item)
    for field in fields_of(kind).values():
        refers, name = field.note(Refers), getattr(item, field.name)
        if refers is None or name is None or not known[refers.to] or name in known[refers.to]:
            continue
        noun = refers.to.removesuffix("s")
        here = (*place, field.name)
        sheet.unknown(here, f"names an unknown {noun} {quoted(name)}", name, known[refers.to])


def _check_doors(router: RouterConfig, place: Place, sheet: Sheet) -> None:
    http = router.http
    if http is not None and http.port == router.port != 0 and sheet.given(*place, "http"):
        sheet.wrong((*place, "http", "port"), f"must be another than that of gRPC, which is {router.port}")


def _check_telemetry(telemetry: TelemetryConfig, place: Place, sheet: Sheet) -> None:
    if telemetry.otlp and sheet.sound(*place, "otlp") and (trouble := trouble_with(telemetry.otlp)):
        sheet.wrong((*place, "otlp"), trouble)


def _check_specialist(specialist: SpecialistConfig, place: Place, sheet: Sheet) -> None:
    if specialist.name == REJECT:
        sheet.wrong(place, f"must have another name: {REJECT!r} is the classifier's word for nobody")
    if specialist.fallback == specialist.name:
        sheet.wrong((*place, "fallback"), "must be another specialist, or left out")
    if specialist.addresses and sheet.given(*place, "replicas"):
        sheet.wrong(
            (*place, "replicas"), "must be left out beside addresses: those replicas are started by somebody else"
        )
    if specialist.cost_model is not None and specialist.engine != "sim" and sheet.given(*place, "cost_model"):
        sheet.wrong((*place, "cost_model"), f"belongs to the sim engine, not to {specialist.engine}")
    if sheet.sound(*place, "verify") and (trouble := trouble_with_verifier(specialist.verify)):
        sheet.wrong((*place, "verify"), f"is not known: {trouble}")
    _check_max_tokens(specialist, place, sheet)
    _check_adapters(specialist, place, sheet)


def _check_max_tokens(specialist: SpecialistConfig, place: Place, sheet: Sheet) -> None:
    if specialist.context is not None and specialist.max_tokens >= specialist.context:
        key = "max_tokens" if sheet.given(*place, "max_tokens") else "context"
        sheet.wrong(
            (*place, key),
            f"leaves no room for a prompt: max_tokens ({specialist.max_tokens}) "
            f"must be less than context ({specialist.context})",
        )


def _check_adapters(specialist: SpecialistConfig, place: Place, sheet: Sheet) -> None:
    if specialist.addresses or not sheet.sound(*place, "adapters"):
        return
    known = list(specialist.adapters) or ["none"]
    for key, names in (("use_adapters", specialist.use_adapters), ("adapter_digests", specialist.adapter_digests)):
        for name in names:
            if name not in specialist.adapters:
                sheet.unknown((*place, key), f"names {quoted(name)}, which is no adapter of its own", name, known)


def _check_rule(rule: RuleConfig, place: Place, sheet: Sheet) -> None:
    detects, contains = sheet.given(*place, "detect"), sheet.given(*place, "contains")
    if detects == contains:
        which = "both" if detects else "neither"
        sheet.wrong(place, f"must have exactly one of `detect` and `contains`, it has {which}")
    elif detects and sheet.given(*place, "at_least"):
        sheet.wrong((*place, "at_least"), "counts the pieces of `contains`, which this rule does not have")
    elif contains and sheet.sound(*place, "contains") and rule.at_least > len(rule.contains):
        sheet.wrong((*place, "at_least"), f"must be at most {len(rule.contains)}, which are all the pieces there are")


def _check_rule_name(name: str, place: Place, seen: dict[str, int], sheet: Sheet) -> None:
    here = (*place, "name")
    if name in seen:
        sheet.wrong(here, f"{quoted(name)} is the name of the rule on line {seen[name]} already")
    seen.setdefault(name, sheet.line_of(here))


def _check_dispatch(dispatch: DispatchConfig, place: Place, sheet: Sheet) -> None:
    pairs = [
        ("cool_down", "", 1, "max_cool_down"),
        ("heartbeat_seconds", "", 1, "stale_seconds"),
        ("heartbeat_seconds", "twice ", 2, "hang_seconds"),
    ]
    for less, shown, times, more in pairs:
        if not sheet.sound(*place, less) or not sheet.sound(*place, more):
            continue
        low, high = getattr(dispatch, less), getattr(dispatch, more)
        if times * low > high:
            key = less if sheet.given(*place, less) else more
            sheet.wrong((*place, key), f"does not fit: {shown}{less} ({low:g} s) must be at most {more} ({high:g} s)")


def _check_escalation(escalation: EscalationConfig, place: Place, sheet: Sheet) -> None:
    if not sheet.sound(*place, "calm") or not sheet.sound(*place, "refused"):
        return
    low, high = escalation.calm, escalation.refused
    if low > high:
        key = "calm" if sheet.given(*place, "calm") else "refused"
        sheet.wrong((*place, key), f"does not fit: calm ({low:g}) must be at most refused ({high:g})")


def _check_windows(slo: SloConfig, place: Place, sheet: Sheet) -> None:
    if not sheet.sound(*place, "window") or not sheet.sound(*place, "long_window"):
        return
    if slo.window > slo.long_window:
        key = "window" if sheet.given(*place, "window") else "long_window"
        sheet.wrong(
            (*place, key),
            f"does not fit: window ({slo.window:g} s) must be at most long_window ({slo.long_window:g} s)",
        )


def _check_targets(targets: SloTargets, place: Place, sheet: Sheet) -> None:
    """More requests cannot keep a shorter time than fewer."""
    for measure in ("ttft", "itl"):
        names = [f"{measure}_p{percent}" for percent in (50, 95, 99)]
        known = [(name, getattr(targets, name)) for name in names if sheet.sound(*place, name)]
        told = [(name, target) for name, target in known if target is not None]
        for (less, low), (more, high) in pairwise(told):
            if low > high:
                sheet.wrong((*place, more), f"does not fit: {less} ({low:g} s) must be at most {more} ({high:g} s)")
