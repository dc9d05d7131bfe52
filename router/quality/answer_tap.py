"""Capture of an answer on its way to the caller, and the start of its shadow."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from octet.rpc.handlers import CallerGone
from octet.v1 import inference_pb2 as wire
from octet.v1.specialist_pb2 import Structure
from router.dispatch.dispatcher import Write
from router.quality.answers import FinishedAnswer, ShadowHandle, is_chunk
from router.quality.evaluation_queue import EvaluationQueue
from router.quality.shadow import ShadowDispatcher
from router.quality.shadow_copy import OrderedShadow, ShadowTask
from router.routing.dispatch_plan import DispatchPlan

_log = logging.getLogger(__name__)
MOST_CHOOSING = 8  # requests for shadows at the classifier at once, so that they never fill its queue
_LONG_PART_BYTES = 400  # captured bytes; less is not checked if the caller leaves
_ROUTED_TAG = b"\x0a"  # first byte of the event that reports that a replica has accepted the request
ChooseShadow = Callable[[], Awaitable[ShadowTask | None]]


@dataclass(eq=False)
class AnswerTap:
    """Captures one answer on its way to the caller and starts its shadow, without affecting the request. At the end of
    the `with` block, the shadow of an answer that was not submitted by `finished` is cancelled. The answer is submitted
    if its caller left after a long part of it, and dropped otherwise."""

    _evaluation: EvaluationQueue
    _shadows: ShadowDispatcher
    _write: Write  # the caller's writer; the relay uses `self.write` instead
    _plan: DispatchPlan
    ordered: OrderedShadow | None = None
    shadow: ShadowTask | ChooseShadow | None = None
    """The shadow to send or, if the classifier must choose its specialist, what asks the classifier."""
    question: str = ""
    structure: Structure | None = None
    ignores_end: bool = False
    _routed: bytes | None = None
    _began_with: bytes = b""  # the last `_routed` before the first chunk
    _choosing: asyncio.Task[ShadowTask | None] | None = None
    _handle: ShadowHandle | None = None
    _is_submitted: bool = False

    def __post_init__(self) -> None:
        self._captured = self._evaluation.capture()

    def __enter__(self) -> "AnswerTap":
        return self

    def __exit__(self, _: object, error: object, __: object) -> None:
        self.answered()
        if self._is_submitted:
            return
        if self._handle is not None:
            self._handle.cancel()
        has_part = self._captured.is_whole and self._captured.num_bytes >= _LONG_PART_BYTES
        if has_part and self._plan.sample and isinstance(error, (CallerGone, asyncio.CancelledError)):
            self._submit_part()
        else:
            self._captured.drop()

    async def write(self, raw: bytes) -> None:
        """Pass the event to the caller, then capture it. Raises only what the caller's writer raises."""
        await self._write(raw)
        try:
            if raw[:1] == _ROUTED_TAG:
                self._routed = raw
                if callable(self.shadow):
                    self._choose(self.shadow, raw)
            elif is_chunk(raw):
                self._captured.add(raw)
                routed, self._routed = self._routed, None
                if routed is not None:
                    self._begun(routed)
        except Exception:
            _log.error("Failed to capture an answer for evaluation.", exc_info=True)

    def answered(self) -> None:
        """Shed a shadow that was not sent during the answer. Called before the receipt is written."""
        self.shadow = None
        if self.ordered is not None and self._handle is None:
            is_undecided = self._choosing is not None and not self._choosing.done()
            self.ordered.end("shed", "no_choice" if is_undecided else "no_answer")
        if self._choosing is not None:
            self._choosing.cancel()

    def finished(self, receipt: wire.Receipt) -> None:
        """Submit the complete answer for evaluation, once, if it is a sample or has a shadow."""
        if self._is_submitted or not (self._plan.sample or self._handle is not None):
            return
        self._is_submitted = True
        self._evaluation.submit(self._answer(receipt, is_sample=self._plan.sample), self._handle)

    def _submit_part(self) -> None:
        """Submit the part of an answer that the caller got before it left."""
        receipt = wire.InferEvent.FromString(self._began_with).routed
        receipt.usage.finish_reason = wire.FINISH_REASON_CANCELLED
        self._evaluation.submit(self._answer(receipt, is_sample=True))

    def _answer(self, receipt: wire.Receipt, *, is_sample: bool) -> FinishedAnswer:
        candidate, asked = self._plan.candidate(receipt.specialist), (self.structure, self.ignores_end)
        return FinishedAnswer(receipt, self.question, self._captured, candidate, is_sample, *asked)

    def _choose(self, choose: ChooseShadow, raw: bytes) -> None:
        """Ask the classifier in the background, now that a replica computes the answer, unless no shadow may be sent.
        Send the shadow when the specialist is chosen and the answer has begun."""
        self.shadow, ordered = None, self.ordered
        if ordered is None:
            return
        intent = wire.InferEvent.FromString(raw).routed.decision.intent
        is_busy = len(self._shadows.choosing) >= MOST_CHOOSING
        grant = "no_slot" if is_busy else self._shadows.may_send(ordered.order, intent)
        if isinstance(grant, str):
            ordered.end("shed", grant)
            return
        self._choosing = asyncio.create_task(_run(choose), name="choose a shadow")
        self._shadows.choosing.add(self._choosing)
        self._choosing.add_done_callback(self._chosen)

    def _chosen(self, choosing: "asyncio.Task[ShadowTask | None]") -> None:
        self._shadows.choosing.discard(choosing)
        if choosing.cancelled() or self.ordered is None or self.ordered.ending is not None:
            return
        self.shadow = choosing.result()
        if self.shadow is None:
            self.ordered.end("shed", "no_choice")
        if self._began_with:
            self._begun(self._began_with)

    def _begun(self, raw: bytes) -> None:
        """Send the shadow. Called at the first chunk: until then, the request may wait in the replica's queue, and a
        copy would wait, too. `raw` is the earlier event that reported the replica's acceptance."""
        self._began_with = raw
        shadow, self.shadow = self.shadow, None
        if isinstance(shadow, ShadowTask) and self.ordered is not None:
            self.ordered.order = shadow.order
            receipt = wire.InferEvent.FromString(raw).routed
            if self._plan.candidate(receipt.specialist).lane_id == shadow.order.candidate.lane_id:
                self.ordered.end("shed", "same_lane")
            else:
                self._handle = self._shadows.send(shadow, self.ordered, receipt)
        may_be_sent = self.ordered is not None and self.ordered.ending is None
        if not (may_be_sent or self._plan.sample):
            self._captured.drop()


async def _run(choose: ChooseShadow) -> ShadowTask | None:
    try:
        return await choose()
    except Exception:
        _log.error("Failed to choose a shadow.", exc_info=True)
        return None
