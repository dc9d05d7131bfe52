"""Points at which something may go wrong on purpose. Outside of a simulation nothing ever does.

Production code asks `mishap("pool.shortage")` where the world could fail it: mistakes hide in code that is seldom
reached. A simulator that has installed itself answers by its seed; without one the answer is no, and costs a call.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

POINTS: Mapping[str, str] = MappingProxyType(
    {
        "pool.shortage": "the block pool says that it is one block short of what a request needs",
        "pool.apply": "blocks that were planned for a request cannot be had after all",
        "commit.twice": "the end of a step is told twice",
        "commit.slow": "a step takes a long time to become true",
        "step.dies": "the loop of steps dies, and its replica with it",
        "report.stale": "a replica tells its last load once more, whatever has changed",
        "report.lost": "a load report never arrives",
        "store.away": "the database does not answer",
    }
)
SLOW_SECONDS = 0.25
"""What is slow by mishap takes so much longer."""

_decide: Callable[[str], bool] | None = None


def mishap(point: str) -> bool:
    """Whether it goes wrong here, now."""
    return _decide is not None and _decide(point)


def words_of(point: str) -> str:
    """What an error says that is no mistake of anybody's."""
    return f"a mishap: {point}"


@contextmanager
def installed(decide: Callable[[str], bool]) -> Iterator[None]:
    """For one simulation at a time, in a process that serves nobody."""
    global _decide  # noqa: PLW0603
    if _decide is not None:
        raise RuntimeError("a simulation is installed already")
    _decide = decide
    try:
        yield
    finally:
        _decide = None
