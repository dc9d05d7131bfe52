"""Records as text for a person to read."""

from collections.abc import Iterable, Mapping, Sequence

from bench.record import Record

Targets = Mapping[tuple[str, str], str]
"""What a figure should be, by case and metric."""


def aligned(headers: Sequence[Sequence[str]], rows: Sequence[Sequence[str]], aligns: str) -> str:
    """Columns as wide as their widest cell, two spaces apart. `aligns` has a `<` or a `>` for each."""
    widths = [max(map(len, column)) for column in zip(*headers, *rows, strict=True)]
    rule = ["-" * width for width in widths]
    lines = [
        "  ".join(f"{cell:{align}{width}}" for cell, align, width in zip(line, aligns, widths, strict=True)).rstrip()
        for line in (*headers, rule, *rows)
    ]
    return "\n".join(lines)


def figure(value: float) -> str:
    """Three significant digits, or all the digits of a whole number."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table_of_spreads(records: Iterable[Record], targets: Targets) -> str:
    """A line a record, with its spread and its target."""
    header = ("case", "system", "metric", "median", "p10", "p90", "unit", "runs", "target")
    rows = [
        (
            record.case,
            record.system,
            record.metric,
            *map(figure, (record.value, record.low, record.high)),
            record.unit,
            str(record.runs),
            targets.get((record.case, record.metric), "") if record.system == "octet" else "",
        )
        for record in records
    ]
    return aligned([header], rows, "<<<>>><><")


def table_by_metric(records: Sequence[Record]) -> str:
    """A line a case and a column a metric."""
    metrics = list(dict.fromkeys((record.metric, record.unit) for record in records))
    cells = {(record.case, record.system, record.metric): figure(record.value) for record in records}
    rows = [
        (case, system, *(cells.get((case, system, metric), "") for metric, _ in metrics))
        for case, system in dict.fromkeys((record.case, record.system) for record in records)
    ]
    headers = [("case", "system", *(metric for metric, _ in metrics)), ("", "", *(unit for _, unit in metrics))]
    return aligned(headers, rows, "<<" + ">" * len(metrics))
