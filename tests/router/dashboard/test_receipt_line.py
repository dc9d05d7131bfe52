"""A receipt that was asked for is the same line as one that the stream has brought."""

from itertools import product

from playwright.sync_api import Page

from octet.rpc.plain import plain
from octet.sdk.receipt import Receipt
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as inference
from router.view.receipt_line import line_of
from tests.router.dashboard import told

_LINES = """async (receipts) => {
  const { lineOf } = await import("/dashboard/receipt_line.js");
  return receipts.map(lineOf);
}"""


def ended() -> list[inference.Receipt]:
    """In every way that there is, before and after something was said."""
    found = [told.receipt("whole")]
    for reason, begun in product(error_pb2.ErrorReason.values(), (False, True)):
        one = told.receipt(f"{reason} {begun}")
        one.error.reason = reason
        if not begun:
            one.timings.ClearField("first_chunk")
            one.ClearField("usage")
        found.append(one)
    return [*found, *sparse()]


def sparse() -> list[inference.Receipt]:
    """What nobody answered, or nobody was asked to."""
    passed_on = told.receipt("nobody answered")
    passed_on.specialist = ""
    kept = told.receipt("the first of two failed")
    kept.specialist, kept.between.spilled = "", False
    kept.attempts[0].specialist = "algo"
    bare = inference.Receipt(request_id="nobody", created_unix_ms=5)
    bare.error.reason = error_pb2.ERROR_REASON_NO_REPLICA
    return [passed_on, kept, bare]


def test_a_line_is_the_same_line_wherever_it_comes_from(still: Page) -> None:
    receipts = ended()
    lines = still.evaluate(_LINES, [Receipt.from_wire(each).to_dict() for each in receipts])
    assert {each["outcome"] for each in lines} == {"answered", "refused", "failed", "cancelled"}
    for line, receipt in zip(lines, receipts, strict=True):
        assert line == plain(line_of(receipt))
