"""A result's records as a table for a page: a line a case and metric, a column a system."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from bench.pages.marker import MarkerRefused
from bench.record import Record
from bench.table import figure

_OPTIONS = frozenset(("case", "metric", "system"))


def figures(records: Sequence[Record], options: Mapping[str, str]) -> str:
    if unknown := set(options) - _OPTIONS:
        raise MarkerRefused(f"figures know {', '.join(sorted(_OPTIONS))}, not {', '.join(sorted(unknown))}")
    chosen = [record for record in records if _is_chosen(record, options)]
    if not chosen:
        raise MarkerRefused(f"no record is {dict(options)}")
    systems = _order(chosen, options.get("system", ""))
    cells = {(record.case, record.metric, record.unit, record.system): _cell(record) for record in chosen}
    lines = dict.fromkeys((record.case, record.metric, record.unit) for record in chosen)
    header = ["case", "figure", "unit", *systems]
    rows = [[*line, *(cells.get((*line, system), "") for system in systems)] for line in lines]
    return markdown(header, rows, "lll" + "r" * len(systems))


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], aligns: str) -> str:
    rule = ["---:" if align == "r" else "---" for align in aligns]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in (header, rule, *rows)
    )


def _is_chosen(record: Record, options: Mapping[str, str]) -> bool:
    wanted = {"case": record.case, "metric": record.metric}
    matches = all(
        any(fnmatchcase(value, pattern) for pattern in options[name].split("|"))
        for name, value in wanted.items()
        if name in options
    )
    return matches and ("system" not in options or record.system in options["system"].split("|"))


def _order(records: Sequence[Record], named: str) -> list[str]:
    """As the marker names them, or as they came."""
    there = list(dict.fromkeys(record.system for record in records))
    wanted = named.split("|") if named else there
    if missing := [system for system in wanted if system not in there]:
        raise MarkerRefused(f"no record is of {', '.join(missing)}; there are {', '.join(there)}")
    return wanted


def _cell(record: Record) -> str:
    if record.low == record.high:
        return figure(record.value)
    return f"{figure(record.value)} ({figure(record.low)} to {figure(record.high)})"
