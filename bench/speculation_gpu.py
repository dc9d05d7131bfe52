"""Drafts of a small model on a GPU: the measured speed-up beside the one that acceptance and step costs let expect."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from random import Random
from statistics import median
from typing import Any, NamedTuple

from bench.agreeing_models import AgreeingModels, agreeing_models, part_of_vocabulary
from bench.random_models import SHAPES
from bench.timing import Board
from octet.clock import Clock
from simulation.results import BenchRecord
from specialist.scheduling.draft_model import DraftModel
from specialist.scheduling.scheduler import Scheduler, StepLoop
from specialist.scheduling.sequence import GREEDY, Request, Sampling
from specialist.scheduling.sequence import Sequence as Tracked
from specialist.scheduling.step import Emitted, Finished, FixedBudget, Step
from specialist.server.native_replica import replica_from_checkpoint
from specialist.server.settings import ReplicaSettings

SHARES = (0.8, 0.95, 0.5)
NUMS_SEQUENCES = (1, 4, 16)
WINDOW = 16
WINDOWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
_PROMPT, _ANSWER = 128, 192
_KV_BYTES = 8 << 30
_MEASURED = 10  # steps of each kind
_WARM = Sampling(temperature=1.0)


class Case(NamedTuple):
    share: float  # of tokens for which the small model is right, by construction
    num_sequences: int
    sampling: Sampling = GREEDY

    @property
    def name(self) -> str:
        plural = "s" if self.num_sequences > 1 else ""
        heat = f", temperature {self.sampling.temperature:g}" if self.sampling.temperature else ""
        return f"right for {100 * self.share:.0f} %, {self.num_sequences} sequence{plural}{heat}"


CASES = [*(Case(share, number) for number in NUMS_SEQUENCES for share in SHARES), Case(0.95, 1, _WARM)]


class RoundCost(NamedTuple):
    """The seconds of a step with drafts: of all guesses, and of their verification."""

    guessing: float
    checking: float


class Counts(NamedTuple):
    """Of steps after the prompts, until the first answer ends."""

    tokens: int = 0
    steps: int = 0
    guesses: int = 0
    checked: int = 0  # guesses whose predecessors were right
    right: int = 0

    def plus(self, other: "Counts") -> "Counts":
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))


class Decoded(NamedTuple):
    seconds: float  # of these steps
    counts: Counts
    answers: list[tuple[int, ...]]

    @property
    def rate(self) -> float:
        return self.counts.tokens / self.seconds


class FixedWindow:
    """A proposer whose model always guesses so many tokens, and that measures how long this takes."""

    def __init__(self, model: DraftModel, window: int) -> None:
        self.seconds = 0.0  # of the newest guesses
        self._model, self._window = model, window

    def wants(self, limits: Mapping[Tracked, int], num_rows: int, most: int) -> bool:
        return True

    def propose(self, limits: Mapping[Tracked, int], num_rows: int, most: int) -> Mapping[Tracked, tuple[int, ...]]:
        if any(self._model.num_unread(seq) > WINDOW for seq in limits):
            self._model.read(list(limits), most)
        before = self._model.seconds
        guesses = self._model.guess(dict.fromkeys(limits, self._window))
        self.seconds = self._model.seconds - before
        return guesses

    def observe(self, num_tokens: int, seconds: float) -> None: ...

    def ended(self, seq: Tracked) -> None:
        self._model.forget(seq)


class SpeculationBench:
    def __init__(self, models: AgreeingModels, settings: ReplicaSettings, clock: Clock, answer: int = _ANSWER) -> None:
        self._models, self._clock, self._answer = models, clock, answer
        self._replica = replica_from_checkpoint(models.large, "bench", settings, clock, draft=models.small)
        self._names = count()

    def measure(self, cases: Sequence[Case], rounds: int) -> Iterator[list[BenchRecord]]:
        """Yield the records of each case."""
        known: dict[int, dict[int, RoundCost]] = {}
        for case in cases:
            costs = known[case.num_sequences] = known.get(case.num_sequences) or self.costs(case.num_sequences)
            board = Board("speculation")
            for number in range(rounds + 1):  # the first does not count
                windows = (0, WINDOW) if number % 2 else (WINDOW, 0)
                found = {window: self.decode(case, window, number) for window in windows}
                if found[0].answers != found[WINDOW].answers:
                    raise ValueError(f"{case.name}: drafts changed an answer")
                if number:
                    figures = figures_of(case, found[0], found[WINDOW], costs)
                    board.add(number, case.name, "octet", figures)
            yield board.records()

    def costs(self, num_sequences: int) -> dict[int, RoundCost]:
        """Return the median costs of steps with these windows."""
        return {window: self._cost(num_sequences, window) for window in WINDOWS}

    def _cost(self, num_sequences: int, window: int) -> RoundCost:
        replica, case = self._replica, Case(SHARES[0], num_sequences)
        if replica.proposer is None or replica.proposer.model is None:
            raise TypeError("the replica has no draft model")
        fixed = FixedWindow(replica.proposer.model.model, window)
        own = replica.scheduler
        scheduler = Scheduler(own.pool, own.config, self._clock, budget=FixedBudget(8192), proposer=fixed)
        loop = StepLoop(scheduler, replica.engine)
        requests = list(self._requests(case, window, window))
        for request in requests:
            scheduler.submit(replace(request, max_tokens=4 * _MEASURED * (1 + window)))
        costs: list[RoundCost] = []
        began = self._clock.now()
        while len(costs) < _MEASURED and (step := loop.run_once()) is not None:
            ended = self._clock.now()
            if step.num_tokens == num_sequences * (1 + window):
                costs.append(RoundCost(fixed.seconds, ended - began - fixed.seconds))
            began = ended
        for request in requests:
            scheduler.end(request.request_id, "cancelled")
        guessing, checking = zip(*costs[2:], strict=True)
        return RoundCost(median(guessing), median(checking))

    def decode(self, case: Case, window: int, seed: int) -> Decoded:
        scheduler, loop = self._replica.scheduler, StepLoop(self._replica.scheduler, self._replica.engine)
        answers: dict[str, tuple[int, ...]] = {}
        for request in self._requests(case, window, seed):
            answers[request.request_id] = ()
            scheduler.submit(request)
        began, seconds, totals, goes_on = self._clock.now(), 0.0, Counts(), True
        while (step := loop.run_once()) is not None:
            events = scheduler.take_events()
            emitted = {each.request_id: each.tokens for each in events if isinstance(each, Emitted)}
            for name, tokens in emitted.items():
                answers[name] += tokens
            if step.mode == "prefill":
                began, totals = self._clock.now(), Counts()  # at the last prompt's end
            elif goes_on:
                seconds, totals = self._clock.now() - began, totals.plus(_counts(step, emitted))
            goes_on = goes_on and not any(isinstance(each, Finished) for each in events)
        return Decoded(seconds, totals, list(answers.values()))

    def _requests(self, case: Case, window: int, seed: int) -> Iterator[Request]:
        """Yield requests whose texts begin in the part of the vocabulary that the case names."""
        vocab, random = self._models.large.config.vocab_size, Random(f"{case} {seed}")
        part = part_of_vocabulary(vocab, len(SHARES), SHARES.index(case.share))
        longest = 4 * self._answer
        for index in range(case.num_sequences):
            first = random.randrange(part.start, part.stop - longest)
            prompt = (*(random.randrange(vocab) for _ in range(_PROMPT - 1)), first)
            yield Request(
                f"r{next(self._names)}", self._replica.lane, prompt, self._answer,
                sampling=case.sampling, seed=index, draft_window=window,
            )  # fmt: skip


def _counts(step: Step, emitted: Mapping[str, tuple[int, ...]]) -> Counts:
    kept = [(row.num_drafts, len(emitted.get(row.sequence.request.request_id, ()))) for row in step.rows]
    drafted = [(drafts, number - 1) for drafts, number in kept if drafts and number]
    return Counts(
        tokens=sum(number for _, number in kept),
        steps=1,
        guesses=sum(drafts for drafts, _ in drafted),
        checked=sum(min(drafts, right + 1) for drafts, right in drafted),
        right=sum(right for _, right in drafted),
    )


def expected_speed_up(accepted: float, plain: float, costs: Mapping[int, RoundCost]) -> tuple[float, int]:
    """Return the largest speed-up that any window promises, and that window: 1 and 0 if no drafts pay."""
    best = 1.0, 0
    for window, cost in costs.items():
        kept = sum(accepted**number for number in range(window + 1))
        best = max(best, (kept * plain / (cost.guessing + cost.checking), window))
    return best


def figures_of(
    case: Case, plain: Decoded, drafted: Decoded, costs: Mapping[int, RoundCost]
) -> Iterator[tuple[str, str, float]]:
    step, counts = plain.seconds / plain.counts.steps, drafted.counts
    accepted = counts.right / counts.checked if counts.checked else case.share
    expected, window = expected_speed_up(accepted, step, costs)
    measured = drafted.rate / plain.rate
    yield "right guesses, of those checked", "%", 100 * accepted
    yield "plain step", "ms", 1e3 * step
    if window:
        yield "best window", "tokens", window
        yield "draft step", "ms", 1e3 * costs[window].guessing / window
        yield "verification step", "ms", 1e3 * costs[window].checking
    yield "guesses a step", "tokens", counts.guesses / counts.steps
    yield "without drafts", "tok/s", plain.rate
    yield "with drafts", "tok/s", drafted.rate
    yield "expected speed-up", "x", expected
    yield "measured speed-up", "x", measured
    yield "measured, relative to expected", "x", measured / expected


def bench_on_gpu(clock: Clock, rounds: int, device: str = "cuda") -> Iterator[list[BenchRecord]]:
    """Measure a model of the shape of Llama 3.1 8B with a draft model of that of Qwen3 0.6B."""
    models = agreeing_models(SHAPES["8b"], SHAPES["0.6b"], SHARES, device)
    changes: dict[str, Any] = {"dtype": "bfloat16", "itl_seconds": 60.0, "max_running": 32, "kv_bytes": _KV_BYTES}
    settings = ReplicaSettings(name="bench", device=device, draft_window=WINDOW, **changes)
    yield from SpeculationBench(models, settings, clock).measure(CASES, rounds)
