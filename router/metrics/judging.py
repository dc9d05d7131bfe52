"""What verifiers and shadows have found, by specialist, since the start."""

from collections import Counter

from octet.v1 import operator_pb2 as wire

_JUDGED = frozenset({"passed", "failed"})


class JudgingTally:
    """Belongs to the event loop. Candidates count for their specialist: what adapters are called is nobody's label."""

    def __init__(self) -> None:
        self.judged: Counter[tuple[str, str]] = Counter()
        """By specialist and outcome."""
        self.compared: Counter[tuple[str, str, str, str]] = Counter()
        """By primary, shadow, why, and who passed."""
        self.agreed: Counter[tuple[str, str, str]] = Counter()

    def judge(self, specialist: str, outcome: str) -> None:
        self.judged[specialist, outcome] += 1

    def compare(self, one: wire.Comparison) -> None:
        pair = (one.primary, one.shadow.partition("+")[0], one.why)
        self.compared[(*pair, _passed(one))] += 1
        self.agreed[pair] += one.agreed


def _passed(one: wire.Comparison) -> str:
    if not _JUDGED.issuperset((one.primary_outcome, one.shadow_outcome)):
        return "unjudged"
    primary, shadow = one.primary_outcome == "passed", one.shadow_outcome == "passed"
    if primary == shadow:
        return "both" if primary else "neither"
    return "primary" if primary else "shadow"
