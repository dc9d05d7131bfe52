"""`python -m tests.simulation FIRST LAST`: run the seeds of a range and report broken laws."""

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.simulation.run import Lived, live
from tests.simulation.script import Script, draw
from tests.simulation.shrink import Shrinker, law_of

_BITE = 10


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if arguments.replay is not None:
        return _replay(arguments.replay)
    if arguments.last is None:
        print("give FIRST and LAST, or --replay SCRIPT", file=sys.stderr)
        return 2
    began = time.monotonic()
    num_broken = 0
    for seed, broken in _all_broken(arguments.first, arguments.last, arguments.workers):
        num_broken += 1
        _tell(seed, broken)
    seconds = time.monotonic() - began
    count = arguments.last - arguments.first
    print(f"{count} seeds, {num_broken} with a broken law, in {seconds:.0f} s")
    return 1 if num_broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("first", type=int, nargs="?", default=0, metavar="FIRST", help="the first seed")
    parser.add_argument("last", type=int, nargs="?", metavar="LAST", help="the seed behind the last one")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--replay", type=Path, metavar="SCRIPT", help="a file with what a failing seed printed")
    return parser


def _all_broken(first: int, last: int, workers: int) -> Iterator[tuple[int, str]]:
    """Seed and law."""
    bites = [(start, min(start + _BITE, last)) for start in range(first, last, _BITE)]
    if workers <= 1:
        for bite in bites:
            yield from broken_in(bite)
        return
    with ProcessPoolExecutor(workers) as pool:
        for found in pool.map(broken_in, bites):
            yield from found


def broken_in(bite: tuple[int, int]) -> list[tuple[int, str]]:
    """Of a half-open range of seeds, those that break a law, with the law."""
    lived = ((seed, live(draw(seed)).broken) for seed in range(*bite))
    return [(seed, broken) for seed, broken in lived if broken]


def _tell(seed: int, broken: str) -> None:
    print(f"seed {seed}: {broken}", flush=True)
    shortest = Shrinker(live(draw(seed))).shortest()
    print(f"  shortest script, {_size(shortest)}; save it and give it to --replay:", flush=True)
    print(shortest.script.to_json(), flush=True)


def _size(lived: Lived) -> str:
    script = lived.script
    return f"{len(script.asks)} requests and {len(script.deeds)} deeds ({law_of(lived.broken)})"


def _replay(path: Path) -> int:
    lived = live(Script.from_json(path.read_text()), keep=True)
    print("\n".join(lived.lines))
    print(lived.broken or "no law is broken")
    return 1 if lived.broken else 0


if __name__ == "__main__":
    sys.exit(main())
