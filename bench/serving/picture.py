"""Goodput, and how soon first tokens come, as a picture."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.atomic_file import write_atomically
from bench.plot import LIMIT, LINE, MUTED, STYLE, PlotUnavailable, rendered
from bench.serving.classes import CallerClass
from bench.serving.load import Round
from bench.serving.report import ALL, by_load, of_class, ttfts

_COLORS = (LINE, LIMIT, "#3a7d44", "#7b4fa3", MUTED)


def plot_serve(path: Path, rounds: Sequence[Round], classes: Sequence[CallerClass]) -> None:
    """SVG, or PNG when the name says so."""
    try:
        from matplotlib import rc_context  # heavy, and not part of the base install
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotUnavailable from error
    with rc_context(STYLE):
        figure = Figure(figsize=(10, 4), layout="constrained")
        goodput, first = figure.subplots(1, 2)
        systems = list(dict.fromkeys(each.system for each in rounds))
        loads = by_load(rounds)
        _draw_goodput(goodput, loads, systems, [each.name for each in classes])
        _draw_first(first, loads[-1], systems, classes)
        write_atomically(path, rendered(figure, path.suffix))


def _draw_goodput(axes: Any, loads: Sequence[Sequence[Round]], systems: Sequence[str], names: Sequence[str]) -> None:
    width = 0.8 / len(systems)
    cases = [(mine, name) for mine in loads for name in names]
    for place, system in enumerate(systems):
        shares = [_median_share([each for each in mine if each.system == system], name) for mine, name in cases]
        at = [index + (place - (len(systems) - 1) / 2) * width for index in range(len(cases))]
        axes.bar(at, shares, width, color=_COLORS[place % len(_COLORS)], label=system)
    words = [f"{name}\n{mine[0].load.removesuffix(' of capacity')}".rstrip() for mine, name in cases]
    axes.set_xticks(range(len(cases)), words, fontsize=9 if len(cases) > len(names) else None)
    axes.set_ylim(0, 105)
    axes.set_ylabel("within both deadlines, % of the offered")
    axes.set_title("Goodput by class", loc="left", fontsize=12)
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(systems), borderaxespad=0)


def _draw_first(axes: Any, rounds: Sequence[Round], systems: Sequence[str], classes: Sequence[CallerClass]) -> None:
    """Of all rounds together; who got no token never comes: the curve ends below 100 %."""
    for place, system in enumerate(systems):
        answers = [answer for each in rounds if each.system == system for answer in of_class(each, ALL)]
        times = sorted(ttfts(answers))
        shares = [100 * (index + 1) / len(answers) for index in range(len(times))]
        axes.step(
            [1000 * each for each in times], shares, where="post", color=_COLORS[place % len(_COLORS)], label=system
        )
    for each in classes:
        axes.axvline(1000 * each.ttft, color=MUTED, linestyle=":", linewidth=1)
        axes.annotate(each.name, xy=(1000 * each.ttft, 2), color=MUTED, rotation=90, ha="right", fontsize=9)
    axes.set_xscale("log")
    axes.set_ylim(0, 105)
    axes.set_xlabel("ms to the first token (log scale)")
    axes.set_ylabel("% of the offered")
    axes.set_title(f"First tokens {rounds[0].load}".rstrip(), loc="left", fontsize=12)


def _median_share(rounds: Sequence[Round], name: str) -> float:
    """Of nobody, where a peer had failed before."""
    return median(_share(each, name) for each in rounds) if rounds else 0.0


def _share(each: Round, name: str) -> float:
    answers = of_class(each, name)
    return 100 * sum(answer.good for answer in answers) / len(answers) if answers else 0.0
