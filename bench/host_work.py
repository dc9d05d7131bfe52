"""The host's work in a decode step of the GPU engine, without a GPU: the decoder has its tokens at once."""

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from threading import Event
from time import perf_counter
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from admission.policy import PrefillHold
from bench.kv import BLOCK_SIZE, LANE, new_pool
from bench.timing import Board, Figure, Targets
from octet.clock import SystemClock
from simulation.results import BenchRecord
from specialist.engines.base import Completion
from specialist.engines.native.decode_inputs import MOST_ROWS, DecodeInputs
from specialist.engines.native.gpu_engine import DecodeRows, GpuEngine
from specialist.engines.sim.vocabulary import sim_vocabulary
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig, StepLoop
from specialist.scheduling.sequence import GREEDY, Request
from specialist.scheduling.step import FixedBudget, Step, StepOutcome
from specialist.server.engine_thread import EngineReport, EngineThread
from specialist.server.served_request import AnswerText, ServedRequest
from specialist.text.prompt import TokenPrompt
from specialist.text.tokenization import Detokenizer, TokenPieces

BENCH = "scheduler"
NUMS_RUNNING = (1, 32, 128)
PHASES = ("assemble", "launch", "results", "commit", "report")
"""`launch`: of the next step. `results`: of this step, which has run. `report`: by the engine's thread, at the end."""
WHOLE = "host work of a step"
_PROMPT, _ANSWER = 128, 3_968
_TOKEN = 40  # the token that the decoder draws: a letter
_WARM_UP, _STEPS = 48, 128  # decode steps: those that do not count, and those that do
_MOST_STEPS = 256  # enough for the prompts, too


def _case(num_running: int) -> str:
    return f"{num_running} running, a GPU that takes no time"


TARGETS: Targets = {(_case(32), WHOLE): "< 150 µs"}


class InstantDecoder:
    """Prepares a step's inputs as a GPU's decoder does, and has its tokens at once."""

    most_rows, num_blocks, block_size, device = MOST_ROWS, 0, BLOCK_SIZE, torch.device("cpu")

    def __init__(self, stamps: "Stamps") -> None:
        self._inputs = DecodeInputs((_PROMPT + _ANSWER) // BLOCK_SIZE, self.device)
        self._drawn = np.full((2, MOST_ROWS), _TOKEN, np.int32)
        self._stamps = stamps

    def launch(self, rows: DecodeRows) -> "InstantTokens":
        self._inputs.send(rows, rows.num_rows, BLOCK_SIZE)
        return InstantTokens(self._drawn, rows.num_rows, self._stamps)

    def enter_thread(self) -> None: ...

    def spare_block(self, row: int) -> int:
        return row

    def move_slots(self, moves: Sequence[tuple[int, int]]) -> None: ...


class InstantTokens(NamedTuple):
    drawn: NDArray[np.int32]
    num_rows: int
    stamps: "Stamps"

    def wait(self) -> tuple[list[int], list[float]]:
        self.stamps.add()
        tokens, peaks = self.drawn[:, : self.num_rows]
        return tokens.tolist(), peaks.view(np.float32).tolist()


class InstantEngine(GpuEngine):
    """Computes no prompts either."""

    def run(self, step: Step) -> Iterable[Completion]:
        if step.mode == "decode":
            return super().run(step)
        return (Completion(step, StepOutcome(tuple((_TOKEN,) * row.num_samples for row in step.rows))),)


class Stamps:
    """When the phases of each step began."""

    def __init__(self) -> None:
        self.steps: list[list[float]] = []

    def begin(self) -> None:
        self.steps.append([perf_counter()])

    def add(self) -> None:
        self.steps[-1].append(perf_counter())

    def phases(self) -> list[list[float]]:
        """Return the seconds of each phase of the decode steps that a decode step followed."""
        whole = len(PHASES)
        pairs = [(one, after) for one, after in pairwise(self.steps) if len(one) == len(after) == whole]
        return [[b - a for a, b in pairwise([*one, after[0]])] for one, after in pairs]


class StampedLoop(StepLoop):
    def __init__(self, scheduler: Scheduler, engine: GpuEngine, stamps: Stamps) -> None:
        super().__init__(scheduler, engine)
        self._stamps = stamps

    def run_once(self) -> Step | None:
        self._stamps.begin()
        return super().run_once()

    def complete(self, step: Step) -> list[Completion]:
        self._stamps.add()
        completions = super().complete(step)
        self._stamps.add()
        return completions

    def settle(self, step: Step, completions: list[Completion]) -> None:
        super().settle(step, completions)
        self._stamps.add()


def measure_host_work(runs: int, nums_running: Sequence[int] = NUMS_RUNNING) -> list[BenchRecord]:
    """Time the steps of an engine thread. The threads that call it and read its answers are not part of this."""
    board = Board(BENCH)
    for number in range(runs + 1):
        for num_running in nums_running:
            figures = [
                Figure(name, "µs", 1e6 * median(each))
                for name, each in zip((*PHASES, WHOLE), _time_phases(num_running), strict=True)
            ]
            if number:  # the first round is a warm-up
                board.add(number, _case(num_running), "octet", figures)
    return board.records()


def _time_phases(num_running: int) -> list[list[float]]:
    """Return the seconds of each phase and of the whole step, by decode step."""
    stamps, enough = Stamps(), Event()
    thread = _new_thread(num_running, stamps)
    thread.deliver = lambda report: _check(report, stamps, enough)
    with _frozen():
        for served in _requests(num_running):
            thread.submit(served)
        thread.start()
        enough.wait()
        thread.stop()
    steps = stamps.phases()[_WARM_UP : _WARM_UP + _STEPS]
    if len(steps) < _STEPS:
        raise RuntimeError("the engine's thread died")
    return [*map(list, zip(*steps, strict=True)), [sum(step) for step in steps]]


@contextmanager
def _frozen() -> Iterator[None]:
    """Keep older objects out of the collector's sight, as a server does before it is ready. What the caller has frozen
    stays frozen."""
    gc.collect()
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _check(report: EngineReport, stamps: Stamps, enough: Event) -> None:
    if report.died or len(stamps.steps) == _MOST_STEPS:
        enough.set()


def _new_thread(num_running: int, stamps: Stamps) -> EngineThread:
    pool = new_pool(num_running * (_PROMPT + _ANSWER) // BLOCK_SIZE)
    config = SchedulerConfig(LANE, max_running=num_running, mixes_adapters=True)
    clock = SystemClock()
    chunk = FixedBudget(config.max_step_tokens)
    scheduler = Scheduler(pool, config, clock, budget=chunk, hold=PrefillHold(chunk_seconds=0.01))
    decoder: Any = InstantDecoder(stamps)
    nothing: Any = SimpleNamespace()
    return EngineThread(StampedLoop(scheduler, InstantEngine(decoder, nothing, nothing), stamps), clock)


def _requests(num_running: int) -> Iterator[ServedRequest]:
    vocabulary = sim_vocabulary()
    pieces = TokenPieces(vocabulary)
    now = SystemClock().now()
    for number in range(num_running):
        prompt = (number, *range(1, _PROMPT))
        served = ServedRequest(
            caller_id=str(number),
            prompt=TokenPrompt(prompt),
            adapters=(),
            sampling=GREEDY,
            seed=None,
            max_tokens=_ANSWER,
            context=_PROMPT + _ANSWER,
            stop=(),
            ignore_eos=False,
            priority=0,
            timeout=None,
            first_timeout=None,
            tenant_salt=b"",
        )
        served.request = Request(str(number), LANE, prompt, _ANSWER, arrival=now, stop_ids=vocabulary.eos_ids)
        served.public_id, served.release = served.caller_id, _do_nothing
        served.answer = AnswerText(Detokenizer(pieces))
        yield served


def _do_nothing() -> None: ...
