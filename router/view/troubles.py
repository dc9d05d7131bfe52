"""What is wrong now, worst first. Pure."""

from collections.abc import Container, Iterable

from octet.v1 import overview_pb2 as wire
from router.view.answer_findings import answer_findings
from router.view.facts import Facts, Rules
from router.view.finding import NOTE, Finding, Key, Runbook
from router.view.house_findings import house_findings
from router.view.load_findings import load_findings
from router.view.stand_ins import answers

MOST_TROUBLES = 64
_WRONG = frozenset({"correctness", "breaker_open"})
_SHORT = frozenset({"refusing", "burning", "escalated"})
_ORDER = (
    *("nobody_serves", "no_replica", "unserved", "failing", "correctness", "refusing", "burning"),
    *("breaker_open", "escalated", "replica_hung", "replica_lost"),
    *("misrouting", "cache_drift", "estimator", "store_down"),
    *("breaker_held", "draining", "fresh_lane", "knob_set"),
)
_RANKS = {kind: rank for rank, kind in enumerate(_ORDER)}


def findings(facts: Facts, rules: Rules, told: Container[Key] = ()) -> list[Finding]:
    """Everything that is wrong by the facts. What has been told of before is wrong until it is well again."""
    found = [*load_findings(facts, rules, told), *answer_findings(facts, rules, told), *house_findings(facts)]
    wrong = {each.specialist for each in found if each.kind in _WRONG}
    both = wrong & {each.specialist for each in found if each.kind in _SHORT and each.specialist}
    return [each.under(_both(each)) if each.specialist in both else each for each in found]


def worst_first(troubles: Iterable[wire.Trouble]) -> list[wire.Trouble]:
    """No more than anybody would read."""

    def badness(trouble: wire.Trouble) -> tuple[int, int, str, str]:
        return -trouble.severity, _RANKS.get(trouble.kind, len(_RANKS)), trouble.subject, trouble.kind

    return sorted(troubles, key=badness)[:MOST_TROUBLES]


def headline(overview: wire.Overview) -> str:
    """The one line at the top."""
    wrong = [each for each in overview.troubles if each.severity > NOTE]
    if wrong:
        return f"{wrong[0].text} (and {len(wrong) - 1} more)" if len(wrong) > 1 else wrong[0].text
    whole = len(overview.specialists)
    serving = sum(map(answers, overview.specialists))
    if not serving:
        return "No specialist serves."
    if serving < whole:
        return f"All well: {serving} of {whole} specialists serve."
    return f"All well: {whole} specialists serve." if whole != 1 else "All well: 1 specialist serves."


def _both(finding: Finding) -> Runbook:
    return "both" if finding.kind in _WRONG | _SHORT else finding.runbook
