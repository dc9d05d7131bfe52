"""What a task's verifier makes of a whole answer, for callers that want to know: in bounded time, or not at all."""

import asyncio
from collections.abc import Callable, Mapping

from octet.config.ensemble import CorrectnessConfig
from octet.v1 import inference_pb2 as wire
from router.after.kept import is_chunk
from router.dispatch.relay import Write
from router.receipts.clip import clip
from router.verify.open import open_verifier
from router.verify.verdict import Verdict, Verifier

_BY_TASK = {"json_parsing": "json"}
"""What kinds of task are checked by, where the specialist's own verifier looks at nothing but whether there is an
answer."""
_ANYTHING = "non_empty"
_MARGIN_SECONDS = 0.2
"""Before its deadline an answer is out."""
_NAME = 64
_DETAIL = 160
"""Bytes: a receipt stays small."""


class Overheard:
    """Between the relay and the caller: the text of the chunks is kept, up to a length."""

    def __init__(self, write: Write, most_bytes: int) -> None:
        self._write = write
        self._most_bytes = most_bytes
        self._texts: list[str] = []
        self._num_bytes = 0

    async def write(self, raw: bytes) -> None:
        await self._write(raw)
        if is_chunk(raw) and self._num_bytes <= self._most_bytes:
            text = wire.InferEvent.FromString(raw).chunk.text
            self._num_bytes += len(text.encode())
            self._texts.append(text)

    @property
    def text(self) -> str | None:
        """None: it is longer than what is judged."""
        return "".join(self._texts) if self._num_bytes <= self._most_bytes else None


class Validations:
    """Belongs to the event loop."""

    def __init__(
        self, verifiers: Callable[[], Mapping[str, Verifier]], correctness: CorrectnessConfig, most: int, seconds: float
    ) -> None:
        """`verifiers` by specialist, as they are now. No more than `most` are waited for at once, and none longer than
        `seconds`."""
        self._verifiers = verifiers
        self._by_task = {task: open_verifier(spec, correctness, None) for task, spec in _BY_TASK.items()}
        self._most = most
        self._seconds = seconds
        self._num_waiting = 0

    async def validate(
        self, receipt: wire.Receipt, question: str, answer: str | None, seconds_left: float
    ) -> wire.Validation:
        """Never raises but when it is cancelled. What cannot be judged, or not in time, is skipped."""
        verifier = self._verifiers().get(receipt.specialist)
        if verifier is not None and verifier.name == _ANYTHING:
            verifier = self._by_task.get(receipt.decision.task, verifier)
        name = "none" if verifier is None else verifier.name
        verdict = await self._verdict(
            verifier, receipt, question, answer, min(self._seconds, seconds_left - _MARGIN_SECONDS)
        )
        outcome = verdict.outcome if verdict.outcome in ("passed", "failed") else "skipped"
        return wire.Validation(
            verifier=clip(name, _NAME), outcome=outcome, detail=clip(verdict.why, _DETAIL), seconds=verdict.seconds
        )

    async def close(self) -> None:
        for verifier in self._by_task.values():
            await verifier.close()

    async def _verdict(
        self, verifier: Verifier | None, receipt: wire.Receipt, question: str, answer: str | None, seconds: float
    ) -> Verdict:
        if verifier is None:
            return Verdict("skipped", "its specialist has no verifier any more")
        if answer is None:
            return Verdict("skipped", "the answer is longer than what is judged")
        if receipt.usage.finish_reason != wire.FINISH_REASON_STOP:
            return Verdict("skipped", "the answer was cut off, and a part of one is not judged")
        if self._num_waiting >= self._most:
            return Verdict("skipped", f"{self._most} answers wait for a verdict already")
        self._num_waiting += 1
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                return await verifier.verify(question, answer)
        except TimeoutError:
            return Verdict("skipped", f"there was no verdict within {max(0.0, seconds):.1f} s")
        finally:
            self._num_waiting -= 1
