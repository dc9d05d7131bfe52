"""Comparisons, counted by intent, primary and shadow."""

from octet.v1 import operator_pb2 as wire

_JUDGED = frozenset({"passed", "failed"})
_Key = tuple[str, str, str, str]


class Report:
    def __init__(self) -> None:
        self._rows: dict[_Key, wire.ShadowRow] = {}
        self._similarity: dict[_Key, float] = {}

    def add(self, one: wire.Comparison) -> None:
        key = (one.intent, one.primary, one.shadow, one.why)
        row = self._rows.get(key)
        if row is None:
            row = wire.ShadowRow(intent=one.intent, primary=one.primary, shadow=one.shadow, why=one.why)
            self._rows[key], self._similarity[key] = row, 0.0
        row.compared += 1
        row.agreed += one.agreed
        self._similarity[key] += one.similarity
        if _JUDGED.issuperset((one.primary_outcome, one.shadow_outcome)):
            _judge(row, one.primary_outcome == "passed", one.shadow_outcome == "passed")

    def rows(self) -> list[wire.ShadowRow]:
        """What was compared most comes first."""
        for key, row in self._rows.items():
            row.mean_similarity = self._similarity[key] / row.compared
        return [row for _, row in sorted(self._rows.items(), key=lambda item: (-item[1].compared, item[0]))]


def _judge(row: wire.ShadowRow, primary: bool, shadow: bool) -> None:
    row.verified += 1
    row.primary_passed += primary
    row.shadow_passed += shadow
    row.only_primary_passed += primary and not shadow
    row.only_shadow_passed += shadow and not primary
