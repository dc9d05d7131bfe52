"""A process that does nothing but sleep, on the processor that it is given, and says when it was held up.

    python -m tests.faults.sleeper 0

Each line: when it should have woken, and when it did, in seconds of the monotonic clock, which all processes share.
"""

import os
import sys
import time

SLEEP_SECONDS = 0.002
LEAST_SECONDS = 0.004
"""Less is how processes take turns."""


def main() -> None:
    os.sched_setaffinity(0, {int(sys.argv[1])})
    while True:
        due = time.monotonic() + SLEEP_SECONDS
        time.sleep(SLEEP_SECONDS)
        woken = time.monotonic()
        if woken - due > LEAST_SECONDS:
            print(due, woken, flush=True)


if __name__ == "__main__":
    main()
