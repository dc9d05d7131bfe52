"""How often each rule of a configuration is right, on labelled prompts."""

from collections.abc import Sequence
from dataclasses import dataclass

from octet.config.ensemble import RuleConfig
from octet.terminal import format_table
from router.routing.rules.detectors import rule_detector
from router.routing.rules.text import ScannedText
from router.routing.training.records import LabelledPrompt


@dataclass(frozen=True, slots=True)
class RulePrecision:
    rule: str
    specialist: str
    fired: int  # prompts that this rule decides, because no earlier rule matches them
    right: int  # of these, how many belong to the rule's specialist

    @property
    def precision(self) -> float | None:
        return self.right / self.fired if self.fired else None


def measure_rules(rules: Sequence[RuleConfig], records: Sequence[LabelledPrompt]) -> tuple[RulePrecision, ...]:
    """Return the precision of each rule. As in routing, the first rule that matches a prompt decides it."""
    detectors = [(rule, rule_detector(rule)) for rule in rules]
    fired = dict.fromkeys((rule.name for rule in rules), 0)
    right = dict(fired)
    for record in records:
        scanned = ScannedText(record.text)
        rule = next((rule for rule, detect in detectors if detect(scanned) is not None), None)
        if rule is not None:
            fired[rule.name] += 1
            right[rule.name] += rule.specialist in record.accepted
    return tuple(RulePrecision(rule.name, rule.specialist, fired[rule.name], right[rule.name]) for rule in rules)


def format_rules(found: Sequence[RulePrecision]) -> str:
    rows = [
        (each.rule, each.specialist, str(each.fired), "" if each.precision is None else f"{each.precision:.1%}")
        for each in found
    ]
    return format_table(("rule", "specialist", "fired", "precision"), rows)
