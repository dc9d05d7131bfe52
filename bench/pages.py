"""The tables of the docs, written from result files, and the router's copy of the runbook: `python -m bench.pages`
[--check]."""

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from bench import runbook_page
from bench.timing import ResultUnreadable, read_result
from simulation.results import BenchRecord, Result, format_figure

KINDS = ("figures", "origin", "notes", "faults", "clients")
_END = "<!-- end -->"
_BLOCK = re.compile(rf"<!-- (?P<words>(?:{'|'.join(KINDS)})\b[^\n]*?) -->\n(?P<text>.*?){_END}", re.DOTALL)


class MarkerRefused(ValueError):
    """A page has an invalid marker, or a marker that cannot be filled."""


@dataclass(frozen=True, slots=True)
class Marker:
    kind: str
    name: str
    """Name of the result; empty if the kind needs none."""
    options: Mapping[str, str]


def filled(page: str, fill: Callable[[Marker], str]) -> str:
    """Return the page with the text between each start and end marker replaced by `fill`."""
    if len(_BLOCK.findall(page)) != page.count(_END):
        raise MarkerRefused(f"an end marker without its start marker; known markers: {', '.join(KINDS)}")
    return _BLOCK.sub(lambda block: f"<!-- {block['words']} -->\n{fill(_marker(block['words']))}\n{_END}", page)


def _marker(words: str) -> Marker:
    try:
        kind, *rest = shlex.split(words)
    except ValueError as error:
        raise MarkerRefused(f"<!-- {words} -->: {error}") from error
    names = [word for word in rest if "=" not in word]
    if len(names) > 1:
        raise MarkerRefused(f"<!-- {words} -->: expected at most one name, then NAME=VALUE options")
    options = dict(word.split("=", 1) for word in rest if "=" in word)
    return Marker(kind, names[0] if names else "", options)


def origin(result: Result) -> str:
    machine = result.machine
    stolen = "" if machine.stolen is None else f", {100 * machine.stolen:.0f} % of CPU stolen"
    return (
        f"`{result.command}`, {result.date}, commit {machine.commit}, {machine.cpu}, {machine.cores} cores, "
        f"load {machine.load}{stolen}."
    )


def notes(result: Result) -> str:
    return "\n".join(f"- {note}" for note in result.notes if note) or "Nothing to note."


_OPTIONS = frozenset(("case", "metric", "system", "rows"))


def figures(records: Sequence[BenchRecord], options: Mapping[str, str]) -> str:
    """Return a table with a row for each case and metric and a column for each system.

    With the option `rows=case`, it has a row for each case and a column for each metric; this needs a single system."""
    if unknown := set(options) - _OPTIONS:
        raise MarkerRefused(f"unknown figure options {sorted(unknown)} (known: {', '.join(sorted(_OPTIONS))})")
    chosen = [record for record in records if _is_chosen(record, options)]
    if not chosen:
        raise MarkerRefused(f"no record matches {dict(options)}")
    systems = _order(chosen, options.get("system", ""))
    by_case = "rows" in options
    if by_case and (options["rows"], len(systems)) != ("case", 1):
        raise MarkerRefused(f"rows={options['rows']}: only rows=case is supported, and only for one system")
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
    """Return the systems in the order in which the marker names them; if it names none, in the order of the records."""
    there = list(dict.fromkeys(record.system for record in records))
    wanted = named.split("|") if named else there
    if missing := [system for system in wanted if system not in there]:
        raise MarkerRefused(f"no records of {', '.join(missing)} (known: {', '.join(there)})")
    return wanted


def _cell(record: BenchRecord) -> str:
    if record.low == record.high:
        return format_figure(record.value)
    return f"{format_figure(record.value)} ({format_figure(record.low)}\u2013{format_figure(record.high)})"


ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs"
RESULTS = ROOT / "bench/results"


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if a page is out of date")
    arguments = parser.parse_args(words)
    stale = []
    try:
        pages = {page: filled(page.read_text(encoding="utf-8"), _fill) for page in sorted(PAGES.glob("*.md"))}
        pages[runbook_page.PAGE] = runbook_page.render_runbook(pages[runbook_page.SOURCE])
        for page, after in pages.items():
            if not page.exists() or page.read_text(encoding="utf-8") != after:
                stale.append(page.relative_to(ROOT))
                if not arguments.check:
                    page.write_text(after, encoding="utf-8")
    except (MarkerRefused, ResultUnreadable, OSError) as error:
        sys.exit(f"bench.pages: {error}")
    for page in stale:
        print(f"{page}: {'is out of date: run `make pages`' if arguments.check else 'written'}")
    return 1 if stale and arguments.check else 0


def _fill(marker: Marker) -> str:
    if marker.kind == "faults":
        from tests.faults.rows import ROWS  # a checkout's, not an installation's
        from tests.faults.table import fault_table, read_findings

        return fault_table(ROWS, read_findings(RESULTS / "faults.jsonl"))
    if marker.kind == "clients":
        from tests.clients import refusals, table

        if marker.name == "refusals":
            return refusals.refusal_table(refusals.read_refusals(refusals.RECORD.read_text()))
        return table.client_table(table.read_records(table.RECORD.read_text()))
    result = read_result(RESULTS / f"{marker.name}.json")
    if result.bench != marker.name.partition("-")[0]:
        raise MarkerRefused(f"{marker.name}.json: the name must begin with the name of the bench, {result.bench}")
    match marker.kind:
        case "figures":
            return figures(result.records, marker.options)
        case "origin":
            return origin(result)
        case "notes":
            return notes(result)
    raise MarkerRefused(f"unknown marker {marker.kind}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
