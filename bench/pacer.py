"""Sleeps and does a little constant work in turns, before all other processes on one processor.

    python -m bench.pacer PROCESSOR PARENT

Prints at once whether it may run before all others, and ends if not. On SIGTERM it prints a line for each beat: when it
was due, when it woke, and when its work was done, on the monotonic clock. It ends without output if its parent is gone.
"""

import os
import signal
import sys
from time import monotonic, sleep

_SLEEP_SECONDS = 0.005
FIRST, NOT_FIRST = "first", "not first"
_WORK = range(350)  # about 30 us


def main() -> None:
    processor, parent = (int(argument) for argument in sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent terminates it
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    os.sched_setaffinity(0, {processor})
    if not comes_first():
        print(NOT_FIRST, flush=True)
        return
    print(FIRST, flush=True)
    beats = []
    done = monotonic()
    while not signals and os.getppid() == parent:
        due = done + _SLEEP_SECONDS
        sleep(max(0.0, due - monotonic()))
        woken = monotonic()
        _work()
        done = monotonic()
        beats.append((due, woken, done))
    if signals:
        print(*(f"{due} {woken} {done}" for due, woken, done in beats), sep="\n", flush=True)


def comes_first() -> bool:
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
