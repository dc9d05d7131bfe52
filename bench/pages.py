"""The tables of the docs, written from result files: `python -m bench.pages` [--check]."""

import argparse
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from bench.timing import ResultUnreadable, read_result, result_of
from simulation.results import BenchRecord, Result, format_figure

KINDS = ("figures", "origin", "notes", "faults")
_END = "<!-- end -->"
_BLOCK = re.compile(rf"<!-- (?P<words>(?:{'|'.join(KINDS)})\b[^\n]*?) -->\n(?P<text>.*?){_END}", re.DOTALL)


class MarkerRefused(ValueError):
    """A marker cannot be filled."""


@dataclass(frozen=True, slots=True)
class Marker:
    kind: str
    name: str
    """Name of the result; empty if the kind needs none."""
    options: Mapping[str, str]


def filled(page: str, fill: Callable[[Marker], str]) -> str:
    """Return the page with all text between its markers written anew."""
    if len(_BLOCK.findall(page)) != page.count(_END):
        raise MarkerRefused(f"an end without a beginning: a marker is {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    return _BLOCK.sub(lambda block: f"<!-- {block['words']} -->\n{fill(_marker(block['words']))}\n{_END}", page)


def _marker(words: str) -> Marker:
    try:
        kind, *rest = shlex.split(words)
    except ValueError as error:
        raise MarkerRefused(f"<!-- {words} -->: {error}") from error
    names = [word for word in rest if "=" not in word]
    if len(names) > 1:
        raise MarkerRefused(f"<!-- {words} -->: one name, then NAME=VALUE")
    options = dict(word.split("=", 1) for word in rest if "=" in word)
    return Marker(kind, names[0] if names else "", options)


def origin(result: Result) -> str:
    machine = result.machine
    stolen = "" if machine.stolen is None else f", {100 * machine.stolen:.0f} % of CPU time stolen by the host"
    return (
        f"`{result.command}`, {result.date}, {result.seconds / 60:.1f} min, commit {machine.commit}, {machine.cpu}, "
        f"{machine.cores} cores, load {machine.load} before it began{stolen}."
    )


def notes(result: Result) -> str:
    return "\n".join(f"- {note}" for note in result.notes if note) or "Nothing to note."


_OPTIONS = frozenset(("case", "metric", "system", "rows"))


def figures(records: Sequence[BenchRecord], options: Mapping[str, str]) -> str:
    """Return a table with a row for each case and metric and a column for each system.

    `rows=case` makes a row for each case, with the metrics of the only system as columns.
    """
    if unknown := set(options) - _OPTIONS:
        raise MarkerRefused(f"figures know {', '.join(sorted(_OPTIONS))}, not {', '.join(sorted(unknown))}")
    chosen = [record for record in records if _is_chosen(record, options)]
    if not chosen:
        raise MarkerRefused(f"no record is {dict(options)}")
    systems = _order(chosen, options.get("system", ""))
    by_case = "rows" in options
    if by_case and (options["rows"], len(systems)) != ("case", 1):
        raise MarkerRefused(f"rows={options['rows']}: only rows=case is known, and only for one system")
    head = ["case"] if by_case else ["case", "figure"]
    keys: list[tuple[tuple[str, ...], str]] = [
        ((each.case,), _metric(each)) if by_case else ((each.case, _metric(each)), each.system) for each in chosen
    ]
    cells = {key: _cell(record) for key, record in zip(keys, chosen, strict=True)}
    columns = list(dict.fromkeys(column for _, column in keys)) if by_case else systems
    rows: list[list[str]] = []
    last = ""
    for line in dict.fromkeys(line for line, _ in keys):
        case, *rest = line
        rows.append(["" if case == last else case, *rest, *(cells.get((line, each), "") for each in columns)])
        last = case
    return markdown([*head, *columns], rows, "l" * len(head) + "r" * len(columns))


def _metric(record: BenchRecord) -> str:
    return f"{record.metric}, {record.unit}" if record.unit else record.metric


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], aligns: str) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in (header, *rows)]
    lines.insert(1, "|" + "|".join("---:" if align == "r" else "---" for align in aligns) + "|")
    return "\n".join(lines)


def _is_chosen(record: BenchRecord, options: Mapping[str, str]) -> bool:
    wanted = {"case": record.case, "metric": record.metric}
    matches = all(
        any(fnmatchcase(value, pattern) for pattern in options[name].split("|"))
        for name, value in wanted.items()
        if name in options
    )
    return matches and ("system" not in options or record.system in options["system"].split("|"))


def _order(records: Sequence[BenchRecord], named: str) -> list[str]:
    """Return the systems in the order of the marker, or else of the records."""
    there = list(dict.fromkeys(record.system for record in records))
    wanted = named.split("|") if named else there
    if missing := [system for system in wanted if system not in there]:
        raise MarkerRefused(f"no record is of {', '.join(missing)}; there are {', '.join(there)}")
    return wanted


def _cell(record: BenchRecord) -> str:
    if record.low == record.high:
        return format_figure(record.value)
    return f"{format_figure(record.value)} ({format_figure(record.low)}\u2013{format_figure(record.high)})"


NOT_RUN = "**not run**"
INVARIANTS = (
    "requests that did not end exactly once with a reason",
    "answers with a token lost, repeated or from another lane",
    "requests whose receipt differs from what the caller saw",
    "leaked blocks and slots",
)
"""Every live row measures these. If all hold, the table shows one phrase for them."""
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
"""Figures that are shown only if they miss their bound."""


@dataclass(frozen=True, slots=True)
class Finding:
    row: int
    what: str
    figure: float
    unit: str
    bound: str
    held: bool

    def words(self) -> str:
        shown = f"{self.what}: {format_figure(self.figure)} {self.unit if self.figure else ''}".rstrip()
        return shown if self.held else f"{shown} (**missed**: {self.bound})"

    @property
    def is_decisive(self) -> bool:
        """Whether the table shows the figure."""
        return not self.held or not (
            self.what in INVARIANTS or any(fnmatchcase(self.what, pattern) for pattern in CONTEXT)
        )

    def is_better_than(self, other: "Finding") -> bool:
        """Whether this is the better of two findings with the same name and bound."""
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
    """Names as in pytest; a file stands for all tests in it."""


@dataclass(slots=True)
class Run:
    """The output of one run of the suite."""

    figures: dict[tuple[int, str], Finding] = field(default_factory=dict)
    """By row and name, in the order in which they were first written. If a figure was measured twice, the worse one."""
    passed: dict[str, bool] = field(default_factory=dict)
    """By test. A test that has failed once has not passed."""
    seeds: dict[int, int] = field(default_factory=dict)
    """Seeds of the rows whose faults are drawn at random."""
    result: Result | None = None
    """Machine and date; None if the run was cut off."""

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

    def words(self, row: Row) -> str:
        found_here = [found for found in self.figures.values() if found.row == row.number]
        said = [found.words() for found in found_here if found.is_decisive]
        if any(found.what in INVARIANTS and found.held for found in found_here):
            hold = all(found.held for found in found_here if found.what in INVARIANTS)
            said.insert(0, "invariants hold" if hold else "other invariants hold")
        if said and row.number in self.seeds:
            said.append(f"seed {self.seeds[row.number]}")
        ran = {test: found for test in row.tests if (found := self.outcomes(test))}
        if not said and not ran:
            return NOT_RUN
        failed = sum(not all(outcomes) for outcomes in ran.values())
        if len(ran) < len(row.tests):
            said.append(f"{len(row.tests) - len(ran)} of {len(row.tests)} tests {NOT_RUN}")
        if failed:
            said.append(f"{failed} of {len(ran)} tests **failed**")
        elif not said:
            said.append("passed")
        return "; ".join(said)

    def outcomes(self, test: str) -> list[bool]:
        """Return the outcomes of a test; a test with parameters has several."""
        return [
            passed for name, passed in self.passed.items() if name == test or name.startswith((f"{test}[", f"{test}::"))
        ]


def latest_run(runs: Sequence[Run], row: Row) -> Run:
    """Return the last run of the whole row, regardless of its outcome; or else the last run of a part of it."""
    whole = [run for run in runs if all(map(run.outcomes, row.tests))]
    parts = [run for run in runs if run.words(row) != NOT_RUN]
    return (whole or parts or [Run()])[-1]


def read_findings(path: Path) -> list[Run]:
    """Read the runs from a file to which runs are only appended."""
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
    """Yield a line for each run from which a row is taken. A machine is described once."""
    described: set[tuple[str, int, str, str]] = set()
    for run in {id(run): run for _, run in found}.values():
        if run.result is None:
            continue
        rows = ", ".join(str(row.number) for row, other in found if other is run)
        machine = run.result.machine
        line = f"- Rows {rows}: {run.result.date}, commit {machine.commit}, load {machine.load}"
        key = (machine.cpu, machine.cores, machine.kernel, machine.python)
        if key not in described:
            described.add(key)
            line += f". {machine.cpu}, {machine.cores} cores"
        yield f"{line}."


ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs"
RESULTS = ROOT / "bench/results"


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pages", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing, and fail where a page is not what it should be"
    )
    arguments = parser.parse_args(words)
    stale = []
    try:
        for page in sorted(PAGES.glob("*.md")):
            before = page.read_text(encoding="utf-8")
            after = filled(before, _fill)
            if after != before:
                stale.append(page.relative_to(ROOT))
                if not arguments.check:
                    page.write_text(after, encoding="utf-8")
    except (MarkerRefused, ResultUnreadable, OSError) as error:
        sys.exit(f"bench.pages: {error}")
    for page in stale:
        print(f"{page}: {'differs from bench/results: run `make pages`' if arguments.check else 'written'}")
    return 1 if stale and arguments.check else 0


def _fill(marker: Marker) -> str:
    if marker.kind == "faults":
        return fault_table(_rows(), read_findings(RESULTS / "faults.jsonl"))
    result = read_result(RESULTS / f"{marker.name}.json")
    if result.bench != marker.name.partition("-")[0]:
        raise MarkerRefused(f"{marker.name}.json: its name must begin with its bench, {result.bench}")
    match marker.kind:
        case "figures":
            return figures(result.records, marker.options)
        case "origin":
            return origin(result)
        case "notes":
            return notes(result)
    raise MarkerRefused(f"{marker.kind}: unknown")


def _rows() -> list[Row]:
    from tests.faults.rows import ROWS  # available in a checkout, not in an installation

    return [Row(row.number, row.fault, row.demand, row.tests) for row in ROWS]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
