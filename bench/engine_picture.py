"""What the engine does, by how much is asked of it, as a picture: a pair of axes for each part that was measured."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from simulation.plots import LIMIT, LINE, MUTED, open_figure
from simulation.results import BenchRecord

_OCTET = "octet"
_OTHERS = (LIMIT, MUTED, "#3d7a4a", "#8a5a9e")


class _View(NamedTuple):
    case: re.Pattern[str]  # its group is the x value
    metric: str
    across: str
    up: str


_VIEWS = (
    _View(re.compile(r"(\d+) sequences?"), "decode", "sequences at once", "decoded, tok/s"),
    _View(
        re.compile(r"open loop at (\d+) % of capacity"),
        "goodput, of the offered",
        "asked for, % of the capacity",
        "answered well, % of the asked",
    ),
    _View(re.compile(r"\d+ sequences, (\d+) adapters?"), "throughput", "adapters", "throughput, tok/s"),
)
Points = dict[str, list[tuple[int, BenchRecord]]]


def plot_engine(path: Path, records: Sequence[BenchRecord]) -> None:
    drawn = [(view, points) for view in _VIEWS if (points := _points(view, records))]
    with open_figure(path, 6 * max(1, len(drawn))) as figure:
        for number, (view, points) in enumerate(drawn, 1):
            _draw(figure.add_subplot(1, len(drawn), number), view, points)


def _points(view: _View, records: Sequence[BenchRecord]) -> Points:
    found: Points = {}
    for record in records:
        if record.metric == view.metric and (case := view.case.fullmatch(record.case)):
            found.setdefault(record.system, []).append((int(case[1]), record))
    return {system: sorted(points, key=lambda point: point[0]) for system, points in found.items()}


def _draw(axes: Any, view: _View, points: Points) -> None:
    others = [system for system in points if system != _OCTET]
    for system, line in points.items():
        colour = LINE if system == _OCTET else _OTHERS[others.index(system) % len(_OTHERS)]
        at = [number for number, _ in line]
        axes.plot(at, [record.value for _, record in line], color=colour, marker="o", markersize=4, label=system)
        lows, highs = [record.low for _, record in line], [record.high for _, record in line]
        axes.fill_between(at, lows, highs, color=colour, alpha=0.12)
    axes.set_xticks(sorted({number for line in points.values() for number, _ in line}))
    axes.set_ylim(bottom=0)
    axes.set_xlabel(view.across)
    axes.set_ylabel(view.up)
    axes.set_title("median, p10 to p90 of the rounds", loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=9)
