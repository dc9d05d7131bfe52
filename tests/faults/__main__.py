"""`python -m tests.faults [--rows 1,2-5]` runs every test that a row of docs/reliability.md names."""

import argparse
import os
import shlex
import sys

from tests.faults.figures import COMMAND
from tests.faults.rows import ROWS

PLUGIN = "tests.faults.passing"


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=__doc__, epilog="What else is given goes to pytest."
    )
    parser.add_argument("--rows", type=_numbers, default=[row.number for row in ROWS], help="such as 1,2,3 or 20-25")
    arguments, others = parser.parse_known_args(words)
    os.environ[COMMAND] = shlex.join(["python", "-m", "tests.faults", *words])
    os.execv(sys.executable, [sys.executable, "-m", "pytest", "-p", PLUGIN, *others, *nodes_of(arguments.rows)])  # noqa: S606


def nodes_of(numbers: list[int]) -> list[str]:
    """Return the tests in the order of the rows, each once. If a row names a whole file, the file replaces the
    individual tests in it."""
    named = dict.fromkeys(test for row in ROWS if row.number in numbers for test in row.tests)
    return [test for test in named if test.partition("::")[0] not in named or "::" not in test]


def _numbers(words: str) -> list[int]:
    found: list[int] = []
    for part in words.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    if unknown := set(found) - {row.number for row in ROWS}:
        raise argparse.ArgumentTypeError(f"there is no row {min(unknown)}")
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
