"""What every number of replicas that was tried would have given, as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.atomic_file import write_atomically
from bench.capacity.promise import Figures
from bench.plot import LIMIT, LINE, STYLE, PlotUnavailable, rendered

_COLUMNS = 4


def plot_capacity(path: Path, tried: Sequence[Figures], promised: dict[str, float | None], title: str) -> None:
    """A panel a specialist: the p95 of its TTFT by its replicas, and what it promises."""
    try:
        from matplotlib import rc_context  # heavy, and not part of the base install
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotUnavailable from error
    names = list(dict.fromkeys(figures.specialist for figures in tried))
    columns = min(_COLUMNS, len(names))
    rows = -(-len(names) // columns)
    with rc_context(STYLE):
        figure = Figure(figsize=(3.2 * columns, 0.6 + 2.6 * rows), layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        for number, name in enumerate(names, start=1):
            mine = {figures.replicas: figures for figures in tried if figures.specialist == name}
            _draw(figure.add_subplot(rows, columns, number), name, [mine[n] for n in sorted(mine)], promised[name])
        write_atomically(path, rendered(figure, path.suffix))


def _draw(axes: Any, name: str, tried: Sequence[Figures], promised: float | None) -> None:
    counts = [figures.replicas for figures in tried]
    axes.plot(counts, [figures.ttft[1] for figures in tried], color=LINE, marker="o", markersize=4)
    for figures in tried:
        if not figures.is_kept:
            axes.plot([figures.replicas], [figures.ttft[1]], color=LIMIT, marker="x", markersize=8)
    if promised is not None:
        axes.axhline(promised, color=LIMIT, linestyle="--", linewidth=1.2)
    axes.set_xticks(counts)
    axes.set_ylim(bottom=0)
    axes.set_title(name, loc="left", fontsize=11)
    axes.set_xlabel("replicas")
    axes.set_ylabel("TTFT p95, s")
