"""The rules of a configuration, made ready."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from octet.config.ensemble import RuleConfig
from router.rules.build import build_text
from router.rules.crash import stack_trace
from router.rules.finding import Finding, found
from router.rules.linker import linker_output
from router.rules.mark import marks
from router.rules.page import Page
from router.rules.sanitizer import sanitizer_report
from router.rules.sfinae import sfinae_heavy

Detector = Callable[[Page], Finding | None]

DETECTORS: Mapping[str, Detector] = MappingProxyType(
    {
        "sfinae-heavy": sfinae_heavy,
        "build-text": build_text,
        "linker-output": linker_output,
        "stack-trace": stack_trace,
        "sanitizer-report": sanitizer_report,
    }
)


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    specialist: str
    detect: Detector


def ready(config: RuleConfig) -> Rule:
    """Raises KeyError for a detector that nobody knows."""
    detect = DETECTORS[config.detect] if config.detect is not None else _literal(config.contains, config.at_least)
    return Rule(config.name, config.specialist, detect)


def _literal(pieces: tuple[str, ...], at_least: int) -> Detector:
    looked_for = marks(*pieces)

    def detect(page: Page) -> Finding | None:
        there = [(at, mark.text) for mark in looked_for if (at := page.find(mark)) >= 0]
        if len(there) < at_least:
            return None
        at, piece = min(there)
        return found("the text", piece, page, at)

    return detect
