"""A request in one line."""

from octet.telemetry.outcome import outcome_of, specialist_of
from octet.v1 import inference_pb2 as wire
from octet.v1 import overview_pb2 as overview


def line_of(receipt: wire.Receipt) -> overview.ReceiptLine:
    """A receipt is small whatever its caller sent, and so is this."""
    line = overview.ReceiptLine(
        request_id=receipt.request_id,
        tenant=receipt.tenant,
        at_unix_ms=receipt.created_unix_ms,
        specialist=specialist_of(receipt),
        primary=receipt.decision.primary,
        replica=receipt.replica,
        intent=receipt.decision.intent,
        outcome=outcome_of(receipt),
        reason=receipt.error.reason,
        total=receipt.timings.total,
        completion_tokens=receipt.usage.completion_tokens,
        cache_hit_tokens=receipt.usage.cache_hit_tokens,
        prompt_tokens=receipt.usage.prompt_tokens or receipt.accepted.prompt_tokens,
        times_preempted=receipt.usage.times_preempted,
        spilled=receipt.between.spilled,
        instead_of=receipt.between.instead_of,
        shadow=receipt.between.shadow.specialist,
        attempts=len(receipt.attempts),
    )
    if receipt.timings.HasField("first_chunk"):
        line.ttft = receipt.timings.first_chunk
    if receipt.decision.HasField("confidence"):
        line.confidence = receipt.decision.confidence
    return line
