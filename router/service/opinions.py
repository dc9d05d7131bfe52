"""The classifier that an ensemble names, ready to be asked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from octet.clock import Clock
from octet.config.ensemble import Ensemble
from router.classify.open import open_classifier
from router.classify.queue import ClassifierQueue


@asynccontextmanager
async def open_opinions(ensemble: Ensemble, clock: Clock) -> AsyncIterator[ClassifierQueue]:
    """Raises OSError, ValueError for a classifier that cannot be used."""
    config = ensemble.classifier
    classifier = await asyncio.to_thread(open_classifier, ensemble)
    queue = ClassifierQueue(classifier, clock, timeout=config.timeout, cache=config.cache)
    try:
        yield queue
    finally:
        queue.close()
