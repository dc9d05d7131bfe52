"""What goes along with one request: its answer is kept, its copy is sent. The request itself never notices."""

from collections.abc import Sequence

from octet.v1 import inference_pb2 as wire
from router.after.aftermath import Aftermath
from router.after.capture import Capture
from router.after.sample import Finished
from router.between.way import Way
from router.dispatch.relay import Write
from router.shadow.errand import ShadowErrand
from router.shadow.shadows import Shadows
from router.shadow.ticket import Ticket


class Beside:
    """As a context around the answer: left without `finished`, the shadow is withdrawn and nothing is judged."""

    def __init__(
        self,
        aftermath: Aftermath,
        shadows: Shadows,
        write: Write,
        ways: Sequence[Way],
        *,
        sample: bool,
        errand: ShadowErrand | None = None,
    ) -> None:
        """`write` is the caller's; the relay writes to this one's instead."""
        self._aftermath = aftermath
        self._shadows = shadows
        self._ways = ways
        self._sample = sample
        self._errand = errand
        self._kept = aftermath.keep()
        self._ticket: Ticket | None = None
        self._handed = False
        self.write: Write = Capture(write, self._kept, self._begun).write

    def __enter__(self) -> "Beside":
        return self

    def __exit__(self, *_: object) -> None:
        self._errand = None
        if self._handed:
            return
        self._kept.drop()
        if self._ticket is not None:
            self._ticket.cancel()

    def finished(self, receipt: wire.Receipt, question: str) -> None:
        """The caller has the whole answer."""
        if self._handed or not (self._sample or self._ticket is not None):
            return
        self._handed = True
        way = self._way_to(receipt)
        self._aftermath.hand(Finished(receipt, question, self._kept, way, self._sample), self._ticket)

    def _begun(self, raw: bytes) -> None:
        errand, self._errand = self._errand, None
        if errand is None:
            return
        receipt = wire.InferEvent.FromString(raw).routed
        if self._way_to(receipt).lane_id != errand.order.way.lane_id:
            self._ticket = self._shadows.order(errand, receipt)
        if self._ticket is None and not self._sample:
            self._kept.drop()

    def _way_to(self, receipt: wire.Receipt) -> Way:
        return next((way for way in self._ways if way.specialist == receipt.specialist), Way(receipt.specialist))
