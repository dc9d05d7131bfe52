"""What spans of the router say beside their times: OpenTelemetry's words for generative models where it has them, and
Octet's own. Never a word of a prompt or of an answer."""

from octet.sdk.decision import word
from octet.telemetry.span import Value
from octet.v1 import inference_pb2 as wire

_REASONS = {number: word(wire.ErrorReason, number, "ERROR_REASON_") for number in wire.ErrorReason.values()}
_SOURCES = {number: word(wire.DecisionSource, number, "DECISION_SOURCE_") for number in wire.DecisionSource.values()}
_ENDINGS = {number: word(wire.FinishReason, number, "FINISH_REASON_") for number in wire.FinishReason.values()}
PROVIDER = "octet"
OPERATION = "chat"
ADMITTED = "admitted"


def request_attributes(receipt: wire.Receipt) -> dict[str, Value]:
    """Of the whole request."""
    decision, between = receipt.decision, receipt.between
    said: dict[str, Value] = {
        "gen_ai.operation.name": OPERATION,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": decision.primary,
        "gen_ai.response.model": receipt.specialist,
        "octet.request_id": receipt.request_id,
        "octet.specialist": receipt.specialist or decision.primary,
        "octet.shadow.specialist": between.shadow.specialist,
        "octet.adapter.digests": tuple(receipt.lane.adapter_digests),
        "octet.admission.result": admission_result(receipt),
        "octet.breaker": receipt.breaker,
        "octet.correctness": between.correctness,
        "octet.lane": between.lane,
        "octet.instead_of": between.instead_of,
        "error.type": reason(receipt.error.reason),
    }
    said = {name: value for name, value in said.items() if value}
    said["octet.priority"] = receipt.priority
    if between.spilled:
        said["octet.spilled"] = True
    return said | usage_attributes(receipt.usage) if receipt.HasField("usage") else said


def route_attributes(decision: wire.Decision) -> dict[str, Value]:
    said: dict[str, Value] = {
        "octet.decision.source": _SOURCES.get(decision.source, ""),
        "octet.decision.by": decision.decided_by,
        "octet.primary": decision.primary,
        "octet.second_choice": decision.second_choice,
        "octet.intent": decision.intent,
        "octet.task": decision.task,
    }
    said = {name: value for name, value in said.items() if value}
    if decision.HasField("confidence"):
        said["octet.decision.confidence"] = decision.confidence
    return said


def attempt_attributes(attempt: wire.Attempt, receipt: wire.Receipt) -> dict[str, Value]:
    said: dict[str, Value] = {
        "gen_ai.operation.name": OPERATION,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": attempt.specialist,
        "octet.specialist": attempt.specialist,
        "octet.replica": attempt.replica,
    }
    if attempt.reason != wire.ERROR_REASON_UNSPECIFIED:
        return {**said, "error.type": reason(attempt.reason)}
    if receipt.HasField("usage") and attempt.replica == receipt.replica:
        said |= usage_attributes(receipt.usage)
    return said


def usage_attributes(usage: wire.Usage) -> dict[str, Value]:
    said: dict[str, Value] = {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_hit_tokens,
        "gen_ai.response.finish_reasons": (_ENDINGS.get(usage.finish_reason, ""),),
    }
    if usage.times_preempted:
        said["octet.times_preempted"] = usage.times_preempted
    return said


def admission_result(receipt: wire.Receipt) -> str:
    """What the door said: the specialist's, or the router's own where it came no further."""
    if receipt.HasField("accepted"):
        return ADMITTED
    return reason(receipt.error.reason)


def reason(number: int) -> str:
    """Empty where nothing went wrong; a newer replica's is its number."""
    return _REASONS.get(number, str(number))
