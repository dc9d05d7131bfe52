"""The thread that asks the classifier."""

import logging
from collections.abc import Collection, Sequence
from queue import SimpleQueue
from threading import Thread

from router.classify.base import REJECT, Classifier, Distribution
from router.classify.batch import Batch, Outcome

_log = logging.getLogger(__name__)
_LONGEST_WHY = 200
"""Characters of another's error message."""


class Worker:
    """A thread that computes one batch after another."""

    def __init__(self, classifier: Classifier) -> None:
        self.busy = False
        """From giving a batch until its outcome is on the loop."""
        self._classifier = classifier
        self._labels = frozenset((*classifier.labels, REJECT))
        self._inbox: SimpleQueue[Batch | None] = SimpleQueue()
        Thread(target=self._run, name="classifier", daemon=True).start()

    def give(self, batch: Batch) -> None:
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
