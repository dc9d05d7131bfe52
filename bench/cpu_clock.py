"""What another process has taken of the processors, to the nanosecond."""

from time import clock_gettime

_ALL_THREADS = 2
"""With a process in its upper bits, the kernel's name for the clock of its CPU time."""


def cpu_seconds(pid: int) -> float:
    """With all its threads, less its children. Raises OSError where there is no such process."""
    return clock_gettime(~pid << 3 | _ALL_THREADS)
