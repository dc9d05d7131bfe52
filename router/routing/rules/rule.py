"""Rules compiled from the configuration."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from octet.config.ensemble import RuleConfig
from router.routing.rules.diagnostics import linker_output, sanitizer_report, stack_trace
from router.routing.rules.source_text import build_text, sfinae_heavy
from router.routing.rules.text import RuleMatch, ScannedText, text_marks

Detector = Callable[[ScannedText], RuleMatch | None]

DETECTORS: Mapping[str, Detector] = {
    "sfinae-heavy": sfinae_heavy,
    "build-text": build_text,
    "linker-output": linker_output,
    "stack-trace": stack_trace,
    "sanitizer-report": sanitizer_report,
}


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    specialist: str
    detect: Detector


def compile_rule(config: RuleConfig) -> Rule:
    """Raises KeyError for an unknown detector."""
    named = None if config.detect is None else DETECTORS[config.detect]
    return Rule(config.name, config.specialist, named or _literal_detector(config.contains, config.at_least))


def _literal_detector(pieces: tuple[str, ...], at_least: int) -> Detector:
    marks = text_marks(*pieces)

    def detect(scanned: ScannedText) -> RuleMatch | None:
        found = [(at, mark.text) for mark in marks if (at := scanned.find(mark)) >= 0]
        if len(found) < at_least:
            return None
        at, piece = min(found)
        return scanned.match("the text", piece, at)

    return detect
