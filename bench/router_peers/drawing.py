"""What every router adds to the first token, by rate, as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.atomic_file import write_atomically
from bench.plot import LIMIT, LINE, MUTED, STYLE, PlotUnavailable, rendered
from bench.record import Record
from bench.router_peers.case import RATES, STOCK, STOCK_RATES, rate_case
from bench.router_peers.report import LITELLM, P50, SGLANG
from bench.router_peers.way import CLASSIFIED, GRPC, OCTET

_COLOURS = {OCTET: LINE, CLASSIFIED: LINE, GRPC: LINE, LITELLM: LIMIT, SGLANG: MUTED}
_STYLES = {CLASSIFIED: "--", GRPC: ":"}


def plot_added(path: Path, records: Sequence[Record]) -> None:
    """Write an SVG, or a PNG when the name says so. The same figures give the same bytes."""
    try:
        from matplotlib import rc_context  # heavy, and not part of the base install
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotUnavailable from error
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        _draw(figure.add_subplot(), records)
        write_atomically(path, rendered(figure, path.suffix))


def _draw(axes: Any, records: Sequence[Record]) -> None:
    for system in dict.fromkeys(record.system for record in records if record.metric == P50):
        _line(axes, records, system, RATES, "")
    _line(axes, records, SGLANG, STOCK_RATES, STOCK)
    axes.set_yscale("log", nonpositive="clip")
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xticks(RATES, [str(rate) for rate in RATES])
    axes.set_xlabel("requests a second (log scale)")
    axes.set_ylabel("added to the first token, ms (log scale)")
    axes.set_title("What a router adds to the first token: median, p10 to p90 of the rounds", loc="left", fontsize=12)
    axes.legend(frameon=False, fontsize=9)


def _line(axes: Any, records: Sequence[Record], system: str, rates: Sequence[int], suffix: str) -> None:
    found = {(record.case, record.system): record for record in records if record.metric == P50 and record.unit == "ms"}
    points = [(rate, found[case, system]) for rate in rates if (case := rate_case(rate) + suffix, system) in found]
    if not points:
        return
    at = [rate for rate, _ in points]
    colour = _COLOURS.get(system, MUTED)
    style = "-." if suffix else _STYLES.get(system, "-")
    axes.plot(at, [record.value for _, record in points], style, color=colour, marker="o", label=system + suffix)
    axes.fill_between(
        at, [record.low for _, record in points], [record.high for _, record in points], color=colour, alpha=0.12
    )
