"""What every engine is asked to do, and the figures that come of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import median
from typing import Any, NamedTuple

from bench.measure import ENOUGH, percentile

DECODE, PREFILL, TTFT = "decode", "prefill", "TTFT"
COLD, WARM = "TTFT, cold", "TTFT, warm"
_SPECIAL_TOKENS = 100
"""The first of a vocabulary are often control tokens; prompts have none of them."""


class Figure(NamedTuple):
    metric: str
    unit: str
    value: float


@dataclass(frozen=True, slots=True)
class Workload:
    """Sizes of everything that is asked."""

    answers: Mapping[int, int]
    """By concurrency, how many tokens each sequence is asked for."""
    decode_prompt: int
    prefill_prompt: int
    prefix: int
    suffix: int
    large_read: int
    """Bytes that the processor's caches do not hold."""


FULL = Workload(
    {1: 64, 4: 48, 16: 32, 32: 24}, decode_prompt=32, prefill_prompt=512, prefix=1_000, suffix=16, large_read=2**30
)
QUICK = Workload({1: 8, 4: 6}, decode_prompt=8, prefill_prompt=64, prefix=128, suffix=16, large_read=2**24)


@dataclass(frozen=True, slots=True)
class Job:
    """Prompts that are handed over together. All are equally long and share nothing."""

    case: str
    concurrency: int
    prompt_tokens: int
    new_tokens: int

    def prompts(self, seed: str, vocab_size: int) -> list[list[int]]:
        random = Random(f"{seed}, {self.case}")
        return [prompt_tokens(random, self.prompt_tokens, vocab_size) for _ in range(self.concurrency)]

    def figures(self, times: Sequence[Sequence[float]]) -> Iterator[Figure]:
        firsts = [mine[0] for mine in times]
        if self.new_tokens == 1:
            yield Figure(PREFILL, "tok/s", self.concurrency * self.prompt_tokens / max(firsts))
            yield Figure(TTFT, "ms", 1e3 * max(firsts))
            return
        yield Figure(DECODE, "tok/s", decode_rate(times))
        yield from _percentiles(TTFT, firsts)
        yield from _percentiles("ITL", [b - a for mine in times for a, b in pairwise(mine)])


def prompt_tokens(random: Random, length: int, vocab_size: int) -> list[int]:
    return [random.randrange(_SPECIAL_TOKENS, vocab_size) for _ in range(length)]


def decode_jobs(workload: Workload) -> list[Job]:
    return [
        Job(decode_case(concurrency), concurrency, workload.decode_prompt, new_tokens)
        for concurrency, new_tokens in workload.answers.items()
    ]


def prefill_job(workload: Workload) -> Job:
    return Job(prefill_case(workload), 1, workload.prefill_prompt, new_tokens=1)


def decode_case(concurrency: int) -> str:
    return f"{concurrency} sequence{'s' if concurrency > 1 else ''}"


def prefill_case(workload: Workload) -> str:
    return f"prompt of {workload.prefill_prompt:,} tokens"


def prefix_case(workload: Workload) -> str:
    return f"prefix of {workload.prefix:,} tokens"


def decode_rate(times: Sequence[Sequence[float]]) -> float:
    """Tokens a second while all sequences decode: from when each has its first token until one has its last."""
    start, stop = max(mine[0] for mine in times), min(mine[-1] for mine in times)
    num_tokens = sum(start < time <= stop for mine in times for time in mine)
    if num_tokens == 0:
        raise ValueError("the sequences never decoded together: their answers are too short")
    return num_tokens / (stop - start)


def prefix_prompts(workload: Workload, seed: str, vocab_size: int) -> tuple[list[int], list[int]]:
    """Two prompts that are equal up to the end of the prefix and differ behind it."""
    job = Job(prefix_case(workload), 1, workload.prefix + 2 * workload.suffix, new_tokens=1)
    [tokens] = job.prompts(seed, vocab_size)
    cut = workload.prefix + workload.suffix
    return tokens[:cut], tokens[: workload.prefix] + tokens[cut:]


def checked_times(job: Job, generated: Mapping[str, Any]) -> list[list[float]]:
    """Raises ValueError unless every prompt got an answer of the length that was asked for."""
    lengths = {len(mine) for name in ("tokens", "times") for mine in generated[name]}
    if len(generated["times"]) != job.concurrency or lengths != {job.new_tokens}:
        raise ValueError(f"asked for {job.concurrency} x {job.new_tokens} tokens, got lengths {sorted(lengths)}")
    return [list(map(float, mine)) for mine in generated["times"]]


def spread(metric: str, seconds: Sequence[float]) -> Iterator[Figure]:
    """Of many: the median and the worst of a hundred, where there are enough to tell."""
    yield Figure(f"{metric} p50", "ms", 1e3 * median(seconds))
    if len(seconds) >= ENOUGH:
        yield Figure(f"{metric} p99", "ms", 1e3 * percentile(seconds, 99))


def _percentiles(metric: str, seconds: Sequence[float]) -> Iterator[Figure]:
    yield Figure(f"{metric} p50", "ms", 1e3 * median(seconds))
    yield Figure(f"{metric} p95", "ms", 1e3 * percentile(seconds, 95))
