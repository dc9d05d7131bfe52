"""A process that sleeps, and then does a little work that is always the same, before all others on the processor that
it is given.

    python -m bench.pacer 0

Each line: when it should have woken, when it did, and when its work was done, in seconds of the monotonic clock, which
all processes share; the first says that it has begun. Where it may not come before all others it says no more: they
would hold it up as well.
"""

import os
import sys
from time import monotonic, sleep

SLEEP_SECONDS = 0.005
_WORK = range(350)
"""Some fifty microseconds."""


def main() -> None:
    parent = os.getppid()
    os.sched_setaffinity(0, {int(sys.argv[1])})
    is_first = _comes_first()
    print(flush=True)
    while os.getppid() == parent:
        due = monotonic() + SLEEP_SECONDS
        sleep(SLEEP_SECONDS)
        if is_first:
            woken = monotonic()
            _work()
            print(due, woken, monotonic(), flush=True)


def _comes_first() -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    return True


def _work() -> int:
    total = 0
    for number in _WORK:
        total += number * number
    return total


if __name__ == "__main__":
    main()
