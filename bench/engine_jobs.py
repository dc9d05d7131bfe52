"""What every engine is asked to do, and the rounds in which each does it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple, TypeVar

from bench.peers.process import Peer, PeerFailed
from bench.timing import ENOUGH
from simulation.results import BenchRecord, percentile, summary


@dataclass(frozen=True, slots=True)
class BenchModel:
    path: Path
    vocab_size: int
    revision: str
    hf_directory: Callable[[], Path]  # writes it in float32, once


def open_model(path: Path, cache: Path) -> BenchModel:
    from bench.peers.model_files import write_hf_directory
    from specialist.models.open import open_checkpoint

    checkpoint = open_checkpoint(path)
    return BenchModel(
        path.resolve(),
        checkpoint.config.vocab_size,
        checkpoint.revision,
        lambda: write_hf_directory(checkpoint, cache / "peers" / "models"),
    )


DECODE, PREFILL, TTFT = "decode", "prefill", "TTFT"
COLD, WARM = "TTFT, cold", "TTFT, warm"
_SPECIAL_TOKENS = 100  # the first ids, often control tokens, which prompts do not have


class Figure(NamedTuple):
    metric: str
    unit: str
    value: float


@dataclass(frozen=True, slots=True)
class Workload:
    answers: Mapping[int, int]  # tokens of each answer, by concurrency
    decode_prompt: int
    prefill_prompt: int
    prefix: int
    suffix: int
    large_read: int  # bytes, more than the caches hold


FULL = Workload(
    {1: 64, 4: 48, 16: 32, 32: 24}, decode_prompt=32, prefill_prompt=512, prefix=1_000, suffix=16, large_read=2**30
)
QUICK = Workload({1: 8, 4: 6}, decode_prompt=8, prefill_prompt=64, prefix=128, suffix=16, large_read=2**24)


@dataclass(frozen=True, slots=True)
class Job:
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
    """Tokens per second while all sequences decode: from the last first token to the first last token."""
    start, stop = max(mine[0] for mine in times), min(mine[-1] for mine in times)
    num_tokens = sum(start < time <= stop for mine in times for time in mine)
    if num_tokens == 0:
        raise ValueError("the sequences never decoded together: their answers are too short")
    return num_tokens / (stop - start)


def prefix_prompts(workload: Workload, seed: str, vocab_size: int) -> tuple[list[int], list[int]]:
    job = Job(prefix_case(workload), 1, workload.prefix + 2 * workload.suffix, new_tokens=1)
    [tokens] = job.prompts(seed, vocab_size)
    cut = workload.prefix + workload.suffix
    return tokens[:cut], tokens[: workload.prefix] + tokens[cut:]


def checked_times(job: Job, generated: Mapping[str, Any]) -> list[list[float]]:
    lengths = {len(mine) for name in ("tokens", "times") for mine in generated[name]}
    if len(generated["times"]) != job.concurrency or lengths != {job.new_tokens}:
        raise ValueError(f"asked for {job.concurrency} x {job.new_tokens} tokens, got lengths {sorted(lengths)}")
    return [list(map(float, mine)) for mine in generated["times"]]


def spread(metric: str, seconds: Sequence[float]) -> Iterator[Figure]:
    yield Figure(f"{metric} p50", "ms", 1e3 * median(seconds))
    if len(seconds) >= ENOUGH:
        yield Figure(f"{metric} p99", "ms", 1e3 * percentile(seconds, 99))


def _percentiles(metric: str, seconds: Sequence[float]) -> Iterator[Figure]:
    yield Figure(f"{metric} p50", "ms", 1e3 * median(seconds))
    yield Figure(f"{metric} p95", "ms", 1e3 * percentile(seconds, 95))


LINEAR, READING = "linear", "read"
LIMITS = (LINEAR, READING)
BARE_LINEAR, AT_BANDWIDTH = "bare linear layers", "weights at read bandwidth"


def limit_figures(limit: str, workload: Workload, peer: Peer) -> Iterator[tuple[str, Figure]]:
    yield from _linear(workload, peer) if limit == LINEAR else _reading(workload, peer)


def _linear(workload: Workload, peer: Peer) -> Iterator[tuple[str, Figure]]:
    """Every matrix of the model once, the head only for sampled tokens, and nothing else."""
    for concurrency in workload.answers:
        seconds = float(peer.call(LINEAR, tokens=concurrency, outputs=concurrency)["seconds"])
        yield decode_case(concurrency), Figure(BARE_LINEAR, "tok/s", concurrency / seconds)
    seconds = float(peer.call(LINEAR, tokens=workload.prefill_prompt, outputs=1)["seconds"])
    yield prefill_case(workload), Figure(BARE_LINEAR, "tok/s", workload.prefill_prompt / seconds)


def _reading(workload: Workload, peer: Peer) -> Iterator[tuple[str, Figure]]:
    """A token needs every weight once. Reading the same number of bytes may be faster than memory where they fit the
    caches; memory bandwidth is therefore shown beside it."""
    weights = peer.call(READING, nbytes=None)
    yield decode_case(1), Figure(AT_BANDWIDTH, "tok/s", 1 / float(weights["seconds"]))
    large = peer.call(READING, nbytes=workload.large_read)
    for case, read in (("as many bytes as the weights", weights), (f"{workload.large_read >> 20:,} MiB", large)):
        yield case, Figure("read bandwidth", "GB/s", float(read["nbytes"]) / float(read["seconds"]) / 1e9)


BENCH = "engine"


class Key(NamedTuple):
    case: str
    system: str
    metric: str


class Board:
    def __init__(self, systems: Sequence[str]) -> None:
        self._systems = list(systems)
        self._samples: dict[Key, dict[int, float]] = {}
        self._units: dict[Key, str] = {}

    def add(self, number: int, case: str, system: str, figures: Iterable[Figure]) -> None:
        for metric, unit, value in figures:
            key = Key(case, system, metric)
            self._units[key] = unit
            self._samples.setdefault(key, {})[number] = value

    def records(self) -> Iterator[BenchRecord]:
        for key in sorted(self._samples, key=self._place_of()):
            samples = list(self._samples[key].values())
            yield summary(samples, BENCH, key.case, key.metric, self._units[key], key.system)

    def _place_of(self) -> Callable[[Key], tuple[int, int, int]]:
        cases = list(dict.fromkeys(key.case for key in self._samples))
        metrics = list(dict.fromkeys(key.metric for key in self._samples))
        return lambda key: (cases.index(key.case), metrics.index(key.metric), self._systems.index(key.system))

    def ratio(self, mine: Key, base: Key, case: str) -> Iterator[BenchRecord]:
        ours, theirs = self._samples.get(mine, {}), self._samples.get(base, {})
        samples = [value / theirs[number] for number, value in ours.items() if number in theirs]
        if samples:
            yield summary(samples, BENCH, case, mine.metric, "x", mine.system)


OCTET, SERVED, LIMIT = "octet", "octet served", "limit"
AGREEMENT_CASE, AGREEMENT = "all prompts", "first token as octet's"
Say = Callable[[str], None]
_Result = TypeVar("_Result")


@dataclass(slots=True)
class Failures:
    say: Say
    reply: list[str] = field(default_factory=list)

    def add(self, why: str) -> None:
        self.reply.append(why)
        self.say(why)

    def attempt(self, peers: dict[str, Peer], name: str, work: Callable[[Peer], _Result]) -> _Result | None:
        """A peer that fails is closed and left out; its earlier rounds count."""
        if name not in peers:
            return None
        try:
            return work(peers[name])
        except (PeerFailed, ValueError) as error:
            self.add(str(error) if isinstance(error, PeerFailed) else f"{name}: {error}")
            peers.pop(name).close()
            return None


@dataclass(slots=True)
class EngineRounds:
    peers: dict[str, Peer]  # alive, by name, in the order of the first round
    jobs: Sequence[Job]
    workload: Workload
    vocab_size: int
    failures: Failures
    board: Board = field(init=False)
    _firsts: dict[str, list[int]] = field(default_factory=dict)
    # by system, the first token of every answer of this round

    def __post_init__(self) -> None:
        self.board = Board([*self.peers, LIMIT])

    def run(self, runs: int) -> None:
        for number in range(runs + 1):
            self.failures.say(f"round {number} of {runs}" if number else "a round that does not count")
            self._round(number)

    def _round(self, number: int) -> None:
        self._firsts = {name: [] for name in self.peers}
        for i, job in enumerate(self.jobs):
            for name in rotated(list(self.peers), number + i):
                self._attempt(name, partial(self._do, job=job, number=number))
        if OCTET in self.peers:
            self._attempt(OCTET, partial(self._prefix, number=number))
            for limit in LIMITS:
                self._attempt(OCTET, partial(self._limit, limit=limit, number=number))
        self._agreement(number)

    def _attempt(self, name: str, work: Callable[[Peer], None]) -> None:
        self.failures.attempt(self.peers, name, work)

    def _do(self, peer: Peer, job: Job, number: int) -> None:
        prompts = job.prompts(str(number), self.vocab_size)
        generated = peer.call("generate", prompts=prompts, new_tokens=job.new_tokens)
        times = checked_times(job, generated)
        self._firsts[peer.name].extend(mine[0] for mine in generated["tokens"])
        self._add(number, job.case, peer.name, job.figures(times))

    def _prefix(self, peer: Peer, number: int) -> None:
        cold, warm = prefix_prompts(self.workload, str(number), self.vocab_size)
        figures = [Figure(metric, "ms", 1e3 * _ttft(peer, prompt)) for metric, prompt in ((COLD, cold), (WARM, warm))]
        self._add(number, prefix_case(self.workload), OCTET, figures)

    def _limit(self, peer: Peer, limit: str, number: int) -> None:
        if limit in peer.calls:
            for case, figure in limit_figures(limit, self.workload, peer):
                self._add(number, case, LIMIT, [figure])

    def _agreement(self, number: int) -> None:
        ours = self._firsts.get(OCTET, [])
        for name, theirs in self._firsts.items():
            if name != OCTET and ours and len(theirs) == len(ours):
                share = sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)
                self._add(number, AGREEMENT_CASE, name, [Figure(AGREEMENT, "%", 100 * share)])

    def _add(self, number: int, case: str, system: str, figures: Iterable[Figure]) -> None:
        measured = list(figures)
        if number > 0:
            self.board.add(number, case, system, measured)


def _ttft(peer: Peer, prompt: list[int]) -> float:
    generated: dict[str, Any] = peer.call("generate", prompts=[prompt], new_tokens=1)
    return float(generated["times"][0][0])


def rotated(names: list[str], by: int) -> list[str]:
    start = by % len(names) if names else 0
    return names[start:] + names[:start]
