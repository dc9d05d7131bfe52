"""The part "decode" of `octet bench engine`: decoding, prefill, prefixes, limits. Also the jobs of all parts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, TypeVar

from bench.processes import Peer, PeerFailed
from bench.timing import ENOUGH, Board, Figure, FigureKey, Findings, Targets
from simulation.results import BenchRecord, percentile

BENCH = "engine"
OCTET, SERVED, LIMIT = "octet", "octet served", "limit"
SERVED_APART = "octet served, a call each"
_APART = "generate_apart"
_SPECIAL_TOKENS = 100  # the first ids are often control tokens, so prompts do not contain them
_Result = TypeVar("_Result")
DECODE, PREFILL, TTFT = "decode", "prefill", "TTFT"
THROUGHPUT = "throughput"
"""Measured from the submission of the prompts to the last token."""
COLD, WARM = "TTFT, cold", "TTFT, warm"
LINEAR, READING, MULTIPLYING = "linear", "read", "multiply"  # calls of Octet's runner
BARE_LINEAR, AT_BANDWIDTH = "bare linear layers", "weights at read bandwidth"
AT_MATRIX_RATE = "matrices at the rate of a large one"
AGREEMENT_CASE, AGREEMENT = "all prompts", "first token as octet's"


@dataclass(frozen=True, slots=True)
class DecodeJob:
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
    """Return the result of `work`; None if the peer is missing or fails. A failed peer is closed."""
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


@dataclass(frozen=True, slots=True)
class BenchModel:
    path: Path
    vocab_size: int
    revision: Callable[[], str]
    hf_directory: Callable[[], Path]  # writes the model in float32, once


def open_model(path: Path, cache: Path) -> BenchModel:
    """Read the model's config; its weights are read only where they are needed. Raises ModelRefused."""
    from bench.peers.model_files import write_hf_directory
    from specialist.models.fields import ModelRefused
    from specialist.models.open import inspect_model, open_checkpoint

    found = inspect_model(path)
    if found.config is None or found.problems:
        raise ModelRefused("; ".join(found.problems))
    whole = lru_cache(lambda: open_checkpoint(path))
    return BenchModel(
        path.resolve(),
        found.config.vocab_size,
        lambda: whole().revision,
        lambda: write_hf_directory(whole(), cache / "peers" / "models"),
    )


@dataclass(frozen=True, slots=True)
class Workload:
    answers: Mapping[int, int]  # tokens of each answer, by concurrency
    decode_prompt: int
    prefill_prompt: int
    prefix: int
    suffix: int
    large_read: int  # bytes, more than the caches can hold
    prefill_prompts: int = 1  # at once


FULL = Workload(
    {1: 64, 4: 48, 16: 32, 32: 24}, decode_prompt=32, prefill_prompt=512, prefix=1_000, suffix=16, large_read=2**30
)
QUICK = Workload({1: 8, 4: 6}, decode_prompt=8, prefill_prompt=64, prefix=128, suffix=16, large_read=2**24)

GPU = Workload(
    {1: 256, 16: 256, 32: 256, 128: 128}, decode_prompt=128, prefill_prompt=2_048, prefix=2_000, suffix=16,
    large_read=2**32, prefill_prompts=8,
)  # fmt: skip


def decode_case(concurrency: int) -> str:
    return f"{concurrency} sequence{'s' if concurrency > 1 else ''}"


def prefill_case(workload: Workload) -> str:
    what = "prompt" if workload.prefill_prompts == 1 else f"{workload.prefill_prompts} prompts"
    return f"{what} of {workload.prefill_prompt:,} tokens"


def prefix_case(workload: Workload) -> str:
    return f"prefix of {workload.prefix:,} tokens"


def decode_jobs(workload: Workload) -> list[DecodeJob]:
    return [
        DecodeJob(decode_case(concurrency), concurrency, workload.decode_prompt, new_tokens)
        for concurrency, new_tokens in workload.answers.items()
    ]


def prefill_job(workload: Workload) -> DecodeJob:
    return DecodeJob(prefill_case(workload), workload.prefill_prompts, workload.prefill_prompt, new_tokens=1)


def compute_figures(job: DecodeJob, times: Sequence[Sequence[float]]) -> Iterator[Figure]:
    firsts = [mine[0] for mine in times]
    if job.new_tokens == 1:
        yield Figure(PREFILL, "tok/s", job.concurrency * job.prompt_tokens / max(firsts))
        yield Figure(TTFT, "ms", 1e3 * max(firsts))
        return
    yield Figure(DECODE, "tok/s", decode_rate(times))
    yield Figure(THROUGHPUT, "tok/s", throughput(times))
    yield from spread(TTFT, firsts, 95, least=1)
    yield from spread("ITL", [b - a for mine in times for a, b in pairwise(mine)], 95, least=1)


def decode_rate(times: Sequence[Sequence[float]]) -> float:
    """Return tokens per second while all sequences decode: from the latest first token to the earliest last token."""
    start, stop = max(mine[0] for mine in times), min(mine[-1] for mine in times)
    num_tokens = sum(start < time <= stop for mine in times for time in mine)
    if num_tokens == 0:
        raise ValueError("the sequences never decoded together: their answers are too short")
    return num_tokens / (stop - start)


def throughput(times: Sequence[Sequence[float]]) -> float:
    return sum(map(len, times)) / max(mine[-1] for mine in times)


def prefix_prompts(workload: Workload, seed: str, vocab_size: int) -> tuple[list[int], list[int]]:
    job = DecodeJob(prefix_case(workload), 1, workload.prefix + 2 * workload.suffix, new_tokens=1)
    [tokens] = job.prompts(seed, vocab_size)
    cut = workload.prefix + workload.suffix
    return tokens[:cut], tokens[: workload.prefix] + tokens[cut:]


def linear_figures(workload: Workload, peer: Peer) -> Iterator[tuple[str, Figure]]:
    """Yield the rate of tokens if only matrix products took time. The output head is computed for sampled tokens
    only."""
    cases = [(decode_case(number), number, number) for number in workload.answers]
    for case, tokens, outputs in (*cases, (prefill_case(workload), workload.prefill_prompt, 1)):
        seconds = float(peer.call(LINEAR, tokens=tokens, outputs=outputs)["seconds"])
        yield case, Figure(BARE_LINEAR, "tok/s", tokens / seconds)


def reading_figures(workload: Workload, peer: Peer) -> Iterator[tuple[str, Figure]]:
    """Yield the rate of tokens if only reading the weights took time: a token needs each weight once. Weights that fit
    into the caches may be read faster than memory allows; memory bandwidth is therefore measured too."""
    weights = peer.call(READING, nbytes=None)
    yield decode_case(1), Figure(AT_BANDWIDTH, "tok/s", 1 / float(weights["seconds"]))
    large = peer.call(READING, nbytes=workload.large_read)
    for case, read in (("as many bytes as the weights", weights), (f"{workload.large_read >> 20:,} MiB", large)):
        yield case, Figure("read bandwidth", "GB/s", float(read["nbytes"]) / float(read["seconds"]) / 1e9)


def multiplying_figures(workload: Workload, peer: Peer) -> Iterator[tuple[str, Figure]]:
    """Yield the rate of a large matrix product, and the rate of prompt tokens if only the model's products took time,
    each at that rate."""
    measured = peer.call(MULTIPLYING)
    rate = float(measured["operations"]) / float(measured["seconds"])
    yield prefill_case(workload), Figure(AT_MATRIX_RATE, "tok/s", rate / float(measured["a_token"]))
    yield "a large matrix", Figure("matrix rate", "TFLOP/s", rate / 1e12)


_LIMITS = {LINEAR: linear_figures, READING: reading_figures, MULTIPLYING: multiplying_figures}


@dataclass(slots=True)
class DecodeRounds:
    peers: dict[str, Peer]  # running peers by name, in the order of the first round
    workload: Workload
    vocab_size: int
    findings: Findings
    board: Board = field(init=False)
    _firsts: dict[str, list[int]] = field(default_factory=dict)  # by system, the first token of each answer of a round

    def __post_init__(self) -> None:
        self.board = Board(BENCH, [*self.peers, SERVED_APART, LIMIT])

    def run(self, runs: int) -> None:
        for number in range(runs + 1):
            self.findings.say(f"round {number} of {runs}" if number else "a round that does not count")
            self._round(number)

    def _round(self, number: int) -> None:
        self._firsts = {name: [] for name in self.peers}
        for i, job in enumerate((*decode_jobs(self.workload), prefill_job(self.workload))):
            for name in rotated(list(self.peers), number + i):
                attempt(self.findings, self.peers, name, partial(self._do, job=job, number=number))
        attempt(self.findings, self.peers, OCTET, partial(self._prefix, number=number))
        for limit in _LIMITS:
            attempt(self.findings, self.peers, OCTET, partial(self._limit, limit=limit, number=number))
        self._agreement(number)

    def _do(self, peer: Peer, job: DecodeJob, number: int) -> None:
        prompts = job.prompts(str(number), self.vocab_size)
        generated = peer.call("generate", prompts=prompts, new_tokens=job.new_tokens)
        times = job.checked_times(generated)
        self._firsts[peer.name].extend(mine[0] for mine in generated["tokens"])
        self._add(number, job.case, peer.name, compute_figures(job, times))
        if _APART in peer.calls:
            prompts = job.prompts(f"{number} apart", self.vocab_size)
            times = job.checked_times(peer.call(_APART, prompts=prompts, new_tokens=job.new_tokens))
            self._add(number, job.case, SERVED_APART, compute_figures(job, times))

    def _prefix(self, peer: Peer, number: int) -> None:
        prompts = prefix_prompts(self.workload, str(number), self.vocab_size)
        for metric, prompt in zip((COLD, WARM), prompts, strict=True):
            generated = peer.call("generate", prompts=[prompt], new_tokens=1)
            figure = Figure(metric, "ms", 1e3 * float(generated["times"][0][0]))
            self._add(number, prefix_case(self.workload), OCTET, [figure])

    def _limit(self, peer: Peer, limit: str, number: int) -> None:
        if limit in peer.calls:
            for case, figure in _LIMITS[limit](self.workload, peer):
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


def ratios(board: Board, workload: Workload, peers: Sequence[str]) -> Iterator[BenchRecord]:
    """Yield ratios: Octet's rates to those of peers and limits, served rates to in-process rates, and the time with a
    warm prefix to the time with a cold one."""
    rates = [*((decode_case(n), DECODE) for n in workload.answers), (prefill_case(workload), PREFILL)]
    for case, metric in rates:
        for served in (SERVED, SERVED_APART):
            ours = FigureKey(case, OCTET, metric)
            yield from board.ratio(FigureKey(case, served, metric), ours, f"{case} vs in process")
    together = [(decode_case(n), THROUGHPUT) for n in workload.answers]
    for peer in peers:
        for case, metric in (*rates, *together):
            yield from board.ratio(FigureKey(case, OCTET, metric), FigureKey(case, peer, metric), f"{case} vs {peer}")
    for case, metric in rates:
        for limit in (BARE_LINEAR, AT_BANDWIDTH, AT_MATRIX_RATE):
            yield from board.ratio(FigureKey(case, OCTET, metric), FigureKey(case, LIMIT, limit), f"{case} vs {limit}")
    case = prefix_case(workload)
    yield from board.ratio(FigureKey(case, OCTET, WARM), FigureKey(case, OCTET, COLD), f"{case} vs cold")


TARGETS: Targets = {
    (f"{decode_case(1)} vs llamacpp", DECODE): "at least 1.5 x",
    (f"{decode_case(16)} vs llamacpp", DECODE): "at least 2 x",
    (f"{prefill_case(FULL)} vs llamacpp", PREFILL): "at least 2 x",
    (f"{decode_case(16)} vs vllm", DECODE): "at least 5 x",
    (f"{prefix_case(FULL)} vs cold", WARM): "at most 0.15 x",
}
_SMALL = 4 << 30  # bytes of weights


def gpu_targets(path: Path) -> Targets:
    """Return the targets for a model on a GPU. Of a small one, other engines leave most of the GPU unused."""
    files = [path] if path.is_file() else path.glob("*.safetensors")
    is_small = sum(file.stat().st_size for file in files) < _SMALL
    rates = {1: 2, 16: 1.3, 32: 1.3, 128: 1} if is_small else {1: 1.1, 16: 1, 32: 1, 128: 1}
    return {
        **{(f"{decode_case(n)} vs vllm", DECODE): f"at least {rate:g} x" for n, rate in rates.items()},
        (f"{decode_case(128)} vs vllm", THROUGHPUT): "at least 1 x",
        (f"{prefill_case(GPU)} vs vllm", PREFILL): "at least 0.9 x",
        (f"{decode_case(32)} vs in process", DECODE): "at least 0.9 x",
    }
