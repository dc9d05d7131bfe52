"""A process that sleeps, and then does a little work that is always the same, before all others on the processor that
it is given.

    python -m bench.pacer PROCESSOR PARENT

Says at once whether it may come before all others; where it may not it ends, because they would hold it up as well.
Told to terminate, it writes a line for each time it woke: when it should have, when it did, and when its work was done,
in seconds of the monotonic clock, which all processes share. Without its parent it ends and says nothing.
"""

import os
import signal
import sys
from time import monotonic, sleep

_SLEEP_SECONDS = 0.005
FIRST, NOT_FIRST = "first", "not first"
_WORK = range(350)
"""Some thirty microseconds."""


def main() -> None:
    processor, parent = (int(argument) for argument in sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for whoever measures: it terminates this
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    os.sched_setaffinity(0, {processor})
    if not comes_first():
        print(NOT_FIRST, flush=True)
        return
    print(FIRST, flush=True)
    beats = []
    done = monotonic()
    while not told and os.getppid() == parent:
        due = done + _SLEEP_SECONDS
        sleep(max(0.0, due - monotonic()))
        woken = monotonic()
        _work()
        done = monotonic()
        beats.append((due, woken, done))
    if told:
        print(*(f"{due} {woken} {done}" for due, woken, done in beats), sep="\n", flush=True)


def comes_first() -> bool:
    """From now on, where this process may."""
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
