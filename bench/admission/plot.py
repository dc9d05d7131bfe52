"""Goodput by load, the systems beside each other, as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.plot import LIMIT, LINE, MUTED, write_plot
from bench.record import Record

GOODPUT = "answers in time"
_LOOKS = {
    "octet": (LINE, "-", "o"),
    "fcfs": (MUTED, "--", "s"),
    "fcfs tuned": (MUTED, "-", "^"),
    "priority": (LIMIT, "-", "d"),
}


def plot_goodput(path: Path, records: Sequence[Record]) -> None:
    """The same figures give the same bytes. Bars are the 10th and the 90th percentile of the runs."""
    write_plot(path, lambda axes: _draw(axes, [record for record in records if record.metric == GOODPUT]))


def _draw(axes: Any, records: Sequence[Record]) -> None:
    for system in dict.fromkeys(record.system for record in records):
        mine = [record for record in records if record.system == system]
        color, line, marker = _LOOKS[system]
        axes.errorbar(
            [_load(record) for record in mine],
            [record.value for record in mine],
            yerr=[[each.value - each.low for each in mine], [each.high - each.value for each in mine]],
            color=color,
            linestyle=line,
            marker=marker,
            markersize=5,
            capsize=2,
            label=system,
        )
    loads = sorted({_load(record) for record in records})
    axes.set_xscale("log")
    axes.set_xticks(loads, [f"{load:g}" for load in loads])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("load, multiples of the capacity (log scale)")
    axes.set_ylabel("answered in time, requests a second")
    axes.legend(frameon=False)


def _load(record: Record) -> float:
    return float(record.case.split()[0])
