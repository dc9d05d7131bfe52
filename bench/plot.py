"""The hit rate by pool size as a picture, and how pictures are written."""

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from bench.atomic_file import write_atomically
from bench.hit_rate import InfiniteCache, PoolReplay, share_of

LINE, LIMIT, MUTED = "#1f5fa8", "#b3541e", "#666666"
NEARLY_ALL = 0.97
STYLE: dict[Any, object] = {
    "svg.hashsalt": "octet",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.labelcolor": MUTED,
}


class PlotUnavailable(RuntimeError):
    """Drawing needs a package that the base install does not bring."""

    def __init__(self) -> None:
        super().__init__("plotting needs matplotlib: pip install 'octet[bench]'")


def plot_hit_rate(path: Path, infinite: InfiniteCache, replays: Sequence[PoolReplay]) -> None:
    """Write an SVG, or a PNG when the name says so. The same figures give the same bytes."""
    write_plot(path, lambda axes: _draw(axes, infinite, sorted(replays, key=lambda replay: replay.pool_size)))


def write_plot(path: Path, draw: Callable[[Any], None]) -> None:
    """What `draw` does on a pair of axes, as an SVG, or as a PNG when the name says so."""
    try:
        from matplotlib import rc_context  # heavy, and not part of the base install
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotUnavailable from error
    with rc_context(STYLE):
        figure = Figure(figsize=(7, 4), layout="constrained")
        draw(figure.add_subplot())
        write_atomically(path, rendered(figure, path.suffix))


def rendered(figure: Any, suffix: str) -> bytes:
    buffer = BytesIO()
    if suffix == ".png":
        figure.savefig(buffer, format="png", dpi=100)
    else:
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _draw(axes: Any, infinite: InfiniteCache, replays: Sequence[PoolReplay]) -> None:
    sizes = [replay.pool_size for replay in replays]
    axes.plot(sizes, [100 * replay.hit_rate for replay in replays], color=LINE, marker="o", markersize=5)
    _draw_limit(axes, 100 * infinite.hit_rate)
    _draw_working_set(axes, infinite.num_distinct)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [_short(size) for size in sizes])
    axes.set_ylim(0, max(1, 118 * infinite.hit_rate))
    axes.set_xlabel("pool size, blocks (log scale)")
    axes.set_ylabel("prefix hit rate, % of all blocks")
    axes.set_title(_conclusion(infinite, replays), loc="left", fontsize=12)


def _draw_limit(axes: Any, percent: float) -> None:
    axes.axhline(percent, color=LIMIT, linestyle="--", linewidth=1.2)
    axes.annotate(
        f"infinite cache, {percent:.1f} %",
        xy=(0.01, percent),
        xycoords=("axes fraction", "data"),
        xytext=(0, 5),
        textcoords="offset points",
        color=LIMIT,
    )


def _draw_working_set(axes: Any, num_distinct: int) -> None:
    axes.axvline(num_distinct, color=MUTED, linestyle=":", linewidth=1.2)
    axes.annotate(
        f"working set,\n{_short(num_distinct)} blocks",
        xy=(num_distinct, 0.04),
        xycoords=("data", "axes fraction"),
        xytext=(-6, 0),
        textcoords="offset points",
        ha="right",
        color=MUTED,
    )


def _conclusion(infinite: InfiniteCache, replays: Sequence[PoolReplay]) -> str:
    """The smallest pool that finds nearly everything, or the largest there is."""
    enough = [replay for replay in replays if share_of(replay, infinite) >= NEARLY_ALL]
    pool = enough[0] if enough else replays[-1]
    found = 100 * share_of(pool, infinite)
    return f"{pool.pool_size:,} blocks find {found:.0f} % of what an infinite cache would"


def _short(count: int) -> str:
    return f"{count / 1000:.3g}k" if count >= 1000 else str(count)
