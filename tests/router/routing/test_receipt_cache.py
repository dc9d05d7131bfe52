"""Receipts are kept for a limited time, in limited memory."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from octet.clock import ManualClock
from octet.v1 import inference_pb2 as wire
from router.receipt_log import ReceiptCache

MOST, SECONDS, MAX_BYTES = 5, 10.0, 400


class ReceiptCacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.book = ReceiptCache(self.clock, max_receipts=MOST, seconds=SECONDS, max_bytes=MAX_BYTES)
        self.written: dict[str, tuple[float, wire.Receipt]] = {}

    @rule(name=st.sampled_from("abcdefgh"), size=st.integers(0, 150))
    def put(self, name: str, size: int) -> None:
        receipt = wire.Receipt(request_id=name, session_id="s" * size)
        self.book.put(name, receipt.SerializeToString())
        self.written.pop(name, None)
        self.written[name] = (self.clock.now(), receipt)
        while len(self.written) > MOST or self.num_bytes() > MAX_BYTES:
            del self.written[next(iter(self.written))]

    @rule(seconds=st.floats(0, 6))
    def wait(self, seconds: float) -> None:
        self.clock.sleep(seconds)
        now = self.clock.now()
        self.written = {name: kept for name, kept in self.written.items() if now < kept[0] + SECONDS}

    def num_bytes(self) -> int:
        return sum(len(name) + receipt.ByteSize() for name, (_, receipt) in self.written.items())

    @invariant()
    def what_is_kept_is_what_should_be(self) -> None:
        kept = {name: self.book.get(name) for name in "abcdefgh"}
        wanted = {name: receipt for name, (_, receipt) in self.written.items()}
        assert {name: receipt for name, receipt in kept.items() if receipt is not None} == wanted
        assert (len(self.book), self.book.num_bytes) == (len(wanted), self.num_bytes())


TestBook = ReceiptCacheMachine.TestCase


def test_old_sessions_expire_without_requests() -> None:
    clock = ManualClock()
    book = ReceiptCache(clock, max_receipts=10, seconds=1.0)
    for n in range(8):
        book.put(str(n), wire.Receipt(request_id=str(n)).SerializeToString())
    clock.sleep(1.0)
    assert book.get("0") is None
    assert (len(book), book.num_bytes) == (0, 0)
