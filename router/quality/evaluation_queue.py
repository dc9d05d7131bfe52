"""The bounded queue of answers awaiting evaluation, fair between specialists."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import count

from octet.background import cancel_tasks, run_forever
from octet.telemetry.distributions import VERIFY_SECONDS_BOUNDS, Histogram
from router.quality.answers import (
    ByteBudget,
    CapturedAnswer,
    EvaluationListener,
    FinishedAnswer,
    ShadowAnswer,
    ShadowHandle,
)
from router.quality.evaluation import (
    EvaluationCounters,
    EvaluationRules,
    EvaluationTask,
    Evaluator,
    LineKey,
    TracedVerdict,
)
from router.verify.pool import FairQueue

_log = logging.getLogger(__name__)
MOST_EVALUATION_BYTES = 16 << 20  # captured answers and their questions together


class EvaluationQueue:
    """Evaluates answers in the background. Used only on the event loop. Each verifier evaluates one answer at a time.
    When the queue is full, the oldest answers are dropped, because recent ones are more relevant."""

    def __init__(
        self,
        listener: EvaluationListener,
        wall_ms: Callable[[], int],
        rules: EvaluationRules,
        most_bytes: int = MOST_EVALUATION_BYTES,
        clock: Callable[[], float] = time.monotonic,
        on_traced: Callable[[TracedVerdict], None] | None = None,
    ) -> None:
        """`wall_ms` returns Unix milliseconds. `on_traced` receives the verdicts on traced requests."""
        self._rules = rules
        self._clock = clock
        self.budget = ByteBudget(most_bytes)
        self.counters = EvaluationCounters()
        self.seconds: dict[LineKey, Histogram] = {}
        self._evaluator = Evaluator(listener, wall_ms, self.counters, clock, on_traced)
        self._lines = EvaluationLines()
        self._awaiting_shadow: set[EvaluationTask] = set()
        self._changed = asyncio.Event()  # set when an answer arrives or a verifier becomes free
        self._worker: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[bool]] = set()
        self._closed = False

    @property
    def num_waiting(self) -> int:
        return len(self._lines) + len(self._awaiting_shadow)

    def start(self) -> None:
        self._worker = run_forever(self._run, "evaluation of answers")

    def apply(self, rules: EvaluationRules) -> None:
        self._rules = rules

    def capture(self) -> CapturedAnswer:
        """Return an empty capture for an answer that begins now. The caller must submit or drop it."""
        return CapturedAnswer(self.budget, self._rules.answer_bytes)

    def submit(self, finished: FinishedAnswer, shadow: ShadowHandle | None = None) -> None:
        """Queue an answer and its shadow for evaluation, and take ownership of them. Never waits and never raises."""
        self.counters.submitted += 1
        task = EvaluationTask(finished, shadow, self._rules)
        try:
            self._accept(task)
        except Exception:
            self.counters.failed += 1
            _log.error("Failed to queue an answer for evaluation.", exc_info=True)

    async def close(self) -> None:
        """Drop waiting answers and close the current verifiers."""
        if self._closed:
            return
        self._closed = True
        await cancel_tasks(*self._running, *(() if self._worker is None else (self._worker,)))
        waiting = (*(self._lines.pop_oldest() for _ in range(len(self._lines))), *self._awaiting_shadow)
        self._awaiting_shadow.clear()
        for task in waiting:
            if task.shadow is not None:
                task.shadow.cancel()
            self._drop(task)
        await self._rules.verifiers.close()

    def _accept(self, task: EvaluationTask) -> None:
        if self._closed or not self._reserve(task):
            if task.shadow is not None:
                task.shadow.cancel()
            task.drop()
        elif task.shadow is None:
            self._put(task)
        else:
            self._awaiting_shadow.add(task)
            task.shadow.when_done(lambda answer: self._shadow_done(task, answer))

    def _reserve(self, task: EvaluationTask) -> bool:
        """Reserve the task's bytes, dropping older answers if necessary. Return whether they could be reserved."""
        if not task.finished.captured.is_whole:
            self.counters.unread += 1
            return False
        while not self.budget.take(task.num_bytes):
            if not self._lines:
                self.counters.unread += 1
                return False
            self._shed()
        return True

    def _shadow_done(self, task: EvaluationTask, answer: ShadowAnswer | None) -> None:
        task.shadow_answer = answer
        if task not in self._awaiting_shadow:
            task.drop()
            return
        self._awaiting_shadow.discard(task)
        if task.finished.is_sample or answer is not None:
            self._put(task)
        else:
            self._drop(task)

    def _put(self, task: EvaluationTask) -> None:
        self._lines.put(task.line, task)
        while len(self._lines) > self._rules.queue:
            self._shed()
        self._changed.set()

    def _shed(self) -> None:
        task = self._lines.pop_oldest()
        self.counters.shed += 1
        self.counters.shed_shadows += task.shadow_answer is not None and not task.is_compared
        self._drop(task)

    def _drop(self, task: EvaluationTask) -> None:
        self.budget.give(task.num_bytes)
        task.drop()

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while (taken := self._lines.take()) is not None:
                running = asyncio.create_task(self._evaluate(taken[1]), name="evaluate an answer")
                self._running.add(running)
                running.add_done_callback(partial(self._done, *taken, self._clock()))

    async def _evaluate(self, task: EvaluationTask) -> bool:
        try:
            return await self._evaluator.evaluate(task)
        except Exception:
            self.counters.failed += 1
            _log.error("Failed to evaluate an answer.", exc_info=True)
            return False

    def _done(self, line: LineKey, task: EvaluationTask, began: float, running: "asyncio.Task[bool]") -> None:
        """Called when a turn has ended or was cancelled. Queue the task if it needs a second turn, else drop it."""
        self._running.discard(running)
        seconds = self._clock() - began
        self._lines.done(line, seconds)
        self.seconds.setdefault(line, Histogram(VERIFY_SECONDS_BOUNDS)).add(seconds)
        self._changed.set()
        if not running.cancelled() and running.result():
            self._put(task)
        else:
            self._drop(task)


class EvaluationLines:
    """Waiting answers by verifier and specialist. Each verifier evaluates one answer at a time, so that a slow verifier
    delays only its own answers. Of the specialists that share a verifier, the one that has used it least is next."""

    def __init__(self) -> None:
        self._numbers = count()
        self._queues: defaultdict[str, FairQueue[tuple[int, EvaluationTask]]] = defaultdict(FairQueue)
        self._busy: set[str] = set()

    def __len__(self) -> int:
        return sum(len(line) for queue in self._queues.values() for line in queue.waiting.values())

    def put(self, line: LineKey, task: EvaluationTask) -> None:
        self._queues[line.verifier].put(line.specialist, (next(self._numbers), task))

    def take(self) -> tuple[LineKey, EvaluationTask] | None:
        """Return the next waiting answer whose verifier is free, or None. The verifier is busy until `done`."""
        for verifier, queue in self._queues.items():
            if queue.waiting and verifier not in self._busy:
                specialist, (_, task) = queue.pop()
                self._busy.add(verifier)
                return LineKey(verifier, specialist), task
        return None

    def done(self, line: LineKey, seconds: float) -> None:
        self._busy.discard(line.verifier)
        self._queues[line.verifier].charge(line.specialist, seconds)

    def pop_oldest(self) -> EvaluationTask:
        heads = [(line[0], queue, owner) for queue in self._queues.values() for owner, line in queue.waiting.items()]
        head, queue, owner = min(heads, key=lambda each: each[0][0])
        queue.remove(owner, head)
        return head[1]
