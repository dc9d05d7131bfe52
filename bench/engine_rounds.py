"""Code that all parts of `octet bench engine` share: jobs, figures from token times, and attempts that may fail."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Any, TypeVar

from bench.peers.process import Peer, PeerFailed
from bench.timing import ENOUGH, Figure, Findings
from simulation.results import percentile

BENCH = "engine"
OCTET, SERVED, LIMIT = "octet", "octet served", "limit"
_SPECIAL_TOKENS = 100  # the first ids are often control tokens, so prompts do not contain them
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Job:
    case: str
    concurrency: int
    prompt_tokens: int
    new_tokens: int

    def prompts(self, seed: str, vocab_size: int) -> list[list[int]]:
        random = Random(f"{seed}, {self.case}")
        return [prompt_tokens(random, self.prompt_tokens, vocab_size) for _ in range(self.concurrency)]

    def checked_times(self, generated: Mapping[str, Any]) -> list[list[float]]:
        """Return the times. Raises ValueError unless there are `concurrency` answers of `new_tokens` tokens each."""
        lengths = {len(mine) for name in ("tokens", "times") for mine in generated[name]}
        if len(generated["times"]) != self.concurrency or lengths != {self.new_tokens}:
            raise ValueError(f"asked for {self.concurrency} x {self.new_tokens} tokens, got lengths {sorted(lengths)}")
        return [list(map(float, mine)) for mine in generated["times"]]


def prompt_tokens(random: Random, length: int, vocab_size: int) -> list[int]:
    return [random.randrange(_SPECIAL_TOKENS, vocab_size) for _ in range(length)]


def spread(metric: str, seconds: Sequence[float], percent: int = 99, least: int = ENOUGH) -> Iterator[Figure]:
    """Yield the median, and a percentile if there are enough samples."""
    yield Figure(f"{metric} p50", "ms", 1e3 * median(seconds))
    if len(seconds) >= least:
        yield Figure(f"{metric} p{percent}", "ms", 1e3 * percentile(seconds, percent))


def attempt(findings: Findings, peers: dict[str, Peer], name: str, work: Callable[[Peer], _Result]) -> _Result | None:
    """Attempt the work. A peer that fails is closed and left out; its earlier rounds count."""
    if name not in peers:
        return None
    try:
        return work(peers[name])
    except (PeerFailed, ValueError) as error:
        findings.fail(str(error) if isinstance(error, PeerFailed) else f"{name}: {error}")
        peers.pop(name).close()
        return None


def rotated(names: list[str], by: int) -> list[str]:
    start = by % len(names) if names else 0
    return names[start:] + names[:start]
