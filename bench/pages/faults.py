"""The rows of the fault suite with the figures that it wrote."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.pages.figures import markdown
from bench.table import figure


@dataclass(frozen=True, slots=True)
class Finding:
    row: int
    what: str
    figure: float
    unit: str
    bound: str
    held: bool

    def words(self) -> str:
        shown = f"{self.what}: {figure(self.figure)} {self.unit}".rstrip()
        return f"{shown} (wanted {self.bound}{'' if self.held else ', **missed**'})"


@dataclass(frozen=True, slots=True)
class Row:
    number: int
    fault: str
    demand: str
    tests: Sequence[str]


def read_findings(path: Path) -> list[Finding]:
    """In the order they were written; of figures that were measured twice, the later ones."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = {(line["row"], line["what"]): Finding(**line) for line in lines}
    return list(found.values())


def fault_table(rows: Iterable[Row], findings: Iterable[Finding]) -> str:
    said: Mapping[int, list[str]] = defaultdict(list)
    for finding in findings:
        said[finding.row].append(finding.words())
    lines = [
        [str(row.number), row.fault, row.demand, "; ".join(said.get(row.number, ())) or "held (no figure)", _tests(row)]
        for row in rows
    ]
    return markdown(["row", "fault", "demanded", "seen", "shown by"], lines, "rllll")


def _tests(row: Row) -> str:
    return ", ".join(f"`{test}`" for test in row.tests)
