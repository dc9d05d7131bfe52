"""Plots as SVG or PNG, and the plot of a capacity search."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octet.terminal import install_hint
from simulation.results import write_atomically

if TYPE_CHECKING:
    from simulation.capacity import SpecialistFigures

LINE, LIMIT, MUTED = "#1f5fa8", "#b3541e", "#666666"
_STYLE: dict[Any, object] = {
    "svg.hashsalt": "octet",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "axes.labelcolor"), MUTED),
}
_COLUMNS = 4


class PlotUnavailable(RuntimeError):
    """Plotting needs a package that is not part of the base install."""

    def __init__(self) -> None:
        super().__init__(f"plotting needs matplotlib: {install_hint('bench')}")


def require_matplotlib() -> None:
    """Raises PlotUnavailable without matplotlib. Finds it without the cost of an import."""
    if find_spec("matplotlib") is None:
        raise PlotUnavailable


@contextmanager
def open_figure(path: Path, width: float = 7, height: float = 4) -> Iterator[Any]:
    """Yield a figure that is written on exit: as PNG if the file name ends in `.png`, otherwise as SVG. The same
    drawing gives the same bytes. Raises PlotUnavailable without matplotlib."""
    try:
        from matplotlib import rc_context  # heavy, and not part of the base install
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotUnavailable from error
    with rc_context(_STYLE):
        figure, buffer = Figure(figsize=(width, height), layout="constrained"), BytesIO()
        yield figure
        if path.suffix == ".png":
            figure.savefig(buffer, format="png", dpi=100)
        else:
            figure.savefig(buffer, format="svg", metadata={"Date": None})
        write_atomically(path, buffer.getvalue())


def plot_capacity(
    path: Path, tried: Sequence["SpecialistFigures"], targets: dict[str, float | None], title: str
) -> None:
    """Draw a panel for each specialist: the p95 of its TTFT by number of replicas, and the target."""
    names = list(dict.fromkeys(figures.specialist for figures in tried))
    columns = min(_COLUMNS, len(names))
    rows = -(-len(names) // columns)
    with open_figure(path, 3.2 * columns, 0.6 + 2.6 * rows) as figure:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        for number, name in enumerate(names, start=1):
            mine = {figures.replicas: figures for figures in tried if figures.specialist == name}
            _draw(figure.add_subplot(rows, columns, number), name, [mine[n] for n in sorted(mine)], targets[name])


def _draw(axes: Any, name: str, tried: Sequence["SpecialistFigures"], target: float | None) -> None:
    counts = [figures.replicas for figures in tried]
    axes.plot(counts, [figures.ttft[1] for figures in tried], color=LINE, marker="o", markersize=4)
    for figures in tried:
        if figures.misses:
            axes.plot([figures.replicas], [figures.ttft[1]], color=LIMIT, marker="x", markersize=8)
    if target is not None:
        axes.axhline(target, color=LIMIT, linestyle="--", linewidth=1.2)
    axes.set_xticks(counts)
    axes.set_ylim(bottom=0)
    axes.set_title(name, loc="left", fontsize=11)
    axes.set_xlabel("replicas")
    axes.set_ylabel("TTFT p95, s")
