"""`python -m tests.simulation FIRST LAST` runs a range of seeds and reports broken laws."""

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.simulation.run import RunResult, run_script
from tests.simulation.script import Script, draw
from tests.simulation.shrink import Shrinker, law_of

_BATCH = 10


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
        _report(seed, broken)
    seconds = time.monotonic() - began
    count = arguments.last - arguments.first
    print(f"{count} seeds, {num_broken} with a broken law, in {seconds:.0f} s")
    return 1 if num_broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("first", type=int, nargs="?", default=0, metavar="FIRST", help="the first seed")
    parser.add_argument("last", type=int, nargs="?", metavar="LAST", help="the first seed that is not run")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--replay", type=Path, metavar="SCRIPT", help="a file with what a failing seed printed")
    return parser


def _all_broken(first: int, last: int, workers: int) -> Iterator[tuple[int, str]]:
    """Yield each seed that breaks a law, with the law."""
    batches = [(start, min(start + _BATCH, last)) for start in range(first, last, _BATCH)]
    if workers <= 1:
        for batch in batches:
            yield from broken_in(batch)
        return
    with ProcessPoolExecutor(workers) as pool:
        for found in pool.map(broken_in, batches):
            yield from found


def broken_in(batch: tuple[int, int]) -> list[tuple[int, str]]:
    """Return the seeds of a half-open range that break a law, each with the law."""
    result = ((seed, run_script(draw(seed)).broken) for seed in range(*batch))
    return [(seed, broken) for seed, broken in result if broken]


def _report(seed: int, broken: str) -> None:
    print(f"seed {seed}: {broken}", flush=True)
    shortest = Shrinker(run_script(draw(seed))).shortest()
    print(f"  shortest script, {_size(shortest)}; save it and give it to --replay:", flush=True)
    print(shortest.script.to_json(), flush=True)


def _size(result: RunResult) -> str:
    script = result.script
    return f"{len(script.asks)} requests and {len(script.faults)} faults ({law_of(result.broken)})"


def _replay(path: Path) -> int:
    result = run_script(Script.from_json(path.read_text()), keep=True)
    print("\n".join(result.lines))
    print(result.broken or "no law is broken")
    return 1 if result.broken else 0


if __name__ == "__main__":
    sys.exit(main())
