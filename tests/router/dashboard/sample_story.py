"""The explanation of a request that was spilled, shadowed and evaluated."""

from typing import Any

from octet.client.receipts import Receipt
from octet.client.stages import request_stages
from octet.rpc.messages import message_to_json
from octet.v1 import inference_pb2 as inference
from octet.v1 import operator_pb2 as operator
from tests.router.dashboard.sample_state import NOW_MS, REVISION, audit


def story(request_id: str) -> dict[str, Any]:
    comparison = operator.Comparison(
        request_id=request_id,
        intent="codegen",
        primary="stl",
        shadow="template",
        why="low_confidence",
        primary_outcome="passed",
        shadow_outcome="failed",
        similarity=0.64,
        agreed=False,
    )
    found = Receipt.from_wire(receipt(request_id))
    return {
        "receipt": found.to_dict(),
        "stages": request_stages(found).to_dict(),
        "comparison": message_to_json(comparison),
        "judged": "passed",
        "judged_kind": "verifier",
        "judged_why": "",
        "changes": [message_to_json(entry) for entry in audit()[:2]],
    }


def receipt(request_id: str) -> inference.Receipt:
    lane = inference.Lane(specialist="stl", revision=REVISION, adapter_digests=["9f2e" * 16])
    return inference.Receipt(
        request_id=request_id,
        decision=_decision(),
        specialist="stl",
        replica="stl-0",
        lane=lane,
        attempts=[
            inference.Attempt(
                specialist="template",
                replica="template-1",
                reason=inference.ERROR_REASON_QUEUE_FULL,
                message="16 requests wait, which is all there is room for",
                began=0.009,
                seconds=0.021,
            ),
            inference.Attempt(specialist="stl", replica="stl-0", began=0.031, seconds=1.481),
        ],
        accepted=inference.Accepted(
            request_id=request_id,
            lane=lane,
            prompt_tokens=403,
            queue_position=2,
            max_tokens=512,
            forecast=inference.Forecast(wait=0.08, total=1.62, slack=17.9, set_aside=1),
        ),
        usage=_usage(),
        timings=inference.RouterTimings(
            decided=0.006, dispatched=0.009, accepted=0.034, first_chunk=0.241, answered=1.511, total=1.512
        ),
        breaker="closed",
        trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
        created_unix_ms=NOW_MS - 2190,
        priority=5,
        between=inference.Between(
            correctness="closed",
            instead_of="template",
            why="template had no room: queue_full",
            lane="serving",
            shadow=inference.ShadowOrder(
                specialist="template", why="low_confidence", outcome="sent", replica="template-0"
            ),
            shadow_threshold=0.5,
            priority_floor=0,
            knobs_by="escalation",
            spilled=True,
        ),
    )


def _decision() -> inference.Decision:
    shares = (("template", 0.46), ("stl", 0.39), ("algo", 0.09), ("reject", 0.06))
    return inference.Decision(
        source=inference.DECISION_SOURCE_CLASSIFIER,
        decided_by="c1a5",
        why="the classifier takes it for template (0.46), then stl (0.39)",
        primary="template",
        second_choice="stl",
        distribution=[inference.Score(specialist=name, probability=share) for name, share in shares],
        confidence=0.46,
        intent="codegen",
        task="code_generation",
        max_tokens=512,
        notes=["rule 'sfinae-heavy' did not match"],
        config_digest="77aa" * 16,
    )


def _usage() -> inference.Usage:
    return inference.Usage(
        finish_reason=inference.FINISH_REASON_STOP,
        prompt_tokens=403,
        completion_tokens=117,
        cache_hit_tokens=192,
        times_preempted=1,
        timings=inference.Timings(queued=0.061, prefill=0.142, decode=1.263, total=1.474),
    )
