"""A process that only sleeps, before all others on the processor that it is given, and says when it was held up.

    python -m tests.faults.sleeper 0

Each line: when it should have woken, and when it did, in seconds of the monotonic clock, which all processes share; the
first says that it sleeps. Where it may not come before all others it notes nothing: they would hold it up as well.
"""

import os
import sys
import time

SLEEP_SECONDS = 0.002
LEAST_SECONDS = 0.002
"""Less is how a processor wakes."""


def main() -> None:
    parent = os.getppid()
    os.sched_setaffinity(0, {int(sys.argv[1])})
    is_first = _comes_first()
    print(time.monotonic(), time.monotonic(), flush=True)
    while os.getppid() == parent:
        due = time.monotonic() + SLEEP_SECONDS
        time.sleep(SLEEP_SECONDS)
        woken = time.monotonic()
        if is_first and woken - due > LEAST_SECONDS:
            print(due, woken, flush=True)


def _comes_first() -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    return True


if __name__ == "__main__":
    main()
