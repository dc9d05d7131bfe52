"""What verifiers and shadows have found, by specialist, since the start."""

from collections import Counter

from octet.v1 import operator_pb2 as wire

_JUDGED = frozenset({"passed", "failed"})
PASSED = ("both", "neither", "primary", "shadow", "unjudged")


class JudgingTally:
    """Belongs to the event loop. Candidates count for their specialist: what adapters are called is nobody's label."""

    def __init__(self) -> None:
        self.judged: Counter[tuple[str, str]] = Counter()
        """By specialist and outcome."""
        self.compared: Counter[tuple[str, str, str, str]] = Counter()
        """By primary, shadow, why, and who passed."""
        self.agreed: Counter[tuple[str, str, str]] = Counter()
        self._known: set[str] = set()
        """Specialists that were judged. Whatever comes for the first time begins with all its words, at 0: Prometheus
        sees no growth in what begins with 1."""

    def judge(self, specialist: str, outcome: str) -> None:
        if specialist not in self._known:
            self._known.add(specialist)
            self.judged.update({(specialist, each): 0 for each in _JUDGED})
        self.judged[specialist, outcome] += 1

    def compare(self, one: wire.Comparison) -> None:
        pair = (one.primary, one.shadow.partition("+")[0], one.why)
        if pair not in self.agreed:
            self.compared.update({(*pair, passed): 0 for passed in PASSED})
        self.compared[(*pair, _passed(one))] += 1
        self.agreed[pair] += one.agreed


def _passed(one: wire.Comparison) -> str:
    if not _JUDGED.issuperset((one.primary_outcome, one.shadow_outcome)):
        return "unjudged"
    primary, shadow = one.primary_outcome == "passed", one.shadow_outcome == "passed"
    if primary == shadow:
        return "both" if primary else "neither"
    return "primary" if primary else "shadow"
