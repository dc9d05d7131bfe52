"""Calls the configured classifier off the event loop: with a cache, batches, a time limit and a breaker."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from admission.breakers import CircuitBreaker
from octet.clock import Clock
from octet.config.ensemble import BUILT_IN_CLASSIFIER, REJECT, Ensemble
from router.routing.classifier.base import Classifier, ClassifierUnavailable, Distribution, sample_text
from router.routing.classifier.examples import ExamplesClassifier

_log = logging.getLogger(__name__)
_CLOSED = "it is shut down"
_RESTING = "it failed too often and is paused"
_NO_THREAD = "no thread is available: all are stuck, or the system refuses another"
_MAX_REASON_CHARS = 200

Waiter = asyncio.Future[Distribution | str]  # the distribution, or the reason why there is none
BatchOutcome = Sequence[Distribution | str]  # per text: a distribution, or the reason why there is none


class ClassifierQueue:
    """Classifies texts on worker threads, for one event loop. Results are cached by the `sample_text` of a text, so the
    classifier must read only this sample. While one call stalls, another thread may call the classifier."""

    MAX_STUCK = 2  # maximum number of threads that may hang in the classifier; one more does the work

    def __init__(
        self,
        classifier: Classifier,
        clock: Clock,
        *,
        timeout: float = 0.25,
        cache: int = 4096,
        max_batch: int = 16,
        max_waiting: int = 256,
        failures: int = 3,
        cool_down: float = 1.0,
        max_cool_down: float = 30.0,
    ) -> None:
        """`timeout` (seconds) limits a caller's wait and a batch's run; `cache` limits the number of cached results."""
        if timeout <= 0 or cache < 0 or min(max_batch, max_waiting) < 1:
            limits = "timeout must be positive, cache at least 0, max_batch and max_waiting at least 1"
            raise ValueError(f"{limits}, got {timeout:g}, {cache}, {max_batch} and {max_waiting}")
        self.digest = classifier.digest
        self._classifier = classifier
        self._breaker = CircuitBreaker(clock, failures=failures, cool_down=cool_down, max_cool_down=max_cool_down)
        self._timeout = timeout
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._cache_size = cache
        self._cache: OrderedDict[bytes, Distribution] = OrderedDict()  # least recently used first
        self._waiting: dict[bytes, ClassifyJob] = {}  # in order of arrival
        self._running: ClassifyBatch | None = None
        """The batch that callers wait for. A stalled batch is known only to its worker."""
        self.workers: list[ClassifierWorker] = []
        self._closed = False

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def cached(self, text: str, tenant: str = "") -> Distribution | None:
        return self._lookup(_cache_key(text, tenant))

    async def classify(self, text: str, tenant: str = "") -> Distribution:
        """Return the distribution of a text. Cached results are shared only within a tenant, so that timing does not
        reveal the texts of other tenants. Raises ClassifierUnavailable, at the latest after the time limit."""
        key = _cache_key(text, tenant)
        if (known := self._lookup(key)) is not None:
            return known
        running = {} if self._running is None else self._running.jobs
        job = self._waiting.get(key) or running.get(key) or self._enqueue(key, text)
        waiter: Waiter = asyncio.get_running_loop().create_future()
        job.waiters.append(waiter)
        try:
            answer = await waiter
        finally:
            job.waiters.remove(waiter)
            if not job.waiters and not job.ended:
                self._forget(key, job)
        if isinstance(answer, str):
            raise ClassifierUnavailable(answer)
        return answer

    def close(self) -> None:
        """Fail every waiter. A hanging worker is abandoned; it does not keep the process alive."""
        self._closed = True
        self._refuse_waiting(_CLOSED)
        self._end_running(_CLOSED)
        for worker in self.workers:
            worker.stop()

    def _lookup(self, key: bytes) -> Distribution | None:
        found = self._cache.get(key)
        if found is not None:
            self._cache.move_to_end(key)
        return found

    def _enqueue(self, key: bytes, text: str) -> "ClassifyJob":
        if (reason := self._refusal_reason()) is not None:
            raise ClassifierUnavailable(reason)
        self._waiting[key] = job = ClassifyJob(text)
        self._start_next()
        if key in self._waiting:
            job.timer = asyncio.get_running_loop().call_later(self._timeout, self._expire, key, job)
        return job

    def _refusal_reason(self) -> str | None:
        """Return why a text may not be enqueued; None if it may. If the breaker is half-open, the text is its probe."""
        if self._closed:
            return _CLOSED
        if not self._breaker.would_allow:
            return _RESTING
        if len(self._waiting) >= self._max_waiting:
            return f"{len(self._waiting)} texts are queued, the limit is {self._max_waiting}"
        if self._running is None and self._idle_worker() is None:
            return _NO_THREAD
        return None if self._breaker.allow() else _RESTING

    def _idle_worker(self) -> "ClassifierWorker | None":
        for worker in self.workers:
            if not worker.busy:
                return worker
        if len(self.workers) > self.MAX_STUCK:
            return None
        try:
            self.workers.append(ClassifierWorker(self._classifier))
        except RuntimeError as error:
            _log.error("cannot start a classifier thread: %s", error)
            return None
        return self.workers[-1]

    def _start_next(self) -> None:
        if self._running is not None or not self._waiting:
            return
        worker = self._idle_worker()
        if worker is None:
            self._refuse_waiting(_NO_THREAD)
            return
        jobs = {key: self._waiting.pop(key) for key in list(islice(self._waiting, self._max_batch))}
        loop = asyncio.get_running_loop()
        self._running = batch = ClassifyBatch(jobs, loop, self._completed)
        batch.timer = loop.call_later(self._timeout, self._stalled, batch)
        worker.start(batch)

    def _completed(self, worker: "ClassifierWorker", batch: "ClassifyBatch", outcome: BatchOutcome) -> None:
        """Handle the outcome of a batch. Called once for every batch, even a late one."""
        worker.busy = False
        for key, answer in zip(batch.jobs, outcome, strict=True):
            if isinstance(answer, Distribution):
                self._cache[key] = answer
                self._cache.move_to_end(key)
                if len(self._cache) > self._cache_size:
                    self._cache.popitem(last=False)
        if batch is self._running:
            self._end_running(outcome)

    def _stalled(self, batch: "ClassifyBatch") -> None:
        if not batch.computed:  # otherwise the event loop is late, not the classifier
            self._end_running(f"it took longer than {self._timeout * 1000:g} ms")

    def _end_running(self, outcome: BatchOutcome | str) -> None:
        """End the running batch. A string as `outcome` is the reason why all its texts failed. One classified text is
        enough for the breaker to count a success."""
        batch, self._running = self._running, None
        if batch is None:
            return
        answers = [outcome] * len(batch.jobs) if isinstance(outcome, str) else outcome
        batch.end(answers)
        if self._closed:
            return
        if any(isinstance(answer, Distribution) for answer in answers):
            self._breaker.succeeded()
        else:
            _log.warning("classification of %d texts failed: %s", len(answers), answers[0])
            self._breaker.failed()
        if self._breaker.state == "closed":
            self._start_next()
        else:
            self._refuse_waiting(_RESTING)

    def _refuse_waiting(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, {}
        for job in waiting.values():
            job.end(reason)

    def _expire(self, key: bytes, job: "ClassifyJob") -> None:
        """Fail a text that was not classified in time. The breaker does not count this: it counts stalled batches."""
        self._forget(key, job)
        job.end(f"no answer within {self._timeout * 1000:g} ms")

    def _forget(self, key: bytes, job: "ClassifyJob") -> None:
        """Drop a text from the queue, unless a worker already has it."""
        if self._waiting.get(key) is job:
            del self._waiting[key]
            job.stop_timer()


@dataclass(eq=False, slots=True)
class ClassifyJob:
    text: str
    waiters: list[Waiter] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None  # None if a worker took the text immediately: the batch's limit applies
    ended: bool = False

    def end(self, answer: Distribution | str) -> None:
        self.ended = True
        self.stop_timer()
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(answer)

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


@dataclass(eq=False, slots=True)
class ClassifyBatch:
    jobs: dict[bytes, ClassifyJob]
    loop: asyncio.AbstractEventLoop
    on_complete: "Callable[[ClassifierWorker, ClassifyBatch, BatchOutcome], None]"
    timer: asyncio.TimerHandle | None = None
    computed: bool = False  # set by the worker; the event loop may not have the outcome yet

    def end(self, outcome: BatchOutcome) -> None:
        if self.timer is not None:
            self.timer.cancel()
        for job, answer in zip(self.jobs.values(), outcome, strict=True):
            job.end(answer)

    def complete(self, worker: "ClassifierWorker", outcome: BatchOutcome) -> bool:
        """Pass the outcome from the worker's thread to the event loop. Return False if the loop is closed."""
        self.computed = True
        try:
            self.loop.call_soon_threadsafe(self.on_complete, worker, self, outcome)
        except RuntimeError:
            return False
        return True


class ClassifierWorker:
    def __init__(self, classifier: Classifier) -> None:
        self.busy = False  # from `start` until the event loop has the outcome
        self._classifier = classifier
        self._labels = frozenset((*classifier.labels, REJECT))
        self._inbox: SimpleQueue[ClassifyBatch | None] = SimpleQueue()
        Thread(target=self._run, name="classifier", daemon=True).start()

    def start(self, batch: ClassifyBatch) -> None:
        self.busy = True
        self._inbox.put(batch)

    def stop(self) -> None:
        self._inbox.put(None)

    def _run(self) -> None:
        while self._run_one():
            pass

    def _run_one(self) -> bool:
        """Handle one batch in a stack frame of its own, so that an idle worker keeps no reference to a text."""
        batch = self._inbox.get()
        return batch is not None and batch.complete(self, self._classify([job.text for job in batch.jobs.values()]))

    def _classify(self, texts: Sequence[str]) -> BatchOutcome:
        """Classify all texts. A text on which the classifier fails does not affect the others."""
        answers = self._try_classify(texts)
        if len(texts) > 1 and isinstance(answers[0], str):
            return [self._try_classify([text])[0] for text in texts]
        return answers

    def _try_classify(self, texts: Sequence[str]) -> BatchOutcome:
        """Return a distribution for every text; if the classifier fails, the same reason for every text."""
        try:
            return check_distributions(self._classifier.classify(texts), len(texts), self._labels)
        except BaseException as error:  # callers wait for an answer, so no exception may escape
            _log.debug("the classifier raised", exc_info=True)
            return [f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARS]] * len(texts)


def check_distributions(answers: Sequence[object], num_texts: int, labels: Collection[str]) -> list[Distribution]:
    """Return the answers. Raises ValueError unless they are one distribution per text, over known labels."""
    good = [answer for answer in answers if isinstance(answer, Distribution)]
    if not len(good) == len(answers) == num_texts:
        others = len(answers) - len(good)
        raise ValueError(f"got {len(good)} distributions and {others} other objects for {num_texts} texts")
    if unknown := {label for each in good for label, _ in each.scores}.difference(labels):
        raise ValueError(f"distributions contain unknown labels: {', '.join(sorted(unknown))}")
    return good


def _cache_key(text: str, tenant: str) -> bytes:
    return blake2b(sample_text(text), digest_size=16, key=tenant.encode()).digest()


class ClassifierMismatch(ValueError):
    """The classifier was trained for specialists that the ensemble lacks."""


def open_classifier(ensemble: Ensemble) -> Classifier:
    """Open the classifier's file or, without a path, build a classifier from examples. Raises OSError or ValueError."""
    path = ensemble.classifier.path
    if path is None:
        return ExamplesClassifier({each.name: (each.describe, each.examples) for each in ensemble.specialists})
    from router.routing.classifier.linear import DEFAULT_FILE, read_classifier

    classifier = read_classifier(DEFAULT_FILE if path == BUILT_IN_CLASSIFIER else Path(path))
    if strangers := [label for label in classifier.labels if label not in (*ensemble.names, REJECT)]:
        raise ClassifierMismatch(
            f"classifier.path {path}: the classifier was trained for {', '.join(strangers)}, which the ensemble "
            f"{ensemble.name} lacks (it has {', '.join(ensemble.names)}); train a classifier for this ensemble, or "
            "remove the path to route by descriptions and examples"
        )
    if unknown := [name for name in ensemble.names if name not in classifier.labels]:
        untrained = "the classifier was not trained for %s, which only rules, intents and force_specialists can choose"
        _log.warning(untrained, ", ".join(unknown))
    return classifier


@asynccontextmanager
async def open_classifier_queue(ensemble: Ensemble, clock: Clock) -> AsyncIterator[ClassifierQueue]:
    """Open a queue for the configured classifier. Raises OSError or ValueError if the classifier cannot be used."""
    config = ensemble.classifier
    classifier = await asyncio.to_thread(open_classifier, ensemble)
    queue = ClassifierQueue(classifier, clock, timeout=config.timeout, cache=config.cache)
    try:
        yield queue
    finally:
        queue.close()
