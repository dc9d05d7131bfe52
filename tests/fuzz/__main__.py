"""`python -m tests.fuzz FIRST LAST [PARSER ...]` fuzzes with a range of seeds, usually more than `make test` uses."""

import logging
import sys
import time
from collections.abc import Sequence

from tests.fuzz.all import PARSERS
from tests.fuzz.law import LawBroken, check_valid, judge
from tests.fuzz.mutate import mutated
from tests.fuzz.parser import Parser

_MOST_TOLD = 5
"""Failures reported per parser. Further ones likely have the same cause."""


def main(first: int, last: int, names: Sequence[str]) -> int:
    chosen = [parser for parser in PARSERS if not names or parser.name in names]
    if unknown := set(names) - {parser.name for parser in PARSERS}:
        print(f"no parser {', '.join(sorted(unknown))}; there are {', '.join(parser.name for parser in PARSERS)}")
        return 2
    broken = sum(_tried(parser, first, last) for parser in chosen)
    print(f"{len(chosen)} parsers, {broken} broken laws")
    return 1 if broken else 0


def _tried(parser: Parser, first: int, last: int) -> int:
    began, broken, refused = time.process_time(), 0, 0
    seeds = range(first, first + max(1, round((last - first) * parser.share)))
    check_valid(parser, "before anything else")
    for seed in seeds:
        try:
            refused += not judge(parser, mutated(parser, seed), f"seed {seed}")
        except LawBroken as law:
            broken += 1
            print(law, flush=True)
            if broken == _MOST_TOLD:
                break
    check_valid(parser, "after all of them")
    took = time.process_time() - began
    print(f"{parser.name}: {len(seeds):,} inputs, {refused:,} refused, {took:.1f} s of CPU time", flush=True)
    return broken


if __name__ == "__main__":
    logging.disable()
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
