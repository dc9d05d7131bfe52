"""The classifier off the event loop: cached, in batches, with a time limit and a breaker of its own."""

import asyncio
import logging
from hashlib import blake2b
from itertools import islice

from admission.breaker import Breaker
from octet.clock import Clock
from router.classify.base import Classifier, ClassifierUnavailable, Distribution
from router.classify.batch import Batch, Job, Outcome, Waiter
from router.classify.cache import OpinionCache
from router.classify.sample import sample
from router.classify.worker import Worker

_log = logging.getLogger(__name__)
_CLOSED = "it is closed"
_RESTING = "it failed too often and is left alone for a while"
_NO_THREAD = "all of its threads are stuck, or there is none to be had"


class ClassifierQueue:
    """Everything but the worker threads runs on one event loop.

    Two texts with the same sample get the same opinion: a classifier must read no more of a text than
    `router.classify.sample` does. After a stall it may be called on a second thread while the first call goes on.
    """

    MAX_STUCK = 2
    """Threads that may hang in the classifier for good; one more does the work."""

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
        """`timeout` (seconds) holds for a caller's wait and for a batch; `cache` counts opinions, 0 keeps none."""
        if timeout <= 0 or cache < 0 or min(max_batch, max_waiting) < 1:
            raise ValueError(f"out of range: {timeout=:g} (> 0), {cache=} (>= 0), {max_batch=}, {max_waiting=} (>= 1)")
        self.digest = classifier.digest
        self._classifier = classifier
        self._breaker = Breaker(clock, failures=failures, cool_down=cool_down, max_cool_down=max_cool_down)
        self._timeout = timeout
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._cache = OpinionCache(cache)
        self._waiting: dict[bytes, Job] = {}
        """In the order they came."""
        self._running: Batch | None = None
        """The one batch somebody waits for. Those that stalled are only known to their workers."""
        self._workers: list[Worker] = []
        self._closed = False

    @property
    def num_waiting(self) -> int:
        """Texts that no worker has taken yet."""
        return len(self._waiting)

    @property
    def num_workers(self) -> int:
        return len(self._workers)

    def cached(self, text: str, tenant: str = "") -> Distribution | None:
        return self._cache.get(_key(text, tenant))

    async def classify(self, text: str, tenant: str = "") -> Distribution:
        """Opinions are shared within a tenant: how long one takes tells nobody what others have asked.

        Raises ClassifierUnavailable, after the time limit at the latest."""
        key = _key(text, tenant)
        if (known := self._cache.get(key)) is not None:
            return known
        job = self._joined(key) or self._enqueued(key, text)
        waiter: Waiter = asyncio.get_running_loop().create_future()
        job.waiters.append(waiter)
        try:
            answer = await waiter
        finally:
            self._leave(key, job, waiter)
        if isinstance(answer, str):
            raise ClassifierUnavailable(answer)
        return answer

    def close(self) -> None:
        """Whoever waits is told so. A worker that hangs is left behind; it does not keep the process."""
        self._closed = True
        self._refuse_waiting(_CLOSED)
        self._end_running(_CLOSED)
        for worker in self._workers:
            worker.stop()

    def _joined(self, key: bytes) -> Job | None:
        return self._waiting.get(key) or (self._running.jobs.get(key) if self._running is not None else None)

    def _enqueued(self, key: bytes, text: str) -> Job:
        """Raises ClassifierUnavailable."""
        if (why := self._refusal()) is not None:
            raise ClassifierUnavailable(why)
        self._waiting[key] = job = Job(text)
        self._start_next()
        if key in self._waiting:
            job.waits_until = asyncio.get_running_loop().call_later(self._timeout, self._expire, key, job)
        return job

    def _refusal(self) -> str | None:
        """Why nothing new is taken now. Without one, a probe counts as begun."""
        if self._closed:
            return _CLOSED
        if not self._breaker.would_allow:
            return _RESTING
        if len(self._waiting) >= self._max_waiting:
            return f"{len(self._waiting)} texts wait for it already"
        if self._running is None and self._idle() is None:
            return _NO_THREAD
        return None if self._breaker.allow() else _RESTING

    def _idle(self) -> Worker | None:
        for worker in self._workers:
            if not worker.busy:
                return worker
        if len(self._workers) > self.MAX_STUCK:
            return None
        try:
            self._workers.append(Worker(self._classifier))
        except RuntimeError as error:  # the system gives no more threads
            _log.error("no thread for the classifier: %s", error)
            return None
        return self._workers[-1]

    def _start_next(self) -> None:
        if self._running is not None or not self._waiting:
            return
        worker = self._idle()
        if worker is None:
            self._refuse_waiting(_NO_THREAD)
            return
        jobs = {key: self._waiting.pop(key) for key in list(islice(self._waiting, self._max_batch))}
        loop = asyncio.get_running_loop()
        self._running = batch = Batch(jobs, loop, self._landed)
        batch.limit = loop.call_later(self._timeout, self._stalled, batch)
        worker.give(batch)

    def _landed(self, worker: Worker, batch: Batch, outcome: Outcome) -> None:
        """Once for every batch, be it late."""
        worker.busy = False
        for key, answer in zip(batch.jobs, outcome, strict=True):
            if isinstance(answer, Distribution):
                self._cache.put(key, answer)
        if batch is self._running:
            self._end_running(outcome)

    def _stalled(self, batch: Batch) -> None:
        if not batch.computed:  # else the loop is late, not the classifier
            self._end_running(f"it took longer than {self._timeout * 1000:g} ms")

    def _end_running(self, outcome: Outcome | str) -> None:
        """With one word for all where there is no outcome. One opinion shows that the classifier works."""
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
            _log.warning("no opinion on %d texts: %s", len(answers), answers[0])
            self._breaker.failed()
        if self._breaker.state == "closed":
            self._start_next()
        else:
            self._refuse_waiting(_RESTING)

    def _refuse_waiting(self, why: str) -> None:
        waiting, self._waiting = self._waiting, {}
        for job in waiting.values():
            job.end(why)

    def _expire(self, key: bytes, job: Job) -> None:
        """It has waited too long, be it for a worker or for the rest of its batch. That is load, not failure."""
        self._forget(key, job)
        job.end(f"no answer within {self._timeout * 1000:g} ms")

    def _leave(self, key: bytes, job: Job, waiter: Waiter) -> None:
        job.waiters.remove(waiter)
        if not job.waiters and not job.ended:
            self._forget(key, job)

    def _forget(self, key: bytes, job: Job) -> None:
        """A text that nobody waits for is not computed, unless a worker has it already."""
        if self._waiting.get(key) is job:
            del self._waiting[key]
            job.stop_clock()


def _key(text: str, tenant: str) -> bytes:
    return blake2b(sample(text), digest_size=16, key=tenant.encode()).digest()
