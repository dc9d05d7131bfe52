"""The table of docs/reliability.md, built from the file that the fault suite writes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from bench.pages import markdown
from simulation.results import Result, format_figure
from tests.faults.rows import Row

NOT_RUN = "**not run**"
INVARIANTS = (
    "requests that did not end exactly once with a reason",
    "answers with a token lost, repeated or from another lane",
    "requests whose receipt differs from what the caller saw",
    "leaked blocks and slots",
)
"""Every row with live processes measures these. If all of them hold, the table shows one phrase instead."""
CONTEXT = (
    "*, slow periods included*",
    "*share of waits in slow periods",
    "p50 TTFT afterwards*",
    "random faults: *",
    "*until the replica serves again",
    "* over HTTP",
    "first refusal*",
    "digests that answered",
    "connections held *",
    "requests in flight, share*",
    "* during the attack",
    "CPU of the router for each*",
    "CPU of the rules for a megabyte of *[a-z]*",
)
"""Figures that are shown only if they miss their bounds."""


@dataclass(frozen=True, slots=True)
class Finding:
    row: int
    what: str
    figure: float
    unit: str
    bound: str
    held: bool

    def words(self) -> str:
        unit = "" if not self.figure or self.unit in self.what.split() else self.unit
        shown = f"{self.what}: {format_figure(self.figure)} {unit}".rstrip()
        return shown if self.held else f"{shown} (**missed**: {self.bound})"

    @property
    def is_decisive(self) -> bool:
        """Whether the table shows the figure."""
        return not self.held or not (
            self.what in INVARIANTS or any(fnmatchcase(self.what, pattern) for pattern in CONTEXT)
        )

    def is_better_than(self, other: "Finding") -> bool:
        """Return whether this figure is better than another with the same name and bound."""
        if self.held != other.held:
            return self.held
        direction = {"<": -1, ">": 1}.get(self.bound[:1], 0)
        return direction * self.figure > direction * other.figure


@dataclass(slots=True)
class Run:
    """The lines that one run of the suite wrote."""

    figures: dict[tuple[int, str], Finding] = field(default_factory=dict)
    """Figures by row and name, in the order in which they first appear. If a figure was measured twice, the worse one
    counts."""
    passed: dict[str, bool] = field(default_factory=dict)
    """Whether each test passed. A test that failed once did not pass."""
    seeds: dict[int, int] = field(default_factory=dict)
    """The seeds of rows with random faults."""
    result: Result | None = None
    """The machine and the date; None if the run was cut off."""

    def add(self, line: Mapping[str, Any]) -> None:
        if "run" in line:
            self.result = msgspec.convert(line["run"], Result)
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

    def words(self, row: Row) -> str:
        found_here = [found for found in self.figures.values() if found.row == row.number]
        output = [found.words() for found in found_here if found.is_decisive]
        if any(found.what in INVARIANTS and found.held for found in found_here):
            hold = all(found.held for found in found_here if found.what in INVARIANTS)
            output.insert(0, "invariants hold" if hold else "other invariants hold")
        if output and row.number in self.seeds:
            output.append(f"seed {self.seeds[row.number]}")
        ran = {test: found for test in row.tests if (found := self.outcomes(test))}
        if not output and not ran:
            return NOT_RUN
        failed = sum(not all(outcomes) for outcomes in ran.values())
        if len(ran) < len(row.tests):
            output.append(f"{len(row.tests) - len(ran)} of {len(row.tests)} tests {NOT_RUN}")
        if failed:
            output.append(f"{failed} of {len(ran)} tests **failed**")
        elif not output:
            output.append("passed")
        return "; ".join(output)

    def outcomes(self, test: str) -> list[bool]:
        """Return the outcomes of a test. A parametrized test and a whole file have several."""
        return [
            passed for name, passed in self.passed.items() if name == test or name.startswith((f"{test}[", f"{test}::"))
        ]


def latest_run(runs: Sequence[Run], row: Row) -> Run:
    """Return the last run with all tests of the row, whatever their outcome. If there is no such run, return the last
    one with some of them."""
    whole = [run for run in runs if all(map(run.outcomes, row.tests))]
    parts = [run for run in runs if run.words(row) != NOT_RUN]
    return (whole or parts or [Run()])[-1]


def read_findings(path: Path) -> list[Run]:
    """Return the runs in the file, oldest first. The last one may be incomplete or empty."""
    runs = [Run()]
    for line in path.read_text(encoding="utf-8").splitlines():
        runs[-1].add(json.loads(line))
        if runs[-1].result is not None:
            runs.append(Run())
    return runs


def fault_table(rows: Sequence[Row], runs: Sequence[Run]) -> str:
    found = [(row, latest_run(runs, row)) for row in rows]
    lines = [[str(row.number), row.fault, row.demand, run.words(row)] for row, run in found]
    table = markdown(["row", "fault", "required", "result"], lines, "rlll")
    return "\n".join((table, "", *_origins(found))).rstrip()


def _origins(found: Sequence[tuple[Row, Run]]) -> Iterator[str]:
    """Yield one line for each run from which a row of the table comes. The first line about a machine also describes
    the machine."""
    described: set[tuple[str, int, str, str]] = set()
    for run in {id(run): run for _, run in found}.values():
        if run.result is None:
            continue
        rows = ", ".join(str(row.number) for row, other in found if other is run)
        machine = run.result.machine
        label = "Rows" if "," in rows else "Row"
        line = f"- {label} {rows}: {run.result.date}, commit {machine.commit}, load {machine.load}"
        key = (machine.cpu, machine.cores, machine.kernel, machine.python)
        if key not in described:
            described.add(key)
            line += f". {machine.cpu}, {machine.cores} cores"
        yield f"{line}."
