"""Rows of figures: on one line where the terminal is wide enough, on two where it is not."""

from collections.abc import Sequence
from dataclasses import dataclass

from octet.printable import printable, width
from octet.top.figures import Figures
from octet.top.text import Line, Span, cell

_GAP = Span("  ")
_MOST_NAME = 24
_LEAST_NAME = 8
_MARK = 2


@dataclass(frozen=True, slots=True)
class Column:
    field: str
    heading: str
    right: bool = True


_TRAFFIC = (
    Column("name", "specialist", right=False),
    Column("requests", "req/s"),
    Column("refused", "refused"),
    Column("failed", "failed"),
    Column("spilled", "spilled"),
    Column("tokens", "tok/s"),
    Column("waiting", "queue"),
    Column("running", "running"),
    Column("blocks", "kv"),
)
_QUALITY = (
    Column("ttft", "ttft p95"),
    Column("itl", "itl p95"),
    Column("first", "first p95"),
    Column("correct", "correct"),
    Column("breaker", "breaker", right=False),
    Column("lane", "lane", right=False),
)


@dataclass(frozen=True, slots=True)
class Rows:
    heading: tuple[Line, ...]
    rows: tuple[tuple[Line, ...], ...]
    """One or two lines each."""


def rows(figures: Sequence[Figures], selected: str, columns: int) -> Rows:
    """What is selected has a mark before it."""
    whole = (*_TRAFFIC, *_QUALITY)
    widths = _widths(whole, figures)
    if _total(whole, widths) + _MARK <= columns:
        groups: tuple[tuple[Column, ...], ...] = (whole,)
    else:
        groups = (_TRAFFIC, _QUALITY)
        rest = _total(_TRAFFIC, widths) + _MARK - widths["name"]
        widths["name"] = max(_LEAST_NAME, min(widths["name"], columns - rest))
    return Rows(
        tuple(_heading(group, widths, first=number == 0) for number, group in enumerate(groups)),
        tuple(
            tuple(_row(group, each, widths, selected, first=number == 0) for number, group in enumerate(groups))
            for each in figures
        ),
    )


def _widths(columns: Sequence[Column], figures: Sequence[Figures]) -> dict[str, int]:
    found = {}
    for column in columns:
        widest = max((width(getattr(each, column.field).text) for each in figures), default=0)
        most = _MOST_NAME if column.field in ("name", "lane") else widest
        found[column.field] = max(width(column.heading), min(widest, most))
    return found


def _total(columns: Sequence[Column], widths: dict[str, int]) -> int:
    return sum(widths[each.field] for each in columns) + len(_GAP.text) * (len(columns) - 1)


def _heading(group: Sequence[Column], widths: dict[str, int], *, first: bool) -> Line:
    cells = [cell(Span(each.heading, "dim"), widths[each.field], right=each.right) for each in group]
    return (Span(" " * (_MARK if first else 2 * _MARK)), *_spaced(cells))


def _row(group: Sequence[Column], figures: Figures, widths: dict[str, int], selected: str, *, first: bool) -> Line:
    is_selected = bool(selected) and figures.name.text == printable(selected)
    mark = "> " if first and is_selected else "  "
    cells = [cell(getattr(figures, each.field), widths[each.field], right=each.right) for each in group]
    if is_selected and first:
        cells[0] = Span(cells[0].text, "bold")
    return (Span(mark if first else " " * 2 * _MARK), *_spaced(cells))


def _spaced(cells: Sequence[Span]) -> list[Span]:
    return [each for number, one in enumerate(cells) for each in ((_GAP, one) if number else (one,))]
