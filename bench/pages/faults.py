"""The rows of the fault suite with the figures that it wrote, and the tests that it ran."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.pages.figures import markdown
from bench.pages.origin import origin
from bench.result import Result, result_of
from bench.table import figure

NOT_RUN = "**not run**"


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

    def is_better_than(self, other: "Finding") -> bool:
        """Of two of one name and bound."""
        if self.held != other.held:
            return self.held
        direction = {"<": -1, ">": 1}.get(self.bound[:1], 0)
        return direction * self.figure > direction * other.figure


@dataclass(frozen=True, slots=True)
class Row:
    number: int
    fault: str
    demand: str
    tests: Sequence[str]
    """As pytest names them; a file stands for all that is in it."""


@dataclass(slots=True)
class Run:
    """What one call of the suite wrote."""

    figures: dict[tuple[int, str], Finding] = field(default_factory=dict)
    """By row and name, in the order they were first written; of figures that were measured twice, the worse."""
    passed: dict[str, bool] = field(default_factory=dict)
    """By test. One that has failed once did not pass."""
    seeds: dict[int, int] = field(default_factory=dict)
    """Of the rows whose trouble is drawn."""
    result: Result | None = None
    """Where and when; None where it was cut off."""

    def add(self, line: Mapping[str, Any]) -> None:
        if "run" in line:
            self.result = result_of(line["run"])
            return
        if "test" in line:
            self.passed[line["test"]] = line["passed"] and self.passed.get(line["test"], True)
            return
        if "seed" in line:
            self.seeds[line["row"]] = line["seed"]
            return
        found = Finding(**line)
        before = self.figures.get((found.row, found.what))
        if before is None or not found.is_better_than(before):
            self.figures[found.row, found.what] = found

    def has_all_of(self, row: Row) -> bool:
        return all(map(self._outcomes, row.tests))

    def words(self, row: Row) -> str:
        said = [found.words() for found in self.figures.values() if found.row == row.number]
        if said and row.number in self.seeds:
            said.append(f"seed {self.seeds[row.number]}")
        ran = {test: found for test in row.tests if (found := self._outcomes(test))}
        if not said and not ran:
            return NOT_RUN
        failed = sum(not all(outcomes) for outcomes in ran.values())
        if len(ran) < len(row.tests):
            said.append(f"{len(row.tests) - len(ran)} of {len(row.tests)} tests {NOT_RUN}")
        if ran:
            said.append(f"{len(ran) - failed} tests passed" + (f", {failed} **failed**" if failed else ""))
        return "; ".join(said)

    def _outcomes(self, test: str) -> list[bool]:
        """Of a test with parameters there are several."""
        return [
            passed for name, passed in self.passed.items() if name == test or name.startswith((f"{test}[", f"{test}::"))
        ]


@dataclass(frozen=True, slots=True)
class Findings:
    """Of one file, to which runs are added and from which nothing is taken away."""

    runs: list[Run]

    def of(self, row: Row) -> Run:
        """The last run that has all of it, however it ended; where none has, the last that has some."""
        behind = self.runs[::-1]
        whole = next((run for run in behind if run.has_all_of(row)), None)
        return whole or next((run for run in behind if run.words(row) != NOT_RUN), Run())


def read_findings(path: Path) -> Findings:
    runs = [Run()]
    for line in path.read_text(encoding="utf-8").splitlines():
        runs[-1].add(json.loads(line))
        if runs[-1].result is not None:
            runs.append(Run())
    return Findings(runs)


def fault_table(rows: Sequence[Row], findings: Findings) -> str:
    found = [(row, findings.of(row)) for row in rows]
    lines = [[str(row.number), row.fault, row.demand, run.words(row), _tests(row)] for row, run in found]
    table = markdown(["row", "fault", "demanded", "seen", "shown by"], lines, "rllll")
    return "\n".join((table, "", *_origins(found))).rstrip()


def _origins(found: Sequence[tuple[Row, Run]]) -> Iterator[str]:
    """Of the runs that some row is taken from, with those rows."""
    for run in {id(run): run for _, run in found}.values():
        if run.result is not None:
            rows = ", ".join(str(row.number) for row, other in found if other is run)
            yield f"- Rows {rows}: {origin(run.result)}"


def _tests(row: Row) -> str:
    return ", ".join(f"`{test}`" for test in row.tests)
