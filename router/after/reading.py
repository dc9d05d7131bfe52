"""An answer read again: its text, and what verifiers say of it."""

import asyncio
from dataclasses import dataclass

from octet.v1 import specialist_pb2 as wire
from router.after.kept import Kept
from router.verify.verdict import Outcome, Verifier

LARGE = 8 << 10
"""Bytes of chunks that are read elsewhere: the event loop has others to serve."""


@dataclass(frozen=True, slots=True)
class Reading:
    text: str
    ended: bool
    """By itself: an answer that was cut off is not judged."""


async def read(kept: Kept, usage: wire.Usage) -> Reading | None:
    """None where there is no text to be had."""
    text = await asyncio.to_thread(kept.text) if kept.num_bytes > LARGE else kept.text()
    return None if text is None else Reading(text, usage.finish_reason == wire.FINISH_REASON_STOP)


class Bench:
    """The verdicts on the answers to one question, each asked for once."""

    def __init__(self, question: str) -> None:
        self._question = question
        self._outcomes: dict[tuple[str, str], Outcome] = {}

    async def outcome(self, verifier: Verifier, answer: str) -> Outcome:
        key = (verifier.name, answer)
        if key not in self._outcomes:
            self._outcomes[key] = (await verifier.verify(self._question, answer)).outcome
        return self._outcomes[key]
