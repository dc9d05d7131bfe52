import re
import sys
from pathlib import Path

import pytest

from bench.hit_rate import InfiniteCache, PoolReplay, plot_hit_rate
from octet.terminal import install_hint
from simulation.plots import PlotUnavailable

INFINITE = InfiniteCache(num_blocks=1000, num_hits=400, num_distinct=600)


def replay(pool_size: int, num_hits: int) -> PoolReplay:
    return PoolReplay(pool_size, num_hits, {"cold": 1000 - num_hits}, num_evictions=0, num_refused=0)


def test_the_same_figures_give_the_same_bytes(tmp_path: Path) -> None:
    replays = [replay(100, 120), replay(1000, 396)]
    for name in ("one.svg", "two.svg"):
        plot_hit_rate(tmp_path / name, INFINITE, replays)
    one, two = (tmp_path / "one.svg").read_bytes(), (tmp_path / "two.svg").read_bytes()
    assert one == two
    assert one.startswith(b"<?xml")
    assert b"<dc:date>" not in one


def test_png_file_has_the_png_format(tmp_path: Path) -> None:
    plot_hit_rate(tmp_path / "plot.png", INFINITE, [replay(100, 120)])
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_trace_without_shared_blocks_can_be_plotted(tmp_path: Path) -> None:
    plot_hit_rate(tmp_path / "plot.svg", InfiniteCache(10, 0, 10), [replay(100, 0)])
    assert (tmp_path / "plot.svg").exists()


def test_missing_matplotlib_names_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotUnavailable, match=re.escape(install_hint("bench"))):
        plot_hit_rate(tmp_path / "plot.svg", INFINITE, [replay(100, 120)])
    assert list(tmp_path.iterdir()) == []
