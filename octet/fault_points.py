"""Points in the code at which a simulation injects faults."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

FAULT_POINTS: Mapping[str, str] = MappingProxyType(
    {
        "pool.shortage": "the block pool is one block short of what a request needs",
        "pool.apply": "blocks that were planned for a request are not available after all",
        "commit.twice": "the outcome of a step is committed twice",
        "commit.slow": "a step takes a long time to be committed",
        "step.dies": "the step loop dies, and its replica with it",
        "report.stale": "a replica sends its last load report again, even if its load has changed",
        "report.lost": "a load report never arrives",
        "store.away": "the database does not answer",
    }
)
SLOW_FAULT_SECONDS = 0.25  # the extra time of an operation that an injected fault slows down

_decide: Callable[[str], bool] | None = None


def fault_injected(point: str) -> bool:
    """Whether a simulation injects a fault at this point, to test code that seldom runs. Outside of simulations, the
    result is always False."""
    return _decide is not None and _decide(point)


def fault_message(point: str) -> str:
    return f"injected fault: {point}"


@contextmanager
def inject_faults(decide: Callable[[str], bool]) -> Iterator[None]:
    """Let `decide` choose which points fail inside the `with` block. For simulations only."""
    global _decide  # noqa: PLW0603
    if _decide is not None:
        raise RuntimeError("faults are already being injected")
    _decide = decide
    try:
        yield
    finally:
        _decide = None
