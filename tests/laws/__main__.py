"""`python -m tests.laws FIRST LAST` checks the laws with a range of seeds, usually more than `make test` uses."""

import sys

from tests.laws.world import World
from tests.simulation.laws.scheduler import LawBroken

NUM_EVENTS = 500


def main(first: int, last: int) -> int:
    broken = 0
    for seed in range(first, last):
        try:
            World(seed).run(NUM_EVENTS)
        except LawBroken as law:
            broken += 1
            print(law, flush=True)
    print(f"{last - first} histories of {NUM_EVENTS} events, {broken} with a broken law")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
