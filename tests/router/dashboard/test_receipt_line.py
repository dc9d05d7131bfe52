"""A receipt becomes the same table row whether the page fetches it or receives it in the stream."""

from itertools import product

from playwright.sync_api import Page

from octet.client.receipts import Receipt
from octet.rpc.messages import message_to_json
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as inference
from router.observe.overview.traffic import receipt_to_line
from tests.router.dashboard import sample_story

_LINES = """async (receipts) => {
  const { lineOf } = await import("/dashboard/receipt_line.js");
  return receipts.map(lineOf);
}"""


def ended() -> list[inference.Receipt]:
    """Return a normal receipt, receipts with every error reason before and after the first token, and sparse
    receipts."""
    found = [sample_story.receipt("whole")]
    for reason, begun in product(error_pb2.ErrorReason.values(), (False, True)):
        one = sample_story.receipt(f"{reason} {begun}")
        one.error.reason = reason
        if not begun:
            one.timings.ClearField("first_chunk")
            one.ClearField("usage")
        found.append(one)
    return [*found, *sparse()]


def sparse() -> list[inference.Receipt]:
    """Return receipts without an answering specialist."""
    passed_on = sample_story.receipt("no specialist answered")
    passed_on.specialist = ""
    kept = sample_story.receipt("the first of two failed")
    kept.specialist, kept.between.spilled = "", False
    kept.attempts[0].specialist = "algo"
    bare = inference.Receipt(request_id="bare", created_unix_ms=5)
    bare.error.reason = error_pb2.ERROR_REASON_NO_REPLICA
    return [passed_on, kept, bare]


def test_fetched_and_streamed_receipt_lines_are_equal(still: Page) -> None:
    receipts = ended()
    lines = still.evaluate(_LINES, [Receipt.from_wire(each).to_dict() for each in receipts])
    assert {each["outcome"] for each in lines} == {"answered", "refused", "failed", "cancelled"}
    for line, receipt in zip(lines, receipts, strict=True):
        assert line == message_to_json(receipt_to_line(receipt))
