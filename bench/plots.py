"""Plots of figures by load: a line for each system, with its spread."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from simulation.plots import LIMIT, LINE, MUTED, open_figure
from simulation.results import BenchRecord

_OTHERS = (LIMIT, MUTED, "#3d7a4a", "#8a5a9e")
_STYLES = {"octet": (LINE, "-"), "octet, classified": (LINE, "--"), "octet, gRPC": (LINE, ":"), "fcfs": (MUTED, "--")}


@dataclass(frozen=True, slots=True)
class View:
    """Selects records of a plot: the metric and the whole case must match. The number in the case is the x value."""

    case: str  # a regular expression with one group for the number
    metric: str
    across: str
    up: str
    logarithmic: bool = False


class Point(NamedTuple):
    at: float
    record: BenchRecord


ADDED = View(
    r"(\d+) requests/s(?:, stock client)?",
    "added to the first token, p50",
    "requests a second (log scale)",
    "added to the first token, ms (log scale)",
    logarithmic=True,
)
GOODPUT = View(
    r"([\d.,]+) x", "answers in time", "load, multiples of the capacity", "answered in time, requests a second"
)
ENGINE = (
    View(r"(\d+) sequences?", "decode", "sequences at once", "decoded, tok/s"),
    View(
        r"open loop at (\d+) % of capacity",
        "goodput share",
        "asked for, % of the capacity",
        "answered well, % of the asked",
    ),
    View(r"\d+ sequences, (\d+) adapters?", "throughput", "adapters", "throughput, tok/s"),
)


def plot_views(path: Path, views: Sequence[View], records: Sequence[BenchRecord]) -> None:
    """Plot a pair of axes for each view that has records."""
    drawn = [(view, lines) for view in views if (lines := find_lines(view, records))]
    with open_figure(path, 7 * max(1, len(drawn)), 4.5) as figure:
        for number, (view, lines) in enumerate(drawn, 1):
            _draw(figure.add_subplot(1, len(drawn), number), view, lines)


def find_lines(view: View, records: Sequence[BenchRecord]) -> dict[str, list[Point]]:
    """Return the points of each line, by name: the system's name, with a suffix if its cases use the stock client."""
    lines: dict[str, list[Point]] = {}
    for record in records:
        if record.metric == view.metric and record.unit != "x" and (case := re.fullmatch(view.case, record.case)):
            stock = ", stock client" if record.case.endswith(", stock client") else ""
            lines.setdefault(record.system + stock, []).append(Point(float(case[1].replace(",", "")), record))
    return {name: sorted(points, key=lambda point: point.at) for name, points in lines.items()}


def _draw(axes: Any, view: View, lines: dict[str, list[Point]]) -> None:
    others = [name for name in lines if name not in _STYLES]
    for name, points in lines.items():
        colour, style = _STYLES.get(name) or (_OTHERS[others.index(name) % len(_OTHERS)], "-")
        at, records = [point.at for point in points], [point.record for point in points]
        axes.plot(at, [each.value for each in records], style, color=colour, marker="o", markersize=4, label=name)
        axes.fill_between(at, [each.low for each in records], [each.high for each in records], color=colour, alpha=0.12)
    if view.logarithmic:
        axes.set_xscale("log")
        axes.set_yscale("log", nonpositive="clip")
        axes.minorticks_off()
    else:
        axes.set_ylim(bottom=0)
    ticks = sorted({point.at for points in lines.values() for point in points})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlabel(view.across)
    axes.set_ylabel(view.up)
    axes.set_title("median, p10 to p90 of the rounds", loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=9)
