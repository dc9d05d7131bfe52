"""The classifier off the event loop: cached, in batches, with a time limit and a breaker of its own."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from itertools import islice
from queue import SimpleQueue
from threading import Thread

from admission.breaker import Breaker
from octet.clock import Clock
from router.classify.base import REJECT, Classifier, ClassifierUnavailable, Distribution
from router.classify.sample import sample

_log = logging.getLogger(__name__)
_LONGEST_WHY = 200
"""Characters of another's error message."""
_CLOSED = "it is closed"
_RESTING = "it failed too often and is left alone for a while"
_NO_THREAD = "all of its threads are stuck, or there is none to be had"

Waiter = asyncio.Future[Distribution | str]
"""Ends with an opinion, or with why there is none."""
Outcome = Sequence[Distribution | str]
"""Of a batch, text by text: an opinion, or why there is none."""


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
        self._cache = _Cache(cache)
        self._waiting: dict[bytes, _Job] = {}
        """In the order they came."""
        self._running: _Batch | None = None
        """The one batch somebody waits for. Those that stalled are only known to their workers."""
        self._workers: list[_Worker] = []
        self._closed = False

    @property
    def num_waiting(self) -> int:
        """Texts that no worker has taken yet."""
        return len(self._waiting)

    @property
    def num_workers(self) -> int:
        return len(self._workers)

    def cached(self, text: str) -> Distribution | None:
        return self._cache.get(_key(text))

    async def classify(self, text: str) -> Distribution:
        """Raises ClassifierUnavailable, after the time limit at the latest."""
        key = _key(text)
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

    def _joined(self, key: bytes) -> "_Job | None":
        return self._waiting.get(key) or (self._running.jobs.get(key) if self._running is not None else None)

    def _enqueued(self, key: bytes, text: str) -> "_Job":
        """Raises ClassifierUnavailable."""
        if (why := self._refusal()) is not None:
            raise ClassifierUnavailable(why)
        self._waiting[key] = job = _Job(text)
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

    def _idle(self) -> "_Worker | None":
        for worker in self._workers:
            if not worker.busy:
                return worker
        if len(self._workers) > self.MAX_STUCK:
            return None
        try:
            self._workers.append(_Worker(self._classifier))
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
        self._running = batch = _Batch(jobs, loop, self._landed)
        batch.limit = loop.call_later(self._timeout, self._stalled, batch)
        worker.give(batch)

    def _landed(self, worker: "_Worker", batch: "_Batch", outcome: Outcome) -> None:
        """Once for every batch, be it late."""
        worker.busy = False
        for key, answer in zip(batch.jobs, outcome, strict=True):
            if isinstance(answer, Distribution):
                self._cache.put(key, answer)
        if batch is self._running:
            self._end_running(outcome)

    def _stalled(self, batch: "_Batch") -> None:
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

    def _expire(self, key: bytes, job: "_Job") -> None:
        """It has waited too long, be it for a worker or for the rest of its batch. That is load, not failure."""
        self._forget(key, job)
        job.end(f"no answer within {self._timeout * 1000:g} ms")

    def _leave(self, key: bytes, job: "_Job", waiter: Waiter) -> None:
        job.waiters.remove(waiter)
        if not job.waiters and not job.ended:
            self._forget(key, job)

    def _forget(self, key: bytes, job: "_Job") -> None:
        """A text that nobody waits for is not computed, unless a worker has it already."""
        if self._waiting.get(key) is job:
            del self._waiting[key]
            job.stop_clock()


class _Cache:
    """The opinions asked for last."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._opinions: OrderedDict[bytes, Distribution] = OrderedDict()

    def get(self, key: bytes) -> Distribution | None:
        opinion = self._opinions.get(key)
        if opinion is not None:
            self._opinions.move_to_end(key)
        return opinion

    def put(self, key: bytes, opinion: Distribution) -> None:
        self._opinions[key] = opinion
        self._opinions.move_to_end(key)
        if len(self._opinions) > self._size:
            self._opinions.popitem(last=False)


class _Job:
    """One text and all who wait for an opinion on it."""

    __slots__ = ("ended", "text", "waiters", "waits_until")

    def __init__(self, text: str) -> None:
        self.text = text
        self.waiters: list[Waiter] = []
        self.waits_until: asyncio.TimerHandle | None = None
        """None where a worker took it at once: the batch has a limit itself."""
        self.ended = False

    def end(self, answer: Distribution | str) -> None:
        self.ended = True
        self.stop_clock()
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(answer)

    def stop_clock(self) -> None:
        if self.waits_until is not None:
            self.waits_until.cancel()


class _Batch:
    __slots__ = ("_land", "_loop", "computed", "jobs", "limit")

    def __init__(
        self,
        jobs: dict[bytes, _Job],
        loop: asyncio.AbstractEventLoop,
        land: "Callable[[_Worker, _Batch, Outcome], None]",
    ) -> None:
        self.jobs = jobs
        self.limit: asyncio.TimerHandle | None = None
        self.computed = False
        """Set by the worker; the outcome may still be on its way to the loop."""
        self._loop = loop
        self._land = land

    def end(self, outcome: Outcome) -> None:
        if self.limit is not None:
            self.limit.cancel()
        for job, answer in zip(self.jobs.values(), outcome, strict=True):
            job.end(answer)

    def land(self, worker: "_Worker", outcome: Outcome) -> bool:
        """On the worker's thread. False when the loop is no more."""
        self.computed = True
        try:
            self._loop.call_soon_threadsafe(self._land, worker, self, outcome)
        except RuntimeError:  # closed: nobody is left to be told
            return False
        return True


class _Worker:
    """A thread that computes one batch after another."""

    def __init__(self, classifier: Classifier) -> None:
        self.busy = False
        """From giving a batch until its outcome is on the loop."""
        self._classifier = classifier
        self._labels = frozenset((*classifier.labels, REJECT))
        self._inbox: SimpleQueue[_Batch | None] = SimpleQueue()
        Thread(target=self._run, name="classifier", daemon=True).start()

    def give(self, batch: _Batch) -> None:
        self.busy = True
        self._inbox.put(batch)

    def stop(self) -> None:
        self._inbox.put(None)

    def _run(self) -> None:
        going_on = True
        while going_on:
            going_on = self._run_one()

    def _run_one(self) -> bool:
        """A function of its own, so that an idle worker holds on to no text."""
        batch = self._inbox.get()
        return batch is not None and batch.land(self, self._outcome([job.text for job in batch.jobs.values()]))

    def _outcome(self, texts: Sequence[str]) -> Outcome:
        """A text that makes the classifier fail takes no other with it."""
        answers = self._answers(texts)
        if len(texts) > 1 and isinstance(answers[0], str):
            return [self._answers([text])[0] for text in texts]
        return answers

    def _answers(self, texts: Sequence[str]) -> Outcome:
        """Opinions on all, or on none."""
        try:
            return checked(self._classifier.classify(texts), len(texts), self._labels)
        except BaseException as error:  # whatever it is, callers wait
            _log.debug("the classifier failed", exc_info=True)
            return [f"{type(error).__name__}: {error}"[:_LONGEST_WHY]] * len(texts)


def checked(opinions: Sequence[object], num_texts: int, labels: Collection[str]) -> list[Distribution]:
    """Raises ValueError for what is no opinion on so many texts. What a Distribution promises, it checks itself."""
    good = [opinion for opinion in opinions if isinstance(opinion, Distribution)]
    if not len(good) == len(opinions) == num_texts:
        raise ValueError(f"{len(good)} opinions and {len(opinions) - len(good)} other things on {num_texts} texts")
    if unknown := {label for opinion in good for label, _ in opinion.scores}.difference(labels):
        raise ValueError(f"opinions on labels that it does not have: {', '.join(sorted(unknown))}")
    return good


def _key(text: str) -> bytes:
    return blake2b(sample(text), digest_size=16).digest()
